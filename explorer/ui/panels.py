"""Panels: what pages are made of. Records, charts, tables, evidence, exports, and the watcher of running jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import altair as alt
import streamlit as st

from explorer import charts, cost, headline, memory, record
from explorer.charts import MISSING
from explorer.problem import Problem
from explorer.record import Record, Samples
from explorer.ui import jobs
from explorer.ui.jobs import Answer

WATCH_S = 0.4
STATUS = {  # status: (colour, icon, how it is said)
    "ok": ("green", "check_circle", "ok"),
    "refused": ("gray", "block", "can't run"),
    "disagrees": ("red", "error", "disagrees"),
    "out_of_memory": ("orange", "memory", "too large"),
    "failed": ("red", "dangerous", "failed"),
    "timed_out": ("orange", "timer_off", "timed out"),
    "cancelled": ("gray", "cancel", "cancelled"),
}
STALE_STYLE = "<style>[class*='st-key-stale'] { opacity: 0.45; filter: saturate(0.4); }</style>"


def tag(backend: str) -> str:
    """A backend's name with its sign in its colour, as HTML for st.html and st.markdown(unsafe_allow_html=True)."""
    light, dark = charts.colour(backend, "light"), charts.colour(backend, "dark")
    return f'<span style="color: light-dark({light}, {dark})">{charts.sign(backend)}</span> {charts.label(backend)}'


def badge(status: str) -> str:
    colour, icon, said = STATUS[status]
    return f":{colour}-badge[:material/{icon}: {said}]"


# --- jobs


def watch(*answers: Answer, into: Any = None) -> None:
    """Progress, place in the queue and a cancel button of what is not over; runs the page again as results come.

    The one watcher of a page: a fragment, which is not drawn any more once all is over.
    """
    pending = [answer for answer in answers if answer.is_pending]
    if pending:
        with into if into is not None else st.container():
            _watch([(answer.job, len(answer.results)) for answer in pending])


@st.fragment(run_every=WATCH_S)
def _watch(pending: list[tuple[Any, int]]) -> None:
    jobs.desk().looks(jobs.visitor())
    if any(job.is_over or len(job.results) > count for job, count in pending):
        st.rerun(scope="app")
    job = pending[0][0]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.progress(*jobs.progress(job))
        st.button("Cancel", icon=":material/close:", key="cancel_job", on_click=job.cancel, disabled=job.is_stopping)


def run_button(answer: Answer, *, key: str, prediction: str, shortcut: str | None = "Ctrl+Enter") -> None:
    """The button that runs, and what that will cost beside it. Drawn once the answer is known; see was_pressed."""
    again = answer.is_over
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Run again" if again else "Run",
            icon=":material/replay:" if again else ":material/play_arrow:",
            type="secondary" if again or answer.is_pending else "primary",
            key=key,
            disabled=answer.is_pending,
            shortcut=shortcut,
            on_click=press,
            args=(key,),
        )
        st.caption(prediction)


def press(key: str) -> None:
    """on_click of a button whose press the script asks for by was_pressed, before it is drawn."""
    st.session_state[f"{key}_pressed"] = True


def was_pressed(key: str) -> bool:
    """Whether this run came from that run button; true once."""
    return st.session_state.pop(f"{key}_pressed", False)


def problem_line(problem: Problem) -> str:
    """The problem in one line, with the axis letters; markdown."""
    p = problem
    shape = f"B={p.batch} T={p.q_len} S={p.kv_len} N={p.heads} K={p.kv_heads} H={p.head_dim}"
    inputs = "" if p.inputs == "normal" and p.input_scale == 1.0 else f" · inputs {p.inputs} × {p.input_scale:g}"
    work = f"{charts.flop(cost.flops(p))}, at least {memory.gib(cost.min_bytes(p))} moved"
    return f"**{shape}** · {p.dtype} · {p.mask.name} mask · {p.sharing} · seed {p.seed}{inputs} · {work}"


# --- one record


