"""Engine: the queue. Hands each worker one call at a time, and says of every job what became of it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import io
import logging
import os
import pickle
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from explorer import cluster, worker
from explorer.job import OVER, Call, Job, Loss, Point, Priority, State

__all__ = [
    "LIVE",
    "STAGE",
    "SWEEP",
    "Call",
    "Engine",
    "Job",
    "Loss",
    "Point",
    "Priority",
    "Stats",
    "WorkerInfo",
    "start",
]

STAGE, LIVE, SWEEP = Priority
WAITING_PER_VISITOR = 8
MOST_POINTS = 5000
JOBS_KEPT = 100
TIMES_LOST = 3  # a call whose worker dies before it began is handed out again, but not for ever
AWAY_S = 15.0  # a sweep waits so long for its own worker to come back before it moves to another
NOT_IN_THE_SERVER = ("jax", "jaxlib", "flax", "transformer_engine")
CLOSED = "The app is shutting down."
DIED = "The worker process died"
DISCONNECTED = "The connection to the workers was lost"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker that is there now. gpu is as CUDA_VISIBLE_DEVICES names it; None: it has none, or did not say."""

    name: str
    address: str
    host: str
    pid: int | None
    gpu: str | None
    is_busy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a page or a metric tells about the queue. jobs: how many ended since the start, by state."""

    state: Literal["starting", "ready", "closed"]
    trouble: str | None
    scheduler: str | None
    waiting: int
    running: int
    jobs: dict[str, int]
    restarts: int
    workers: tuple[WorkerInfo, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class _Worker:
    """home is what stays when a nanny restarts it: the nanny's address. Its own address is then another."""

    address: str
    home: str
    name: str
    host: str
    pid: int | None
    gpu: str | None
    turn: _Turn | None = None
    is_condemned: bool = False
    used: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Turn:
    """A point in the hands of a worker."""

    id: str
    job: Job
    point: Point
    worker: _Worker
    future: Any = None
    has_begun: bool = False
    last_count: int = 0
    deadline: asyncio.TimerHandle | None = None


def start(address: str | None = None, workers: int | None = None) -> Engine:
    """An engine with workers of its own, or those of the Dask cluster at EXPLORER_SCHEDULER. Returns at once."""
    return Engine(address=address or os.environ.get("EXPLORER_SCHEDULER"), workers=workers)


