"""Live: what the Live run page is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import streamlit as st

from explorer import charts, clock, measure, memory, record
from explorer.backends import BACKENDS
from explorer.problem import Problem
from explorer.record import Record
from explorer.ui import jobs, panels
from explorer.ui.jobs import Answer

PROTOCOL = clock.Protocol(warmup=3, repeats=50, limit_s=3.0)  # the lab's counts, cut off where a call is slow
SMALL_S = 5.0  # what is predicted to take no longer runs by itself
LIMIT_S = 180.0
CROP = 128  # rows and columns of an output that are sent and drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run will cost, and whether it starts by itself."""

    seconds: float
    where: str
    too_large: tuple[str, ...] = ()

    @property
    def is_small(self) -> bool:
        return self.seconds <= SMALL_S

    @property
    def sentence(self) -> str:
        if self.too_large and not self.seconds:
            return "More memory than there is: nothing will be run, and each says what it needs."
        about = f"about {self.seconds:,.1f} s predicted on {self.where}, compiling not counted"
        if self.too_large:
            about += f"; {', '.join(map(charts.label, self.too_large))} will not run, for want of memory"
        how = (
            f"up to {SMALL_S:g} s it runs by itself"
            if self.is_small
            else f"more than {SMALL_S:g} s, so only on request"
        )
        return f"{about}; {how}."


def told(plan: Plan, answer: Answer) -> str:
    """Before a run: what it will cost. After it: when, where, how long it took, and what was predicted."""
    job = answer.job
    if job is None or not answer.is_over or job.started is None or job.finished is None or not answer.results:
        return plan.sentence
    taken = job.finished - job.started
    return f"measured {answer.results[-1].when} in {taken:.1f} s on {plan.where}; {plan.seconds:.1f} s were predicted."


def notice() -> None:
    """Where there is no GPU: whose times these are."""
    here = jobs.device()
    if here is not None and not here.is_gpu:
        whose = f"All times are this CPU's own ({here.name}); backends that need a GPU say so."
        st.caption(f":material/info: No NVIDIA GPU here. {whose}")


def plan(problem: Problem, names: Sequence[str]) -> Plan:
    """By what is known of the worker's device; a CPU's pace before that is known."""
    here = jobs.device()
    able = [name for name in names if here is None or BACKENDS[name].why_not(problem, here) is None]
    on_gpu = here is not None and here.is_gpu
    most = here.memory_bytes if here is not None else None
    large = tuple(
        name for name in able if most and memory.predicted(name, problem, on_gpu=on_gpu) > memory.MARGIN * most
    )
    seconds = measure.guess_seconds(problem, len(able) - len(large), on_gpu=on_gpu, protocol=PROTOCOL)
    return Plan(seconds=seconds, where=here.name if here else "a CPU (the worker is starting)", too_large=large)


def question(problem: Problem, names: Sequence[str]) -> dict[str, Any]:
    """The arguments of measure.run."""
    return {"problem": problem, "specs": list(names), "protocol": PROTOCOL}


