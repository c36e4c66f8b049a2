"""Limits: what the HEAD_DIM page is made of: the question, the matrix, one cell's witnesses, proving, latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from explorer import charts, clock, device, matrix, measure, prove, record, recordings, support, sweep
from explorer.backends import BACKENDS
from explorer.charts import MISSING
from explorer.device import Device
from explorer.engine import Call, Loss
from explorer.matrix import STATES
from explorer.problem import Problem
from explorer.prove import Cell, Proofs
from explorer.record import Record
from explorer.support import Answer as Verdict
from explorer.ui import controls, exports, jobs, machine, panels
from explorer.ui.jobs import Answer

THIS = "this"
DIMS = "8:256:8"
MOST_DIMS = 64
LATENCY_DIMS = "32,64,72,96,100,128,256"
LATENCY_BACKENDS = ("naive", "xla", "cudnn", "transformer_engine")
RECORDING = "head-dim"
PROVE_LIMIT_S = 600.0
BADGES = {
    "proven": "green",
    "unfused": "orange",
    "rule": "blue",
    "refused": "gray",
    "disagrees": "red",
    "failed": "red",
}
MARKS = {"yes": ":green[:material/check_circle:]", "no": ":red[:material/cancel:]", "not asked": ":material/remove:"}
WITNESSES = {"rule": "Rule", "check": "Library's own check", "compile": "Compile", "run": "Run, result checked"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the matrix is about."""

    base: Problem
    head_dims: tuple[int, ...]
    gpu: str
    where: Device

    @property
    def cells(self) -> list[Cell]:
        return [(name, self.base.but(head_dim=h)) for h in self.head_dims for name in BACKENDS]


def question(problem: Problem) -> Question:
    """GPU, dtype, pass and head_dims from the page's own controls, the rest from the sidebar.

    Stops the page while the worker has not yet said what this machine is.
    """
    with st.container(horizontal=True, vertical_alignment="bottom"):
        gpu = st.selectbox(
            "GPU", [THIS, *device.DATASHEETS, *(f"{a}.{b}" for a, b in device.CAPABILITIES)], key="limits_gpu",
            bind="query-params", width=150, help="this machine, a named GPU, or any of a compute capability.",
        )  # fmt: skip
        dtype = st.segmented_control(
            "dtype here", ["bfloat16", "float16", "float32"], default="bfloat16", key="limits_dtype",
            bind="query-params", required=True, help="Of this matrix; the sidebar's dtype is for the other pages.",
        )  # fmt: skip
        passes = st.segmented_control(
            "Pass", ["forward", "backward"], default="forward", key="limits_pass", bind="query-params", required=True,
            help="Backward: the gradients of q, k and v as well.",
        )  # fmt: skip
        text = st.text_input(
            "head_dim", DIMS, key="limits_dims", bind="query-params", width=220,
            help="By commas or start:stop:step, such as 32,64,100 or 8:256:8.",
        )  # fmt: skip
    head_dims, complaint = _head_dims(text)
    if complaint:
        st.markdown(f":red[:material/error: {complaint}]")
    base = problem.but(dtype=dtype, backward=passes == "backward", seed=0, inputs="normal", input_scale=1.0)
    st.markdown(panels.problem_line(base).replace(f" H={base.head_dim}**", " H varies**"))
    where = jobs.device() if gpu == THIS else device.named(gpu)
    if where is None:
        machine.starting()
        st.stop()
    if not where.is_gpu:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(
                ":material/info: No NVIDIA GPU here, so that cuDNN and TransformerEngine have nothing to run on."
            )
            st.button(
                "Show the H200", key="limits_show_h200", on_click=_show, args=("h200",), icon=":material/history:"
            )
    return Question(base=base, head_dims=head_dims, gpu=gpu, where=where)


def _show(gpu: str) -> None:
    st.session_state["limits_gpu"] = gpu


def _head_dims(text: str) -> tuple[tuple[int, ...], str | None]:
    """The list, or the usual one and a sentence."""
    found, complaint = controls.sizes(text, "head_dim", usual=DIMS, most=MOST_DIMS, called="head_dims")
    return found, complaint and f"{complaint}; {DIMS} is shown instead"


@st.cache_resource(show_spinner=False)
def shipped() -> Proofs:
    return prove.shipped()


def button(label: str, *, key: str, icon: str, disabled: bool = False, primary: bool = True) -> bool:
    """A button whose press is kept in a callback: it also counts where the guard starts the run again."""

    def press() -> None:
        st.session_state[f"{key}_pressed"] = True

    st.button(
        label, key=key, icon=icon, type="primary" if primary else "secondary", disabled=disabled, on_click=press,
    )  # fmt: skip
    return st.session_state.pop(f"{key}_pressed", False)


def look(asked: Question) -> Answer:
    """Each cell's own check and what was proven before, from the worker; nothing is run."""
    return jobs.ask(
        prove.look, {"cells": asked.cells, "gpu": asked.gpu}, slot="limits-look", label="checks", settle_s=0.3
    )


