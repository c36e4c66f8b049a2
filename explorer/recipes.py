"""recipes: the lab's FP8 table. Each way that takes an FP8 recipe, what came out, and which kernels really ran.

TransformerEngine's attention alone, its MultiHeadAttention (where a recipe does act: on the projections' matrix
products), and cuDNN's FP8 attention, each against itself without FP8. Runs in the worker.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from explorer import backends, clock, device, evidence, measure, trace
from explorer.backends import transformer_engine
from explorer.clock import Protocol
from explorer.device import Device
from explorer.masks import Mask
from explorer.problem import Problem
from explorer.sensors import Sensors

PROTOCOL = Protocol(warmup=2, repeats=20, limit_s=3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One row of the table. base: the row it is compared with; recipe: TransformerEngine's, by name."""

    name: str
    label: str
    backend: str  # whose rules decide whether it can run
    layer: bool = False  # with the projections around the attention
    recipe: str | None = None
    base: str | None = None


WAYS: tuple[Way, ...] = (
    Way(name="te", label="TE DotProductAttention", backend="transformer_engine"),
    *(
        Way(
            name=f"te {recipe}",
            label=f"TE DotProductAttention, {recipe}",
            backend="transformer_engine_fp8",
            recipe=recipe,
            base="te",
        )
        for recipe in transformer_engine.RECIPES
    ),
    Way(name="te layer", label="TE MultiHeadAttention", backend="transformer_engine", layer=True),
    *(
        Way(
            name=f"te layer {recipe}",
            label=f"TE MultiHeadAttention, {recipe}",
            backend="transformer_engine_fp8",
            layer=True,
            recipe=recipe,
            base="te layer",
        )
        for recipe in transformer_engine.RECIPES
    ),
    Way(name="cudnn", label="cuDNN", backend="cudnn"),
    Way(name="cudnn_fp8", label="cuDNN FP8", backend="cudnn_fp8", base="cudnn"),
)


def compare(
    problem: Problem,
    *,
    protocol: Protocol = PROTOCOL,
    ways: tuple[Way, ...] = WAYS,
    report: Callable[..., None] = measure.silent,
    cancelled: Callable[[], bool] = measure.never,
) -> Iterator[dict[str, Any]]:
    """A row for each way, as each is done: plain data. problem: forward, 16-bit."""
    here = device.here()
    outputs: dict[str, np.ndarray] = {}
    for done, way in enumerate(ways):
        report(done, len(ways), way.label)
        yield one(problem, way, here, protocol, outputs, cancelled)
        if cancelled():
            return
    report(len(ways), len(ways), "done")


def one(
    problem: Problem,
    way: Way,
    here: Device,
    protocol: Protocol,
    outputs: dict[str, np.ndarray],
    cancelled: Callable[[], bool],
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "way": way.name,
        "label": way.label,
        "layer": way.layer,
        "recipe": way.recipe,
        "gpu": here.name,
        "input_dtype": problem.dtype,
        "problem": problem.to_json(),
    }
    reason = backends.BACKENDS[way.backend].why_not(problem, here)
    if reason is not None:
        return row | {"status": "refused", "reason": reason}
    try:
        return row | run(problem, way, protocol, outputs, cancelled)
    except clock.Cancelled:
        return row | {"status": "cancelled", "reason": "cancelled before it was done"}
    except NotImplementedError as error:
        return row | {"status": "refused", "reason": str(error)}
    except Exception as error:  # noqa: BLE001 - as in measure: one way's error is its row, and the others go on
        return row | {"status": "failed", "reason": measure.first_line(error)}


def run(
    problem: Problem, way: Way, protocol: Protocol, outputs: dict[str, np.ndarray], cancelled: Callable[[], bool]
) -> dict[str, Any]:
    """Compile, run, compare with the way's base, time, trace."""
    import jax

    _, arguments = measure.inputs_of(problem)
    if way.layer:
        function, variables = layer(problem, way.recipe, arguments[0])
        given: tuple[Any, ...] = (variables, arguments[0].reshape(*problem.q_shape[:2], -1))
    elif way.backend.startswith("transformer_engine"):
        function, given = functools.partial(attention_under, mask=problem.mask, recipe=way.recipe), arguments
    else:
        function, given = measure.function_of(problem, way.backend), arguments
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), given)
    build = clock.build(function, list(shapes))
    out = clock.wait(build.call(*given))
    outputs[way.name] = np.asarray(out)
    difference = compared(outputs, way)
    sensors = Sensors()
    sets = itertools.cycle([given])
    wall, _ = clock.steady(build.call, sets, protocol, cancelled=cancelled, sensors=sensors)
    taken = trace.take(build.call, sets, calls=protocol.trace_calls, cancelled=cancelled)
    ran = evidence.kernels(taken.events)
    attention = [k for k in ran if evidence.ATTENTION_KERNEL.search(k["name"])]
    products = [k for k in ran if k not in attention and evidence.PRODUCT_KERNEL.search(k["name"])]
    on_device = taken.samples()
    kernel = taken.samples(lambda name: bool(evidence.ATTENTION_KERNEL.search(name))) if attention else None

    def precision(some: list[dict[str, Any]]) -> str | None:
        return evidence.precision(problem.dtype, some, on_gpu=True) if some else None

    return {
        "status": "ok",
        "reason": None,
        "output_dtype": str(out.dtype),
        "shape": list(out.shape),
        **difference,
        "custom_calls": evidence.custom_calls(build.program),
        "attention_kernels": attention,
        "product_kernels": products,
        "attention_precision": precision(attention),
        "product_precision": precision(products),
        "kernels": ran,
        "wall_ms": wall.to_json(),
        "device_ms": on_device.to_json() if on_device else None,
        "kernel_ms": kernel.to_json() if kernel else None,
    }


