"""Job: what a visitor asked for, and how far it is. Plain state, guarded by the engine's lock; no Dask."""

from __future__ import annotations

import enum
import pickle
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["waiting", "running", "done", "failed", "cancelled", "timed_out", "replaced"]
OVER: frozenset[State] = frozenset({"done", "failed", "cancelled", "timed_out", "replaced"})
Progress = tuple[float | int, float | int, str]


class Priority(enum.IntEnum):
    """Whose turn comes first: a presenter's, then a live run, then the points of sweeps."""

    STAGE = 0
    LIVE = 1
    SWEEP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A point that did not end well: what was under way (the last item reported), and what it had yielded."""

    call: Call
    state: State
    error: str
    error_type: str
    item: Any
    results: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A function of a module, with its arguments, to be run in the worker. Raises ValueError for what can't be sent."""

    function: Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def payload(self) -> bytes:
        name = f"{self.function.__module__}.{self.function.__qualname__}"
        if self.function.__module__ == "__main__" or "<" in name:
            raise ValueError(f"a function of an importable module is needed, got {name}")
        try:
            return pickle.dumps((self.function, dict(self.kwargs)), protocol=5)
        except Exception as error:
            raise ValueError(f"{name} and its arguments must be plain data that can be sent: {error}") from error


@dataclass(slots=True, kw_only=True)
class Point:
    """One call of a job: a turn of the queue of its own."""

    call: Call
    payload: bytes
    state: State = "waiting"
    results: list[Any] = field(default_factory=list)
    error: str | None = None
    error_type: str | None = None
    progress: Progress = (0, 1, "")
    item: Any = None
    worker: str | None = None
    started: float | None = None
    finished: float | None = None
    times_lost: int = 0

    @property
    def is_over(self) -> bool:
        return self.state in OVER


class Job:
    """One or several points under one id. Read it from any thread; only its engine changes it."""

    def __init__(
        self,
        points: Sequence[Point],
        *,
        visitor: str,
        priority: Priority,
        limit_s: float | int,
        slot: str,
        label: str,
        lost: Callable[[Loss], Iterable[Any]] | None,
        changed: threading.Condition,
        stop: Callable[[Job, State], None],
        place: Callable[[Job], int | None],
    ) -> None:
        self.id = secrets.token_urlsafe(9)  # it stands in links: nobody may guess another visitor's
        self.visitor, self.priority, self.limit_s, self.slot, self.label = visitor, priority, limit_s, slot, label
        self.points = tuple(points)
        self.state: State = "waiting"
        self.error: str | None = None
        self.error_type: str | None = None
        self.worker: str | None = None
        self.home: str | None = None  # of a sweep: where its points run
        self.created = time.time()
        self.started: float | None = None
        self.finished: float | None = None
        self.version = 0
        self.stop_as: State | None = None
        self.lost = lost
        self._changed, self._stop, self._place = changed, stop, place

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def is_stopping(self) -> bool:
        """Asked to end, and not there yet: a running kernel can't be interrupted."""
        return self.stop_as is not None and not self.is_over

    @property
    def place(self) -> int | None:
        """0 while it runs, 1 for the next, ...; None when it is over."""
        return self._place(self)

    @property
    def results(self) -> list[Any]:
        """What came so far, in the order of the points."""
        with self._changed:
            return [result for point in self.points for result in point.results]

    @property
    def point(self) -> Point:
        """The one that runs, else the last that began, else the first."""
        begun = [point for point in self.points if point.state != "waiting"]
        return next((point for point in begun if not point.is_over), begun[-1] if begun else self.points[0])

    @property
    def progress(self) -> Progress:
        """Done, total, and what is under way; of several points, how many are over."""
        if len(self.points) == 1:
            return self.points[0].progress
        return sum(point.is_over for point in self.points), len(self.points), self.point.progress[2]

    @property
    def item(self) -> Any:
        """What the function last said it was at."""
        return self.point.item

    @property
    def remaining_s(self) -> float | int | None:
        """By the pace so far; None before anything can be said."""
        if self.is_over:
            return 0.0
        done, total, _ = self.progress
        point = self.point
        if len(self.points) > 1 and point.state == "running" and point.progress[1]:
            done += min(1.0, point.progress[0] / point.progress[1])
        if self.started is None or not done:
            return None
        return (time.time() - self.started) / done * (total - done)

    def cancel(self) -> None:
        """At once if it waits; a running one ends between samples, and keeps what it has."""
        self._stop(self, "cancelled")

    def wait(self, timeout: float | int | None = None) -> bool:
        """Whether it is over, at the latest after so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_over, timeout)

    def wait_change(self, version: int, timeout: float | int | None = None) -> int:
        """The version, as soon as it is another than the given one (a result, progress, an end), or at the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self.version != version, timeout)
            return self.version

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.label!r} {self.state}>"
