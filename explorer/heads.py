"""Heads: which query head reads which key/value head, what that saves in the KV cache, and what a decode step takes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from explorer import backends, clock, cost, device, measure
from explorer.clock import Protocol
from explorer.problem import PRESETS, Problem, divisors
from explorer.record import Record
from explorer.sweep import Point

LAB = Problem(batch=2, q_len=64, kv_len=64, heads=8, kv_heads=8, head_dim=64, dtype="bfloat16")  # the lab's step 11
LAB_KV_HEADS = (8, 2, 1)
CACHE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}
GIB, GB = 2**30, 10**9


def mapping(heads: int, kv_heads: int) -> list[tuple[int, int]]:
    """(query head, key/value head it reads): neighbours share; raises ValueError."""
    if kv_heads < 1 or heads % kv_heads:
        fits = ", ".join(map(str, divisors(heads)))
        raise ValueError(f"kv_heads must divide heads={heads}, got {kv_heads}; one of {fits} would do")
    return [(n, n // (heads // kv_heads)) for n in range(heads)]


# --- the KV cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What a model's KV cache and weights depend on. kv_heads are key/value heads, never groups."""

    label: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    parameters: float
    source: str


_PARAMETERS = {  # all of them, embeddings included, from the model cards
    "gpt2": (124e6, "openai/gpt-2, README: 124M"),
    "llama3-8b": (8.03e9, "Meta-Llama-3-8B model card: 8.03B"),
    "llama3-70b": (70.6e9, "Meta-Llama-3-70B model card: 70.6B"),
    "gemma2-9b": (9.24e9, "google/gemma-2-9b model card: 9.24B; here as if every layer kept the whole context"),
    "qwen2.5-7b": (7.62e9, "Qwen/Qwen2.5-7B model card: 7.61B"),
}


def _model(name: str) -> Model:
    preset, (parameters, source) = PRESETS[name], _PARAMETERS[name]
    p = preset.problem
    return Model(
        label=preset.label, layers=preset.layers or 1, heads=p.heads, kv_heads=p.kv_heads, head_dim=p.head_dim,
        parameters=parameters, source=f"{preset.source}; {source}",
    )  # fmt: skip


