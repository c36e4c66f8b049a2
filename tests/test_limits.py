"""What a public server does not take: from one visitor, from all together, in one job."""

from __future__ import annotations

import threading

import pytest

from explorer import engine as engine_module
from explorer import metrics, worker
from explorer.job import Call, Job, Point, Priority
from explorer.queue import Limits, Queue


@pytest.fixture
def queue() -> Queue:
    return Queue(
        changed=threading.Condition(threading.RLock()),
        ask_to_stop=lambda turn: None,
        limits=Limits(waiting_per_visitor=2, waiting=3),
    )


def ask(queue: Queue, visitor: str, *, replace: bool = False) -> Job:
    call = Call(metrics.prove)
    job = Job(
        [Point(call=call, payload=call.payload())],
        visitor=visitor,
        priority=Priority.LIVE,
        limit_s=1,
        slot="",
        label="",
        lost=None,
        changed=queue.changed,
        stop=queue.stop,
        place=queue.place,
    )
    queue.add(job, replace=replace)
    return job


def test_one_visitor_and_all_together_are_bounded(queue: Queue) -> None:
    mine = [ask(queue, "anna") for _ in range(3)]
    assert [job.state for job in mine] == ["waiting", "waiting", "failed"]
    assert mine[2].error == "2 of your jobs are waiting already; wait for one, or cancel it."
    others = [ask(queue, name) for name in ("bert", "carl")]
    assert [job.state for job in others] == ["waiting", "failed"]
    assert others[1].error == "3 jobs are waiting, which is all that this server takes; try later."
    mine[0].cancel()
    assert ask(queue, "carl").state == "waiting"


def test_a_newer_question_takes_the_older_one_s_place(queue: Queue) -> None:
    queue.limits = Limits(waiting=1)
    first, second = (ask(queue, "anna", replace=True) for _ in range(2))
    assert (first.state, second.state) == ("replaced", "waiting")


def test_a_job_s_size_is_bounded_and_the_page_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLORER_POINTS", "3")
    monkeypatch.setenv("EXPLORER_LOAD_LIBRARIES", "0")
    engine = engine_module.start(workers=1)
    try:
        assert engine.wait_ready(60)
        assert not engine.submit_many([Call(worker.gpus)] * 3).is_over
        job = engine.submit_many([Call(worker.gpus)] * 4)
        assert (job.state, job.error) == ("failed", "A job takes 3 points at most here, got 4; ask for fewer.")
    finally:
        engine.close()


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", ""])
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"EXPLORER_WAITING must be a whole number from 1 on, got"):
        Limits.of({"EXPLORER_WAITING": text})


def test_a_laptop_s_limits_are_wide() -> None:
    assert Limits.of({}) == Limits(waiting_per_visitor=8, waiting=500, points=5000)
