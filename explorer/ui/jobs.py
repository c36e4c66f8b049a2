"""Jobs: how a page gets something from the worker without blocking, and finds it again after a reload.

An answer is kept under what was asked (function and arguments), for all sessions: the same question is not run twice,
and a reload or a second browser finds what runs or has run. A visitor's newer question in a slot ends the older one.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import streamlit as st

from explorer import device as device_module
from explorer import engine as engine_module
from explorer import measure
from explorer.backends import BACKENDS
from explorer.device import Device
from explorer.engine import Call, Engine, Job, Loss, Priority
from explorer.problem import Problem
from explorer.record import Record

KEPT = 100  # answers, of all visitors together
SETTLE_S = 1.0  # so long a page waits itself; what takes longer is watched by a fragment
LOOK_S = 0.05
ASLEEP_S = 10.0  # a page that has not looked for so long is closed, or in a browser that sleeps


@dataclass(kw_only=True)
class Desk:
    """What all sessions share: the queue, the last answers by what was asked, and which pages still wait for one."""

    engine: Engine
    answers: OrderedDict[str, Job] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    watching: dict[str, float] = field(default_factory=dict)  # visitor: when the page last looked at its job

    def find(self, key: str) -> Job | None:
        with self.lock:
            if key in self.answers:
                self.answers.move_to_end(key)
            return self.answers.get(key)

    def keep(self, key: str, job: Job) -> None:
        with self.lock:
            self.answers[key] = job
            self.answers.move_to_end(key)
            while len(self.answers) > KEPT:
                self.answers.popitem(last=False)

    def forget(self, key: str, job: Job) -> None:
        with self.lock:
            if self.answers.get(key) is job:
                del self.answers[key]

    def looks(self, visitor: str) -> None:
        """A page looks at a job that is not over; it has not drawn its end before `drawn` says so."""
        now = time.monotonic()
        with self.lock:
            self.watching = {who: at for who, at in self.watching.items() if now - at < ASLEEP_S} | {visitor: now}

    def drawn(self, visitor: str, since: float) -> None:
        """A page was drawn whole, from the given moment on; had it still to wait, it has looked since then."""
        with self.lock:
            if self.watching.get(visitor, since) < since:
                del self.watching[visitor]

    def wait_told(self, most_s: float | int) -> bool:
        """Whether every page that waited for a job has drawn its end, at the latest after so many seconds."""
        until = time.monotonic() + most_s
        while True:
            now = time.monotonic()
            with self.lock:
                if not any(now - at < ASLEEP_S for at in self.watching.values()):
                    return True
            if now > until:
                return False
            time.sleep(LOOK_S)


@st.cache_resource(show_spinner=False)
def desk() -> Desk:
    return Desk(engine=engine_module.start())


def engine() -> Engine:
    """The queue of this app; starting it returns at once."""
    return desk().engine


def visitor() -> str:
    return st.session_state.setdefault("visitor", secrets.token_hex(8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A question and how far it was at one moment: a page must not see half of it change while it draws.

    state: not asked, waiting, running, done, failed, cancelled, timed_out or replaced.
    """

    key: str
    job: Job | None
    state: str
    results: tuple[Any, ...]
    error: str | None

    @classmethod
    def of(cls, key: str, job: Job | None) -> Answer:
        if job is None:
            return cls(key=key, job=None, state="not asked", results=(), error=None)
        state = job.state  # before the results: over means that they are all there
        return cls(key=key, job=job, state=state, results=tuple(job.results), error=job.error)

    @property
    def is_pending(self) -> bool:
        return self.state in ("waiting", "running")

    @property
    def is_over(self) -> bool:
        return self.job is not None and not self.is_pending


def key_of(calls: Sequence[Call]) -> str:
    """A name for what is asked: the function and every argument."""
    parts = [(call.function.__module__, call.function.__qualname__, sorted(call.kwargs.items())) for call in calls]
    return sha256(repr(parts).encode()).hexdigest()[:24]


