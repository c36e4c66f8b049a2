"""Trace: the device clock. What the GPU's kernels took, call by call, from a profiler trace."""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from explorer import clock
from explorer.record import Samples
from explorer.sensors import Pacer

Event = tuple[str, float]  # kernel name, duration in ms
LEAST_CALLS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The kernels that `calls` calls of one program started, in order of their start."""

    calls: int
    events: tuple[Event, ...]

    @property
    def runs(self) -> list[tuple[Event, ...]]:
        """The events of each call, if every call ran the same kernels in the same order; else an empty list."""
        size, left = divmod(len(self.events), self.calls)
        if left or not size:
            return []
        runs = [self.events[i : i + size] for i in range(0, len(self.events), size)]
        names = [[name for name, _ in run] for run in runs]
        return runs if all(each == names[0] for each in names) else []

    def samples(self, keep: Callable[[str], bool] = lambda name: True) -> Samples | None:
        """Sum of the kept kernels' times for each call; one mean where calls can't be told apart; None without any."""
        if runs := self.runs:
            sums = [sum(ms for name, ms in run if keep(name)) for run in runs]
        else:
            sums = [sum(ms for name, ms in self.events if keep(name)) / self.calls]
        return Samples(tuple(sums)) if min(sums) > 0 else None


def take(
    call: Callable[..., Any],
    arguments: Iterator[tuple[Any, ...]],
    *,
    calls: int,
    pacer: Pacer | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Trace:
    """Trace so many calls, each waited for. Raises clock.Cancelled between two."""
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # the host's events would fill the trace and slow the calls
    options.host_tracer_level = 0
    with tempfile.TemporaryDirectory(prefix="explorer-trace-") as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(calls):
                if cancelled():
                    raise clock.Cancelled
                took_ms = clock.once(call, next(arguments))
                if pacer is not None:
                    pacer.rest(took_ms)
        files = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        events = [event for file in files for event in read(file)]
    return Trace(calls=calls, events=tuple(events))


def how_many(wanted: int, wall_ms: float, limit_s: float) -> int:
    """As many calls as wanted, fewer where they would take longer than the limit."""
    return max(LEAST_CALLS, min(wanted, int(limit_s * 1e3 / wall_ms)))


def read(path: str) -> list[Event]:
    """The kernels in an .xplane.pb file."""
    import jax

    return kernels(jax.profiler.ProfileData.from_file(path))


def kernels(data: Any) -> list[Event]:
    """(name, ms) of every event on the GPU's streams, in order of their start."""
    found: list[tuple[float, str, float]] = []
    for plane in data.planes:
        if plane.name.startswith("/device:GPU:"):
            for line in plane.lines:
                if line.name.startswith("Stream"):
                    found += [(event.start_ns, event.name, event.duration_ns / 1e6) for event in line.events]
    return [(name, ms) for _, name, ms in sorted(found)]
