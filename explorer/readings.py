"""Readings: what a measurement says about a question of the path: which predictions it makes right, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from explorer import memory
from explorer.backends import BACKENDS
from explorer.experiments import Difference, Working
from explorer.record import Record
from explorer.recover import Recovered


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the measurement says: the right choices (several where it can't tell them apart, none where it can't "
    "say)."""

    right: frozenset[str]
    says: str
    bars: tuple[tuple[str, float, str], ...] = ()  # name, size, the figure in words


def ms(value: float) -> str:
    return f"{value * 1e3:.3g} µs" if value < 1 else f"{value:.3g} ms"


def spec(record: Record) -> str:
    return f"{record.backend}:{record.problem.dtype}"


def label(record: Record) -> str:
    return f"{BACKENDS[record.backend].label} {record.problem.dtype}"


def time_bars(records: Sequence[Record]) -> tuple[tuple[str, float, str], ...]:
    return tuple(
        (label(r), r.timing.wall_ms.median, ms(r.timing.wall_ms.median)) for r in records if r.timing is not None
    )


def why_none(records: Sequence[Record]) -> str:
    """The reasons of those that have no time, each once."""
    reasons = dict.fromkeys(f"{label(r)}: {r.reason}" for r in records if r.timing is None)
    return " ".join(f"{reason}." for reason in reasons)


def launch_share(record: Record) -> str:
    """How much of the wall clock is not the kernel."""
    timing = record.timing
    if timing is None:
        return ""
    if timing.device_ms is None:
        return f"There is no device clock here ({timing.device_reason}), so launch and kernel can't be told apart."
    share = 1 - timing.device_ms.median / timing.wall_ms.median
    kernel, wall = ms(timing.device_ms.median), ms(timing.wall_ms.median)
    return (
        f"{label(record)} spends {kernel} of its {wall} in kernels: {share:.0%} of the wall clock is host and launch."
    )


def read_ready(results: Sequence[Any]) -> Answer:
    ran = [r for r in results if r.status == "ok"]
    if not results or len(results) < len(BACKENDS):
        return Answer(right=frozenset(), says="Not every backend has answered.")
    right = "all" if len(ran) == len(BACKENDS) else "three" if len(ran) == 3 else "others"
    names = ", ".join(BACKENDS[r.backend].label for r in ran)
    return Answer(
        right=frozenset({right}),
        says=f"{len(ran)} of {len(results)} ran and agreed with the exact result: {names}. {why_none(results)}",
    )


def read_bytes(results: Sequence[Any]) -> Answer:
    found = results[0].memory["argument_bytes"] if results and results[0].memory else None
    if found is None:
        return Answer(right=frozenset(), says=why_none(results) or "The compiler gave no account.")
    mib = found / 2**20
    right = {1.0: "1", 3.0: "3", 12.0: "12"}.get(mib)
    return Answer(
        right=frozenset({right}) if right else frozenset(),
        says=f"The compiled program takes {found:,} bytes of arguments, {mib:g} MiB: each of q, k and v is "
        "4 · 128 · 8 · 64 numbers of 4 bytes, 1 MiB.",
    )


def read_spread(results: Sequence[Any]) -> Answer:
    keys = {found.scale: found.keys for found in results}
    with_root, without = keys["1/√H"], keys["1"]
    right = "sharper" if without < 0.8 * with_root else "flatter" if without > 1.25 * with_root else "same"
    return Answer(
        right=frozenset({right}),
        says=f"With 1/√H the weights spread over {with_root:.1f} keys, without it over {without:.1f}. A score is a "
        "sum of "
        "H products, so its spread grows as √H; divided by √H it stays near 1 whatever H is, and the softmax "
        "stays soft.",
        bars=tuple((f"scale {name}", value, f"{value:.1f} keys") for name, value in keys.items()),
    )


def read_difference(results: Sequence[Any]) -> Answer:
    found: Difference = results[0]
    edges = (
        ("0", found.largest == 0),
        ("tiny", found.largest < 1e-5),
        ("tf32", found.largest <= 1e-3),
        ("large", True),
    )
    right = next(key for key, holds in edges if holds)
    why = {
        "0": "JAX's auto chose the very same operations.",
        "tiny": "Only the order of the sums differs.",
        "tf32": "A GPU multiplies float32 in TF32 unless told otherwise: 10 digits after the point in binary.",
        "large": "That is more than float32 or TF32 explain.",
    }[right]
    return Answer(
        right=frozenset({right}),
        says=f"They differ by at most {found.largest:.2g} on {found.where} at matmul precision {found.precision}; "
        "the lab's "
        f"allclose {'passes' if found.allclose else 'fails'}. {why}",
    )


def read_refusal(results: Sequence[Any]) -> Answer:
    (record,) = results
    right = {"refused": "refuses", "ok": "computes"}.get(record.status)
    says = f"{record.status}: {record.reason}." if record.reason else f"It ran, in {record.evidence['note']}."
    return Answer(
        right=frozenset({right}) if right else frozenset(),
        says=f"{says} JAX raises instead of falling back, and this app shows the reason and goes on with the others.",
    )


