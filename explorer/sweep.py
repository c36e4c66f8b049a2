"""Sweep: several problems on several backends, as points for the queue: compiled together first, then timed alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from explorer import backends, clock, device, measure, memory
from explorer.clock import Protocol
from explorer.problem import LARGEST, SIZES, Problem
from explorer.record import Record

AXES = SIZES
FOLLOWERS = {"q_len": "kv_len", "heads": "kv_heads"}  # axis -> what follows it unless it was given
MOST_THREADS = 16
COMPILING = "compile"  # the threads' name
COMPILE_LIMIT_S = 300.0  # for commands; the longest program so far took 29 s, beside 15 others
BEAT_S = 0.5  # a progress report comes at least this often while programs compile
LAB_VARIANTS = ("naive:float32", "xla:float32", "xla:bfloat16", "cudnn:bfloat16")
LAB_LENGTHS = (64, 128, 256, 512, 1024)
LAB_BATCHES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement of a sweep."""

    problem: Problem
    backend: str


def points(
    problem: Problem,
    specs: Sequence[str],
    *,
    axis: str,
    values: Iterable[int],
    follow: bool = True,
    tokens: int | None = None,
) -> list[Point]:
    """One point per value and backend, values in order and each once. specs: NAME or NAME:DTYPE. Raises ValueError.

    follow: kv_len moves with q_len, and kv_heads with heads, if they are equal in the given problem. tokens: constant
    work, batch = tokens / q_len, so tokens must be a multiple of every q_len.
    """
    if axis not in AXES:
        raise ValueError(f"axis must be one of {', '.join(AXES)}, got {axis!r}")
    if not specs:
        raise ValueError(f"a sweep needs at least one backend of {', '.join(backends.BACKENDS)}, got none")
    chosen = sorted(set(values))
    if not chosen:
        raise ValueError("a sweep needs at least one value, such as 64,128,256, got none")
    if tokens is not None and axis != "q_len":
        raise ValueError(f"constant work (batch × q_len) needs axis q_len, got {axis}")
    found: dict[Point, None] = {}
    follower = FOLLOWERS.get(axis)
    for value in chosen:
        changes = {axis: value}
        if follow and follower and getattr(problem, follower) == getattr(problem, axis):
            changes[follower] = value
        if tokens is not None:
            changes["batch"] = _batch_of(tokens, value)
        its_problem = problem.but(**changes)
        for name, one in measure.variants(its_problem, specs):
            found[Point(problem=one, backend=name)] = None
    return list(found)


def _batch_of(tokens: int, q_len: int) -> int:
    if not 1 <= tokens <= LARGEST or tokens % q_len:
        raise ValueError(f"constant work needs batch × q_len = {tokens} to be a multiple of q_len, got q_len={q_len}")
    return tokens // q_len


def axis_of(records: Iterable[Record]) -> str:
    """Which size varies most among records: the axis of the sweep they came from; q_len where none does."""
    seen: dict[str, set[int]] = {name: set() for name in ("q_len", *AXES)}
    for record in records:
        for name, values in seen.items():
            values.add(getattr(record.problem, name))
    return max(seen, key=lambda name: len(seen[name]))  # the first of equals, so q_len before batch and kv_len


class NotCompiled(RuntimeError):
    """A compiler was still at work when its time was over. It can't be stopped: the process has to end."""


def compile_ahead(
    points: Sequence[Point],
    *,
    report: Callable[[int, int, str], None] = measure.silent,
    cancelled: Callable[[], bool] = measure.never,
    limit_s: float | None = None,
) -> None:
    """Compile every point's program in parallel threads; nothing is timed meanwhile.

    What can't be compiled is left to the point itself, which then says why. limit_s: raises NotCompiled once no program
    has been finished for so long; a worker needs none, as its turns have a limit and it is ended with them.
    """
    here = device.here()
    started = last = time.perf_counter()
    threads = max(2, min(MOST_THREADS, os.cpu_count() or 2))
    pool = ThreadPoolExecutor(threads, thread_name_prefix=COMPILING)
    begun: dict[Point, float] = {}

    def one(point: Point) -> None:
        begun[point] = time.perf_counter()
        _compile_quietly(point, here)
        begun.pop(point, None)

    left: set[Future[None]] = {pool.submit(one, point) for point in points}
    total, is_stuck = len(left), True
    try:
        while left:
            done, left = wait(left, timeout=BEAT_S, return_when=FIRST_COMPLETED)
            now = time.perf_counter()
            last = now if done else last
            report(total - len(left), total, f"compiled {total - len(left)} of {total} programs, {now - started:.1f} s")
            if cancelled():
                break
            if limit_s is not None and now - last > limit_s:
                stuck = " and ".join(f"{point.backend} {point.problem}" for point in list(begun))
                raise NotCompiled(
                    f"no program was finished for {limit_s:g} s; the compiler is still at {stuck}: leave it out. What "
                    "was compiled is kept on disk and is there at once the next time"
                )
        is_stuck = False
    finally:
        pool.shutdown(wait=not is_stuck, cancel_futures=True)


def _compile_quietly(point: Point, here: device.Device) -> None:
    try:
        p, name = point.problem, point.backend
        if backends.BACKENDS[name].why_not(p, here) is not None:
            return
        if measure.too_large(
            memory.predicted(name, p, on_gpu=here.is_gpu), memory.free_bytes(), "", on_gpu=here.is_gpu
        ):
            return
        measure.CACHE.get(measure.key(p, name), lambda: measure.compile_one(p, name))
        measure.compile_plain(p)
    except Exception:  # noqa: BLE001 - measure.measure meets it again and records it; it is the one place that catches
        return


def measure_point(
    problem: dict[str, Any],
    backend: str,
    protocol: Protocol,
    *,
    report: Callable[..., None] = measure.silent,
    cancelled: Callable[[], bool] = measure.never,
) -> Record:
    """A point in a turn of its own."""
    its_problem = Problem.from_json(problem)
    report(0, 1, f"{backend} {its_problem}")
    return measure.measure(its_problem, backend, protocol=protocol, cancelled=cancelled)


def run(
    points: Sequence[Point],
    *,
    protocol: Protocol = clock.LAB_SWEEP,
    report: Callable[[int, int, str], None] = measure.silent,
    cancelled: Callable[[], bool] = measure.never,
) -> Iterator[Record]:
    """All points in this process, as each is done: what the command line runs. Stops early when cancelled; raises
    NotCompiled."""
    compile_ahead(points, report=report, cancelled=cancelled, limit_s=COMPILE_LIMIT_S)
    for done, point in enumerate(points):
        if cancelled():
            return
        report(done, len(points), f"{point.backend} {point.problem}")
        yield measure.measure(point.problem, point.backend, protocol=protocol, cancelled=cancelled)
    report(len(points), len(points), "done")


def complete(points: Sequence[Point], records: Sequence[Record], why: str | None) -> list[Record]:
    """The records in the order of the points, and for each missing one a cancelled record with the reason.

    why: what became of the sweep; None while it goes on, and then nothing is filled in.
    """
    found = {(record.problem, record.backend): record for record in records}
    whole = []
    for point in points:
        record = found.get((point.problem, point.backend))
        if record is None and why is not None:
            record = measure.blank(point.problem, point.backend, "cancelled", why)
        if record is not None:
            whole.append(record)
    return whole