def card(found: Record, *, baseline: Record | None = None, clock: charts.Clock = "wall_ms", key: str = "") -> None:
    """One record: status, both clocks, speed-up, error and verdict, and the evidence a click away."""
    with st.container(border=True, height="stretch", gap="small", key=f"card-{found.backend}{key}"):
        _head(found.backend, badge(found.status))
        if found.timing is None:
            st.markdown(found.reason or MISSING)
        else:
            _median(found, baseline, clock)
        st.caption("  \n".join([*time_lines(found), *accuracy_lines(found)]))
        st.space("stretch")
        evidence(found, key=f"{found.backend}{key}")


def waiting_card(backend: str, *, is_asked: bool) -> None:
    """The place of a record that is not there yet."""
    with st.container(border=True, height="stretch"):
        if is_asked:
            _head(backend, ":gray-badge[:material/hourglass_empty: waiting]")
            st.skeleton(height=190)
        else:
            _head(backend, ":gray-badge[not run yet]")
            st.caption("Press Run above, and its time and error appear here.")


def _head(backend: str, said: str) -> None:
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", gap="small"):
        st.html(f"<strong>{tag(backend)}</strong>", width="content")
        st.markdown(said, width="content")


def _median(found: Record, baseline: Record | None, clock: charts.Clock) -> None:
    timing = found.timing
    assert timing is not None
    compared, direction = speed_line(found, baseline, clock)
    st.metric(
        f"Wall clock, {median_of(timing.wall_ms)}",
        charts.ms(timing.wall_ms.median),
        delta=compared,
        delta_color={"up": "green", "down": "orange"}.get(direction, "off"),  # pyright: ignore[reportArgumentType]
        delta_arrow=direction,  # pyright: ignore[reportArgumentType]
        chart_data=list(timing.wall_ms.values),
        chart_type="line",
        help="One call, then wait, as a caller feels it (the lab's method). The line shows every sample, in order.",
    )


def speed_line(found: Record, baseline: Record | None, clock: charts.Clock) -> tuple[str, str]:
    """The speed against the baseline on the same clock, in words, and where its arrow points."""
    if baseline is found:
        return "baseline", "off"
    if baseline is None:
        return f"{MISSING} no baseline", "off"
    name = charts.label(baseline.backend)
    ours, theirs = (getattr(each.timing, clock, None) for each in (found, baseline))
    if ours is None or theirs is None:
        return f"{MISSING} {name} has no time", "off"
    ratio = theirs.median / ours.median
    if why := headline.not_called(found, baseline, clock):
        return f"{ratio:.2f} × · {why}", "off"
    if ratio >= 1:
        return f"{ratio:.2f} × faster than {name}", "up"
    return f"{1 / ratio:.2f} × slower than {name}", "down"


def time_lines(found: Record) -> list[str]:
    """Spread, device clock, compile and first call; nothing where no time was taken."""
    timing = found.timing
    if timing is None:
        return []
    if timing.device_ms is None:
        on_device = f"{MISSING} ({timing.device_reason or 'not measured'})"
    else:
        on_device = f"**{charts.ms(timing.device_ms.median)}** ({spread(timing.device_ms)})"
    built = "kept from before" if timing.cache_hit else "read from disk" if timing.disk_hit else "for this run"
    return [
        f"p10 – p90: {spread(timing.wall_ms) if len(timing.wall_ms.values) > 1 else f'{MISSING} (one call)'}",
        f"Device clock: {on_device}",
        f"Compile: {charts.ms(timing.compile_ms)}, {built} · first call: {charts.ms(timing.first_call_ms)}",
    ]


def calls(count: int) -> str:
    return f"{count} call{'' if count == 1 else 's'}"


def median_of(samples: Samples) -> str:
    count = len(samples.values)
    return "one call" if count == 1 else f"median of {calls(count)}"


def spread(samples: Samples) -> str:
    return f"{charts.ms(samples.p10)} – {charts.ms(samples.p90)}"


