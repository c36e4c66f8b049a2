"""Experiments: what the path's questions measure. Run in the worker; plain data comes back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from explorer import clock, device, measure, memory, numerics, steps
from explorer.backends import BACKENDS
from explorer.clock import Protocol
from explorer.problem import Problem
from explorer.record import Record

SHORT = Protocol(warmup=2, repeats=15, limit_s=3.0, trace_calls=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A problem on some backends (NAME or NAME:DTYPE)."""

    problem: Problem
    specs: tuple[str, ...]


def measured(
    runs: Sequence[Run], *, report: Callable[..., Any] = measure.silent, cancelled: Callable[[], bool] = measure.never
) -> Iterator[Record]:
    """A record for each backend of each run."""
    points = [point for run in runs for point in measure.variants(run.problem, run.specs)]
    for done, (name, problem) in enumerate(points):
        if cancelled():
            return
        report(done, len(points), f"{BACKENDS[name].label}, {problem}")
        yield measure.measure(problem, name, protocol=SHORT, cancelled=cancelled)
    report(len(points), len(points), "done")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Over how many keys the weights spread on average, under a scale of the scores."""

    scale: str
    keys: float


def spread(problem: Problem) -> Iterator[Spread]:
    q, k, v = steps.inputs(problem, "random")
    for name in steps.SCALES:
        found = steps.apart(q, k, v, mask=problem.mask, scale=steps.scale_of(name, problem.head_dim))
        yield Spread(scale=name, keys=float(steps.keys_attended(found.weights).mean()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Largest difference of two backends' whole outputs."""

    largest: float
    allclose: bool
    where: str
    precision: str


def difference(problem: Problem, one: str, other: str) -> Difference:
    first, second = (output(problem, name).astype(np.float64) for name in (one, other))
    return Difference(
        largest=float(np.abs(first - second).max()),
        allclose=numerics.lab_close(first, second, problem.dtype),
        where=device.here().name,
        precision=measure.matmul_precision(),
    )


def output(problem: Problem, name: str) -> np.ndarray:
    build, _ = measure.CACHE.get(measure.key(problem, name), functools.partial(measure.compile_one, problem, name))
    return np.asarray(clock.wait(build.call(*measure.inputs_of(problem)[1])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """Working memory of a compiled program, by the compiler's own account; nothing is run. None: refused."""

    backend: str
    q_len: int
    temp_bytes: int | None
    reason: str | None = None


def working(problem: Problem, names: Sequence[str], lengths: Sequence[int]) -> Iterator[Working]:
    here = device.here()
    for name in names:
        for length in lengths:
            p = problem.but(q_len=length, kv_len=length)
            if reason := BACKENDS[name].why_not(p, here):
                yield Working(backend=name, q_len=length, temp_bytes=None, reason=reason)
                continue
            build, _ = measure.CACHE.get(measure.key(p, name), functools.partial(measure.compile_one, p, name))
            yield Working(backend=name, q_len=length, temp_bytes=memory.analysis(build.call)["temp_bytes"])