def proving(asked: Question, cells: Sequence[Cell], *, slot: str, again: bool) -> Answer:
    """The job that proves the cells here; runs only when asked."""
    calls = [
        Call(prove.prove_here, {"cells": list(cells[i : i + prove.AHEAD])}) for i in range(0, len(cells), prove.AHEAD)
    ]
    return jobs.ask_many(
        calls, slot=slot, auto=False, again=again, limit_s=PROVE_LIMIT_S, lost=lost, label="prove", settle_s=0.3
    )


def lost(loss: Loss) -> list[Record]:
    """The cell under way when the worker died or ran out of time; those after it stay unproven."""
    name, problem = loss.call.kwargs["cells"][len(loss.results)]
    status = loss.state if loss.state in ("timed_out", "cancelled") else "failed"
    return [measure.blank(problem, name, status, loss.error or "the job ended before it was done")]


def verdicts(asked: Question, looked: Answer, *proved: Answer) -> list[Verdict]:
    """An answer for each cell, from the strongest witness there is."""
    found = looked.results[-1] if looked.results else None
    checks = dict(zip(asked.cells, found.checks, strict=True)) if found else {}
    mine = Proofs()
    for each in [*(found.records if found else ()), *(r for answer in proved for r in answer.results)]:
        if each.status != "cancelled":
            mine.add(each.to_json(), recorded=each.recorded)

    def proof(name: str, problem: Problem, where: Device) -> Any:
        own = mine.get(name, problem, where) if asked.gpu == THIS else None
        return own or shipped().get(name, problem, where)

    return [
        support.answer(
            name, p, asked.where, check=checks.get((name, p)), proof=proof(name, p, asked.where), others=proof
        )
        for name, p in asked.cells
    ]


def trouble(looked: Answer) -> None:
    """A check that can't be asked is said aloud, never shown as a refusal."""
    if looked.results and looked.results[-1].moved:
        st.error(looked.results[-1].moved, icon=":material/sync_problem:")
    elif looked.error:
        st.caption(f":material/info: The library's own checks were not asked: {looked.error}")


def drawing(found: Sequence[Verdict], marked: Verdict) -> None:
    """The matrix as a chart that can be clicked, and the same as a table."""
    rows = [matrix.row(each) for each in found]
    panels.chart(
        matrix.chart(rows, (marked.backend, marked.problem.head_dim)),
        say=matrix.say(rows),
        key="limits_matrix",
        on_select=_picked,
        selection_mode=matrix.SELECTION,
    )
    said = ", ".join(f"{n} {state}" for state, n in matrix.count(rows).items())
    st.caption(f"{len(rows)} cells: {said}. Click a cell, or choose it by name, for the reason.")
    with st.expander("The same as a table", icon=":material/table:"):
        names = charts.present(rows)
        by_cell = {(r["backend"], r["head_dim"]): r for r in rows}
        table = [
            {"head_dim": h} | {charts.label(b): _in_words(by_cell[b, h]) for b in names}
            for h in sorted({r["head_dim"] for r in rows})
        ]
        panels.table(table, alt_text=matrix.say(rows))


def _in_words(row: dict[str, Any]) -> str:
    return "unfused, by rule" if row["letter"] == "u" else row["state"]


def _picked() -> None:
    """A click moves the two selectors, which are what the page goes by (and the keyboard's way)."""
    cells = st.session_state["limits_matrix"]["selection"].get(matrix.SELECTION) or []
    if cells:
        st.session_state["limits_cell_dim"] = int(cells[-1]["head_dim"])
        st.session_state["limits_cell_backend"] = cells[-1]["backend"]


def chosen(found: Sequence[Verdict], asked: Question) -> Verdict:
    """The cell that the selectors name."""
    dims, state = list(asked.head_dims), st.session_state
    usual = next((h for h in (asked.base.head_dim, 64, 128) if h in dims), dims[0])
    if state.get("limits_cell_dim") not in dims:
        state["limits_cell_dim"] = usual
    with st.container(horizontal=True, vertical_alignment="bottom"):
        head_dim = st.selectbox(
            "Cell: head_dim", dims, index=dims.index(usual), key="limits_cell_dim", bind="query-params", width=130
        )
        backend = st.selectbox(
            "backend", list(BACKENDS), index=list(BACKENDS).index("cudnn"), key="limits_cell_backend",
            bind="query-params", width=230,
        )  # fmt: skip
    return next(each for each in found if each.backend == backend and each.problem.head_dim == head_dim)


def cell(verdict: Verdict, found: Sequence[Verdict]) -> None:
    """One cell: the answer, the four witnesses apart, what would do instead, the times beside it, the sources."""
    letter, _, _, means = STATES[verdict.state]
    with st.container(border=True, key="limits-cell"):
        with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
            st.html(f"<strong>H={verdict.problem.head_dim}</strong> {panels.tag(verdict.backend)}", width="content")
            st.markdown(f":{BADGES[verdict.state]}-badge[{letter} {means.split(':')[0]}]", width="content")
        if verdict.headline:
            st.warning(_plain(verdict.headline), icon=":material/campaign:")
        if verdict.reason and verdict.reason != verdict.headline:
            name = f"**{_plain(verdict.rule)}**: " if verdict.rule else ""
            st.markdown(name + _plain(verdict.reason))
        st.markdown(
            "\n".join(f"- {MARKS[w.says]} **{WITNESSES[w.name]}**: {_plain(w.text)}" for w in verdict.witnesses)
        )
        if near := verdict.nearest:
            st.markdown("**Instead**\n" + "\n".join(f"- {_plain(str(n))}" for n in near))
        _times(verdict, found)
        if verdict.sources:
            st.caption("Sources: " + "; ".join(_plain(source) for source in verdict.sources))
        if verdict.proof is not None and verdict.proof.recorded:
            st.caption(f":material/history: Proof {_plain(verdict.proof.where)}.")


