"""Queue: whose turn it is, on which worker, and what becomes of each job. Plain state behind one lock; no Dask."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from explorer.job import OVER, Job, Loss, Point, State

WAITING_PER_VISITOR = 8
JOBS_KEPT = 100
TIMES_LOST = 3  # a call whose worker dies before it began is handed out again, but not for ever
AWAY_S = 15.0  # a sweep waits so long for its own worker to come back before it moves to another
DIED = "The worker process died"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """So that no visitor takes the GPU, nor all together the server's memory; a public server sets them lower."""

    waiting_per_visitor: int = WAITING_PER_VISITOR
    waiting: int = 500
    points: int = 5000

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Limits:
        """From EXPLORER_WAITING_PER_VISITOR and EXPLORER_WAITING (jobs), EXPLORER_POINTS (of one job)."""
        given = {}
        for name in ("waiting_per_visitor", "waiting", "points"):
            text = environment.get(f"EXPLORER_{name.upper()}")
            if text is not None:
                if not text.isdecimal() or not int(text):
                    raise ValueError(f"EXPLORER_{name.upper()} must be a whole number from 1 on, got {text!r}")
                given[name] = int(text)
        return cls(**given)


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """home is what stays when it is started again: the name it was given, else its nanny's address; its own changes."""

    address: str
    home: str
    name: str
    host: str = ""
    pid: int | None = None
    gpu: str | None = None
    turn: Turn | None = None
    is_condemned: bool = False
    used: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class Turn:
    """A point in the hands of a worker."""

    id: str
    job: Job
    point: Point
    worker: Worker
    has_begun: bool = False
    last_count: int = 0


