"""Engine: runs the queue on a Dask cluster, one call at a time on each worker, and tells what becomes of every job."""

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
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from explorer import cluster, worker
from explorer.job import Call, Job, Loss, Point, Priority
from explorer.queue import AWAY_S, DIED, Limits, Queue, Turn, Worker

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
NOT_IN_THE_SERVER = ("jax", "jaxlib", "flax", "transformer_engine")
CLOSED = "The app is shutting down."
LOOK_EVERY_S = 0.5  # for what no event told: one that fell before the scheduler knew that we listen
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


def start(address: str | None = None, workers: int | None = None) -> Engine:
    """An engine with workers of its own, or those of the Dask cluster at EXPLORER_SCHEDULER. Returns at once."""
    return Engine(address=address or os.environ.get("EXPLORER_SCHEDULER"), workers=workers)


class Engine:
    """The queue of one app. Its methods may be called from any thread."""

    def __init__(self, *, address: str | None = None, workers: int | None = None) -> None:
        self._address, self._count = address, workers
        self._changed = threading.Condition(threading.RLock())
        self._queue = Queue(
            changed=self._changed,
            ask_to_stop=lambda turn: self._soon(self._ask_to_stop, turn),
            limits=Limits.of(),
        )
        self._futures: dict[str, Any] = {}
        self._deadlines: dict[str, asyncio.TimerHandle] = {}
        self._state: Literal["starting", "ready", "closed"] = "starting"
        self._trouble: str | None = None
        self._topic = f"explorer-{secrets.token_hex(8)}"
        self._cluster: cluster.Cluster | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._news = asyncio.Event()
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
        calls = [Call(function, kwargs or {})]
        names = {"visitor": visitor, "slot": slot, "label": label}
        return self.submit_many(calls, priority=priority, limit_s=limit_s, replace=replace, lost=lost, **names)

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
        most = self._queue.limits.points
        if not calls:
            raise ValueError(f"a job takes 1 … {most} points, got 0")
        refused = None
        if len(calls) > most:
            refused, calls = f"A job takes {most} points at most here, got {len(calls)}; ask for fewer.", calls[:1]
        job = Job(
            [Point(call=call, payload=call.payload()) for call in calls],
            visitor=visitor,
            priority=Priority(priority),
            limit_s=limit_s,
            slot=slot,
            label=label,
            lost=lost,
            changed=self._changed,
            stop=self._queue.stop,
            place=self._queue.place,
        )
        with self._changed:
            self._queue.add(job, replace=replace, refused=CLOSED if self._state == "closed" else refused)
        self._soon(self._dispatch)
        return job

    def job(self, id: str) -> Job | None:
        """A job by its id: one that waits, runs, or is among the last that ended."""
        with self._changed:
            return self._queue.jobs.get(id)

    def jobs(self, visitor: str | None = None) -> list[Job]:
        """Those that are known, oldest first."""
        with self._changed:
            return [job for job in self._queue.jobs.values() if visitor is None or job.visitor == visitor]

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
            here, queue = self._cluster, self._queue
            known = sorted(queue.workers.values(), key=lambda each: each.name)
            fields = ("name", "address", "host", "pid", "gpu")
            return Stats(
                state=self._state,
                trouble=(not known and here is not None and here.trouble) or self._trouble,
                scheduler=here.address if here is not None else None,
                waiting=sum(job.state == "waiting" for job in queue.active),
                running=sum(job.state == "running" for job in queue.active),
                jobs=dict(queue.ended),
                restarts=queue.restarts,
                workers=tuple(
                    WorkerInfo(**{field: getattr(each, field) for field in fields}, is_busy=each.turn is not None)
                    for each in known
                ),
            )

    def wait_ready(self, timeout: float | int | None = None) -> bool:
        """Whether a worker is there, at the latest after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queue.workers) or self._state == "closed", timeout)
            return bool(self._queue.workers)

    def close(self, grace_s: float | int = 0) -> None:
        """Tell the waiting, let running points end for so long, then stop the workers that are our own."""
        atexit.unregister(self.close)
        with self._changed:
            self._state = "closed"
            self._queue.stop_all(CLOSED, grace_s)
            self._changed.notify_all()
        if self._main_task is not None:
            self._soon(self._main_task.cancel)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=2 * cluster.CONNECT_S)

    # --- turns; on the engine's own thread

    def _dispatch(self) -> None:
        """Give every free worker the first job that may run there."""
        with self._changed:
            while self._cluster is not None and (turn := self._queue.next_turn()) is not None:
                self._futures[turn.id] = self._cluster.client.submit(
                    worker.perform,
                    self._topic,
                    turn.id,
                    turn.point.payload,
                    key=turn.id,
                    workers=[turn.worker.address],
                    allow_other_workers=False,
                    priority=-int(turn.job.priority),
                    retries=0,
                    pure=False,
                )
                self._go(self._watch(turn))

    def _next(self) -> None:
        """After any turn's end: forget it, and give its worker another."""
        for id in self._futures.keys() - self._queue.turns.keys():
            self._futures.pop(id).release()
            if (deadline := self._deadlines.pop(id, None)) is not None:
                deadline.cancel()
        self._dispatch()

    def _on_event(self, event: tuple[float, Any]) -> None:
        """What a worker tells of a turn."""
        message = event[1]
        with self._changed:
            turn = self._queue.turns.get(message["turn"])
            if turn is None:
                return
            try:
                self._take(turn, message)
            except Exception as error:  # noqa: BLE001  whatever the class of a result raises when it is read
                self._ask_to_stop(turn)
                why = f"A result could not be read: {worker.first_line(error)}"
                self._queue.over(turn, "failed", why, type(error).__name__)
            if turn.id not in self._queue.turns:
                self._next()

    def _take(self, turn: Turn, message: dict[str, Any]) -> None:
        job, point, kind = turn.job, turn.point, message["kind"]
        if "value" in message:
            point.results.append(_load(message["value"]))
        if "item" in message:
            point.item = _load(message["item"])
        if kind == "begun":
            self._queue.begin(turn)
            loop = asyncio.get_running_loop()
            self._deadlines[turn.id] = loop.call_later(job.limit_s, self._time_out, turn)
        elif kind == "progress" and message["count"] > turn.last_count:
            turn.last_count = message["count"]
            point.progress = tuple(message["progress"])
        elif kind == "ended":
            if text := message.get("traceback"):
                log.info("%s failed:\n%s", job, text)
            self._queue.over(turn, message["state"], message.get("error"), message.get("error_type"))
            return
        self._queue.touch(job)

    def _time_out(self, turn: Turn) -> None:
        with self._changed:
            if turn.id not in self._queue.turns or self._cluster is None:
                return
            turn.worker.is_condemned = True
            self._go(self._cluster.kill(turn.worker.address, turn.worker.name))
            at = turn.point.progress[2]
            why = f"Stopped at its time limit of {turn.job.limit_s:g} s{at and f' (it was at: {at})'}."
            self._queue.over(turn, "timed_out", why, "TimeoutError")
            self._next()

    def _ask_to_stop(self, turn: Turn) -> None:
        if self._cluster is not None:
            self._go(self._cluster.cancel(turn.id, turn.worker.address))

    async def _watch(self, turn: Turn) -> None:
        """For what never reached the call: the Dask task itself failed."""
        from distributed import wait

        future = self._futures[turn.id]
        with contextlib.suppress(Exception):
            await wait(future)
        if future.status == "error" and turn.id in self._queue.turns:
            error = await future.exception()
            if type(error).__name__ != "KilledWorker":  # the worker's end tells that, and whether it had begun
                self._queue.over(turn, "failed", worker.first_line(error), type(error).__name__)
                self._next()

    # --- workers; on the engine's own thread

    def _on_cluster_event(self, event: tuple[float, Any]) -> None:
        message = event[1] if isinstance(event[1], dict) else {}
        if message.get("action") == "add-worker":
            self._news.set()
        elif message.get("action") == "remove-worker":
            self._lose(message["worker"], is_leaving=bool(message.get("expected")))

    async def _look(self) -> None:
        """Who is there. Called by _serve alone: each answer is younger than what the one before it found."""
        assert self._cluster is not None
        found = await self._cluster.workers()
        with self._changed:
            for address in self._queue.workers.keys() - found.keys():  # it left before we were told of such things
                self._lose(address)
            new = found.keys() - self._queue.workers.keys()
            for address in new:
                says = found[address]
                own = says.get("explorer") or {}
                name = str(says.get("name") or address)
                self._queue.workers[address] = Worker(
                    address=address,
                    # A name that was given stays, even where the nanny has to be started anew
                    home=name if name != address else says.get("nanny") or address,
                    name=name,
                    host=says.get("host") or "",
                    pid=own.get("pid"),
                    gpu=own.get("gpu"),
                )
            trouble = None if self._queue.workers else self._trouble or "No worker is there yet."
            if new or trouble != self._trouble:
                self._trouble = trouble
                self._changed.notify_all()
        if new:
            self._dispatch()

    def _lose(self, address: str, *, is_leaving: bool = False, why: str = DIED) -> None:
        with self._changed:
            self._queue.lose(address, is_leaving=is_leaving, why=why)
            if not self._queue.workers:
                self._trouble = f"{why}; another is starting." if why == DIED else f"{why}."
            self._next()
        asyncio.get_running_loop().call_later(AWAY_S, self._dispatch)  # a sweep may then move

    # --- the engine's own thread

    def _soon(self, function: Callable[..., Any], *args: Any) -> None:
        """From any thread; before there is a cluster nothing is to be done, after the end neither."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, *args)

    def _go(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(_quietly(coroutine))
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
                        self._state, self._trouble = "ready", None
                await self._look()
                while self._cluster.is_connected:
                    self._news.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._news.wait(), LOOK_EVERY_S)
                    await _quietly(asyncio.wait_for(self._look(), cluster.CONNECT_S))
            finally:
                with self._changed:
                    self._cluster = None
                    if self._state != "closed":
                        self._state = "starting"
                    for address in list(self._queue.workers):
                        self._lose(address, why=DISCONNECTED)


async def _quietly(coroutine: Coroutine[Any, Any, Any]) -> None:
    try:
        await coroutine
    except Exception as error:  # noqa: BLE001  the connection may go at any moment; _serve sees that
        log.info("the cluster did not answer: %s", worker.first_line(error))


class _PlainUnpickler(pickle.Unpickler):
    """Results are read in the web server, which must never import JAX."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] in NOT_IN_THE_SERVER:
            raise ValueError(f"a result must be plain data or NumPy, got {module}.{name}")
        return super().find_class(module, name)


def _load(content: bytes) -> Any:
    return _PlainUnpickler(io.BytesIO(content)).load()
