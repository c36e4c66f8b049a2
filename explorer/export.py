"""Export: records as CSV and JSON lines, charts as PNG and SVG, and a record as a script that needs only JAX."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from explorer import plain, record
from explorer.problem import Problem
from explorer.record import Record
from explorer.sensors import BUSY_MS, REST, SHORT_MS

PNG_SCALE = 2.0


def to_csv(records: Iterable[Record]) -> str:
    """One row a record; what is missing is an empty cell, never 0."""
    return rows_to_csv(record.rows(records))


def rows_to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def rows_to_json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(record.finite(dict(row)), allow_nan=False) + "\n" for row in rows)


def to_json_lines(records: Iterable[Record]) -> str:
    return "".join(record.line(each) + "\n" for each in records)


def to_png(chart: dict[str, Any]) -> bytes:
    """A Vega-Lite chart (its dict) as an image. vl-convert is imported here only: it is large."""
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(chart, scale=PNG_SCALE))


def to_svg(chart: dict[str, Any]) -> str:
    import vl_convert

    return str(vl_convert.vegalite_to_svg(chart))


NAIVE = """\
def attend(q, k, v):
    group = q.shape[2] // k.shape[2]
    q, k, v = (jnp.transpose(x, (0, 2, 1, 3)) for x in (q, k, v))
    if group > 1:
        k, v = jnp.repeat(k, group, axis=1), jnp.repeat(v, group, axis=1)
    scores = jnp.einsum("bnth,bnsh->bnts", q, k) * (q.shape[-1] ** -0.5)
{mask}    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.transpose(jnp.einsum("bnts,bnsh->bnth", weights, v), (0, 2, 1, 3))
"""
SDPA = """\
def attend(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, {options}implementation={implementation!r})
"""
BACKWARD = """\
def both(q, k, v, g):
    out, pull = jax.vjp(attend, q, k, v)
    return out, *pull(g)
"""
SCRIPT = '''\
"""{title}

Recorded: {recorded}. Needs JAX{needs}. Prints this machine's beside it.
"""
import os, statistics, time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import jax, jax.numpy as jnp, ml_dtypes, numpy as np
{precision}
WARMUP, REPEATS, PAUSE_S = {warmup}, {repeats}, {pause_s}  # mode {mode!r}
shapes = {shapes}


{attend}

def draw(shape, index):  # the same numbers on every machine
    array = np.random.default_rng(({seed}, index)).standard_normal(shape, np.float32){scale}
    return jax.device_put(array.astype({dtype}))


arrays = jax.block_until_ready([draw(shape, i) for i, shape in enumerate(shapes)])
start = time.perf_counter()
call = jax.jit({function}).lower(*arrays).compile()
print(f"compiled in {{time.perf_counter() - start:.2f}} s on {{jax.devices()[0].device_kind}}, JAX {{jax.__version__}}")
times, load = [], 0.0
for i in range(WARMUP + REPEATS):
    start = time.perf_counter()
    jax.block_until_ready(call(*arrays))
    took = time.perf_counter() - start
    if i >= WARMUP:
        times.append(1e3 * took)
    load += took  # burst mode rests, so that the clock does not fall under load
    if PAUSE_S and (took >= {short_s} or load >= {busy_s}):
        time.sleep(min(PAUSE_S, {rest} * load))
        load = 0.0
low, high = np.percentile(times, (10, 90))
print(f"wall median {{statistics.median(times):.4f}} ms of {{len(times)}} calls, p10 {{low:.4f}}, p90 {{high:.4f}}")
print("recorded    {recorded_ms:.4f} ms of {repeats} calls, p10 {recorded_p10_ms:.4f}, p90 {recorded_p90_ms:.4f}")
'''


def script(made: Record) -> str:
    """A Python script of under 60 lines that times the same call in the same way, without this package.

    Raises ValueError for a record without times, or whose inputs or backend need more than JAX.
    """
    p, timing = made.problem, made.timing
    if timing is None:
        raise ValueError(f"a script needs a record with times, got status {made.status}")
    if p.inputs != "normal":
        raise ValueError(f"a script is there for inputs 'normal', got {p.inputs!r}")
    on_gpu = made.environment.get("platform") == "gpu"
    shapes = [p.q_shape, p.kv_shape, p.kv_shape, *([p.q_shape] if p.backward else [])]
    precision = made.environment.get("matmul_precision") or "default"
    return SCRIPT.format(
        title=f"{made.backend}: {p}.",
        recorded=_quoted(
            f"{timing.wall_ms.median:.4f} ms (wall, {timing.mode}) on {made.where}, {(made.time or '')[:10]}"
        ),
        needs=" with CUDA and cuDNN" if made.backend == "cudnn" else " with CUDA" if on_gpu else "",
        precision=""
        if precision == "default"
        else f"jax.config.update('jax_default_matmul_precision', {precision!r})\n",
        warmup=timing.warmup,
        repeats=len(timing.wall_ms.values),
        pause_s=0.3 if timing.mode == "burst" and on_gpu else 0,
        mode=timing.mode,
        shapes=shapes,
        attend=_attend(made.backend, p) + (f"\n\n{BACKWARD}" if p.backward else ""),
        seed=p.seed,
        scale="" if p.input_scale == 1.0 else f" * np.float32({p.input_scale} if index < 2 else 1)",
        dtype="ml_dtypes.bfloat16" if p.dtype == "bfloat16" else f"np.{p.dtype}",
        function="both" if p.backward else "attend",
        short_s=SHORT_MS / 1e3,
        busy_s=BUSY_MS / 1e3,
        rest=REST,
        recorded_ms=timing.wall_ms.median,
        recorded_p10_ms=timing.wall_ms.p10,
        recorded_p90_ms=timing.wall_ms.p90,
    )


def _quoted(text: str) -> str:
    """For the script's docstring: a file's own words must not end it and go on as code."""
    return plain.line(text).replace("\\", "/").replace('"', "'")


def _attend(backend: str, p: Problem) -> str:
    if backend == "naive":
        return NAIVE.format(mask=_naive_mask(p))
    if backend in ("auto", "xla", "cudnn"):
        options: list[str] = []
        if p.causal:
            options.append("is_causal=True")
        if p.window is not None:
            options.append(f"local_window_size={p.window}")
        if p.kv_valid is not None:
            options.append(f"key_value_seq_lengths=jnp.full(({p.batch},), {p.kv_valid}, jnp.int32)")
        name = None if backend == "auto" else backend
        return SDPA.format(options="".join(f"{o}, " for o in options), implementation=name)
    raise ValueError(f"a script is there for naive, auto, xla and cudnn, got {backend}")


def _naive_mask(p: Problem) -> str:
    conditions: Sequence[str] = [
        *(["j <= i"] if p.causal else []),
        *([f"j >= i - {p.window[0]}", f"j <= i + {p.window[1]}"] if p.window is not None else []),
        *([f"j < {p.kv_valid}"] if p.kv_valid is not None else []),
    ]
    if not conditions:
        return ""
    seen = " & ".join(f"({c})" for c in conditions)
    return (
        f"    i, j = jnp.arange({p.q_len})[:, None], jnp.arange({p.kv_len})[None, :]\n"
        f"    scores = jnp.where({seen}, scores, jnp.array(-jnp.inf, scores.dtype))\n"
    )