MODELS: dict[str, Model] = {
    "llama3-8b": _model("llama3-8b"),
    "llama3-70b": _model("llama3-70b"),
    "llama2-7b": Model(
        label="Llama-2 7B", layers=32, heads=32, kv_heads=32, head_dim=128, parameters=6.74e9,
        source="Touvron et al., Llama 2 (2023), table 1 and appendix A.2.1; model card: 6.74B",
    ),
    "gemma2-9b": _model("gemma2-9b"),
    "qwen2.5-7b": _model("qwen2.5-7b"),
    "gpt2": _model("gpt2"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The KV cache of a model: keys and values of every layer, for every token of every sequence."""

    layers: int
    kv_heads: int
    head_dim: int
    item_bytes: int

    @classmethod
    def of(cls, model: Model, dtype: str, *, kv_heads: int | None = None, layers: int | None = None) -> Cache:
        if dtype not in CACHE_BYTES:
            raise ValueError(f"cache dtype must be one of {', '.join(CACHE_BYTES)}, got {dtype!r}")
        return cls(
            layers=layers or model.layers, kv_heads=kv_heads or model.kv_heads, head_dim=model.head_dim,
            item_bytes=CACHE_BYTES[dtype],
        )  # fmt: skip

    @property
    def token_bytes(self) -> int:
        """What one more token of one sequence takes."""
        return self.bytes(context=1, batch=1)

    def bytes(self, *, context: int, batch: int) -> int:
        return cost.kv_cache_bytes(
            layers=self.layers, batch=batch, context=context, kv_heads=self.kv_heads, head_dim=self.head_dim,
            item_bytes=self.item_bytes,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How much cache a GPU's memory holds beside the weights. Both are 0 where not even the weights fit."""

    gpu: str
    memory_bytes: int
    room_bytes: int
    context: int  # the longest at the batch asked for
    batch: int  # the largest at the context asked for

    def holds(self, cache_bytes: int) -> bool:
        return cache_bytes <= self.room_bytes


def fits(cache: Cache, *, context: int, batch: int, weights_bytes: float = 0.0) -> list[Fit]:
    """For every known GPU, the smallest first: the room beside the weights, and where the cache no longer fits.

    Datasheet memory; activations, the allocator and the driver take some of it too, so these are upper bounds.
    """
    found = []
    for sheet in sorted(device.DATASHEETS.values(), key=lambda s: s.memory_bytes):
        room = max(0, sheet.memory_bytes - int(weights_bytes))
        found.append(
            Fit(
                gpu=sheet.label,
                memory_bytes=sheet.memory_bytes,
                room_bytes=room,
                context=room // cache.bytes(context=1, batch=batch),
                batch=room // cache.bytes(context=context, batch=1),
            )
        )
    return found


def explain(fit: Fit, cache: Cache, *, context: int, batch: int) -> str:
    """Why it fits or not, as a calculation."""
    need = cache.bytes(context=context, batch=batch)
    if fit.room_bytes == 0:
        return f"{fit.gpu}: the weights alone take more than its {fit.memory_bytes / GB:.0f} GB"
    sum_up = f"{batch:,} × {context:,} tokens × {size(cache.token_bytes)} = {size(need)}"
    if fit.holds(need):
        return f"{fit.gpu}: {sum_up} fit in the {size(fit.room_bytes)} left; up to {fit.context:,} tokens each"
    at_most = f"at most {fit.context:,} tokens each" if fit.context else "not one token"
    return f"{fit.gpu}: {sum_up} do not fit in the {size(fit.room_bytes)} left; {at_most}, or a batch of {fit.batch:,}"


def size(count: int | float) -> str:
    """Bytes in binary units, and GB beside GiB where the two differ enough to mislead."""
    if count < GIB:
        for unit, name in ((2**20, "MiB"), (2**10, "KiB")):
            if count >= unit:
                return f"{count / unit:.4g} {name}"
        return f"{count:.0f} bytes"
    return f"{count / GIB:.4g} GiB ({count / GB:.4g} GB)"


def cache_curve(
    cache: Cache, *, heads: int, batch: int, contexts: Sequence[int], kv_heads: Sequence[int]
) -> list[dict[str, Any]]:
    """Rows for a chart: the cache over the context, for the model's own K and others."""
    rows = []
    for k in kv_heads:
        other = Cache(layers=cache.layers, kv_heads=k, head_dim=cache.head_dim, item_bytes=cache.item_bytes)
        sharing = "MHA" if k == heads else "MQA" if k == 1 else "GQA"
        for context in contexts:
            count = other.bytes(context=context, batch=batch)
            rows.append(
                {"K": f"K={k} ({sharing})", "kv_heads": k, "context": context, "bytes": count, "gib": count / GIB}
            )
    return rows


# --- in the worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A backend's grouped heads against the same backend on keys and values repeated to all heads."""

    backend: str
    kv_heads: int
    q_shape: tuple[int, ...]
    kv_shape: tuple[int, ...]
    out_shape: tuple[int, ...] | None = None
    difference: float | None = None
    size: float | None = None  # largest |output|
    budget: float | None = None
    reason: str | None = None  # why there is no result

    @property
    def is_equal(self) -> bool:
        return self.difference is not None and self.budget is not None and self.difference <= self.budget


def proofs(
    problem: Problem, names: Sequence[str], kv_heads: Sequence[int] = LAB_KV_HEADS,
    *, report: Callable[..., Any] = measure.silent,
) -> Iterator[Proof]:  # fmt: skip
    """GQA = MHA with repeated heads: K heads against N heads in which head n is a copy of head n // (N/K)."""
    here = device.here()
    pairs = [(name, k) for name in names for k in kv_heads]
    for done, (name, k) in enumerate(pairs):
        report(done, len(pairs), f"{name}, K={k}")
        grouped = problem.but(kv_heads=k, backward=False)
        yield proof(grouped, name, here)
    report(len(pairs), len(pairs), "done")


def proof(grouped: Problem, name: str, here: device.Device) -> Proof:
    """Both ways may round differently: one rounding step of the largest output is allowed."""
    whole = grouped.but(kv_heads=grouped.heads)
    shapes: dict[str, Any] = {"backend": name, "kv_heads": grouped.kv_heads, "q_shape": grouped.q_shape,
                              "kv_shape": grouped.kv_shape}  # fmt: skip
    reasons = (backends.BACKENDS[name].why_not(p, here) for p in (grouped, whole))
    if reason := next(filter(None, reasons), None):
        return Proof(**shapes, reason=reason)
    try:
        _, (q, k, v, *_) = measure.inputs_of(grouped)
        group = grouped.heads // grouped.kv_heads
        outputs = []
        for p, keys, values in ((grouped, k, v), (whole, repeated(k, group), repeated(v, group))):
            build, _ = measure.CACHE.get(measure.key(p, name), functools.partial(measure.compile_one, p, name))
            outputs.append(np.asarray(clock.wait(build.call(q, keys, values))))
    except Exception as error:  # noqa: BLE001 - a backend's errors end here, as a sentence; the others go on
        return Proof(**shapes, reason=measure.first_line(error))
    ours, theirs = (out.astype(np.float64) for out in outputs)
    largest = float(np.abs(theirs).max())
    return Proof(
        **shapes,
        out_shape=tuple(ours.shape),
        difference=float(np.abs(ours - theirs).max()),
        size=largest,
        budget=2.0**-7 * largest if grouped.item_bytes == 2 else 1e-3 * largest,
    )


def repeated(array: Any, group: int) -> Any:
    """Each key/value head copied for its queries, on the device: (b, s, k, h) -> (b, s, k · group, h)."""
    import jax.numpy as jnp

    return clock.wait(jnp.repeat(array, group, axis=2))


DECODE = Protocol(warmup=2, repeats=20, limit_s=2.0)


def decode_points(problem: Problem, names: Sequence[str], kv_heads: Sequence[int]) -> tuple[Point, ...]:
    """One new token (q_len 1) against the cache: a point for each K and backend."""
    base = problem.but(q_len=1, causal=False, window=None, kv_valid=None, backward=False)
    return tuple(Point(problem=base.but(kv_heads=k), backend=name) for k in kv_heads for name in names)


def is_decode(record: Record) -> bool:
    """A record of one query against a cache, as decode makes them."""
    return record.problem.q_len == 1 and record.problem.kv_len > 1
