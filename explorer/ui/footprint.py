"""Footprint: what the Memory page is made of: three columns for each length and backend, and where it ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from explorer import charts, charts_time, curves, device, memory, peak, recordings
from explorer.backends import BACKENDS
from explorer.charts import MISSING
from explorer.engine import Priority
from explorer.peak import Edge, Peak
from explorer.problem import Problem, parse_list
from explorer.record import Record
from explorer.ui import exports, jobs, machine, panels
from explorer.ui.jobs import Answer

GPU_LENGTHS, CPU_LENGTHS = "256,512,1k,2k,4k,8k", "128,256,512,1k"
RECORDING = "memory"
GPU_WITHOUT = "h200"  # whose rules tell what a formula is for where there is no GPU
LIMIT_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which calls, and how much memory there is for one of them here (None: not known yet)."""

    points: tuple[tuple[Problem, str], ...]
    room_bytes: int | None

    @property
    def call(self) -> dict[str, Any]:
        return {"tasks": [(p.to_json(), name) for p, name in self.points]}


def asked(problem: Problem, names: Sequence[str], status: Any) -> tuple[Asked | None, list[Answer]]:
    """The lengths of the page's own control, the rest of the sidebar; and what is under way to know the room."""
    here = jobs.device()
    on_gpu = here is not None and here.is_gpu
    text = st.text_input(
        "Lengths (T = S)", GPU_LENGTHS if on_gpu else CPU_LENGTHS, key=f"memory_lengths_{'gpu' if on_gpu else 'cpu'}",
        bind="query-params", width=300, help="By commas or start:stop:step; 1k is 1,024.",
    )  # fmt: skip
    if here is None:
        with status:
            machine.starting()
        answers, room = [], None
    else:
        answers = [jobs.ask(peak.child_room, {}, slot="room", settle_s=0.5, label="free memory", status=status)]
        room = answers[0].results[-1] if answers[0].results else None
    try:
        points = tuple(
            (problem.but(q_len=length, kv_len=length), name) for length in parse_list(text) for name in names
        )
    except ValueError as error:
        st.error(f"These lengths can't be used: {error}", icon=":material/error:")
        return None, answers
    return Asked(points=points, room_bytes=room), answers


def run(one: Asked, status: Any) -> Answer:
    """Peaks, each in a fresh process, within one turn of the queue."""
    button = st.container()
    answer = jobs.look(peak.measure_many, one.call)
    if panels.was_pressed("memory_run"):
        answer = jobs.ask(
            peak.measure_many, one.call, slot="peaks", again=True, priority=Priority.SWEEP, limit_s=LIMIT_S,
            label="memory", status=status,
        )  # fmt: skip
    with button:
        said = f"{len(one.points)} calls, each once in a fresh process (a few seconds each); nothing is timed."
        panels.run_button(answer, key="memory_run", prediction=said)
    if answer.error:
        st.error(answer.error, icon=":material/dangerous:")
    return answer


def rows_of(one: Asked, found: Iterable[Peak]) -> list[dict[str, Any]]:
    """The formula for every point that a GPU takes (this one, else an H200), and what those that ran measured."""
    there = {(each.problem, each.backend): each for each in found}
    here = jobs.device()
    gpu = here if here is not None and here.is_gpu else device.named(GPU_WITHOUT)
    rows = []
    for p, name in one.points:
        got, refusal = there.get((p, name)), BACKENDS[name].why_not(p, gpu)
        rows.append(
            {
                "backend": name,
                "dtype": p.dtype,
                "q_len": p.q_len,
                "formula_bytes": None if refusal else peak.formula(name, p),
                "compiler_bytes": got.compiler_bytes if got else None,
                "peak_bytes": got.peak_bytes if got else None,
                "outcome": got.outcome if got else "refused" if refusal else None,
                "reason": refusal or (got.reason if got else None),
            }
        )
    return rows


def recorded() -> list[Record]:
    return recordings.several([RECORDING])


def rows_of_records(records: Iterable[Record]) -> list[dict[str, Any]]:
    """The same columns from a recording."""
    rows = []
    for made in records:
        found = made.memory or {}
        parts = [found.get(name) for name in ("argument_bytes", "output_bytes", "temp_bytes")]
        known: list[int] = [size for size in parts if size is not None]
        rows.append(
            {
                "backend": made.backend,
                "dtype": made.problem.dtype,
                "q_len": made.problem.q_len,
                "formula_bytes": peak.formula(made.backend, made.problem),
                "compiler_bytes": sum(known) if len(known) == len(parts) else None,
                "peak_bytes": found.get("peak_bytes"),
                "outcome": "fits" if made.status == "ok" else made.status,
                "reason": made.reason or found.get("peak_reason"),
            }
        )
    return rows


def view(
    rows: list[dict[str, Any]], shape: str, *, key: str, edges: Sequence[Edge] = (), records: Sequence[Record] = ()
) -> None:
    """The chart, how it grows, the three columns, and exports."""
    room = edges[0].room_bytes if edges else None
    # An edge far beyond what is shown would press the curves together
    furthest = 16 * max(row["q_len"] for row in rows)
    ends = [{"backend": e.backend, "q_len": e.first_misfit_q_len} for e in edges if e.first_misfit_q_len <= furthest]
    drawn = {row["backend"] for row in rows if row["formula_bytes"]}
    ends = [end for end in ends if end["backend"] in drawn]

    def drawing() -> Any:
        return charts_time.footprint(rows, room, ends)

    st.caption(f"A call of {shape}.")
    panels.chart(drawing, say=say(rows, room), key=f"memory-{key}")
    st.caption(_growth(rows))
    for reason, mine in _reasons(rows).items():
        st.caption(f"{', '.join(mine)}: {reason}")
    columns = {"formula_bytes": "formula", "compiler_bytes": "compiler", "peak_bytes": "peak"}
    shown = [
        {"T": row["q_len"], "backend": charts.label(row["backend"])}
        | {said: memory.gib(row[name]) if row[name] else MISSING for name, said in columns.items()}
        | {"outcome": row["outcome"] or "not run"}
        for row in rows
    ]
    panels.table(shown, alt_text=f"Memory of a call by formula, by the compiler, and as measured ({key})")
    if records:
        exports.popover(records, "memory", drawing=drawing, key=f"-{key}")
    else:
        exports.rows_popover(rows, f"memory-{key}", drawing=drawing)