def read_causal(results: Sequence[Any]) -> Answer:
    off = results[0]
    if isinstance(off, str):
        return Answer(right=frozenset(), says=off)
    thirds = {
        name: float(part.mean()) for name, part in zip(("first", "middle", "last"), np.array_split(off, 3), strict=True)
    }
    return Answer(
        right=frozenset({max(thirds, key=thirds.__getitem__)}),
        says=f"Position 0 changes by {off[0]:.2g}: it sees itself alone instead of every key. The last position "
        "changes by "
        f"{off[-1]:.1g}: it saw every key before, and does so still.",
        bars=tuple((f"{name} third", value, f"{value:.2g}") for name, value in thirds.items()),
    )


def read_fastest(results: Sequence[Any]) -> Answer:
    timed = {spec(r): r for r in results if r.timing is not None}
    if not timed:
        return Answer(right=frozenset(), says=why_none(results))
    best = min(timed.values(), key=lambda r: r.timing.wall_ms.median)
    _, high = best.timing.wall_ms.median_interval
    tied = {key for key, r in timed.items() if r.timing.wall_ms.median_interval[0] <= high}
    others = f" {why_none(results)}" if len(timed) < len(results) else ""
    tie = "" if len(tied) == 1 else " Where the medians' 95 % intervals overlap, each counts as right."
    flops = best.cost["flops"] / 1e9 if best.cost else 0
    return Answer(
        right=frozenset(tied),
        says=f"{label(best)} takes {ms(best.timing.wall_ms.median)} by the wall clock for {flops:.3g} GFLOP.{tie} "
        f"{launch_share(best)}{others}",
        bars=time_bars(results),
    )


def ratio_answer(
    results: Sequence[Any], edges: Sequence[tuple[str, float]], explain: Callable[[float, Record], str]
) -> Answer:
    """The choice by the ratio of the last time to the first; edges: (choice, ratio below which it holds)."""
    timed = [r for r in results if r.timing is not None]
    if len(timed) < 2:
        return Answer(right=frozenset(), says=why_none(results))
    ratio = timed[-1].timing.wall_ms.median / timed[0].timing.wall_ms.median
    right = next(key for key, edge in edges if ratio < edge)
    bars = tuple((str(r.problem), r.timing.wall_ms.median, ms(r.timing.wall_ms.median)) for r in timed)
    return Answer(right=frozenset({right}), says=explain(ratio, timed[-1]), bars=bars)


def read_growth(results: Sequence[Any]) -> Answer:
    def explain(ratio: float, last: Record) -> str:
        return (
            f"{ratio:.1f} times. Twice the length is four times the scores, and four times the arithmetic; where it "
            "takes "
            f"less, fixed costs weigh in. {launch_share(last)}"
        )

    return ratio_answer(results, (("2", 2.8), ("4", 5.7), ("8", float("inf"))), explain)


def read_batch(results: Sequence[Any]) -> Answer:
    def explain(ratio: float, last: Record) -> str:
        return (
            f"{ratio:.1f} times as long for 16 times the work. What a small batch leaves idle, a larger one uses: "
            "launches, "
            f"and cores without work. {launch_share(last)}"
        )

    return ratio_answer(results, (("little", 4.0), ("less", 13.0), ("all", float("inf"))), explain)


def read_skip(results: Sequence[Any]) -> Answer:
    def explain(ratio: float, last: Record) -> str:
        return (
            f"{ratio:.2f} times the unmasked time. XLA computes every score and then hides half of them; a fused "
            "kernel such "
            "as cuDNN's skips the hidden blocks."
        )

    return ratio_answer(results, (("half", 0.7), ("same", 1.25), ("longer", float("inf"))), explain)


def read_working(results: Sequence[Any]) -> Answer:
    by_name: dict[str, list[Working]] = {}
    for found in results:
        by_name.setdefault(found.backend, []).append(found)
    first, last = by_name["naive"][0], by_name["naive"][-1]
    if not first.temp_bytes or not last.temp_bytes:
        return Answer(right=frozenset(), says="The compiler gave no account of naive's memory.")
    ratio = last.temp_bytes / first.temp_bytes
    right = "1" if ratio < 1.5 else "2" if ratio < 2.8 else "4"
    refused = " ".join(f"{BACKENDS[n].label}: {f[0].reason}." for n, f in by_name.items() if f[0].reason)
    why = (
        "as T² does: it stores every score"
        if right == "4"
        else "not four times, as storing every score would: this device's compiler keeps only a part of them at once"
    )
    return Answer(
        right=frozenset({right}),
        says=f"Naive's working memory grows {ratio:.1f} times from T={first.q_len} to T={last.q_len}, {why}. "
        f"A fused kernel stores one number a row. {refused}",
        bars=tuple(
            (f"{BACKENDS[f.backend].label} T={f.q_len}", float(f.temp_bytes), memory.gib(f.temp_bytes))
            for f in results
            if f.temp_bytes is not None
        ),
    )


