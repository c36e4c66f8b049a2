"""Casts: what FP8's attention kernel gains over bfloat16's, and what the casts before and after it cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from explorer import charts
from explorer.record import Record

PAYS = 1.05  # times bfloat16's speed: less is within what a run differs from the next


def points(records: Iterable[Record]) -> list[dict[str, Any]]:
    """{q_len, what, tflops, ms, time} by device time; what: one of charts_fp8.SPEEDS.

    cudnn and casts are all kernels of a call, cudnn_kernel and kernel the attention kernels alone.

    On the wall clock launches hide what this is about, so a record without a device time gives no point.
    """
    found = []
    for record in records:
        timing, cost = record.timing, record.cost or {}
        if timing is None or timing.device_ms is None:
            continue
        times = {"cudnn": timing.device_ms, "cudnn_kernel": timing.kernel_ms} if record.backend == "cudnn" else {}
        if record.backend == "cudnn_fp8":
            times = {"kernel": timing.kernel_ms, "casts": timing.device_ms}
        for what, samples in times.items():
            if samples is not None:
                ms = samples.median
                found.append(
                    {"q_len": record.problem.q_len, "what": what, "ms": ms, "time": charts.ms(ms)}
                    | {"tflops": cost["flops"] / ms / 1e9}
                )
    return sorted(found, key=lambda row: (row["what"], row["q_len"]))


def gains(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By T, FP8's speed over bfloat16's: kernel against kernel, and all kernels of a call, casts too, against all; and
    the casts' share of the time."""
    times = {(row["q_len"], row["what"]): row["ms"] for row in rows}
    found = []
    for q_len in sorted({row["q_len"] for row in rows}):
        kinds = ("cudnn", "cudnn_kernel", "kernel", "casts")
        base, plain, kernel, whole = (times.get((q_len, what)) for what in kinds)
        if base is None or plain is None or kernel is None or whole is None:
            continue
        found.append(
            {
                "q_len": q_len,
                "kernel": plain / kernel,
                "casts": base / whole,
                "casts_share": max(0.0, 1 - kernel / whole),
            }
        )
    return found


def sentence(found: Sequence[dict[str, Any]]) -> str:
    """Where FP8 pays, and where the casts eat the gain."""
    if not found:
        return "No length has both times on the device clock."
    pays = [row for row in found if row["casts"] >= PAYS]
    eaten = [row for row in found if row["kernel"] >= PAYS > row["casts"]]
    best = max(found, key=lambda row: row["casts"])
    parts = []
    if pays:
        at = f"T = {_lengths(pays)}"
        parts.append(
            f"With its casts FP8 pays at {at}: up to {best['casts']:.2f} × bfloat16's speed, {best['kernel']:.2f} × in "
            "the kernel alone"
        )
    if eaten:
        worst = max(eaten, key=lambda row: row["casts_share"])
        parts.append(
            f"at T = {_lengths(eaten)} its kernel is faster, but the casts, up to {worst['casts_share']:.0%} of the "
            "time, eat the gain"
        )
    if slow := [row for row in found if row["kernel"] < PAYS]:
        parts.append(f"at T = {_lengths(slow)} not even the kernel is faster")
    said = "; ".join(parts)
    return said[0].upper() + said[1:] + "."


def _lengths(rows: Sequence[dict[str, Any]]) -> str:
    return ", ".join(str(row["q_len"]) for row in rows)
