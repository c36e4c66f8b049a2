"""The queue's rules alone: no Dask, no process, no clock."""

from __future__ import annotations

import threading
from typing import Any

import engine_calls as calls
import pytest

from explorer import queue as queue_module
from explorer.job import Call, Job, Point, Priority
from explorer.queue import AWAY_S, TIMES_LOST, Queue, Turn, Worker


class Clock:
    """What the queue takes for the time; it stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    moved_by_hand = Clock()
    monkeypatch.setattr(queue_module, "time", moved_by_hand)
    return moved_by_hand


@pytest.fixture
def asked() -> list[Turn]:
    """Turns that were asked to stop."""
    return []


@pytest.fixture
def queue(clock: Clock, asked: list[Turn]) -> Queue:
    """Workers a and b."""
    made = Queue(changed=threading.Condition(threading.RLock()), ask_to_stop=asked.append)
    for name in "ab":
        join(made, name)
    return made


def join(queue: Queue, name: str, address: str | None = None) -> None:
    address = address or f"address of {name}"
    queue.workers[address] = Worker(address=address, home=f"nanny of {name}", name=name)


def add(queue: Queue, points: int = 1, priority: Priority | None = None, visitor: str = "", **options: Any) -> Job:
    job = Job(
        [Point(call=Call(calls.pid), payload=b"") for _ in range(points)],
        visitor=visitor,
        priority=priority if priority is not None else (Priority.LIVE if points == 1 else Priority.SWEEP),
        limit_s=1,
        slot="",
        label="",
        lost=None,
        changed=queue.changed,
        stop=queue.stop,
        place=queue.place,
    )
    queue.add(job, **{"replace": True, **options})
    return job


def begun(queue: Queue) -> Turn:
    turn = queue.next_turn()
    assert turn is not None
    queue.begin(turn)
    return turn


def test_one_call_at_a_time_on_each_worker(queue: Queue) -> None:
    for _ in range(3):
        add(queue)
    first, second = begun(queue), begun(queue)
    assert {first.worker.name, second.worker.name} == {"a", "b"}
    assert queue.next_turn() is None
    queue.over(first, "done")
    assert begun(queue).worker is first.worker


def test_points_of_a_job_come_one_after_another(queue: Queue) -> None:
    sweep = add(queue, points=3)
    turn = begun(queue)
    assert queue.next_turn() is None, "the other worker is free, and the points stay together"
    for _ in range(2):
        queue.over(turn, "done")
        turn = begun(queue)
        assert turn.worker.name == sweep.worker
    queue.over(turn, "done")
    assert sweep.state == "done"


def test_a_live_run_leaves_a_sweeps_worker_alone_if_it_can(queue: Queue) -> None:
    sweep = add(queue, points=2, visitor="anna")
    point = begun(queue)
    busy = add(queue)
    on_the_other = begun(queue)
    queue.over(point, "done")
    queue.over(on_the_other, "done")
    add(queue, visitor="anna")
    assert begun(queue).worker.name != sweep.worker, "though anna's compiled functions are there"
    assert busy.state == "done"


def test_a_stage_sweep_goes_before_another_sweep_on_its_worker(queue: Queue) -> None:
    del queue.workers["address of b"]
    sweep = add(queue, points=2)
    point = begun(queue)
    stage = add(queue, points=2, priority=Priority.STAGE)
    for expected in (stage, stage, sweep):
        queue.over(point, "done")
        point = begun(queue)
        assert point.job is expected


def test_a_sweep_waits_for_its_worker_and_then_moves(queue: Queue, clock: Clock) -> None:
    sweep = add(queue, points=3)
    point = begun(queue)
    queue.lose(point.worker.address)
    assert sweep.points[0].state == "failed"
    clock.now += AWAY_S - 1
    assert queue.next_turn() is None
    clock.now += 2
    assert begun(queue).worker.name != sweep.points[0].worker


def test_a_sweep_goes_on_where_its_nanny_started_another_worker(queue: Queue) -> None:
    sweep = add(queue, points=2)
    point = begun(queue)
    queue.lose(point.worker.address)
    join(queue, point.worker.name, "a new address")
    assert begun(queue).worker.address == "a new address"
    assert sweep.worker == point.worker.name
    assert queue.restarts == 1


def test_a_sweep_moves_at_once_from_a_worker_that_was_sent_away(queue: Queue) -> None:
    sweep = add(queue, points=3)
    queue.lose(begun(queue).worker.address)
    join(queue, sweep.worker or "", "a new address")
    point = begun(queue)
    assert point.worker.name == sweep.worker
    point.point.results.append("half")
    queue.lose(point.worker.address, is_leaving=True)
    again = begun(queue)
    assert again.point is sweep.points[1]
    assert again.worker.name != point.worker.name
    assert sweep.results == []
    assert queue.restarts == 1


def test_what_never_begins_is_not_handed_out_for_ever(queue: Queue) -> None:
    job = add(queue)
    for time in range(TIMES_LOST):
        assert job.state == "waiting"
        turn = queue.next_turn()
        assert turn is not None
        queue.lose(turn.worker.address)
        join(queue, turn.worker.name, f"address {time}")
    assert (job.state, job.error) == ("failed", "The worker process died 3 times before this could begin.")


def test_a_turn_ends_once(queue: Queue) -> None:
    job = add(queue)
    turn = begun(queue)
    queue.over(turn, "timed_out", "too long", "TimeoutError")
    queue.over(turn, "done")
    queue.lose(turn.worker.address)
    assert (job.state, job.error) == ("timed_out", "too long")
    assert queue.ended == {"timed_out": 1}


def test_a_worker_that_is_to_be_killed_gets_nothing_more(queue: Queue) -> None:
    add(queue)
    turn = begun(queue)
    turn.worker.is_condemned = True
    queue.over(turn, "timed_out")
    add(queue)
    assert begun(queue).worker is not turn.worker
    add(queue)
    assert queue.next_turn() is None


def test_a_job_cancelled_between_hand_out_and_begin_keeps_its_worker_busy(queue: Queue, asked: list[Turn]) -> None:
    job = add(queue)
    turn = queue.next_turn()
    assert turn is not None
    job.cancel()
    assert job.state == "cancelled"
    assert asked == [turn]
    queue.begin(turn)
    assert job.state == "cancelled"
    assert turn.worker.turn is turn
    queue.over(turn, "cancelled")
    assert turn.worker.turn is None


def test_places_count_only_those_that_wait(queue: Queue) -> None:
    jobs = [add(queue) for _ in range(4)]
    begun(queue)
    begun(queue)
    assert [job.place for job in jobs] == [0, 0, 1, 2]
    jobs[2].cancel()
    assert [job.place for job in jobs] == [0, 0, None, 1]


def test_a_sweep_of_which_every_point_failed_failed(queue: Queue) -> None:
    sweep = add(queue, points=2)
    for why in ("first", "second"):
        queue.over(begun(queue), "failed", why, "RuntimeError")
    assert (sweep.state, sweep.error) == ("failed", "first")
    mixed = add(queue, points=2)
    queue.over(begun(queue), "failed", "first", "RuntimeError")
    queue.over(begun(queue), "done")
    assert (mixed.state, mixed.error) == ("done", "first")