def accuracy_lines(found: Record) -> list[str]:
    """Error, budget and both verdicts; what was not checked is not called passed."""
    accuracy = found.accuracy
    if not accuracy:
        return [f"Error: {MISSING} (not checked)"]
    largest, budget = charts.number(accuracy.get("max_abs_error")), charts.number(accuracy.get("budget"))
    lines = [f"Largest error: {largest}, allowed {budget}: **{accuracy['verdict']}**"]
    if (lab := accuracy.get("lab_allclose")) is not None:
        lines.append(f"Lab's allclose ({accuracy['lab_tolerance']:g}): {'passes' if lab else 'fails'}")
    return lines


def evidence(found: Record, *, key: str) -> None:
    """What stands behind the numbers: the kernels that ran, the program's calls, versions, and the record itself."""
    proof = found.evidence or {}
    with st.popover("Evidence", icon=":material/fact_check:", width="stretch", key=f"evidence-{key}"):
        st.markdown(f"**{charts.label(found.backend)}** on {found.where} · {found.when}")
        calls = ", ".join(f"`{call}`" for call in proof.get("custom_calls") or ()) or "none in the program"
        proven = "proven by a trace" if proof.get("proven") else "not proven by a trace"
        lines = [
            f"- Verdict: **{proof.get('verdict') or MISSING}** ({proven})",
            f"- Custom calls: {calls}",
            f"- Precision: {proof.get('note') or MISSING}",
        ]
        for kernel in proof.get("kernels") or ():
            lines.append(f"- Kernel `{kernel['name']}`: {kernel['count']} ×, {kernel['share']:.0%} of the time")
        if reason := proof.get("kernels_reason"):
            lines.append(f"- Kernels: {MISSING} ({reason})")
        accuracy = found.accuracy or {}
        if accuracy.get("reference"):
            lines.append(f"- Checked against: {accuracy['reference']}")
        st.markdown("\n".join(lines))
        st.json(record.finite(found.to_json()), expanded=1)


def refusals(records: Sequence[Record]) -> None:
    """Those that could not run, each with its sentence."""
    for found in records:
        with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"refused-{found.backend}"):
            st.html(tag(found.backend), width="content")
            st.markdown(badge(found.status), width="content")
            st.caption(found.reason or MISSING, width="stretch")


# --- tables, charts, exports


def table(rows: Sequence[dict[str, Any]], *, alt_text: str, **columns: Any) -> None:
    """A small table; None is shown as a dash. columns: Streamlit's column_config by column."""
    shown = [{name: MISSING if value is None else value for name, value in row.items()} for row in rows]
    st.dataframe(shown, hide_index=True, alt=alt_text, column_config=columns or None)


def formula(tex: str) -> None:
    """A formula in a line of its own, which breaks where a narrow page ends; st.latex would run out of it."""
    st.markdown(rf"$\displaystyle {tex}$", text_alignment="center")


def tensors(problem: Problem) -> list[dict[str, Any]]:
    """q, k, v and the output as rows: name, shape, dtype, layout, bytes."""
    q, kv = (problem.q_shape, "(B, T, N, H)"), (problem.kv_shape, "(B, S, K, H)")
    rows = []
    for name, (shape, layout) in {"q": q, "k": kv, "v": kv, "output": q}.items():
        size = math.prod(shape) * problem.item_bytes
        rows.append(
            {"name": name, "shape": str(shape), "dtype": problem.dtype, "layout": layout}
            | {"bytes": f"{size:,}", "size": memory.gib(size)}
        )
    return rows


def chart(
    drawing: Callable[[], Any] | alt.TopLevelMixin | charts.Plain, *, say: str, key: str | None = None, **picking: Any
) -> None:
    """A chart with its words. width follows the page; picking: on_select and selection_mode of st.vega_lite_chart."""
    shown: Any = drawing() if callable(drawing) else drawing
    st.vega_lite_chart(None, charts.spec(shown), alt=say, key=key, width="stretch", **picking)


def stale_note(problem: Problem, answer: Answer) -> None:
    """Says whose the greyed result is."""
    now = "the new one is being computed" if answer.is_pending else "the new one has not been run"
    st.caption(f":material/history: Last result, for {problem_line(problem)}; {now}.")


def stale(name: str) -> Any:
    """A container whose content is greyed: a result that no longer belongs to the controls."""
    st.html(STALE_STYLE)
    return st.container(key=f"stale-{name}")