def _plain(text: str) -> str:
    """Library text as it stands: no character of it is markup."""
    for character in "\\`*_[]<>$#~|":
        text = text.replace(character, f"\\{character}")
    return text


def _times(verdict: Verdict, found: Sequence[Verdict]) -> None:
    """The time of this head_dim beside its neighbours', where they were proven at this very shape."""
    row = sorted((each for each in found if each.backend == verdict.backend), key=lambda v: v.problem.head_dim)
    place = row.index(verdict)
    near = [each for each in row[max(0, place - 2) : place + 3] if each.proof is not None]
    parts = []
    for each in near:
        proof = each.proof
        assert proof is not None
        ms, on = (proof.device_ms, "device") if proof.device_ms is not None else (proof.wall_ms, "wall")
        if ms is not None:
            parts.append(f"{'**' if each is verdict else ''}{each.problem.head_dim}: {charts.ms(ms)} ({on})"
                         f"{'**' if each is verdict else ''}")  # fmt: skip
    if parts:
        st.markdown("**Time by head_dim, one call of this shape:** " + " · ".join(parts))


# --- latency


def latency_calls(problem: Problem, head_dims: Sequence[int], names: Sequence[str]) -> list[Call]:
    points = sweep.points(problem, names, axis="head_dim", values=head_dims)
    return [
        Call(sweep.measure_point, {"problem": p.problem.to_json(), "backend": p.backend, "protocol": clock.LAB_SWEEP})
        for p in points
    ]


def latency(asked: Question) -> Answer | None:
    """Time against head_dim, measured here on request; where there is no GPU, the recording."""
    st.subheader("Latency by head_dim")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = st.text_input(
            "head_dim to time", LATENCY_DIMS, key="limits_latency_dims", bind="query-params", width=260,
            help="By commas or start:stop:step.",
        )  # fmt: skip
        names = st.multiselect(
            "Backends", list(BACKENDS), list(LATENCY_BACKENDS), key="limits_latency_backends", format_func=charts.label
        )
    head_dims, complaint = _head_dims(text)
    if complaint:
        st.markdown(f":red[:material/error: {complaint}]")
    if not names:
        st.info("Choose at least one backend to time.", icon=":material/tune:")
        return None
    calls = latency_calls(asked.base, head_dims, names)
    before = jobs.ask_many(calls, slot="limits-latency", auto=False, settle_s=0.0)
    seconds = sum(measure.guess_seconds(asked.base.but(head_dim=h), len(names), on_gpu=_on_gpu()) for h in head_dims)
    said = f"{len(calls)} points at the sidebar's shape; about {max(1, seconds):.0f} s predicted here, compiling apart."
    with st.container(horizontal=True, vertical_alignment="center"):
        label, icon = ("Run again", ":material/replay:") if before.is_over else ("Run", ":material/play_arrow:")
        busy = before.is_pending
        pressed = button(label, key="limits_latency_run", icon=icon, disabled=busy, primary=not before.is_over)
        st.caption(said)
    answer = jobs.ask_many(
        calls, slot="limits-latency", auto=False, again=pressed, label="latency by head_dim", settle_s=0.3
    ) if pressed else before  # fmt: skip
    records, note = answer.results, None
    if not records:
        records, note = _recorded()
    if not records:
        st.caption(f"{MISSING} Not measured yet.")
        return answer
    _latency_chart(records, note)
    return answer


def _on_gpu() -> bool:
    here = jobs.device()
    return here is not None and here.is_gpu


def _recorded() -> tuple[list[Record], str | None]:
    if RECORDING not in recordings.names():
        return [], None
    kept = recordings.load(RECORDING)
    return list(
        kept.records
    ), f"Not measured here: {kept.label}, at {kept.records[0].problem}." if kept.records else None


def _latency_chart(records: Sequence[Record], note: str | None) -> None:
    rows = record.rows(records)
    on: charts.Clock = "device_ms" if any(r["device_ms"] is not None for r in rows) else "wall_ms"
    if note:
        st.caption(f":material/history: {note}")
    if any(r[on] is not None for r in rows):
        panels.chart(matrix.latency(rows, on), say=matrix.say_latency(rows, on))
    refused = [r for r in records if r.status != "ok"]
    for each in refused:
        said = f"{charts.label(each.backend)} has no time at {each.problem.head_dim}"
        st.caption(f"{said}: {_plain(each.reason or MISSING)}")
    exports.popover(records, "head-dim-latency")