class Queue:
    """All jobs of an engine. Every method takes the lock; waiters on `changed` hear of every change."""

    def __init__(
        self, *, changed: threading.Condition, ask_to_stop: Callable[[Turn], None], limits: Limits | None = None
    ) -> None:
        self.changed, self._ask_to_stop, self.limits = changed, ask_to_stop, limits or Limits()
        self.jobs: OrderedDict[str, Job] = OrderedDict()
        self.active: list[Job] = []  # in the order of their turns; none is over
        self.workers: dict[str, Worker] = {}
        self.turns: dict[str, Turn] = {}
        self.ended: Counter[str] = Counter()
        self.restarts = 0
        self._turn_of: dict[Job, Turn] = {}
        self._gone: OrderedDict[str, float] = OrderedDict()  # homes of workers that died, and when
        self._last_home: OrderedDict[str, str] = OrderedDict()  # of each visitor: its compiled functions are there

    # --- what visitors do

    def add(self, job: Job, *, replace: bool, refused: str | None = None) -> None:
        with self.changed:
            if replace and job.visitor:
                for older in [other for other in self.active if _same_asker(other, job)]:
                    self.stop(older, "replaced")
            waiting = [other for other in self.active if other.state == "waiting"]
            own = sum(other.visitor == job.visitor for other in waiting)
            if job.visitor and own >= self.limits.waiting_per_visitor:
                refused = refused or f"{own} of your jobs are waiting already; wait for one, or cancel it."
            if len(waiting) >= self.limits.waiting:
                refused = refused or f"{len(waiting)} jobs are waiting, which is all that this server takes; try later."
            self.jobs[job.id] = job
            if refused is not None:
                self.end(job, "failed", refused)
                return
            self.active.append(job)
            self.active.sort(key=lambda other: other.priority)  # stable: first come, first served

    def place(self, job: Job) -> int | None:
        with self.changed:
            if job.is_over:
                return None
            if job.state == "running":
                return 0
            return [other for other in self.active if other.state == "waiting"].index(job) + 1

    def stop(self, job: Job, state: State) -> None:
        """At once if it has not begun; else it is asked to."""
        with self.changed:
            if job.is_over or job.stop_as is not None:
                return
            job.stop_as = state
            turn = self._turn_of.get(job)
            if turn is not None:
                self._ask_to_stop(turn)
            if turn is None or not turn.has_begun:
                self.end(job, state)
            else:
                self.touch(job)

    def stop_all(self, error: str, grace_s: float | int) -> None:
        """The waiting now; the running when their point is over, or after so many seconds."""
        with self.changed:
            for job in list(self.active):
                job.stop_as = job.stop_as or "cancelled"
                if job not in self._turn_of:
                    self.end(job, "cancelled", error)
                else:
                    self.touch(job)
            self.changed.wait_for(lambda: not self.active, grace_s)
            for job in list(self.active):
                self.end(job, "cancelled", error)

    # --- whose turn it is

    def next_turn(self) -> Turn | None:
        """The first job that may run on a free worker, and from now on has it."""
        with self.changed:
            free = [each for each in self.workers.values() if each.turn is None and not each.is_condemned]
            for job in self.active if free else ():
                if job not in self._turn_of and (chosen := self._choose(job, free)) is not None:
                    return self._assign(job, chosen)
            return None

    def _choose(self, job: Job, free: list[Worker]) -> Worker | None:
        if job.home is not None and any(each.home == job.home for each in self.workers.values()):
            return next((each for each in free if each.home == job.home), None)
        if job.home in self._gone and time.monotonic() - self._gone[job.home] < AWAY_S:
            return None
        has_sweep = {other.home for other in self.active if other is not job}
        last = self._last_home.get(job.visitor)
        return min(free, key=lambda each: (each.home in has_sweep, each.home != last, each.used), default=None)

    def _assign(self, job: Job, chosen: Worker) -> Turn:
        point = next(point for point in job.points if not point.is_over)
        turn = Turn(id=f"turn-{secrets.token_hex(8)}", job=job, point=point, worker=chosen)
        chosen.turn, chosen.used = turn, time.monotonic()
        self._turn_of[job] = self.turns[turn.id] = turn
        point.worker = job.worker = chosen.name
        if len(job.points) > 1:
            job.home = chosen.home
        _remember(self._last_home, job.visitor, chosen.home)
        return turn

    # --- what becomes of a turn

    def begin(self, turn: Turn) -> None:
        with self.changed:
            turn.has_begun = True
            if not turn.job.is_over:
                turn.point.state = turn.job.state = "running"
                turn.point.started = time.time()
                turn.job.started = turn.job.started or turn.point.started
                self.touch(turn.job)

    def over(self, turn: Turn, state: State, error: str | None = None, error_type: str | None = None) -> None:
        """A turn ends only once, whoever says so first."""
        with self.changed:
            if not self._leave(turn) or turn.job.is_over:
                return
            job, point = turn.job, turn.point
            point.state = job.stop_as or state if state == "cancelled" else state
            point.finished, point.error, point.error_type = time.time(), error, error_type
            if state != "done" and job.lost is not None:
                self._add_lost(job, point)
            if error is not None and job.error is None:
                job.error, job.error_type = error, error_type
            states = {point.state for point in job.points}
            if states <= OVER:
                ends: Sequence[State] = ("done", "timed_out", "failed", "replaced", "cancelled")
                self.end(job, next(state for state in ends if state in states))
            elif job.stop_as is not None:
                self.end(job, job.stop_as)
            else:
                self.touch(job)

    def hand_back(self, turn: Turn) -> None:
        """It waits again, as if it had not been given out."""
        with self.changed:
            job, point = turn.job, turn.point
            point.times_lost += 1
            if point.times_lost >= TIMES_LOST:
                self.over(turn, "failed", f"{DIED} {TIMES_LOST} times before this could begin.", "WorkerDied")
            elif self._leave(turn) and not job.is_over:
                point.results.clear()
                point.state, point.started, point.item, point.progress = "waiting", None, None, (0, 1, "")
                if len(job.points) == 1:
                    job.state, job.started = "waiting", None
                if job.stop_as is not None:
                    self.end(job, job.stop_as)
                else:
                    self.touch(job)

    def lose(self, address: str, *, is_leaving: bool = False, why: str = DIED) -> None:
        """A worker is gone. What had begun there failed; what had only been handed to it waits again.

        So does all that was at a worker which was sent away in good order.
        """
        with self.changed:
            gone = self.workers.pop(address, None)
            if gone is None:
                return
            self._gone.pop(gone.home, None)
            if not is_leaving:
                self.restarts += why == DIED
                _remember(self._gone, gone.home, time.monotonic())
            if (turn := gone.turn) is not None and turn.has_begun and not is_leaving:
                during = turn.point.progress[2] or turn.job.label
                if not turn.job.is_over:
                    log.warning("worker %s is gone during %s", gone.name, turn.job)
                self.over(turn, "failed", f"{why}{during and ' during '}{during}.", "WorkerDied")
            elif turn is not None:
                self.hand_back(turn)
            self.changed.notify_all()

    def _leave(self, turn: Turn) -> bool:
        if self.turns.pop(turn.id, None) is None:
            return False
        del self._turn_of[turn.job]
        turn.worker.turn = None
        return True

    def _add_lost(self, job: Job, point: Point) -> None:
        assert job.lost is not None
        loss = Loss(
            call=point.call,
            state=point.state,
            error=point.error or "",
            error_type=point.error_type or "",
            item=point.item,
            results=tuple(point.results),
        )
        try:
            point.results.extend(job.lost(loss))
        except Exception:  # the caller's own code; the queue goes on
            log.exception("what %s lost could not be recorded", job)

    def end(self, job: Job, state: State, error: str | None = None) -> None:
        for point in job.points:
            if not point.is_over:
                point.state = state
        job.state, job.finished = state, time.time()
        job.error = error or job.error
        if job in self.active:
            self.active.remove(job)
        self.ended[state] += 1
        over = [other.id for other in self.jobs.values() if other.is_over]
        for old in over[: max(0, len(over) - JOBS_KEPT)]:
            del self.jobs[old]
        self.touch(job)

    def touch(self, job: Job) -> None:
        job.version += 1
        self.changed.notify_all()


def _same_asker(one: Job, other: Job) -> bool:
    return (one.visitor, one.priority, one.slot) == (other.visitor, other.priority, other.slot)


def _remember(memory: OrderedDict[str, Any], key: str, value: Any, most: int = 1000) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > most:
        memory.popitem(last=False)