def _reasons(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Each reason, and the points it is given for: all of a backend, or its lengths."""
    found: dict[str, list[str]] = {}
    for name in charts.present(rows):
        mine = [row for row in rows if row["backend"] == name]
        for reason in dict.fromkeys(row["reason"] for row in mine if row["reason"]):
            those = [row for row in mine if row["reason"] == reason]
            at = "" if len(those) == len(mine) else " at T = " + ", ".join(str(row["q_len"]) for row in those)
            found.setdefault(reason, []).append(charts.label(name) + at)
    return found


def shape_of(p: Problem) -> str:
    """What the lengths leave open, as both charts need it: their problems differ."""
    return f"B={p.batch} N={p.heads} K={p.kv_heads} H={p.head_dim} {p.dtype} {p.mask.name}"


def _growth(rows: list[dict[str, Any]]) -> str:
    """What doubling T does, measured where it was, else by formula."""
    parts = []
    for name in charts.present(rows):
        mine = [row for row in rows if row["backend"] == name]
        for of, said in (("peak_bytes", "measured"), ("formula_bytes", "by formula")):
            found = curves.growth(mine, of).get(name)
            if found is not None:
                start, stop, times = found
                span = f"from T={curves.length(start)} to {curves.length(stop)}"
                parts.append(f"{charts.label(name)} × {times:.1f} {span} ({said})")
                break
    return "Twice the length: " + ("; ".join(parts) or MISSING) + ". O(T) doubles, O(T²) takes four times as much."


def say(rows: Sequence[dict[str, Any]], room: int | None) -> str:
    """The chart in words: each backend at its longest."""
    parts = []
    for name in charts.present(rows):
        sized = [row for row in rows if row["backend"] == name and (row["peak_bytes"] or row["formula_bytes"])]
        if not sized:
            parts.append(f"{charts.label(name)} none")
            continue
        last = sized[-1]
        size = memory.gib(last["peak_bytes"] or last["formula_bytes"])
        how = "measured" if last["peak_bytes"] else "by formula"
        parts.append(f"{charts.label(name)} {size} at T={last['q_len']} ({how})")
    free = f"; {memory.gib(room)} are free" if room else ""
    return f"Memory of one call against the sequence length: {', '.join(parts)}{free}"


# --- where it ends


def edges_of(names: Iterable[str], problem: Problem, room_bytes: int | None) -> list[Edge]:
    """Where each backend no longer fits, by formula; nothing while the room is not known."""
    return [peak.edge(name, problem, room_bytes) for name in names] if room_bytes else []


def last_fit(problem: Problem, names: Sequence[str], edges: Sequence[Edge], status: Any) -> Answer | None:
    """The first length that no longer fits, by formula, and on request the proof, in processes that may die."""
    st.subheader("The first T that no longer fits")
    if not edges:
        st.caption(f"{MISSING} How much memory is free here is not known yet.")
        return None
    here = jobs.device()
    by_name = {edge.backend: edge for edge in edges}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.selectbox(
            "Backend", list(names), key="memory_edge", format_func=charts.label, bind="query-params", width=240
        )
    found = by_name[name]
    unit = "on the GPU" if here is not None and here.is_gpu else "for a proof on this CPU (a limit of the app's own)"
    st.markdown(
        f"**{charts.label(name)}** fits up to T = {found.fits_q_len:,} and no longer at "
        f"**T = {found.first_misfit_q_len:,}**, by formula: {memory.gib(found.room_bytes)} are free {unit}."
    )
    reason = BACKENDS[name].why_not(problem, here) if here is not None else None
    call = {"problem": problem.to_json(), "backend": name}
    answer = jobs.look(peak.prove, call)
    if panels.was_pressed("memory_prove"):
        answer = jobs.ask(
            peak.prove, call, slot="prove edge", again=True, priority=Priority.SWEEP, limit_s=LIMIT_S,
            label="where memory ends", status=status,
        )  # fmt: skip
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Prove it here", icon=":material/verified:", key="memory_prove", on_click=panels.press,
            args=("memory_prove",), disabled=answer.is_pending or reason is not None,
        )  # fmt: skip
        st.caption(reason or "Runs both sides once, each in a process of its own that may run out of memory and die.")
    if answer.error:
        st.error(answer.error, icon=":material/dangerous:")
    for each in answer.results[-1].proof if answer.results else ():
        icon = {"fits": "check_circle", "out_of_memory": "memory"}.get(each.outcome, "dangerous")
        text = f"T = {each.problem.q_len:,}: {each.outcome.replace('_', ' ')}"
        text += f", {memory.gib(each.peak_bytes)} at its highest" if each.peak_bytes else ""
        st.markdown(f":material/{icon}: {text}" + (f" ({each.reason})" if each.reason else ""))
    return answer
