"""Versus: two backends against each other, A B A B in one job, so that a drift of the clock meets both alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from explorer import clock, measure, trace
from explorer.clock import Protocol
from explorer.problem import Problem
from explorer.record import Record, Samples
from explorer.sensors import Sensors

LEAST = 0.01  # a smaller difference is called too close, however narrow its interval
PROTOCOL = Protocol(warmup=3, repeats=40, limit_s=10.0)
CHECK = Protocol(warmup=1, repeats=3, limit_s=5.0, trace_calls=3)  # both must be right before they are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Duel:
    """A's and B's times in pairs on one clock. ratio: the median of A's time over B's, pair by pair."""

    clock: str  # "wall" or "device"
    a_ms: tuple[float, ...]
    b_ms: tuple[float, ...]

    @property
    def ratios(self) -> Samples:
        return Samples(tuple(a / b for a, b in zip(self.a_ms, self.b_ms, strict=True)))

    @property
    def ratio(self) -> float:
        return self.ratios.median

    @property
    def interval(self) -> tuple[float, float]:
        """About 95 % for the ratio's median, from order statistics."""
        return self.ratios.median_interval

    @property
    def verdict(self) -> str:
        """Of A: faster, slower, or too close to call."""
        low, high = self.interval
        if low <= 1 <= high or abs(self.ratio - 1) < LEAST:
            return "too close to call"
        return "faster" if high < 1 else "slower"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a comparison found: both records (a quick check), a duel for each clock, or why there is none."""

    a: Record
    b: Record
    mode: str
    wall: Duel | None = None
    device: Duel | None = None
    reason: str | None = None


def run(
    problem: dict[str, Any],
    specs: Sequence[str],
    *,
    protocol: Protocol = PROTOCOL,
    report: Callable[..., None] = measure.silent,
    cancelled: Callable[[], bool] = measure.never,
) -> Outcome:
    """Compare two NAME or NAME:DTYPE on one problem. Raises ValueError unless there are two different ones."""
    pair = measure.variants(Problem.from_json(problem), specs)
    if len(pair) != 2:
        raise ValueError(f"a comparison needs two different backends, got {', '.join(specs) or 'none'}")
    records = []
    for done, (name, its_problem) in enumerate(pair):
        report(done, 4, f"checking {name} {its_problem.dtype}")
        records.append(measure.measure(its_problem, name, protocol=CHECK, cancelled=cancelled))
    a, b = records
    for record in records:
        if record.status != "ok":
            what = f"{record.backend} {record.problem.dtype} can't be compared: {record.reason}"
            return Outcome(a=a, b=b, mode=protocol.mode, reason=what)
    calls = []
    for name, its_problem in pair:
        built, _ = measure.CACHE.get(
            measure.key(its_problem, name), lambda p=its_problem, n=name: measure.compile_one(p, n)
        )
        calls.append((built.call, measure.inputs_of(its_problem)[1]))
    report(2, 4, "A B A B on the wall clock")
    wall = _on_wall(calls, protocol, cancelled)
    report(3, 4, "A B A B on the device clock")
    on_device = _on_device(calls, protocol, cancelled, wall) if a.timing and a.timing.device_ms else None
    return Outcome(a=a, b=b, mode=protocol.mode, wall=wall, device=on_device)


def _on_wall(calls: list[tuple[Any, Any]], protocol: Protocol, cancelled: Callable[[], bool]) -> Duel:
    pacer = clock.pacer_of(protocol, Sensors())
    times: tuple[list[float], list[float]] = ([], [])
    started, turn = clock.time.perf_counter(), 0
    while True:
        for (call, arguments), kept in zip(calls, times, strict=True):
            if cancelled():
                raise clock.Cancelled
            took_ms = clock.once(call, arguments)
            if turn >= protocol.warmup:
                kept.append(took_ms)
            if pacer is not None:
                pacer.rest(took_ms)
        turn, spent_s = turn + 1, clock.time.perf_counter() - started
        if len(times[0]) >= protocol.repeats or (times[0] and spent_s > protocol.limit_s):
            return Duel(clock="wall", a_ms=tuple(times[0]), b_ms=tuple(times[1]))


def _on_device(
    calls: list[tuple[Any, Any]], protocol: Protocol, cancelled: Callable[[], bool], wall: Duel
) -> Duel | None:
    """One trace of A B A B. A trace of A alone tells how many kernels of each pair are A's."""
    (call_a, arguments_a), _ = calls
    alone = trace.take(call_a, itertools.repeat(arguments_a), calls=trace.LEAST_CALLS, cancelled=cancelled)
    turn = itertools.cycle(calls)

    def next_one(*_: Any) -> Any:
        call, arguments = next(turn)
        return call(*arguments)

    slower_ms = max(Samples(wall.a_ms).median, Samples(wall.b_ms).median)
    pairs = trace.how_many(protocol.trace_calls, 2 * slower_ms, protocol.limit_s)
    pacer = clock.pacer_of(protocol, Sensors())
    both = trace.take(next_one, itertools.repeat(()), calls=2 * pairs, pacer=pacer, cancelled=cancelled)
    runs = trace.Trace(calls=pairs, events=both.events).runs
    if not alone.runs or not runs:
        return None
    size = len(alone.runs[0])
    a = tuple(sum(ms for _, ms in run[:size]) for run in runs)
    b = tuple(sum(ms for _, ms in run[size:]) for run in runs)
    return Duel(clock="device", a_ms=a, b_ms=b) if min(*a, *b) > 0 else None