def read_sharing(results: Sequence[Any]) -> Answer:
    sizes = {}
    for r in results:
        if r.memory and r.memory.get("argument_bytes"):
            p = r.problem
            q_bytes = p.batch * p.q_len * p.heads * p.head_dim * p.item_bytes
            sizes[p.kv_heads] = r.memory["argument_bytes"] - q_bytes
    if len(sizes) < 2:
        return Answer(right=frozenset(), says=why_none(results))
    most, least = max(sizes), min(sizes)
    saved = 1 - sizes[least] / sizes[most]
    right = min(("1/2", 0.5), ("3/4", 0.75), ("7/8", 0.875), ("0", 0.0), key=lambda each: abs(each[1] - saved))[0]
    return Answer(
        right=frozenset({right}),
        says=f"The compiled programs take {memory.gib(sizes[most])} of k and v for K={most} and "
        f"{memory.gib(sizes[least])} "
        f"for K={least}: {saved:.1%} saved. The output keeps its shape {results[0].problem.q_shape}.",
        bars=tuple((f"K={k}", float(size), memory.gib(size)) for k, size in sizes.items()),
    )


def read_decode(results: Sequence[Any]) -> Answer:
    def explain(ratio: float, last: Record) -> str:
        return (
            f"{1 / ratio:.1f} times as fast for 1/{last.problem.heads // last.problem.kv_heads} of the cache. One "
            "query does "
            "little arithmetic on each key it reads; what is left to read decides, until fixed costs do."
        )

    return ratio_answer(results, (("much", 0.5), ("some", 0.87), ("no", float("inf"))), explain)


def read_te(results: Sequence[Any]) -> Answer:
    (record,) = results
    if record.status == "refused":
        return Answer(right=frozenset({"no"}), says=f"{record.reason}. Everything else goes on without it.")
    if record.status != "ok":
        return Answer(right=frozenset(), says=f"{record.status}: {record.reason}.")
    fused = record.evidence["fused"]
    kernels = ", ".join(k["name"] for k in record.evidence["kernels"][:2])
    return Answer(
        right=frozenset({"fused" if fused else "unfused"}),
        says=f"Evidence: {record.evidence['verdict']}; kernels {kernels or 'not traced'}. It falls back with a warning "
        "only, so the kernel's name is the proof.",
    )


def read_fp8(results: Sequence[Any]) -> Answer:
    (record,) = results
    if record.status == "refused":
        return Answer(right=frozenset({"no"}), says=f"{record.reason}. The FP8 page shows the code that would run.")
    if record.status != "ok":
        return Answer(right=frozenset(), says=f"{record.status}: {record.reason}.")
    note = record.evidence["note"]
    return Answer(
        right=frozenset({"fp8" if note == "fp8" else "16"}),
        says=f"The kernel that ran computes in {note}. The recipe changes TransformerEngine's matrix products, not its "
        "attention; real FP8 attention is the backend cudnn_fp8.",
    )


def read_head_dims(results: Sequence[Any]) -> Answer:
    refused = [r for r in results if r.status == "refused"]
    taken = [r for r in results if r.status == "ok"]
    if len(refused) + len(taken) < len(results) or not results:
        return Answer(right=frozenset(), says=why_none(results))
    if not taken:
        right = "all"
    elif len(refused) == 1:
        right = str(refused[0].problem.head_dim)
    else:
        right = "none" if not refused else None
    says = " ".join(f"H={r.problem.head_dim}: {r.reason}." for r in refused) or "All four ran."
    return Answer(right=frozenset({right}) if right else frozenset(), says=says, bars=time_bars(taken))


def read_window(results: Sequence[Any]) -> Answer:
    ran: list[Recovered] = [r for r in results if r.verdict not in ("refused", "failed")]
    if not ran:
        return Answer(right=frozenset(), says="No backend ran.")
    wrong = [r for r in ran if r.is_wrong]
    lines = " ".join(f"{BACKENDS[r.backend].label} {r.sentence}." for r in results)
    return Answer(
        right=frozenset({"not" if wrong else "obey"}),
        says=f"{lines} The Masks page shows the pictures, here and as recorded on a GPU.",
    )


def read_no_key(results: Sequence[Any]) -> Answer:
    by_name = {r.backend: r for r in results}
    found = by_name.get("xla")
    right = {"nan": "nan", "zeros": "zeros", "mean of v": "mean"}.get(found.no_key or "") if found else None
    lines = " ".join(f"{BACKENDS[r.backend].label}: {r.sentence}." for r in results)
    return Answer(right=frozenset({right}) if right else frozenset(), says=f"{lines} 0/0 has no right answer.")