def look(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> Answer:
    """The answer as far as it is, without asking for it."""
    key = key_of([Call(function, kwargs)])
    return Answer.of(key, desk().find(key))


def ask(
    function: Callable[..., Any],
    kwargs: Mapping[str, Any],
    *,
    slot: str,
    auto: bool = True,
    again: bool = False,
    **options: Any,
) -> Answer:
    """The answer to one call, as far as it is; submits it if it is new and auto, or if it shall run again.

    slot: of one visitor's questions in a slot only the newest goes on. options: as of ask_many.
    """
    return ask_many([Call(function, kwargs)], slot=slot, auto=auto, again=again, **options)


def ask_many(
    calls: Sequence[Call],
    *,
    slot: str,
    auto: bool = True,
    again: bool = False,
    priority: Priority = Priority.LIVE,
    limit_s: float = 120.0,
    label: str = "",
    lost: Callable[[Loss], Iterable[Any]] | None = None,
    settle_s: float = SETTLE_S,
    status: Any = None,
) -> Answer:
    """The answer to several calls as one job (a sweep). Waits up to settle_s, drawing progress into status meanwhile.

    status: a container; drawing there lets a newer slider position end this run at once.
    """
    key, me = key_of(calls), visitor()
    place = (status if status is not None else st).empty() if settle_s > 0 else None  # always, so that nothing moves
    job = desk().find(key)
    if job is not None and job.state == "replaced":
        job = None  # another visitor, who had asked the same, moved on
    _drop_older(slot, key)
    if again or (job is None and auto):
        job = engine().submit_many(
            calls,
            visitor=me,
            priority=priority,
            limit_s=limit_s,
            replace=True,
            slot=slot,
            label=label,
            lost=lost,
        )
        desk().keep(key, job)
    if job is not None:
        st.session_state.setdefault("asked", {})[slot] = key
        if not job.is_over and place is not None:
            _settle(job, settle_s, place)
    return Answer.of(key, job)


def find(id: str) -> Answer | None:
    """The answer of a job by its id, for ?job=; None once it is forgotten."""
    job = engine().job(id)
    return None if job is None else Answer.of(id, job)


def _drop_older(slot: str, key: str) -> None:
    """What this visitor asked before in the slot is cancelled, not computed to its end."""
    before = st.session_state.setdefault("asked", {}).pop(slot, None)
    if before is None or before == key:
        return
    older = desk().find(before)
    if older is not None and not older.is_over and older.visitor == visitor():
        desk().forget(before, older)
        older.cancel()


def _settle(job: Job, settle_s: float, place: Any) -> None:
    until = time.monotonic() + settle_s
    version = -1
    drawn = 0.0
    while not job.is_over and (now := time.monotonic()) < until:
        version = job.wait_change(version, LOOK_S)
        if now - drawn > 2 * LOOK_S:
            place.progress(*progress(job))
            drawn = now
    place.empty()


def progress(job: Job) -> tuple[float, str]:
    """Share done and a sentence: the place in the queue, or what is under way and how long it will take."""
    if job.state == "waiting":
        stats = engine().stats()
        if stats.trouble and not stats.workers:
            return 0.0, f"Waiting: {stats.trouble}"
        ahead = (job.place or 1) - 1 + stats.running
        first = ", a presentation goes first" if _is_on_stage(job) else ""
        return 0.0, "Starting" if not ahead else f"Waiting in the queue: {ahead} before this one{first}"
    done, total, text = job.progress
    share = min(1.0, done / total) if total else 0.0
    rest = job.remaining_s
    left = "" if rest is None or rest < 1 else f", about {rest:.0f} s left"
    ending = "Stopping after this sample: " if job.is_stopping else "Running "
    return share, f"{ending}{text} ({done:g} of {total:g}{left})"


def _is_on_stage(job: Job) -> bool:
    """Whether a presenter's run goes before this one."""
    if job.priority == Priority.STAGE:
        return False
    return any(other.priority == Priority.STAGE and not other.is_over for other in engine().jobs())


def device() -> Device | None:
    """The worker's device; None until the worker has said (a page never waits for it)."""
    results = _ask_device().results
    return results[0] if results else None


def _ask_device() -> Job:
    call = [Call(device_module.here)]
    key = key_of(call)
    with _device_lock():
        job = desk().find(key)
        if job is None or (job.is_over and not job.results):
            job = engine().submit(device_module.here, {}, replace=False, label="this machine")
            desk().keep(key, job)
    return job


@st.cache_resource(show_spinner=False)
def _device_lock() -> threading.Lock:
    return threading.Lock()


def lost_records(loss: Loss, *, here: Device | None = None) -> list[Record]:
    """For jobs of measure.run: the backend under way when the worker died or ran out of time, and those after it.

    here: the worker's device, if it is known; what it refuses is refused, whatever became of the others.
    """
    problem: Problem = loss.call.kwargs["problem"]
    left = measure.variants(problem, loss.call.kwargs["specs"])[len(loss.results) :]
    status = loss.state if loss.state in ("timed_out", "cancelled") else "failed"
    found = []
    for index, (name, its_problem) in enumerate(left):
        reason = loss.error or "the job ended before it was done"
        if index:
            status, reason = "cancelled", f"not run: {left[0][0]} took the worker down"
        why = None if here is None else BACKENDS[name].why_not(its_problem, here)
        found.append(measure.blank(its_problem, name, *(("refused", why) if why else (status, reason))))
    return found
