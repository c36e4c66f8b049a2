"""The queue, on real Dask workers. Nothing waits by the clock: jobs are held at gates and watched for changes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import engine_calls as calls
import psutil
import pytest

from explorer import cluster, engine
from explorer.engine import LIVE, STAGE, SWEEP, Call, Engine, Job, Loss
from explorer.queue import JOBS_KEPT, WAITING_PER_VISITOR

ROOT = Path(__file__).resolve().parent.parent
LONG_S = 60.0  # for what must come; a test that needs it has failed


class Gate:
    """A FIFO: whoever reads it waits until it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        os.mkfifo(path)

    def open(self) -> None:
        with open(self.path, "wb"):
            pass


def until(job: Job, holds: Callable[[Job], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    version = job.version
    while not holds(job):
        assert time.monotonic() < deadline, f"{job} did not come that far: {job.results} {job.error}"
        version = job.wait_change(version, 1.0)


def ended(*jobs: Job) -> None:
    for job in jobs:
        assert job.wait(LONG_S), f"{job} did not end"


def is_done(job: Job) -> bool:
    ended(job)
    assert job.state == "done", job.error
    return True


def has_result(job: Job) -> bool:
    return bool(job.results)


def wait_for(holds: Callable[[], bool]) -> None:
    """For what no job tells: processes that go, workers that come."""
    deadline = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_running(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture(scope="module", autouse=True)
def bare_workers() -> Iterator[None]:
    """The queue knows nothing of JAX; its own tests need not wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXPLORER_LOAD_LIBRARIES", "0")
        patch.delenv("EXPLORER_SCHEDULER", raising=False)
        yield


@pytest.fixture(scope="module")
def queue(bare_workers: None) -> Iterator[Engine]:
    """One worker, for all tests that leave it idle."""
    running = engine.start(workers=1)
    assert running.wait_ready(LONG_S)
    yield running
    running.close()


@pytest.fixture(scope="module")
def pair(bare_workers: None) -> Iterator[Engine]:
    """Two workers."""
    running = engine.start(workers=2)
    wait_for(lambda: len(running.stats().workers) == 2)
    yield running
    running.close()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture
def held(queue: Engine, gate: Gate) -> Iterator[Job]:
    """A job that has the only worker until its gate opens."""
    job = queue.submit(calls.hold, {"gate": gate.path}, label="held")
    until(job, has_result)
    yield job
    if not job.is_over:
        gate.open()
        ended(job)


# --- calls and results


def test_a_function_gives_its_value(queue: Engine) -> None:
    job = queue.submit(calls.add, {"a": 2, "b": 3}, label="a sum")
    assert is_done(job)
    assert job.results == [5]
    assert job.place is None
    assert job.started is not None
    assert job.finished is not None
    assert job.created <= job.started <= job.finished
    assert queue.job(job.id) is job
    assert queue.job("another") is None


def test_what_a_generator_yields_is_there_while_it_runs(queue: Engine, held: Job, gate: Gate) -> None:
    assert held.state == "running"
    assert len(held.results) == 1
    gate.open()
    ended(held)
    assert len(held.results) == 2


def test_progress_comes_and_the_last_word_is_not_lost(queue: Engine) -> None:
    job = queue.submit(calls.report_many, {"times": 2000})
    assert is_done(job)
    assert job.progress == (2000, 2000, "sample 2000")
    assert job.version < 500, "each of 2000 quick reports was sent"


def test_ask_answers_or_tells_why_not(queue: Engine) -> None:
    assert queue.ask(calls.add, {"a": 1, "b": 1}) == 2
    with pytest.raises(RuntimeError, match="ZeroDivisionError: first line"):
        queue.ask(calls.broken)


def test_ask_gives_up_in_time(queue: Engine, held: Job) -> None:
    with pytest.raises(TimeoutError, match=r"no answer .* all are busy"):
        queue.ask(calls.pid, timeout_s=0.05)


# --- order


def test_stage_goes_before_live_before_sweep_and_else_who_came_first(queue: Engine, held: Job, gate: Gate) -> None:
    asked = [("sweep", SWEEP), ("live", LIVE), ("stage", STAGE), ("live 2", LIVE), ("sweep 2", SWEEP)]
    jobs = {name: queue.submit(calls.number, priority=priority, label=name) for name, priority in asked}
    expected = ["stage", "live", "live 2", "sweep", "sweep 2"]
    assert [jobs[name].place for name in expected] == [1, 2, 3, 4, 5]
    assert held.place == 0
    gate.open()
    ended(*jobs.values())
    assert sorted(jobs, key=lambda name: jobs[name].results[0]) == expected


def test_a_live_run_goes_between_the_points_of_a_sweep(queue: Engine, tmp_path: Path) -> None:
    gates = [Gate(tmp_path / name) for name in "ab"]
    points = [Call(calls.hold, {"gate": each.path}) for each in gates] + [Call(calls.number)]
    sweep = queue.submit_many(points)
    until(sweep, has_result)
    live = queue.submit(calls.number)
    assert live.place == 1
    gates[0].open()
    assert is_done(live)
    assert sweep.state == "running"
    assert sweep.place == 0
    until(sweep, lambda job: len(job.results) == 3)
    assert sweep.progress[:2] == (1, 3)
    assert sweep.remaining_s is not None
    gates[1].open()
    assert is_done(sweep)
    assert sweep.results[-1] == live.results[0] + 1


# --- replacement


def test_a_newer_request_replaces_those_that_wait(queue: Engine, held: Job, gate: Gate) -> None:
    jobs = [queue.submit(calls.echo, {"value": n}, visitor="anna") for n in range(5)]
    assert [job.state for job in jobs] == ["replaced"] * 4 + ["waiting"]
    assert jobs[-1].place == 1
    gate.open()
    assert is_done(jobs[-1])
    assert jobs[-1].results == [4]
    assert jobs[0].results == []


def test_a_newer_request_ends_the_running_one_between_samples(queue: Engine) -> None:
    older = queue.submit(calls.until_cancelled, visitor="anna")
    until(older, has_result)
    newer = queue.submit(calls.pid, visitor="anna")
    assert older.is_stopping
    assert is_done(newer)
    assert older.state == "replaced"
    assert older.results == ["sample", "incomplete"]


def test_replacement_keeps_to_visitor_slot_and_priority(queue: Engine, held: Job, gate: Gate) -> None:
    jobs = [
        queue.submit(calls.pid, visitor="anna"),
        queue.submit(calls.pid, visitor="anna", slot="heatmap"),
        queue.submit(calls.pid, visitor="bert"),
        queue.submit_many([Call(calls.pid)], visitor="anna"),
        queue.submit(calls.pid),
        queue.submit(calls.pid),
    ]
    last = queue.submit(calls.pid, visitor="anna")
    gate.open()
    ended(*jobs, last)
    assert [job.state for job in jobs] == ["replaced"] + ["done"] * 5
    assert last.state == "done"


def test_a_visitor_may_not_fill_the_queue(queue: Engine, held: Job) -> None:
    jobs = [queue.submit(calls.pid, visitor="anna", replace=False) for _ in range(WAITING_PER_VISITOR)]
    one_too_many = queue.submit(calls.pid, visitor="anna", replace=False)
    assert one_too_many.state == "failed"
    assert one_too_many.error == "8 of your jobs are waiting already; wait for one, or cancel it."
    others = queue.submit(calls.pid, visitor="bert")
    assert others.state == "waiting"
    for job in [*jobs, others]:
        job.cancel()
        assert job.state == "cancelled"


# --- cancel


def test_cancel_ends_a_waiting_job_at_once(queue: Engine, held: Job, gate: Gate) -> None:
    waiting = queue.submit(calls.pid)
    waiting.cancel()
    assert waiting.state == "cancelled"
    gate.open()
    ended(held)
    assert is_done(queue.submit(calls.pid))
    assert waiting.results == []


def test_cancel_ends_a_running_job_where_it_asks(queue: Engine) -> None:
    job = queue.submit(calls.until_cancelled)
    until(job, has_result)
    job.cancel()
    ended(job)
    assert job.state == "cancelled"
    assert job.results == ["sample", "incomplete"], "what was measured stays"


def test_cancel_ends_a_generator_between_yields(queue: Engine) -> None:
    job = queue.submit(calls.endless)
    until(job, has_result)
    job.cancel()
    ended(job)
    assert job.state == "cancelled"
    assert job.results == list(range(len(job.results)))


def test_cancel_of_what_is_complete_anyway_says_done(queue: Engine, tmp_path: Path, gate: Gate) -> None:
    seen = tmp_path / "seen"
    job = queue.submit(calls.hold_once, {"gate": gate.path, "seen": str(seen)})
    until(job, lambda job: job.progress[2] == "at the gate")
    job.cancel()
    assert job.is_stopping
    gate.open()
    ended(job)
    assert job.state == "done"


def test_cancel_of_a_sweep_keeps_its_points(queue: Engine) -> None:
    sweep = queue.submit_many([Call(calls.pid), Call(calls.until_cancelled), Call(calls.pid)])
    until(sweep, lambda job: len(job.results) == 2)
    sweep.cancel()
    ended(sweep)
    assert sweep.state == "cancelled"
    assert [point.state for point in sweep.points] == ["done", "cancelled", "cancelled"]
    assert len(sweep.results) == 3


# --- errors


def test_a_wrong_request_is_told_as_it_is(queue: Engine) -> None:
    job = queue.submit(calls.wrong_request, {"heads": -1})
    ended(job)
    assert (job.state, job.error, job.error_type) == ("failed", "heads must be positive, got -1", "ValueError")


def test_any_other_error_is_told_by_type_and_first_line(queue: Engine) -> None:
    job = queue.submit(calls.broken)
    ended(job)
    assert (job.state, job.error, job.error_type) == (
        "failed",
        "ZeroDivisionError: first line",
        "ZeroDivisionError",
    )


def test_a_call_that_exits_leaves_the_worker_alone(queue: Engine) -> None:
    before = queue.ask(calls.pid)
    job = queue.submit(calls.exit_politely)
    ended(job)
    assert (job.state, job.error_type) == ("failed", "SystemExit")
    assert queue.ask(calls.pid) == before


@pytest.mark.parametrize(
    ("function", "kwargs", "says"),
    [
        (calls.unsendable, {}, "a result must be plain data that can be sent, got lock"),
        (calls.of_jax, {}, "a result must be plain data or NumPy, got jax.Array"),
        (calls.large, {"mib": 65}, "a result may have 64 MiB at most, got 65 MiB"),
    ],
)
def test_a_result_that_cannot_be_sent_is_told(
    queue: Engine, function: Callable[..., Any], kwargs: dict[str, Any], says: str
) -> None:
    before = queue.ask(calls.pid)
    job = queue.submit(function, kwargs)
    ended(job)
    assert job.state == "failed"
    assert says in (job.error or "")
    assert queue.ask(calls.pid) == before


def test_a_function_must_be_one_that_a_worker_can_import(queue: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def inner() -> None: ...

    from_a_script = types.FunctionType(calls.pid.__code__, {}, "pid")
    from_a_script.__module__ = "__main__"
    for function in (inner, lambda: 1, from_a_script):
        with pytest.raises(ValueError, match="a function of an importable module is needed"):
            queue.submit(function)
    with pytest.raises(ValueError, match="must be plain data that can be sent"):
        queue.submit(calls.echo, {"value": threading.Lock()})
    only_here = types.ModuleType("only_here")
    monkeypatch.setitem(sys.modules, "only_here", only_here)
    exec("def function(): pass", only_here.__dict__)
    job = queue.submit(only_here.function)
    ended(job)
    assert job.error == "ModuleNotFoundError: No module named 'only_here'"


def test_a_job_has_points(queue: Engine) -> None:
    with pytest.raises(ValueError, match=r"a job takes 1 … 5000 points, got 0"):
        queue.submit_many([])


# --- workers that die


def test_kill_9_while_a_job_runs(queue: Engine, held: Job) -> None:
    victim = held.results[0]
    restarts = queue.stats().restarts
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    ended(held)
    told_s = time.monotonic() - killed
    assert held.state == "failed"
    assert held.error == "The worker process died during held."
    assert held.error_type == "WorkerDied"
    assert held.results == [victim], "what it had yielded stays"
    following = queue.submit(calls.pid)
    assert is_done(following)
    next_s = time.monotonic() - killed
    assert following.results != [victim]
    assert queue.stats().restarts == restarts + 1
    print(f"told after {told_s:.2f} s, next result after {next_s:.2f} s")


def test_what_was_under_way_is_known_and_can_be_recorded(queue: Engine, gate: Gate) -> None:
    losses: list[Loss] = []

    def lost(loss: Loss) -> list[str]:
        losses.append(loss)
        return [f"{loss.item['backend']} {loss.state}"]

    job = queue.submit(calls.report_then_hold, {"gate": gate.path}, lost=lost)
    until(job, lambda job: job.item is not None)
    assert job.item == {"backend": "second"}
    os.kill(queue.stats().workers[0].pid or 0, signal.SIGKILL)
    ended(job)
    assert job.results == ["first", "second failed"]
    assert job.error == "The worker process died during the second."
    assert [(loss.call.function, loss.results) for loss in losses] == [(calls.report_then_hold, ("first",))]


def test_a_recorder_that_raises_does_not_stop_the_queue(queue: Engine, caplog: pytest.LogCaptureFixture) -> None:
    def lost(loss: Loss) -> list[str]:
        raise RuntimeError("in the page's own code")

    job = queue.submit(calls.broken, lost=lost)
    ended(job)
    assert job.state == "failed"
    assert is_done(queue.submit(calls.pid))
    assert "could not be recorded" in caplog.text


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (calls.segfault, "The worker process died during a null pointer."),
        (calls.leave, "The worker process died."),
    ],
)
def test_a_call_that_takes_the_process_along(queue: Engine, function: Callable[..., Any], says: str) -> None:
    before = queue.ask(calls.pid)
    job = queue.submit(function)
    ended(job)
    assert (job.state, job.error, job.error_type) == ("failed", says, "WorkerDied"), "it ran once, and began"
    if function is calls.segfault:
        assert job.item == "null", "said just before the crash, and known nevertheless"
    assert queue.ask(calls.pid, timeout_s=LONG_S) != before


def test_a_worker_that_dies_idle_is_replaced(queue: Engine) -> None:
    before = queue.ask(calls.pid)
    os.kill(before, signal.SIGKILL)
    assert queue.ask(calls.pid, timeout_s=LONG_S) != before


@pytest.mark.parametrize("is_told", [True, False])
def test_a_job_merely_handed_to_a_dead_worker_runs_on_the_next(queue: Engine, held: Job, is_told: bool) -> None:
    """A second app on the same cluster: its job waits in the worker's own queue while the first app's runs.

    An app that has just come is not told of a death that falls before the scheduler knows it listens.
    """
    other = engine.start(address=queue.stats().scheduler)
    try:
        assert other.wait_ready(LONG_S)
        if not is_told:
            assert other._cluster is not None
            other._soon(other._cluster.client.unsubscribe_topic, "all")
        handed = other.submit(calls.pid)
        wait_for(lambda: other.stats().workers[0].is_busy)
        assert handed.state == "waiting"
        os.kill(held.results[0], signal.SIGKILL)
        ended(held, handed)
        assert held.state == "failed"
        assert handed.state == "done", handed.error
        assert handed.results != held.results
    finally:
        other.close()
    assert is_done(queue.submit(calls.pid)), "closing the other app left the cluster alone"


@pytest.mark.parametrize("holds_the_interpreter", [False, True])
def test_a_job_over_its_time_limit_is_stopped(queue: Engine, gate: Gate, holds_the_interpreter: bool) -> None:
    before = queue.ask(calls.pid)
    if holds_the_interpreter:
        job = queue.submit(calls.hold_the_interpreter, limit_s=0.3)
    else:
        job = queue.submit(calls.hold, {"gate": gate.path}, limit_s=0.3)
    ended(job)
    assert (job.state, job.error) == ("timed_out", "Stopped at its time limit of 0.3 s.")
    assert job.started is not None
    assert job.finished is not None
    assert job.finished - job.started > 0.25
    assert queue.ask(calls.pid, timeout_s=LONG_S) != before
    wait_for(lambda: not is_running(before))


# --- visitors, workers


def test_each_visitor_sees_the_own_results(pair: Engine) -> None:
    jobs = {
        (visitor, n): pair.submit(calls.echo, {"value": (visitor, n)}, visitor=visitor, replace=False)
        for n in range(WAITING_PER_VISITOR)
        for visitor in ("anna", "bert")
    }
    ended(*jobs.values())
    assert all(job.results == [asked] for asked, job in jobs.items())
    assert [job.visitor for job in pair.jobs("bert")[-2:]] == ["bert", "bert"]


def test_a_sweep_stays_on_one_worker_and_others_run_beside_it(pair: Engine, gate: Gate) -> None:
    points = [Call(calls.pid), Call(calls.hold, {"gate": gate.path}), *[Call(calls.pid)] * 4]
    sweep = pair.submit_many(points)
    until(sweep, lambda job: len(job.results) == 2)
    beside = [pair.submit(calls.pid, visitor=f"visitor {n}") for n in range(4)]
    ended(*beside)
    gate.open()
    assert is_done(sweep)
    assert len(set(sweep.results)) == 1
    assert {pid for job in beside for pid in job.results}.isdisjoint(sweep.results)


def test_a_sweep_does_not_move_to_a_worker_that_is_free_earlier(pair: Engine, tmp_path: Path) -> None:
    gates = {name: Gate(tmp_path / name) for name in ("elsewhere", "point", "between")}
    elsewhere = pair.submit(calls.hold, {"gate": gates["elsewhere"].path})
    until(elsewhere, has_result)
    sweep = pair.submit_many([Call(calls.hold, {"gate": gates["point"].path}), Call(calls.pid)])
    until(sweep, has_result)
    between = pair.submit(calls.hold, {"gate": gates["between"].path})
    gates["point"].open()
    until(between, has_result)
    assert between.results[0] == sweep.results[0]
    gates["elsewhere"].open()
    ended(elsewhere)
    assert is_done(pair.submit(calls.pid)), "the other worker is free, and has been offered"
    assert len(sweep.results) == 2
    gates["between"].open()
    assert is_done(sweep)
    assert len(set(sweep.results)) == 1


def test_two_sweeps_take_two_workers(pair: Engine, tmp_path: Path) -> None:
    gates = [Gate(tmp_path / name) for name in "ab"]
    sweeps = [pair.submit_many([Call(calls.hold, {"gate": each.path}), Call(calls.pid)]) for each in gates]
    for sweep in sweeps:
        until(sweep, has_result)
    third = pair.submit_many([Call(calls.pid), Call(calls.pid)])
    assert third.place == 1
    for each in gates:
        each.open()
    ended(*sweeps, third)
    used = [set(sweep.results) for sweep in sweeps]
    assert [len(pids) for pids in used] == [1, 1]
    assert used[0].isdisjoint(used[1])


def test_a_visitor_comes_back_to_the_worker_that_has_its_compiled_functions(pair: Engine) -> None:
    pids = {}
    for visitor in ("anna", "bert"):
        for _ in range(3):
            job = pair.submit(calls.pid, visitor=visitor)
            assert is_done(job)
            pids.setdefault(visitor, set()).update(job.results)
    assert all(len(seen) == 1 for seen in pids.values())


def test_kill_9_in_mid_sweep_costs_one_point(pair: Engine, gate: Gate) -> None:
    points = [Call(calls.pid), Call(calls.hold, {"gate": gate.path}), Call(calls.pid), Call(calls.pid)]
    sweep = pair.submit_many(points)
    until(sweep, lambda job: len(job.results) == 2)
    os.kill(sweep.results[0], signal.SIGKILL)
    assert is_done(sweep)
    assert [point.state for point in sweep.points] == ["done", "failed", "done", "done"]
    assert len({point.worker for point in sweep.points}) == 1, "it waited for its own worker to come back"
    before, _, *after = [point.results[0] for point in sweep.points]
    assert len(set(after)) == 1
    assert before not in after
    assert sweep.error == "The worker process died."


def test_workers_are_told_with_their_processes(pair: Engine) -> None:
    stats = pair.stats()
    assert stats.state == "ready"
    assert stats.trouble is None
    assert [each.name for each in stats.workers] == ["0", "1"]
    assert all(each.host == "127.0.0.1" and is_running(each.pid or 0) for each in stats.workers)
    assert stats.jobs["done"] > 0


def test_a_worker_that_is_sent_away_loses_nothing(pair: Engine, gate: Gate, tmp_path: Path) -> None:
    """As when a node is drained: its command gets SIGTERM. The point that ran there runs again on the other worker."""
    held = Call(calls.hold_once, {"gate": gate.path, "seen": str(tmp_path / "seen")})
    sweep = pair.submit_many([Call(calls.pid), held, Call(calls.pid)])
    until(sweep, lambda job: job.progress[2] == "at the gate")
    left = next(each for each in pair.stats().workers if each.name == sweep.worker)
    os.kill(os.getpgid(left.pid or 0), signal.SIGTERM)
    assert is_done(sweep)
    assert [point.state for point in sweep.points] == ["done"] * 3
    before, *after = sweep.results
    assert before == left.pid
    assert len(set(after)) == 1
    assert before not in after


# --- what must stay bounded, and what must stay quiet


def test_history_is_bounded(queue: Engine) -> None:
    jobs = [queue.submit(calls.echo, {"value": n}) for n in range(200)]
    ended(*jobs)
    assert [job.results for job in jobs] == [[n] for n in range(200)]
    assert len(queue.jobs()) == JOBS_KEPT
    assert queue.job(jobs[0].id) is None
    assert queue.job(jobs[-1].id) is jobs[-1]
    assert queue.stats().waiting == queue.stats().running == 0


def test_a_worker_is_a_plain_process_of_its_own(queue: Engine) -> None:
    found = queue.ask(calls.process)
    assert "pytest" not in found["modules"], "it imported the __main__ of the process that started it"
    assert "streamlit" not in found["modules"]
    assert "profile" not in found["callbacks"], "Dask's profiler looks at the running call every 10 ms"
    environment = found["environment"]
    assert environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0"
    assert environment.get("OMP_NUM_THREADS") == os.environ.get("OMP_NUM_THREADS")


def test_nothing_listens_beyond_the_loopback_interface(queue: Engine) -> None:
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    listening = {
        connection.laddr.ip
        for process in family
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_close_tells_the_waiting_lets_the_running_end_and_leaves_no_process(gate: Gate) -> None:
    closing = engine.start(workers=1)
    running = closing.submit(calls.hold, {"gate": gate.path})
    waiting = closing.submit(calls.pid)
    until(running, has_result)
    group = os.getpgid(running.results[0])
    children = psutil.Process().children(recursive=True)
    family = [child.pid for child in children if os.getpgid(child.pid) == group]
    assert group != os.getpgid(0)
    assert len(family) >= 2
    thread = threading.Thread(target=closing.close, kwargs={"grace_s": LONG_S})
    thread.start()
    ended(waiting)
    assert (waiting.state, waiting.error) == ("cancelled", "The app is shutting down.")
    late = closing.submit(calls.pid)
    assert (late.state, late.error) == ("failed", "The app is shutting down.")
    assert running.state == "running"
    gate.open()
    thread.join(LONG_S)
    assert not thread.is_alive()
    assert len(running.results) == 2
    assert closing.stats().state == "closed"
    wait_for(lambda: not any(is_running(pid) for pid in family))
    closing.close()


def test_without_a_cluster_jobs_wait_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CONNECT_S", 0.5)
    nowhere = engine.start(address="tcp://127.0.0.1:9")
    job = nowhere.submit(calls.pid)
    wait_for(lambda: nowhere.stats().trouble is not None)
    stats = nowhere.stats()
    assert stats.state == "starting"
    assert "No connection to the workers" in (stats.trouble or "")
    assert (job.state, job.place) == ("waiting", 1)
    nowhere.close()
    assert job.state == "cancelled"


def run_python(code: str, *, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": paths, **(env or {})},
    )


@pytest.mark.timeout(240)
def test_the_server_never_loads_jax_and_stdout_is_its_own(tmp_path: Path) -> None:
    """From `python -c`, unguarded; with the libraries loaded in the worker; with jobs that print; without close()."""
    code = """
        import json, os, sys
        from pathlib import Path
        import engine_calls as calls
        from explorer import cluster, engine
        queue = engine.start(workers=1)
        queue.ask(calls.say, {"text": "from the worker"}, timeout_s=90)
        found = queue.ask(calls.process)
        pid = queue.ask(calls.pid)
        jaxlib = ["jaxlib" in Path(f"/proc/{each}/maps").read_text() for each in (os.getpid(), pid)]
        here = [name for name in ("jax", "streamlit", "pandas") if name in sys.modules]
        print(json.dumps({"here": here, "there": found, "jaxlib": jaxlib, "pid": pid}))
    """
    cache = str(tmp_path / "cache")
    done = run_python(code, env={"EXPLORER_LOAD_LIBRARIES": "1", "EXPLORER_CACHE_DIR": cache, "JAX_PLATFORMS": "cpu"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1, done.stdout
    assert done.stderr == "from the worker\n", "neither Dask nor the workers chat"
    answer = json.loads(done.stdout)
    assert answer["here"] == []
    assert "jax" in answer["there"]["modules"]
    assert answer["jaxlib"] == [False, True]
    assert not is_running(answer["pid"])
    assert answer["there"]["environment"]["JAX_COMPILATION_CACHE_DIR"] == f"{cache}/jax"


def test_workers_do_not_outlive_a_server_that_was_killed() -> None:
    code = """
        import os, signal
        import psutil
        import engine_calls as calls
        from explorer import cluster, engine
        queue = engine.start(workers=1)
        worker = queue.ask(calls.pid, timeout_s=60)
        print(worker, psutil.Process(worker).ppid(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = run_python(code)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    wait_for(lambda: not any(is_running(pid) for pid in pids))


def test_a_scheduler_that_goes_while_the_worker_starts() -> None:
    """One that hangs up once it was asked; a worker that gave up then would be missing when it comes back."""
    code = """
import asyncio
from distributed.comm import listen
async def hang_up(comm):
    await comm.read()
    comm.abort()
async def serve():
    async with listen("tcp://127.0.0.1:0", hang_up) as listener:
        print(listener.contact_address, flush=True)
        await asyncio.Event().wait()
asyncio.run(serve())
"""
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-c", code]
        scheduler = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(scheduler.kill)
        assert scheduler.stdout is not None
        command = [sys.executable, "-m", "explorer.worker", scheduler.stdout.readline().strip(), "--host", "127.0.0.1"]
        worker = stack.enter_context(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True))
        stack.callback(worker.kill)
        assert worker.stderr is not None
        for _ in range(2):
            assert worker.stderr.readline().startswith("worker: no way to tcp://127.0.0.1:")
        worker.terminate()
        assert worker.wait(LONG_S) == 0


@pytest.mark.timeout(240)
def test_a_scheduler_that_goes_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a cluster: scheduler and worker are processes of their own, and each may be started again."""
    monkeypatch.setattr(cluster, "CONNECT_S", 2)
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT", "2s")
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    code = f"""
import asyncio
from distributed import Scheduler
async def serve():
    async with Scheduler(host="127.0.0.1", port={port}, dashboard=False, dashboard_address="127.0.0.1:0") as scheduler:
        await scheduler.finished()
asyncio.run(serve())
"""

    def scheduler() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.DEVNULL)

    processes = [scheduler()]
    far = engine.start(address=address)
    try:
        wait_for(lambda: far.stats().state == "ready")
        worker = [sys.executable, "-m", "explorer.worker", address, "--name", "far", "--host", "127.0.0.1"]
        processes.append(subprocess.Popen(worker, env=env))
        assert far.wait_ready(LONG_S)
        running = far.submit(calls.until_cancelled)
        until(running, has_result)
        processes[0].kill()
        processes[0].wait()
        ended(running)
        assert (running.state, running.error) == ("failed", "The connection to the workers was lost.")
        waiting = far.submit(calls.pid)
        processes.append(scheduler())
        assert is_done(waiting)
        assert far.stats().workers[0].name == "far"
        assert processes[1].poll() is None, "the worker's command waited, too"
        processes[1].terminate()
        assert processes[1].wait(LONG_S) == 0
    finally:
        far.close()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()
            process.wait()