def attention_under(q: Any, k: Any, v: Any, *, mask: Mask, recipe: str | None) -> Any:
    """TransformerEngine's attention alone, under a recipe or none."""
    with transformer_engine.under(recipe):
        return transformer_engine.attend(q, k, v, mask=mask)


def compared(outputs: dict[str, np.ndarray], way: Way) -> dict[str, Any]:
    """Against the way's base: every bit equal, and the largest difference; None where there is nothing to compare."""
    ours, theirs = outputs[way.name], outputs.get(way.base or "")
    if theirs is None:
        return {"bitwise_equal": None, "max_abs_difference": None}
    off = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    return {
        "bitwise_equal": ours.tobytes() == theirs.tobytes(),
        "max_abs_difference": float(off.max()) if np.isfinite(off).all() else None,
    }


def layer(problem: Problem, recipe: str | None, q: Any) -> tuple[Callable[..., Any], Any]:
    """te.flax.MultiHeadAttention on q as the hidden states, and its variables: the same weights under every recipe."""
    import jax
    from transformer_engine.jax.flax import MultiHeadAttention  # pyright: ignore[reportMissingImports]

    module = MultiHeadAttention(
        head_dim=problem.head_dim,
        num_attention_heads=problem.heads,
        num_gqa_groups=problem.kv_heads,
        attention_dropout=0.0,
        input_layernorm=False,
        attn_mask_type="causal" if problem.causal else "no_mask",
        dtype=q.dtype,
        scale_attn_logits=True,
        transpose_batch_sequence=False,
    )
    hidden = q.reshape(*q.shape[:2], -1)
    with transformer_engine.under(recipe):
        variables = jax.jit(lambda x: module.init(jax.random.PRNGKey(0), x, x, deterministic=True))(hidden)

    def call(variables: Any, x: Any) -> Any:
        with transformer_engine.under(recipe):
            return module.apply(variables, x, x, deterministic=True)[0]  # and the layer norm's output, or x

    return call, variables


def table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The lab's table as it is shown: a line for each way with FP8, beside the same way without; the kernels that ran.

    Times are kept out of it: of a layer's output nobody knows the exact value, so it was compared, not checked.
    """
    by_way = {row["way"]: row for row in rows}
    shown = []
    for way in WAYS:
        row = by_way.get(way.name)
        if way.base is None or row is None:
            continue
        base = by_way.get(way.base, {})
        ran = row.get("attention_precision")
        shown.append(
            {
                "way": row["label"],
                "attention ran in": ran,
                "max difference": row.get("max_abs_difference"),
                "what came of it": came_of(row),
                "attention kernel": _names(row.get("attention_kernels")),
                "products ran in": row.get("product_precision") if way.layer else "(has none)",
                "GPU": row["gpu"],
                "input dtype": row["input_dtype"],
                "output dtype, plain": base.get("output_dtype"),
                "output dtype, FP8": row.get("output_dtype"),
                "shape": str(tuple(row["shape"])) if row.get("shape") else None,
            }
        )
    return shown


def came_of(row: Mapping[str, Any]) -> str:
    """One way's outcome in words."""
    if row["status"] != "ok":
        return f"{row['status']}: {row['reason']}"
    attention, products = row.get("attention_precision"), row.get("product_precision")
    if row["bitwise_equal"]:
        return f"accepted, and without effect: every bit as without it, attention in {attention or 'an unknown format'}"
    if attention == "fp8":
        return "; ".join(filter(None, ("attention in FP8", row.get("doubt"))))
    if row["layer"] and products == "fp8":
        return f"the projections in FP8, attention in {attention or 'an unknown format'}"
    return "another output, but no kernel's name says FP8"


def _names(kernels: Sequence[Mapping[str, Any]] | None) -> str | None:
    return ", ".join(kernel["name"] for kernel in kernels) if kernels else None


def code(problem: Problem) -> str:
    """The lab's step 13 for this problem, as it would be typed where the GPU has FP8."""
    p = problem
    mask = "causal" if p.causal else "no_mask"
    return f"""import jax
import jax.numpy as jnp
import transformer_engine.jax as te
from transformer_engine.common.recipe import DelayedScaling, Format
from transformer_engine.jax.flax import DotProductAttention

keys = jax.random.split(jax.random.key({p.seed}), 3)
q = jax.random.normal(keys[0], {p.q_shape}, jnp.{p.dtype})
k, v = (jax.random.normal(key, {p.kv_shape}, jnp.{p.dtype}) for key in keys[1:])
attention = DotProductAttention(
    head_dim={p.head_dim}, num_attention_heads={p.heads}, num_gqa_groups={p.kv_heads},
    attn_mask_type="{mask}", transpose_batch_sequence=False,
)
recipe = DelayedScaling(margin=0, fp8_format=Format.HYBRID, amax_history_len=1024, amax_compute_algo="max")
with te.autocast(enabled=True, recipe=recipe):
    out = attention.apply({{}}, q, k, v, deterministic=True)
print(out.dtype, out.shape)  # and the kernel that ran: jax.profiler.trace tells
"""
