"""Sweeps: how a page asks for many points as one job, finds it again by ?job=, and what became of each point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from explorer import ceilings, clock, measure, sweep
from explorer.backends import BACKENDS
from explorer.clock import Protocol
from explorer.device import Device
from explorer.engine import Call, Loss, Priority
from explorer.problem import Problem
from explorer.record import Record
from explorer.sweep import Point
from explorer.ui import jobs, machine, panels
from explorer.ui.jobs import Answer

POINT_LIMIT_S = 180.0
BY_ITSELF_S = 60.0  # a choice runs at once if it is predicted to take no longer; else on the button
CPU_PROTOCOL = {"warmup": 1, "repeats": 5, "limit_s": 1.0}  # a CPU is slow: fewer calls, and the page says so
ENDS = {
    "cancelled": "cancelled before it was measured",
    "replaced": "another sweep took this one's place before it was measured",
    "timed_out": "the sweep ran out of time before this point",
    "failed": "the sweep ended before this point",
    "done": "the sweep ended without this point",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a page wants to be measured. name stands in the job's label; recorded: what is known from elsewhere."""

    name: str
    label: str
    about: str
    axis: str
    points: tuple[Point, ...]
    protocol: Protocol = clock.LAB_SWEEP
    recorded: tuple[Record, ...] = ()
    with_ceilings: bool = False

    @property
    def calls(self) -> list[Call]:
        """Compile everything in parallel first, then each point alone, a turn of the queue each."""
        first = [Call(ceilings.here)] if self.with_ceilings else []
        if len(self.points) > 1:
            first.append(Call(sweep.compile_ahead, {"points": self.points}))
        return [*first, *(call(point, self.protocol) for point in self.points)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep as far as it is. is_other: it is another one than the controls ask for, found by ?job=."""

    answer: Answer
    points: tuple[Point, ...]
    is_other: bool = False

    @property
    def records(self) -> list[Record]:
        """In the order of the points; once it is over, each point has one."""
        found = [each for each in self.answer.results if isinstance(each, Record)]
        over = self.answer.job is not None and self.answer.is_over
        return sweep.complete(self.points, found, ENDS.get(self.answer.state) if over else None)

    @property
    def missing(self) -> int:
        """How many points it ended without; 0 while it goes on."""
        if not self.answer.is_over:
            return 0
        return sum(r.status == "cancelled" for r in self.records)


def call(point: Point, protocol: Protocol) -> Call:
    """One point as a turn of the queue."""
    asked = {"problem": point.problem.to_json(), "backend": point.backend, "protocol": protocol}
    return Call(sweep.measure_point, asked)


def points_of(answer: Answer) -> tuple[Point, ...]:
    """The points a job was made of."""
    calls = [point.call.kwargs for point in answer.job.points] if answer.job is not None else []
    return tuple(
        Point(problem=Problem.from_json(asked["problem"]), backend=asked["backend"])
        for asked in calls
        if "backend" in asked
    )


def lost(loss: Loss) -> list[Record]:
    """A point whose worker died, that ran out of time or was cancelled."""
    if "backend" not in loss.call.kwargs or loss.results:
        return []
    problem, name = Problem.from_json(loss.call.kwargs["problem"]), loss.call.kwargs["backend"]
    status = loss.state if loss.state in ("timed_out", "cancelled") else "failed"
    return [measure.blank(problem, name, status, loss.error or ENDS.get(loss.state, ENDS["failed"]))]


def timed(protocol: Protocol, here: Device | None) -> Protocol:
    """As asked on a GPU; fewer calls on a CPU, never more than asked."""
    if here is not None and here.is_gpu:
        return protocol
    fewer = {name: min(getattr(protocol, name), most) for name, most in CPU_PROTOCOL.items()}
    return replace(protocol, **fewer)


def predicted_s(asked: Asked, here: Device) -> float:
    """A rough sum over the points that are not refused; compiling comes on top."""
    able = _able(asked, here)
    each = (measure.guess_seconds(p.problem, 1, on_gpu=here.is_gpu, protocol=asked.protocol) for p in able)
    return sum(each, 0.0)


def _able(asked: Asked, here: Device) -> list[sweep.Point]:
    """The points that the rules do not refuse on this device."""
    return [p for p in asked.points if BACKENDS[p.backend].why_not(p.problem, here) is None]


def run(asked: Asked, *, page: str, status: Any) -> Sweep:
    """The Run button with its prediction, and the sweep it started, or that of ?job=, or the last of the same kind.

    A new choice (`choose` as the widget's on_change) runs by itself if it is quick.
    """
    here, button = jobs.device(), st.container()
    key = jobs.key_of(asked.calls)
    answer = Answer.of(key, jobs.desk().find(key))
    seconds = None if here is None else predicted_s(asked, here)
    wanted = panels.was_pressed(f"{page}_run")
    if here is not None and st.session_state.pop(f"{page}_go", False):
        wanted |= answer.job is None and seconds is not None and seconds <= BY_ITSELF_S
    linked = None if wanted else _linked(page, status)
    if wanted:
        answer = _submit(asked, page, status)
    with button:
        panels.run_button(answer, key=f"{page}_run", prediction=_prediction(asked, here, seconds))
    if linked is not None and linked.job is not answer.job:
        return _other(linked, asked, page)
    if here is None and not answer.is_pending:
        with status:
            machine.starting()
    _others(answer, page)
    return Sweep(answer=answer, points=asked.points)


def _submit(asked: Asked, page: str, status: Any) -> Answer:
    answer = jobs.ask_many(
        asked.calls,
        slot=f"sweep {page}",
        again=True,
        priority=Priority.SWEEP,
        limit_s=POINT_LIMIT_S,
        label=asked.label,
        lost=lost,
        settle_s=0.3,
        status=status,
    )
    assert answer.job is not None
    st.query_params["job"] = st.session_state[f"{page}_job"] = answer.job.id
    return answer


def _prediction(asked: Asked, here: Device | None, seconds: float | None) -> str:
    if here is None or seconds is None:
        return f"{len(asked.points)} points; how long they take is known once the worker has loaded JAX."
    able, count = len(_able(asked, here)), len(asked.points)
    if not able:
        return f"{count} points, and {here.name} can run none of them; Run says why."
    refused = f", {count - able} of them refused here" if able < count else ""
    return f"{count} points{refused}, about {max(1, seconds):.0f} s on {here.name}, compiling not counted."


def choose(page: str) -> None:
    """on_change of what chooses a question: the link's job is left, and the new question may run by itself."""
    leave(page)
    st.session_state[f"{page}_go"] = True


def leave(page: str) -> None:
    """Back from a job of the link to what the controls ask for; the job itself goes on."""
    st.session_state[f"{page}_job"] = None
    st.query_params.pop("job", None)


def _linked(page: str, status: Any) -> Answer | None:
    """The job of ?job=, as long as it is known here."""
    wanted = st.session_state.setdefault(f"{page}_job", st.query_params.get("job"))
    if not wanted:
        return None
    found = jobs.find(wanted)
    if found is None or not points_of(found):
        status.warning(
            "The sweep of this link is not kept here any more: the app was started again, or many others came after "
            "it. What the controls ask for is shown instead.",
            icon=":material/link_off:",
        )
        return None
    st.query_params["job"] = wanted
    return found


def _other(found: Answer, asked: Asked, page: str) -> Sweep:
    """The link's job, with a way back if it is not what the controls ask for."""
    points = points_of(found)
    is_other = points != asked.points
    if is_other:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(f":material/link: Shown is the sweep of this link, “{found.job.label if found.job else ''}”, "
                       "which was asked for with other settings.")  # fmt: skip
            st.button("Leave it", key=f"{page}_leave", on_click=leave, args=(page,), type="tertiary")
    return Sweep(answer=found, points=points, is_other=is_other)


def _others(answer: Answer, page: str) -> None:
    """My sweep that still runs while the page shows another question."""
    mine = [job for job in jobs.engine().jobs(jobs.visitor()) if job.slot == f"sweep {page}" and not job.is_over]
    for job in mine:
        if job is not answer.job:
            done, total, _ = job.progress
            with st.container(horizontal=True, vertical_alignment="center"):
                st.caption(f":material/hourglass_top: “{job.label}” goes on meanwhile: {done:g} of {total:g}.")
                st.button("Show", key=f"{page}_show_{job.id}", on_click=_show, args=(page, job.id), type="tertiary")


def _show(page: str, id: str) -> None:
    st.session_state[f"{page}_job"] = id
