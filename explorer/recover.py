"""Recover: the mask as executed. With v = blocks of the identity, a backend's output is its weights.

Runs in the worker.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, UInt8

from explorer import backends, clock, device, fp8, measure, memory, numerics
from explorer.clock import Protocol
from explorer.device import Device
from explorer.masks import Mask
from explorer.problem import Problem
from explorer.record import Record

LONGEST = 512  # tokens that a page's picture takes
SENT_WHOLE = 64 * 64  # weights; more of them are only looked at as a picture, and sent in half the bytes
GENTLE = 0.5  # scale of q and k under which every key that is seen keeps a weight well above rounding
MOST_WEIGHTS = 2**25  # float32 numbers that one recovery may hold on the host
VERDICTS = {
    "as meant": "does what the mask says",
    "leaks": "lets hidden keys in",
    "misses": "leaves keys out",
    "leaks and misses": "sees other keys than the mask says",
    "wrong weights": "sees the right keys, with wrong weights",
    "undefined": "no query sees a key, so no right answer exists",
    "refused": "does not take this mask",
    "failed": "failed",
}
SEEN, HIDDEN, LEAKED, MISSED, NAN = range(5)  # what a cell of `cells` says; the first two are right
NO_KEY = ("nan", "zeros", "mean of v", "as if unmasked", "something else")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A mask on a small shape, and what it asks of a backend."""

    name: str
    label: str
    mask: Mask
    q_len: int = 40
    kv_len: int = 40

    def problem(self, dtype: str = "bfloat16") -> Problem:
        """Sizes that every backend's fused kernel takes; grouped heads, so that a wrong grouping shows too."""
        return Problem(
            batch=1, q_len=self.q_len, kv_len=self.kv_len, heads=4, kv_heads=2, head_dim=16, dtype=dtype,  # pyright: ignore[reportArgumentType]
            causal=self.mask.causal, window=self.mask.window, kv_valid=self.mask.kv_valid, input_scale=GENTLE,
        )  # fmt: skip


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case(name="full", label="Full", mask=Mask()),
        Case(name="causal", label="Causal", mask=Mask(causal=True)),
        Case(name="causal-short", label="Causal, T < S", mask=Mask(causal=True), q_len=24),
        Case(name="causal-long", label="Causal, T > S", mask=Mask(causal=True), kv_len=24),
        Case(name="window", label="Window, both sides", mask=Mask(window=(6, 6))),
        Case(name="window-left", label="Window, left only", mask=Mask(window=(6, 0))),
        Case(name="window-causal", label="Causal window", mask=Mask(causal=True, window=(6, 0))),
        Case(name="window-wide", label="Causal window wider than S", mask=Mask(causal=True, window=(99, 0))),
        Case(name="padding", label="Padding", mask=Mask(kv_valid=26)),
        Case(name="padding-causal", label="Causal, padding", mask=Mask(causal=True, kv_valid=26)),
        Case(name="padding-none", label="Padding of no key", mask=Mask(kv_valid=40)),
        Case(name="padding-all", label="Padding of every key", mask=Mask(kv_valid=0)),
        Case(name="no-key", label="Some rows see no key", mask=Mask(window=(6, 6)), kv_len=24),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """A mask that some backend gets wrong or answers in its own way. as_array: handed over as a (t, s) array."""

    name: str
    title: str
    problem: Problem
    backends: tuple[str, ...]
    lesson: str
    as_array: bool = False


def _trap(**values: Any) -> Problem:
    return Problem(batch=1, heads=2, kv_heads=2, head_dim=16, input_scale=GENTLE, **values)


