"""Engine: the queue. Hands each worker one call at a time, over Dask, and says of every job what became of it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import io
import logging
import os
import pickle
import secrets
import signal
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from explorer import worker as worker_module
from explorer.job import OVER, Call, Job, Loss, Point, Priority, Progress, State

__all__ = ["LIVE", "STAGE", "SWEEP", "Call", "Engine", "Job", "Loss", "Point", "Priority", "Stats", "start"]

STAGE, LIVE, SWEEP = Priority
WAITING_PER_VISITOR = 8
JOBS_KEPT = 200
TIMES_LOST = 3  # a job whose worker dies before it began is submitted again, but not for ever
AWAY_S = 15.0  # a sweep waits so long for its own worker to come back before it moves to another
HOT = ("jax", "jaxlib", "flax", "transformer_engine")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    name: str
    address: str
    host: str
    pid: int | None
    gpu: str | None  # as CUDA_VISIBLE_DEVICES names it
    is_busy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a page or a metric tells about the queue."""

    state: Literal["starting", "ready", "closed"]
    trouble: str | None
    waiting: int
    running: int
    jobs: dict[str, int]  # ended since the start, by state
    restarts: int
    workers: tuple[WorkerInfo, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class _Worker:
    address: str
    name: str
    host: str
    pid: int | None = None
    gpu: str | None = None
    turn: _Turn | None = None
    is_condemned: bool = False
    used: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Turn:
    id: str
    job: Job
    point: Point
    worker: _Worker
    future: Any = None
    has_started: bool = False
    last_count: int = 0
    deadline: asyncio.TimerHandle | None = None


class _PlainUnpickler(pickle.Unpickler):
    """Results are unpickled in the web server, which must never import JAX."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] in HOT:
            raise ValueError(f"a result must be plain data or NumPy, got {module}.{name}")
        return super().find_class(module, name)


def start(address: str | None = None, workers: int | None = None) -> Engine:
    """An engine with a local cluster, or with the Dask cluster at the address (EXPLORER_SCHEDULER). Returns at once."""
    return Engine(address=address or os.environ.get("EXPLORER_SCHEDULER"), workers=workers)


class Engine:
    """The queue of one app. All methods may be called from any thread."""

    def __init__(self, *, address: str | None = None, workers: int | None = None) -> None:
        self._address, self._count = address, workers
        self._changed = threading.Condition(threading.RLock())
        self._active: list[Job] = []  # in the order in which they came; none is over
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._ended: Counter[str] = Counter()
        self._restarts = 0
        self._workers: dict[str, _Worker] = {}
        self._gone: dict[str, float] = {}  # names of workers that left, and when
        self._last_worker: OrderedDict[str, str] = OrderedDict()  # of each visitor: the compiled functions are there
        self._turns: dict[str, _Turn] = {}
        self._state: Literal["starting", "ready", "closed"] = "starting"
        self._trouble: str | None = None
        self._topic = f"explorer-{secrets.token_hex(8)}"
        self._client: Any = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    # --- for pages

    def submit(
        self,
        function: Callable[..., Any],
        kwargs: Mapping[str, Any] | None = None,
        /,
        *,
        visitor: str = "",
        priority: Priority = LIVE,
        limit_s: float = 120.0,
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
        limit_s: float = 120.0,
        replace: bool = False,
        slot: str = "",
        label: str = "",
        lost: Callable[[Loss], Iterable[Any]] | None = None,
    ) -> Job:
        """Queue calls as one job: each is a turn of its own (limit_s each), all on one worker; others go in between."""
        if not calls:
            raise ValueError("a job needs at least one call, got none")
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
            if replace:
                for older in [other for other in self._active if _same_asker(other, job)]:
                    self._stop(older, "replaced")
            self._jobs[job.id] = job
            waiting = sum(other.visitor == visitor and other.state == "waiting" for other in self._active)
            if self._state == "closed":
                self._end(job, "failed", "The app is shutting down; nothing more is taken.")
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
        self, function: Callable[..., Any], kwargs: Mapping[str, Any] | None = None, /, timeout_s: float = 30.0
    ) -> Any:
        """A quick question to a worker, in its turn. Raises TimeoutError, or RuntimeError with the job's sentence."""
        job = self.submit(function, kwargs, replace=False, limit_s=timeout_s, label=function.__name__)
        if not job.wait(timeout_s):
            job.cancel()
            raise TimeoutError(
                f"no answer from a worker within {timeout_s:g} s ({self.stats().trouble or 'all are busy'})"
            )
        if job.state != "done":
            raise RuntimeError(job.error or f"the question was {job.state}")
        return job.results[-1] if job.results else None

    def stats(self) -> Stats:
        with self._changed:
            return Stats(
                state=self._state,
                trouble=self._trouble,
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

    def close(self, grace_s: float = 0.0) -> None:
        """Tell the waiting, let running points end for so long, then stop the workers that are ours."""
        atexit.unregister(self.close)
        with self._changed:
            self._state = "closed"
            for job in list(self._active):
                job.stop_as = job.stop_as or "cancelled"
                if not any(turn.job is job for turn in self._turns.values()):
                    self._end(job, "cancelled", "The app is shutting down.")
            self._changed.wait_for(lambda: not self._active, grace_s)
            for job in list(self._active):
                self._end(job, "cancelled", "The app is shutting down.")
        self._soon(lambda: self._closing and self._closing.set())
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=15)

    # --- the queue; the lock is held

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
            turn = next((turn for turn in self._turns.values() if turn.job is job), None)
            if turn is not None:
                self._soon(self._go, self._cancel(turn))
            if turn is None or not turn.has_started:
                self._end(job, state, None)
            self._touch(job)

    def _end(self, job: Job, state: State, error: str | None) -> None:
        for point in job.points:
            if not point.is_over:
                point.state = state
        job.state, job.finished = state, time.time()
        if error is not None:
            job.error = error
        with contextlib.suppress(ValueError):
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
        """Give every free worker the first job that may run there."""
        with self._changed:
            if self._client is None:
                return
            for job in list(self._active):
                if any(turn.job is job for turn in self._turns.values()):
                    continue
                if (chosen := self._choose(job)) is not None:
                    self._hand(job, chosen)

    def _choose(self, job: Job) -> _Worker | None:
        free = [each for each in self._workers.values() if each.turn is None and not each.is_condemned]
        if job.worker is not None and len(job.points) > 1:
            if any(each.name == job.worker for each in self._workers.values()):
                return next((each for each in free if each.name == job.worker), None)
            away = time.monotonic() - self._gone.get(job.worker, 0.0)
            if away < AWAY_S and len(self._workers) > 0:
                if self._loop is not None:
                    self._loop.call_later(AWAY_S - away, self._dispatch)
                return None
        pinned = {
            other.worker
            for other in self._active
            if other is not job
            and len(other.points) > 1
            and other.state == "running"
            and other.priority <= job.priority
        }
        if len(job.points) > 1:
            free = [each for each in free if each.name not in pinned]
        last = self._last_worker.get(job.visitor)
        return min(free, key=lambda each: (each.name in pinned, each.name != last, each.used), default=None)

    def _hand(self, job: Job, chosen: _Worker) -> None:
        point = next(point for point in job.points if not point.is_over)
        turn = _Turn(id=f"turn-{secrets.token_hex(8)}", job=job, point=point, worker=chosen)
        chosen.turn, chosen.used = turn, time.monotonic()
        point.worker = job.worker = chosen.name
        self._last_worker[job.visitor] = chosen.name
        self._last_worker.move_to_end(job.visitor)
        while len(self._last_worker) > 1000:
            self._last_worker.popitem(last=False)
        self._turns[turn.id] = turn
        turn.future = self._client.submit(
            worker_module.perform,
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

    def _over(self, turn: _Turn, state: State, error: str | None = None, error_type: str | None = None) -> None:
        """A turn's end, however it came; the first word counts."""
        with self._changed:
            if self._turns.pop(turn.id, None) is None:
                return
            if turn.deadline is not None:
                turn.deadline.cancel()
            turn.worker.turn = None
            turn.future.release()
            job, point = turn.job, turn.point
            if not job.is_over:
                if state == "cancelled" and job.stop_as is not None:
                    state = job.stop_as
                point.state, point.finished = state, time.time()
                point.error, point.error_type = error, error_type
                if state != "done" and turn.has_started and job.lost is not None:
                    self._add_lost(job, point)
                if error is not None and job.error is None:
                    job.error, job.error_type = error, error_type
                self._settle(job)
            self._dispatch()

    def _settle(self, job: Job) -> None:
        states = {point.state for point in job.points}
        if states <= OVER:
            ends: Sequence[State] = ("done", "timed_out", "failed", "replaced", "cancelled")
            self._end(job, next(state for state in ends if state in states), None)
        elif job.stop_as is not None:
            self._end(job, job.stop_as, None)
        else:
            self._touch(job)

    def _add_lost(self, job: Job, point: Point) -> None:
        loss = Loss(
            call=point.call, state=point.state, error=point.error or "", item=point.item, results=tuple(point.results)
        )
        try:
            point.results.extend(job.lost(loss) if job.lost else ())
        except Exception:  # the caller's own code; the queue goes on
            log.exception("%s: what was lost could not be recorded", job.label)

    # --- what workers tell; on the engine's own thread

    def _on_event(self, event: tuple[float, Any]) -> None:
        message = event[1]
        with self._changed:
            turn = self._turns.get(message["turn"])
            if turn is None:
                return
            job, point = turn.job, turn.point
            if message["kind"] == "ended":
                if text := message.get("traceback"):
                    log.info("%s failed:\n%s", job.label, text)
                self._over(turn, message["state"], message.get("error"), message.get("error_type"))
                return
            if message["kind"] == "started":
                turn.has_started = True
                turn.deadline = asyncio.get_running_loop().call_later(job.limit_s, self._time_out, turn)
                if not job.is_over:
                    point.state, job.state = "running", "running"
                    point.started = time.time()
                    job.started = job.started or point.started
            elif message["kind"] == "result":
                try:
                    point.results.append(_PlainUnpickler(io.BytesIO(message["value"])).load())
                except Exception as error:  # noqa: BLE001  whatever a result's class raises
                    self._go(self._cancel(turn))
                    self._over(
                        turn, "failed", f"A result could not be read: {worker_module.first_line(error)}", "TypeError"
                    )
                    return
            elif message["kind"] == "progress" and message["count"] > turn.last_count:
                turn.last_count = message["count"]
                point.progress = tuple(message["progress"])
                if "item" in message:
                    point.item = _PlainUnpickler(io.BytesIO(message["item"])).load()
            self._touch(job)

    def _on_cluster_event(self, event: tuple[float, Any]) -> None:
        message = event[1]
        if not isinstance(message, dict):
            return
        if message.get("action") == "add-worker":
            self._go(self._look())
        elif message.get("action") == "remove-worker":
            self._lose(message["worker"], is_expected=bool(message.get("expected")))

    async def _look(self) -> None:
        """Who is there."""
        identity = await self._client.scheduler.identity(n_workers=-1)
        with self._changed:
            for address, found in identity["workers"].items():
                if address not in self._workers:
                    own = found.get("explorer") or {}
                    name = str(found.get("name") or address)
                    self._workers[address] = _Worker(
                        address=address, name=name, host=found.get("host") or "", pid=own.get("pid"), gpu=own.get("gpu")
                    )
                    if self._gone.pop(name, None) is not None:
                        self._restarts += 1
            self._trouble = None if self._workers else "No worker is there yet."
            self._changed.notify_all()
            self._dispatch()

    def _lose(self, address: str, *, is_expected: bool) -> None:
        """A worker is gone: what had begun there failed; what had only been handed to it waits again."""
        with self._changed:
            gone = self._workers.pop(address, None)
            if gone is None:
                return
            self._gone[gone.name] = time.monotonic()
            if not self._workers:
                self._trouble = "The worker is starting again."
            turn = gone.turn
            if turn is None or turn.id not in self._turns:
                self._dispatch()
                return
            if turn.has_started and not is_expected:
                text = turn.point.progress[2] or turn.job.label
                during = f" during {text}" if text else ""
                log.warning("worker %s died%s", gone.name, during)
                self._over(
                    turn, "failed", f"The worker process died{during}; the next job runs on a fresh one.", "WorkerDied"
                )
            else:
                self._again(turn)

    def _again(self, turn: _Turn) -> None:
        point = turn.point
        point.times_lost += 1
        if point.times_lost >= TIMES_LOST:
            self._over(
                turn, "failed", f"The worker process died {TIMES_LOST} times before this could begin.", "WorkerDied"
            )
            return
        del self._turns[turn.id]
        if turn.deadline is not None:
            turn.deadline.cancel()
        turn.worker.turn = None
        turn.future.release()
        if not turn.job.is_over:
            point.results.clear()
            point.state, point.started, point.item, point.progress = "waiting", None, None, (0, 1, "")
            if len(turn.job.points) == 1:
                turn.job.state = "waiting"
            self._touch(turn.job)
        self._dispatch()

    def _time_out(self, turn: _Turn) -> None:
        with self._changed:
            if turn.id not in self._turns:
                return
            turn.worker.is_condemned = True
            self._go(self._kill(turn.worker))
            text = turn.point.progress[2]
            at = f" (it was at: {text})" if text else ""
            self._over(turn, "timed_out", f"Stopped at its time limit of {turn.job.limit_s:g} s{at}.", "TimeoutError")

    # --- Dask; on the engine's own thread

    async def _watch(self, turn: _Turn) -> None:
        """Only for what never reached the call: the task itself failed or was dropped."""
        from distributed import wait

        with contextlib.suppress(Exception):
            await wait(turn.future)
        if turn.future.status == "error" and turn.id in self._turns:
            error = await turn.future.exception()
            if type(error).__name__ != "KilledWorker":  # _lose tells that, and knows whether it had begun
                self._over(turn, "failed", worker_module.first_line(error), type(error).__name__)

    async def _cancel(self, turn: _Turn) -> None:
        await self._client.run(worker_module.cancel, turn.id, workers=[turn.worker.address], on_error="ignore")

    async def _kill(self, condemned: _Worker) -> None:
        answers = await self._client.run(worker_module.kill, workers=[condemned.address], nanny=True, on_error="ignore")
        if not answers:
            await self._client.run(worker_module.kill_itself, workers=[condemned.address], on_error="ignore")

    def _go(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(self._quietly(coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            await coroutine
        except Exception as error:  # noqa: BLE001  the connection may go at any moment; _serve sees that
            log.info("the cluster did not answer: %s", worker_module.first_line(error))

    def _soon(self, function: Callable[..., Any], *args: Any) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the engine
                self._loop.call_soon_threadsafe(function, *args)

    async def _main(self) -> None:
        self._closing = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        delay = 0.5
        while self._state != "closed":
            try:
                await self._serve()
            except Exception as error:  # noqa: BLE001  no cluster is no reason to end: say why, and try again
                with self._changed:
                    self._trouble = f"No connection to the GPU workers: {worker_module.first_line(error)}"
                    log.warning("%s", self._trouble)
            self._disconnect()
            if self._state != "closed":
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), delay)
                delay = min(10.0, delay * 2)

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            if self._address is None:
                address = await stack.enter_async_context(self._local_cluster())
                security = None
            else:
                worker_module.quiet_dask()
                address, security = self._address, worker_module.security()
            from distributed import Client

            client = Client(address, asynchronous=True, security=security, set_as_default=False, timeout="10s")
            self._client = await stack.enter_async_context(client)
            client.subscribe_topic(self._topic, self._on_event)
            client.subscribe_topic("all", self._on_cluster_event)
            with self._changed:
                if self._state == "starting":
                    self._state = "ready"
            await self._look()
            assert self._closing is not None
            while client.status == "running" and not self._closing.is_set():
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), 0.5)
            self._disconnect()
            for topic in ("all", self._topic):
                client.unsubscribe_topic(topic)  # else the scheduler tells us of our own leaving, and finds nobody

    def _disconnect(self) -> None:
        with self._changed:
            self._client = None
            if self._state == "ready":
                self._state = "starting"
            for address in list(self._workers):
                self._lose(address, is_expected=False)

    @contextlib.asynccontextmanager
    async def _local_cluster(self) -> AsyncIterator[str]:
        """A scheduler in this process, and one command per worker: nothing imports this process's __main__ again."""
        gpus = worker_module.gpus()
        count = self._count or len(gpus) or 1
        names = [str(number) for number in range(count)]
        envs = [{"CUDA_VISIBLE_DEVICES": gpus[n % len(gpus)]} if len(gpus) > 1 else {} for n in range(count)]
        processes = [await self._start_worker(env, name) for name, env in zip(names, envs, strict=True)]
        try:
            worker_module.quiet_dask()
            import dask.config
            from distributed import Scheduler

            dask.config.set({"distributed.scheduler.http.routes": [], "distributed.scheduler.work-stealing": False})
            async with Scheduler(host="127.0.0.1", dashboard=False, dashboard_address="127.0.0.1:0") as scheduler:
                keepers = [
                    asyncio.create_task(self._keep(scheduler.address, processes, number, envs[number], names[number]))
                    for number in range(count)
                ]
                try:
                    yield scheduler.address
                finally:
                    for keeper in keepers:
                        keeper.cancel()
                    await asyncio.gather(*keepers, return_exceptions=True)
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    async def _start_worker(self, env: Mapping[str, str], name: str) -> asyncio.subprocess.Process:
        """It reads the scheduler's address from stdin, and ends when stdin does: so never after this process."""
        paths = [str(Path(__file__).parents[1]), *filter(None, sys.path)]  # functions are found there by reference
        return await asyncio.create_subprocess_exec(
            *[sys.executable, "-P", "-m", "explorer.worker", worker_module.FROM_STDIN],
            *["--name", name, "--host", "127.0.0.1"],
            stdin=asyncio.subprocess.PIPE,
            stdout=sys.__stderr__,  # stdout belongs to the command line's answer
            env={**os.environ, **env, "PYTHONPATH": os.pathsep.join(paths), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            start_new_session=True,
        )

    async def _keep(
        self, address: str, processes: list[asyncio.subprocess.Process], number: int, env: Mapping[str, str], name: str
    ) -> None:
        """Tell a worker's command where the scheduler is, and start another should even its nanny die."""
        while True:
            process = processes[number]
            assert process.stdin is not None
            process.stdin.write(f"{address}\n".encode())
            await process.wait()
            log.warning("the command of worker %s ended with %s", name, process.returncode)
            await asyncio.sleep(1.0)
            processes[number] = await self._start_worker(env, name)


def _same_asker(one: Job, other: Job) -> bool:
    return (one.visitor, one.priority, one.slot) == (other.visitor, other.priority, other.slot)