def compared(names: Sequence[str], records: Sequence[Record]) -> tuple[str, charts.Clock]:
    """The chosen baseline, and the clock on which it is compared (a choice only where both are there)."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        baseline = st.selectbox(
            "Baseline",
            names,
            key="live_baseline",
            bind="query-params",
            width=220,
            help="The backend that the others' speed is compared with.",
        )
        if not any(found.timing and found.timing.device_ms for found in records):
            return baseline, "wall_ms"
        chosen = st.segmented_control(
            "Clock",
            ["wall", "device"],
            default="wall",
            required=True,
            key="live_clock",
            bind="query-params",
            help="Wall: one call, then wait. Device: the kernels' own time, without launch and host.",
        )
    return baseline, "device_ms" if chosen == "device" else "wall_ms"


def grid(
    names: Sequence[str],
    records: Sequence[Record],
    baseline: str | None,
    on: charts.Clock,
    *,
    is_asked: bool = True,
    key: str = "",
) -> None:
    """A card for each backend that ran or will run; below, those that can't, with their sentences."""
    by_name = {found.backend: found for found in records}
    refused = [found for found in records if found.status == "refused"]
    shown = [name for name in names if name not in {found.backend for found in refused}]
    if shown:
        with st.grid(min(len(shown), 4), min_column_width=250):
            for name in shown:
                if name in by_name:
                    panels.card(by_name[name], baseline=by_name.get(baseline or ""), clock=on, key=key)
                else:
                    panels.waiting_card(name, is_asked=is_asked)
    panels.refusals(refused)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A whole result, the controls it belongs to, and what it was compared with."""

    problem: Problem
    names: tuple[str, ...]
    records: tuple[Record, ...]
    baseline: str
    clock: charts.Clock


def earlier(shown: Shown, answer: Answer) -> None:
    """The last result, greyed, with the problem it belongs to, until there is one for the controls as they are."""
    panels.stale_note(shown.problem, answer)
    with panels.stale("live"):
        grid(shown.names, shown.records, shown.baseline, shown.clock, key="-stale")


def bars(records: Sequence[Record], on: charts.Clock) -> None:
    rows = _shown(records)
    if any(row[on] is not None for row in rows):
        panels.chart(charts.bars(rows, on), say=charts.say_bars(rows, on))


def drawing(records: Sequence[Record], on: charts.Clock) -> Callable[[], Any] | None:
    """The bars, for an export; None where no record has a time."""
    rows = _shown(records)
    return (lambda: charts.bars(rows, on)) if any(row[on] is not None for row in rows) else None


def _shown(records: Sequence[Record]) -> list[dict[str, Any]]:
    return record.rows([found for found in records if found.status != "refused"])


def outputs(problem: Problem, records: Sequence[Record], status: Any) -> Answer | None:
    """One head's output of a backend, and its difference to another's, as two heatmaps."""
    st.subheader("Output")
    ran = [found.backend for found in records if found.status in ("ok", "disagrees")]
    if not ran:
        st.caption(f"{panels.MISSING} No backend has a result here.")
        return None
    with st.container(horizontal=True, vertical_alignment="bottom"):
        one = st.selectbox("Output of", ran, key="live_output", bind="query-params", width=220)
        other = st.selectbox("minus", ran, index=len(ran) - 1, key="live_minus", bind="query-params", width=220)
        batch = _index("Batch entry", problem.batch, "live_batch")
        head = _index("Head", problem.heads, "live_head")
    call = {"problem": problem, "specs": list(dict.fromkeys([one, other])), "batch": batch, "head": head, "most": CROP}
    answer = jobs.ask(measure.outputs, call, slot="outputs", status=status, label="output")
    if not answer.results:
        st.caption(answer.error or "The output is on its way.")
        return answer
    found = answer.results[-1]
    if broken := [f"{charts.label(name)}: {found[name]}" for name in (one, other) if isinstance(found[name], str)]:
        st.caption("; ".join(broken))
        return answer
    _pictures(problem, one, other, found[one], found[other])
    return answer


def _pictures(problem: Problem, one: str, other: str, first: np.ndarray, second: np.ndarray) -> None:
    words: dict[str, Any] = {"rows": "query position", "columns": "head dimension"}
    off = first - second
    left, right = st.columns(2)
    with left:
        drawing = charts.heatmap(first, title=f"Output of {charts.label(one)}", **words)
        panels.chart(drawing, say=charts.say_heatmap(first, what=f"Output of {charts.label(one)}", **words))
    with right:
        if one == other:
            st.caption(f"Difference: {panels.MISSING} Choose two backends that ran.")
        elif not off.any():
            st.markdown(f"**{charts.label(one)} minus {charts.label(other)}**")
            st.success("Equal in every element, bit for bit.", icon=":material/equal:")
        else:
            title = f"{charts.label(one)} minus {charts.label(other)}"
            drawing = charts.heatmap(off, title=title, legend="difference", **words)
            panels.chart(drawing, say=charts.say_heatmap(off, what=title, **words))
    rows, columns = first.shape
    crop = "" if first.shape == (problem.q_len, problem.head_dim) else f" of {problem.q_len} × {problem.head_dim}"
    compared = "" if one == other or not off.any() else f"; {charts.say_difference(off)}"
    st.caption(f"{rows} × {columns}{crop} elements of one head{compared}")


def _index(label: str, count: int, key: str) -> int:
    """Which of count; back to the first where the count has become smaller."""
    if st.session_state.get(key, 0) >= count:
        st.session_state[key] = 0
    return st.number_input(
        label,
        0,
        max(count - 1, 0),
        key=key,
        bind="query-params",
        width=130,
        disabled=count == 1,
        help=f"From 0 to {count - 1}.",
    )