TRAPS: dict[str, Trap] = {
    trap.name: trap
    for trap in (
        Trap(
            name="window",
            title="A window to the left, without causal",
            problem=_trap(q_len=48, kv_len=48, dtype="bfloat16", window=(16, 0)),
            backends=("naive", "xla", "cudnn"),
            lesson="Query i may see keys i − 16 … i. Add causal=True to be sure that no backend shows it later keys.",
        ),
        Trap(
            name="no-key",
            title="Rows that see no key, in float16",
            problem=_trap(q_len=24, kv_len=24, dtype="float16", window=(6, 0), kv_valid=8),
            backends=("naive", "xla", "cudnn"),
            lesson="0/0 has no right answer, and each backend makes up its own. Never read such a row.",
            as_array=True,
        ),
        Trap(
            name="length-0",
            title="A key length of 0",
            problem=_trap(q_len=24, kv_len=24, dtype="bfloat16", kv_valid=0),
            backends=("naive", "xla", "cudnn"),
            lesson="An empty cache: the mean of values nobody should see, zeros, or NaN. Skip such a row yourself.",
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The weights a backend used, and what they say about its mask.

    error and budget are relative to a row's largest exact weight. cells holds SEEN, HIDDEN, LEAKED, MISSED or NAN of
    the head that is shown (LEAKED too where a row that should see no key is given one); no_key says what became of
    such rows. weights and cells are None without a run.
    """

    problem: Problem
    backend: str
    verdict: str
    sentence: str
    head: int = 0
    calls: int = 0
    error: float | None = None
    budget: float | None = None
    leaked: int = 0
    missed: int = 0
    undefined_rows: int = 0
    no_key: str | None = None
    weights: Float[np.ndarray, "t s"] | None = None
    cells: UInt8[np.ndarray, "t s"] | None = None
    environment: dict[str, Any] | None = None

    @property
    def is_as_meant(self) -> bool:
        return self.verdict == "as meant"

    @property
    def is_wrong(self) -> bool:
        """It ran, and did not do what the mask says."""
        return self.verdict in ("leaks", "misses", "leaks and misses", "wrong weights")

    def to_json(self) -> dict[str, Any]:
        """For a record: the verdict, and the cells as one digit each, a string a row; no weights."""
        names = (
            "verdict",
            "sentence",
            "head",
            "calls",
            "error",
            "budget",
            "leaked",
            "missed",
            "undefined_rows",
            "no_key",
        )
        rows = None if self.cells is None else ["".join(map(str, row)) for row in self.cells.tolist()]
        return {**{name: getattr(self, name) for name in names}, "cells": rows}


def of_record(record: Record) -> Recovered | None:
    """What a record says about the mask as executed; None where it says nothing."""
    if record.status == "refused":
        return Recovered(
            problem=record.problem, backend=record.backend, verdict="refused", sentence=record.reason or "",
            environment=record.environment,
        )  # fmt: skip
    found = dict((record.accuracy or {}).get("recovered") or {})
    if not found:
        return None
    found.pop("as_array", None)
    rows = found.pop("cells")
    cells = None if rows is None else np.array([[int(digit) for digit in row] for row in rows], np.uint8)
    return Recovered(
        problem=record.problem, backend=record.backend, cells=cells, environment=record.environment, **found
    )


def recover(
    problem: Problem, name: str, *, head: int = 0, here: Device | None = None, as_array: bool = False
) -> Recovered:
    """A backend's weights on the problem's q and k, over ceil(S/H) calls of the compiled program; raises ValueError.

    With as_array, jax.nn gets the mask as an array (backends naive, xla and cudnn only).
    """
    if not 0 <= head < problem.heads:
        raise ValueError(f"head must be below {problem.heads}, got {head}")
    size = problem.batch * problem.heads * problem.q_len * problem.kv_len
    if size > MOST_WEIGHTS:
        raise ValueError(
            f"recovering weights needs batch · heads · q_len · kv_len of {MOST_WEIGHTS:,} at most, got {size:,}; "
            "a shorter sequence, or batch 1, would do"
        )
    here = here or device.here()
    problem = problem.but(backward=False)
    environment = device.environment(here)
    if reason := backends.BACKENDS[name].why_not(problem, here):
        return Recovered(
            problem=problem, backend=name, verdict="refused", sentence=reason, head=head, environment=environment
        )
    try:
        weights, calls = weights_of(problem, name, as_array=as_array)
    except Exception as error:  # noqa: BLE001 - a backend's errors end here, as a sentence; the others go on
        return Recovered(
            problem=problem, backend=name, verdict="failed", sentence=measure.first_line(error), head=head,
            environment=environment,
        )  # fmt: skip
    return judge(problem, name, weights, calls=calls, head=head, environment=environment)


def weights_of(problem: Problem, name: str, *, as_array: bool = False) -> tuple[Float[np.ndarray, "b n t s"], int]:
    """The weights of every batch entry and head in float32, and the number of calls it took."""
    build = program(problem, name, as_array=as_array)
    _, (q, k, *_) = measure.inputs_of(problem)
    weights = np.empty((problem.batch, problem.heads, problem.q_len, problem.kv_len), np.float32)
    firsts = range(0, problem.kv_len, problem.head_dim)
    for first in firsts:
        out = np.asarray(clock.wait(build.call(q, k, identity_block(problem, first))))
        if out.shape != problem.q_shape:
            raise ValueError(f"the output must be {problem.q_shape}, got {out.shape}")
        width = min(problem.head_dim, problem.kv_len - first)
        weights[..., first : first + width] = out.astype(np.float32).transpose(0, 2, 1, 3)[..., :width]
    return weights, len(firsts)


def program(problem: Problem, name: str, *, as_array: bool) -> clock.Build:
    """The very program that is measured, where it was; the mask may instead come as an array."""
    if not as_array:
        build, _ = measure.CACHE.get(measure.key(problem, name), functools.partial(measure.compile_one, problem, name))
        return build
    attend = functools.partial(with_array, name=name, mask=problem.mask)
    build, _ = measure.CACHE.get(
        ("mask array", *measure.key(problem, name)),
        lambda: clock.build(lambda q, k, v: attend(q, k, v), measure.shapes_of(problem)),
    )
    return build


def with_array(q: Any, k: Any, v: Any, *, name: str, mask: Mask) -> Any:
    """The mask as a (b, 1, t, s) array, as models often hand it over; naive takes it as -inf on the scores."""
    import jax
    import jax.numpy as jnp

    live = jnp.asarray(mask.dense(q.shape[1], k.shape[1]))
    if name == "naive":
        from explorer.backends import naive

        return naive.attend(q, k, v, mask=mask)
    live = jnp.broadcast_to(live[None, None], (q.shape[0], 1, *live.shape))  # cuDNN refuses a size of 1 in T
    return jax.nn.dot_product_attention(q, k, v, mask=live, implementation=name)  # pyright: ignore


IDENTITIES: OrderedDict[tuple[Any, ...], Any] = OrderedDict()


def identity_block(problem: Problem, first: int) -> Any:
    """v on the device: key first + c has a 1 in column c, every other number is 0; the last few are kept."""
    import jax

    key = (problem.kv_shape, problem.dtype, first)
    if key not in IDENTITIES:
        v = np.zeros(problem.kv_shape, np.float32)
        width = min(problem.head_dim, problem.kv_len - first)
        v[:, first + np.arange(width), :, np.arange(width)] = 1
        IDENTITIES[key] = clock.wait(jax.device_put(v.astype(numerics.numpy_dtype(problem.dtype))))
    IDENTITIES.move_to_end(key)
    while len(IDENTITIES) > 64:
        IDENTITIES.popitem(last=False)
    return IDENTITIES[key]


def exact_and_plain(
    problem: Problem, rounding: str | None
) -> tuple[Float[np.ndarray, "p t s"], Float[np.ndarray, "p t s"]]:
    """The exact weights of every (batch, head) pair, and those of the plain computation in the problem's dtype.

    rounding: on q and k as they are after rounding to that format, with a scale for each tensor.
    """
    host, _ = measure.inputs_of(problem)
    rounded = {n: host[n] if rounding is None else fp8.rounded(host[n], fp8.scale_of(host[n], rounding), rounding)
               for n in ("q", "k")}  # fmt: skip
    pairs = [(b, n) for b in range(problem.batch) for n in range(problem.heads)]
    group = problem.heads // problem.kv_heads
    q = np.stack([rounded["q"][b, :, n] for b, n in pairs])
    k = np.stack([rounded["k"][b, :, n // group] for b, n in pairs])
    live = problem.mask.dense(problem.q_len, problem.kv_len)
    exact = np.stack([numerics.exact_weights(a, b, live) for a, b in zip(q, k, strict=True)])
    one = np.broadcast_to(np.eye(problem.kv_len, dtype=np.float32), (len(pairs), problem.kv_len, problem.kv_len))
    if rounding is not None:
        v_scale = float(fp8.scale_for(1.0, rounding))
        plain = np.stack([
            numerics.plain_fp8(q[i : i + 1], k[i : i + 1], one[i : i + 1], live, v_scale)[0] for i in range(len(pairs))
        ])  # fmt: skip
        return exact, plain
    one = one.astype(numerics.numpy_dtype(problem.dtype))
    build, _ = measure.CACHE.get(
        ("plain", q.shape, k.shape, one.shape, problem.dtype, measure.matmul_precision()),
        lambda: clock.build(numerics.plain, [measure.as_shape(x) for x in (q, k, one, live)]),
    )
    return exact, np.asarray(build.call(q, k, one, live)).astype(np.float32)


TRUTHS: OrderedDict[tuple[Problem, str], tuple[np.ndarray, np.ndarray]] = OrderedDict()


def truths(problem: Problem, rounding: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """exact_and_plain, kept for the next backend."""
    key = problem, rounding or measure.matmul_precision()
    if key not in TRUTHS:
        TRUTHS[key] = exact_and_plain(problem, rounding)
    TRUTHS.move_to_end(key)
    while len(TRUTHS) > 4:
        TRUTHS.popitem(last=False)
    return TRUTHS[key]


def judge(
    problem: Problem,
    name: str,
    weights: Float[np.ndarray, "b n t s"],
    *,
    calls: int = 1,
    head: int = 0,
    environment: dict[str, Any] | None = None,
) -> Recovered:
    """Which keys each query saw, against the mask; and the weights against the exact ones.

    A key that is seen keeps its share of the row, whatever else is seen: it counts as missed where ours / exact is
    below a twentieth of the row's best, and as leaked where a hidden key has more than 1/10,000 of the row's largest.
    The weights agree within the project's budget (twice the plain computation's error plus one rounding step), here
    relative to the row's largest weight: else one key too many among 500 would drown in row 0's rounding.
    """
    rounding = backends.BACKENDS[name].rounding
    exact, plain = truths(problem, rounding)
    ours = weights.reshape(exact.shape).astype(np.float64)
    live = problem.mask.dense(problem.q_len, problem.kv_len)
    defined: np.ndarray = np.any(live, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        top = np.where(defined, np.where(live, exact, 0).max(axis=2), 1.0)[..., None]  # (pairs, t, 1)
        error = float((np.abs(ours - exact) / top)[:, defined].max(initial=0.0))
        plain_error = float((np.abs(plain - exact) / top)[:, defined].max(initial=0.0))
        precision = rounding or problem.dtype
        pin = numerics.PINNED[precision][0]
        budget = 2 * (plain_error if plain_error <= pin else pin) + numerics.epsilon(precision)
        kept = np.where(live & (exact > 0), ours / exact, 0)
        missed = live & defined[:, None] & (kept <= 0.05 * kept.max(axis=2, keepdims=True)) & (exact > budget * top)
        leaked = ~live & (ours > 1e-4 * ours.max(axis=2, keepdims=True))
    cells = np.where(live, np.where(missed, MISSED, SEEN), np.where(leaked, LEAKED, HIDDEN))
    cells = np.where(np.isnan(ours), NAN, cells).astype(np.uint8)
    leaked &= defined[:, None]
    undefined = int((~defined).sum())
    no_key = what_no_key_gives(problem, ours[:, ~defined], ~defined) if undefined else None
    leaks, misses = bool(leaked.any()), bool(missed.any())
    if undefined == problem.q_len:
        verdict = "undefined"
    elif leaks or misses:
        verdict = "leaks and misses" if leaks and misses else "leaks" if leaks else "misses"
    else:
        verdict = "as meant" if error <= budget else "wrong weights"
    return Recovered(
        problem=problem,
        backend=name,
        verdict=verdict,
        sentence=sentence(verdict, leaked[head], missed[head], error, budget, undefined, no_key),
        head=head,
        calls=calls,
        error=None if np.isnan(error) else error,
        budget=budget,
        leaked=int(leaked.any(axis=0).sum()),
        missed=int(missed.any(axis=0).sum()),
        undefined_rows=undefined,
        no_key=no_key,
        weights=weights.reshape(exact.shape)[head],
        cells=cells[head],
        environment=environment,
    )


def sentence(
    verdict: str,
    leaked: Bool[np.ndarray, "t s"],
    missed: Bool[np.ndarray, "t s"],
    error: float,
    budget: float,
    undefined: int,
    no_key: str | None,
) -> str:
    """What the verdict means here, with the first cell that shows it."""
    text = VERDICTS[verdict]
    for cells, says in ((leaked, "sees hidden key"), (missed, "misses key")):
        if cells.any():
            i, j = np.argwhere(cells)[0]
            text += f"; query {i} {says} {j}"
    if verdict == "wrong weights":
        text += f": off by {error:.2g} of a row's largest, {budget:.2g} is allowed"
    if verdict == "undefined" and no_key:
        text += f"; it gives {GIVES[no_key]}"
    elif undefined and no_key:
        text += (
            f"; {undefined} {'row sees' if undefined == 1 else 'rows see'} no key, for which it gives {GIVES[no_key]}"
        )
    return text


GIVES = {
    "nan": "NaN",
    "zeros": "zeros",
    "mean of v": "the mean of all v",
    "as if unmasked": "the unmasked result",
    "something else": "something else",
}


def what_no_key_gives(problem: Problem, ours: Float[np.ndarray, "p u s"], rows: Bool[np.ndarray, " t"]) -> str:
    """What a backend puts in the rows that see no key: one of NO_KEY."""
    if np.isnan(ours).all():
        return "nan"
    tolerance = 0.1 / problem.kv_len
    if np.abs(ours).max() < tolerance:
        return "zeros"
    if np.abs(ours - 1 / problem.kv_len).max() < tolerance:
        return "mean of v"
    unmasked, _ = truths(problem.but(causal=False, window=None, kv_valid=None))
    if np.abs(ours - unmasked[:, rows]).max() < 0.1 * unmasked.max():
        return "as if unmasked"
    return "something else"


# --- what the pages ask for


def each(problem: Problem, names: Sequence[str], *, head: int = 0, as_array: bool = False) -> Iterator[Recovered]:
    """One mask as each backend executes it."""
    for name in names:
        found = recover(problem, name, head=head, as_array=as_array)
        if found.weights is not None and found.weights.size > SENT_WHOLE:
            found = replace(found, weights=found.weights.astype(np.float16))
        yield found


def every_pair(
    names: Sequence[str], cases: Sequence[str] = tuple(CASES), dtype: str = "bfloat16",
    *, report: Callable[..., Any] = measure.silent, cancelled: Callable[[], bool] = measure.never,
) -> Iterator[Recovered]:  # fmt: skip
    """A verdict for every backend and every mask of CASES."""
    pairs = [(case, name) for case in cases for name in names]
    for done, (case, name) in enumerate(pairs):
        if cancelled():
            return
        report(done, len(pairs), f"{CASES[case].label}, {name}")
        yield recover(CASES[case].problem(dtype), name)
    report(len(pairs), len(pairs), "done")


def trap(name: str) -> Iterator[Recovered]:
    """A trap on each of its backends."""
    asked = TRAPS[name]
    yield from each(asked.problem, asked.backends, as_array=asked.as_array)


def causal_difference(problem: Problem, name: str) -> Float[np.ndarray, " t"] | str:
    """Largest |causal − full| of the backend's output at each position (the lab's row 6), or why there is none."""
    causal, full = (problem.but(causal=c, window=None, kv_valid=None, backward=False) for c in (True, False))
    here = device.here()
    outputs = []
    for p in (causal, full):
        if reason := backends.BACKENDS[name].why_not(p, here):
            return reason
        build = program(p, name, as_array=False)
        _, arguments = measure.inputs_of(full)  # the same q, k and v
        outputs.append(np.asarray(clock.wait(build.call(*arguments))).astype(np.float64))
    return np.abs(outputs[0] - outputs[1]).max(axis=(0, 2, 3))


QUICK = Protocol(warmup=1, repeats=5, limit_s=2.0, trace_calls=5, mode="sustained")


def record(problem: Problem, name: str, *, as_array: bool = False, protocol: Protocol = QUICK) -> Record:
    """A whole record, with kernel and times, whose accuracy also holds the mask as executed, under "recovered"."""
    made = _measure_array(problem, name, protocol) if as_array else measure.measure(problem, name, protocol=protocol)
    if made.status not in ("ok", "disagrees"):
        return made
    found = recover(problem, name, as_array=as_array)
    accuracy = {**(made.accuracy or {}), "recovered": {**found.to_json(), "as_array": as_array}}
    if made.status == "ok" and (found.is_wrong or found.verdict == "failed"):
        accuracy["verdict"] = "disagrees"
        return made.but(status="disagrees", reason=found.sentence, timing=None, accuracy=accuracy)
    return made.but(accuracy=accuracy)


def records(points: Sequence[tuple[Problem, str]], *, protocol: Protocol = QUICK) -> Iterator[Record]:
    """A record with its mask as executed for each (problem, backend); a trap's mask comes as the trap has it."""
    by_array = {trap.problem for trap in TRAPS.values() if trap.as_array}
    for problem, name in points:
        yield record(problem, name, as_array=problem in by_array, protocol=protocol)


def _measure_array(problem: Problem, name: str, protocol: Protocol) -> Record:
    """measure.measure, for the program that gets its mask as an array."""
    here = device.here()
    if reason := backends.BACKENDS[name].why_not(problem, here):
        return measure.blank(problem, name, "refused", reason, here)
    sizes: dict[str, Any] = {"predicted_bytes": None, "free_bytes": None}
    try:
        build = program(problem, name, as_array=True)
        sizes |= memory.analysis(build.call)
        return measure.execute(problem, name, build, here, protocol, measure.never, {"memory": sizes})
    except Exception as error:  # noqa: BLE001 - as in measure: a backend's error becomes a record
        return measure.blank(problem, name, *measure.what_broke(error, "run", sizes), here, memory=sizes)