class Engine:
    """The queue of one app. Its methods may be called from any thread."""

    def __init__(self, *, address: str | None = None, workers: int | None = None) -> None:
        self._address, self._count = address, workers
        self._changed = threading.Condition(threading.RLock())
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._active: list[Job] = []  # in the order of their turns; none is over
        self._turns: dict[Job, _Turn] = {}
        self._turns_by_id: dict[str, _Turn] = {}
        self._workers: dict[str, _Worker] = {}
        self._gone: OrderedDict[str, float] = OrderedDict()  # homes of workers that left, and when
        self._last_home: OrderedDict[str, str] = OrderedDict()  # of each visitor: its compiled functions are there
        self._ended: Counter[str] = Counter()
        self._restarts = 0
        self._state: Literal["starting", "ready", "closed"] = "starting"
        self._trouble: str | None = None
        self._topic = f"explorer-{secrets.token_hex(8)}"
        self._cluster: cluster.Cluster | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="engine", daemon=True)
        atexit.register(self.close)
        self._thread.start()

    # --- for pages and the command line

    def submit(
        self,
        function: Callable[..., Any],
        kwargs: Mapping[str, Any] | None = None,
        /,
        *,
        visitor: str = "",
        priority: Priority = LIVE,
        limit_s: float | int = 120,
        replace: bool = True,
        slot: str = "",
        label: str = "",
        lost: Callable[[Loss], Iterable[Any]] | None = None,
    ) -> Job:
        """Queue one call. It replaces what the same visitor asked for before at this priority and slot."""
        return self.submit_many(
            [Call(function, kwargs or {})],
            visitor=visitor,
            priority=priority,
            limit_s=limit_s,
            replace=replace,
            slot=slot,
            label=label,
            lost=lost,
        )

    def submit_many(
        self,
        calls: Sequence[Call],
        *,
        visitor: str = "",
        priority: Priority = SWEEP,
        limit_s: float | int = 120,
        replace: bool = False,
        slot: str = "",
        label: str = "",
        lost: Callable[[Loss], Iterable[Any]] | None = None,
    ) -> Job:
        """Queue calls as one job: each is a turn of its own (limit_s each), all on one worker; others go in between."""
        if not 0 < len(calls) <= MOST_POINTS:
            raise ValueError(f"a job takes 1 … {MOST_POINTS} points, got {len(calls)}")
        job = Job(
            [Point(call=call, payload=call.payload()) for call in calls],
            visitor=visitor,
            priority=Priority(priority),
            limit_s=limit_s,
            slot=slot,
            label=label,
            lost=lost,
            changed=self._changed,
            stop=self._stop,
            place=self._place,
        )
        with self._changed:
            if replace and visitor:
                for older in [other for other in self._active if _same_asker(other, job)]:
                    self._stop(older, "replaced")
            self._jobs[job.id] = job
            waiting = sum(other.visitor == visitor and other.state == "waiting" for other in self._active)
            if self._state == "closed":
                self._end(job, "failed", CLOSED)
            elif visitor and waiting >= WAITING_PER_VISITOR:
                self._end(job, "failed", f"{waiting} of your jobs are waiting already; wait for one, or cancel it.")
            else:
                self._active.append(job)
                self._active.sort(key=lambda other: other.priority)  # stable: first come, first served
                self._soon(self._dispatch)
        return job

    def job(self, id: str) -> Job | None:
        """A job by its id: one that waits, runs, or is among the last that ended."""
        with self._changed:
            return self._jobs.get(id)

    def jobs(self, visitor: str | None = None) -> list[Job]:
        """Those that are known, oldest first."""
        with self._changed:
            return [job for job in self._jobs.values() if visitor is None or job.visitor == visitor]

    def ask(
        self, function: Callable[..., Any], kwargs: Mapping[str, Any] | None = None, /, timeout_s: float | int = 30
    ) -> Any:
        """A quick question to a worker, in its turn. Raises TimeoutError, or RuntimeError with the job's sentence."""
        job = self.submit(function, kwargs, replace=False, limit_s=timeout_s, label=function.__name__)
        if not job.wait(timeout_s):
            job.cancel()
            why = self.stats().trouble or "all are busy"
            raise TimeoutError(f"no answer from a worker within {timeout_s:g} s: {why}")
        if job.state != "done":
            raise RuntimeError(job.error or f"the question was {job.state}")
        return job.results[-1] if job.results else None

    def stats(self) -> Stats:
        with self._changed:
            return Stats(
                state=self._state,
                trouble=self._trouble,
                scheduler=self._cluster.address if self._cluster is not None else None,
                waiting=sum(job.state == "waiting" for job in self._active),
                running=sum(job.state == "running" for job in self._active),
                jobs=dict(self._ended),
                restarts=self._restarts,
                workers=tuple(
                    WorkerInfo(
                        name=each.name,
                        address=each.address,
                        host=each.host,
                        pid=each.pid,
                        gpu=each.gpu,
                        is_busy=each.turn is not None,
                    )
                    for each in sorted(self._workers.values(), key=lambda each: each.name)
                ),
            )

    def wait_ready(self, timeout: float | int | None = None) -> bool:
        """Whether a worker is there, at the latest after so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._workers) or self._state == "closed", timeout)

    def close(self, grace_s: float | int = 0) -> None:
        """Tell the waiting, let running points end for so long, then stop the workers that are our own."""
        atexit.unregister(self.close)
        with self._changed:
            self._state = "closed"
            for job in list(self._active):
                job.stop_as = job.stop_as or "cancelled"
                if job not in self._turns:
                    self._end(job, "cancelled", CLOSED)
            self._changed.wait_for(lambda: not self._active, grace_s)
            for job in list(self._active):
                self._end(job, "cancelled", CLOSED)
            self._changed.notify_all()
        if self._main_task is not None:
            self._soon(self._main_task.cancel)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=2 * cluster.CONNECT_S)

    # --- the queue's rules; the lock is held

    def _place(self, job: Job) -> int | None:
        with self._changed:
            if job.is_over:
                return None
            if job.state == "running":
                return 0
            return [other for other in self._active if other.state == "waiting"].index(job) + 1

    def _stop(self, job: Job, state: State) -> None:
        with self._changed:
            if job.is_over or job.stop_as is not None:
                return
            job.stop_as = state
            turn = self._turns.get(job)
            if turn is not None:
                self._soon(self._tell_to_stop, turn)
            if turn is None or not turn.has_begun:
                self._end(job, state)
            else:
                self._touch(job)

    def _end(self, job: Job, state: State, error: str | None = None) -> None:
        for point in job.points:
            if not point.is_over:
                point.state = state
        job.state, job.finished = state, time.time()
        job.error = error or job.error
        if job in self._active:
            self._active.remove(job)
        self._ended[state] += 1
        over = [other.id for other in self._jobs.values() if other.is_over]
        for old in over[: max(0, len(over) - JOBS_KEPT)]:
            del self._jobs[old]
        self._touch(job)

    def _touch(self, job: Job) -> None:
        job.version += 1
        self._changed.notify_all()

    def _dispatch(self) -> None:
        """Give every free worker the first job that may run there. On the engine's own thread."""
        with self._changed:
            for job in list(self._active) if self._cluster is not None else ():
                free = [each for each in self._workers.values() if each.turn is None and not each.is_condemned]
                if not free:
                    break
                if job not in self._turns and (chosen := self._choose(job, free)) is not None:
                    self._hand(job, chosen)

    def _choose(self, job: Job, free: list[_Worker]) -> _Worker | None:
        if job.home is not None and any(each.home == job.home for each in self._workers.values()):
            return next((each for each in free if each.home == job.home), None)
        if job.home in self._gone and time.monotonic() - self._gone[job.home] < AWAY_S:
            return None  # _lose has set a timer
        ahead = {other.home for other in self._active if other is not job and other.priority <= job.priority}
        if len(job.points) > 1:  # behind a sweep it would wait there to the end, while another worker comes free
            free = [each for each in free if each.home not in ahead]
        last = self._last_home.get(job.visitor)
        return min(free, key=lambda each: (each.home in ahead, each.home != last, each.used), default=None)

    def _hand(self, job: Job, chosen: _Worker) -> None:
        assert self._cluster is not None
        point = next(point for point in job.points if not point.is_over)
        turn = _Turn(id=f"turn-{secrets.token_hex(8)}", job=job, point=point, worker=chosen)
        chosen.turn, chosen.used = turn, time.monotonic()
        self._turns[job] = self._turns_by_id[turn.id] = turn
        point.worker = job.worker = chosen.name
        if len(job.points) > 1:
            job.home = chosen.home
        _remember(self._last_home, job.visitor, chosen.home)
        turn.future = self._cluster.client.submit(
            worker.perform,
            self._topic,
            turn.id,
            point.payload,
            key=turn.id,
            workers=[chosen.address],
            allow_other_workers=False,
            priority=-int(job.priority),
            retries=0,
            pure=False,
        )
        self._go(self._watch(turn))

    def _leave(self, turn: _Turn) -> bool:
        """A turn ends only once, whoever says so first."""
        if self._turns_by_id.pop(turn.id, None) is None:
            return False
        del self._turns[turn.job]
        turn.worker.turn = None
        turn.future.release()
        if turn.deadline is not None:
            turn.deadline.cancel()
        return True

    def _over(self, turn: _Turn, state: State, error: str | None = None, error_type: str | None = None) -> None:
        with self._changed:
            if not self._leave(turn):
                return
            job, point = turn.job, turn.point
            if not job.is_over:
                point.state = job.stop_as or state if state == "cancelled" else state
                point.finished, point.error, point.error_type = time.time(), error, error_type
                if state != "done" and job.lost is not None:
                    self._add_lost(job, point)
                if error is not None and job.error is None:
                    job.error, job.error_type = error, error_type
                self._settle(job)
            self._dispatch()

    def _settle(self, job: Job) -> None:
        """After a point: the job's end, or on to its next point."""
        states = {point.state for point in job.points}
        if states <= OVER:
            ends: Sequence[State] = ("done", "timed_out", "failed", "replaced", "cancelled")
            self._end(job, next(state for state in ends if state in states))
        elif job.stop_as is not None:
            self._end(job, job.stop_as)
        else:
            self._touch(job)

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

    # --- what workers tell; on the engine's own thread

    def _on_event(self, event: tuple[float, Any]) -> None:
        message = event[1]
        with self._changed:
            turn = self._turns_by_id.get(message["turn"])
            if turn is None:
                return
            try:
                self._take(turn, message)
            except Exception as error:  # noqa: BLE001  whatever the class of a result raises when it is read
                self._tell_to_stop(turn)
                why = f"A result could not be read: {worker.first_line(error)}"
                self._over(turn, "failed", why, type(error).__name__)

    def _take(self, turn: _Turn, message: dict[str, Any]) -> None:
        job, point, kind = turn.job, turn.point, message["kind"]
        if "value" in message:
            point.results.append(_load(message["value"]))
        if "item" in message:
            point.item = _load(message["item"])
        if kind == "begun":
            turn.has_begun = True
            turn.deadline = asyncio.get_running_loop().call_later(job.limit_s, self._time_out, turn)
            if not job.is_over:
                point.state = job.state = "running"
                point.started = time.time()
                job.started = job.started or point.started
        elif kind == "progress" and message["count"] > turn.last_count:
            turn.last_count = message["count"]
            point.progress = tuple(message["progress"])
        elif kind == "ended":
            if text := message.get("traceback"):
                log.info("%s failed:\n%s", job, text)
            self._over(turn, message["state"], message.get("error"), message.get("error_type"))
            return
        self._touch(job)

    def _on_cluster_event(self, event: tuple[float, Any]) -> None:
        message = event[1] if isinstance(event[1], dict) else {}
        if message.get("action") == "add-worker":
            self._go(self._look())
        elif message.get("action") == "remove-worker":
            self._lose(message["worker"], is_leaving=bool(message.get("expected")))

    async def _look(self) -> None:
        """Who is there."""
        if self._cluster is None:
            return
        found = await self._cluster.workers()
        with self._changed:
            for address, says in found.items():
                if address not in self._workers:
                    own = says.get("explorer") or {}
                    self._workers[address] = _Worker(
                        address=address,
                        home=says.get("nanny") or address,
                        name=str(says.get("name") or address),
                        host=says.get("host") or "",
                        pid=own.get("pid"),
                        gpu=own.get("gpu"),
                    )
            self._trouble = None if self._workers else "No worker is there yet."
            self._changed.notify_all()
            self._dispatch()

    def _lose(self, address: str, *, is_leaving: bool = False, why: str = DIED) -> None:
        """A worker is gone. What had begun there failed; what had only been handed to it waits again.

        So does all that was at a worker which was sent away in good order.
        """
        with self._changed:
            gone = self._workers.pop(address, None)
            if gone is None:
                return
            self._gone.pop(gone.home, None)
            if not is_leaving:
                self._restarts += why == DIED
                _remember(self._gone, gone.home, time.monotonic())
                asyncio.get_running_loop().call_later(AWAY_S, self._dispatch)
            if not self._workers:
                self._trouble = f"{why}; another is starting." if why == DIED else f"{why}."
            if (turn := gone.turn) is not None and turn.id in self._turns_by_id:
                if turn.has_begun and not is_leaving:
                    during = turn.point.progress[2] or turn.job.label
                    if not turn.job.is_over:
                        log.warning("worker %s is gone during %s", gone.name, turn.job)
                    self._over(turn, "failed", f"{why}{during and ' during '}{during}.", "WorkerDied")
                else:
                    self._hand_back(turn)
            self._changed.notify_all()

    def _hand_back(self, turn: _Turn) -> None:
        job, point = turn.job, turn.point
        point.times_lost += 1
        if point.times_lost >= TIMES_LOST:
            why = f"The worker process died {TIMES_LOST} times before this could begin."
            self._over(turn, "failed", why, "WorkerDied")
            return
        self._leave(turn)
        if not job.is_over:
            point.results.clear()
            point.state, point.started, point.item, point.progress = "waiting", None, None, (0, 1, "")
            if len(job.points) == 1:
                job.state, job.started = "waiting", None
            self._touch(job)
            if job.stop_as is not None:
                self._end(job, job.stop_as)
        self._dispatch()

    def _time_out(self, turn: _Turn) -> None:
        with self._changed:
            if turn.id not in self._turns_by_id or self._cluster is None:
                return
            turn.worker.is_condemned = True
            self._go(self._cluster.kill(turn.worker.address, turn.worker.name))
            at = turn.point.progress[2]
            why = f"Stopped at its time limit of {turn.job.limit_s:g} s{at and f' (it was at: {at})'}."
            self._over(turn, "timed_out", why, "TimeoutError")

    def _tell_to_stop(self, turn: _Turn) -> None:
        if self._cluster is not None:
            self._go(self._cluster.cancel(turn.id, turn.worker.address))

    async def _watch(self, turn: _Turn) -> None:
        """For what never reached the call: the Dask task itself failed."""
        from distributed import wait

        with contextlib.suppress(Exception):
            await wait(turn.future)
        if turn.future.status == "error" and turn.id in self._turns_by_id:
            error = await turn.future.exception()
            if type(error).__name__ != "KilledWorker":  # _lose tells that, and knows whether it had begun
                self._over(turn, "failed", worker.first_line(error), type(error).__name__)

    # --- the engine's own thread

    def _soon(self, function: Callable[..., Any], *args: Any) -> None:
        """From any thread; before there is a cluster nothing is to be done, after the end neither."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, *args)

    def _go(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        async def quietly() -> None:
            try:
                await coroutine
            except Exception as error:  # noqa: BLE001  the connection may go at any moment; _serve sees that
                log.info("the cluster did not answer: %s", worker.first_line(error))

        task = asyncio.get_running_loop().create_task(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _main(self) -> None:
        self._main_task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        delay = 0.5
        while self._state != "closed":
            try:
                await self._serve()
            except asyncio.CancelledError:
                break
            except Exception as error:  # noqa: BLE001  no cluster is no reason to end: say why, and try again
                with self._changed:
                    self._trouble = f"No connection to the workers: {worker.first_line(error)}"
                    self._changed.notify_all()
                log.warning("%s", self._trouble)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(delay)
            delay = min(10.0, delay * 2)

    async def _serve(self) -> None:
        """Until the connection is lost."""
        manager = cluster.here(self._count) if self._address is None else cluster.elsewhere(self._address)
        topics = {self._topic: self._on_event, "all": self._on_cluster_event}
        async with manager as self._cluster, self._cluster.listening(**topics):
            try:
                with self._changed:
                    if self._state != "closed":
                        self._state = "ready"
                await self._look()
                while self._cluster.is_connected:
                    await asyncio.sleep(0.5)
            finally:
                with self._changed:
                    self._cluster = None
                    if self._state != "closed":
                        self._state = "starting"
                    for address in list(self._workers):
                        self._lose(address, why=DISCONNECTED)


class _PlainUnpickler(pickle.Unpickler):
    """Results are read in the web server, which must never import JAX."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] in NOT_IN_THE_SERVER:
            raise ValueError(f"a result must be plain data or NumPy, got {module}.{name}")
        return super().find_class(module, name)


def _load(content: bytes) -> Any:
    return _PlainUnpickler(io.BytesIO(content)).load()


def _same_asker(one: Job, other: Job) -> bool:
    return (one.visitor, one.priority, one.slot) == (other.visitor, other.priority, other.slot)


def _remember(memory: OrderedDict[str, Any], key: str, value: Any, most: int = 1000) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > most:
        memory.popitem(last=False)
