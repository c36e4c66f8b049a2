"""Latency: what the Latency page is made of: the lab's questions, an own sweep, two backends in turns, the views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from explorer import charts, charts_time, clock, curves, measure, memory, record, recordings, sweep, versus
from explorer.backends import BACKENDS
from explorer.charts import MISSING, Clock
from explorer.clock import Protocol
from explorer.problem import AXIS_LETTERS, DTYPES, Problem, parse_length, parse_list
from explorer.record import Record
from explorer.recordings.sets import LAB, SETS
from explorer.sweep import Point
from explorer.ui import exports, jobs, panels, sweeps
from explorer.ui.jobs import Answer
from explorer.ui.sweeps import Asked, Sweep

PAGE = "latency"
OWN, DUEL = "own", "duel"
NEXT_LENGTHS = (256, 512, 1024, 2048)
CAUSAL_GPU, CAUSAL_CPU = (256, 512, 1024, 2048, 4096, 8192, 16384), (64, 128, 256, 512)
NEXT_CPU = (128, 256, 512, 1024)
SPECS = [f"{name}:{dtype}" for name in BACKENDS for dtype in DTYPES]
OWN_VALUES = {
    "q_len": "64,128,256,512,1k", "batch": "1,2,4,8,16", "kv_heads": "1,2,4,8", "head_dim": "32,64,128",
    "heads": "4,8,16", "kv_len": "128,256,512",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A choice on the page. points: of (on_gpu); recordings: where its points were recorded."""

    label: str
    about: str
    axis: str
    points: Callable[[bool], Sequence[Point]]
    recordings: tuple[str, ...]
    protocol: Protocol = clock.LAB_SWEEP


def _bfloat16(values: Sequence[int], causal: bool = False) -> list[Point]:
    base = LAB.but(dtype="bfloat16", causal=causal)
    return sweep.points(base, ["naive", "xla", "cudnn"], axis="q_len", values=values)


def _causal(on_gpu: bool) -> list[Point]:
    values = CAUSAL_GPU if on_gpu else CAUSAL_CPU
    return [*_bfloat16(values, causal=True), *_bfloat16([v for v in values if v <= 8192])]


QUESTIONS: dict[str, Question] = {
    "benchmark": Question(
        label="Benchmark",
        about="The lab's step 7: B=4 T=128 N=8 H=64, four variants, warm-up 3, 50 repeats.",
        axis="q_len",
        points=lambda on_gpu: SETS["lab-benchmark"].points,
        recordings=("lab-benchmark",),
        protocol=clock.LAB,
    ),
    "sequence": Question(
        label="Sequence",
        about="The lab's step 8: T = 64 … 1024, four variants, warm-up 2, 20 repeats.",
        axis="q_len",
        points=lambda on_gpu: SETS["lab-sequence"].points,
        recordings=("lab-sequence",),
    ),
    "batch": Question(
        label="Batch",
        about="The lab's step 9: B = 1 … 16 at T=256, without naive, warm-up 2, 20 repeats.",
        axis="batch",
        points=lambda on_gpu: SETS["lab-batch"].points,
        recordings=("lab-batch",),
    ),
    "next": Question(
        label="What next",
        about="The lab's step 15: T = 256 … 2048 in bfloat16, time, speed-up and memory side by side.",
        axis="q_len",
        points=lambda on_gpu: _bfloat16(NEXT_LENGTHS if on_gpu else NEXT_CPU),
        recordings=("memory",),
    ),
    "causal": Question(
        label="Causal",
        about="Causal against unmasked, bfloat16: who skips the masked half, and who computes it to throw it away.",
        axis="q_len",
        points=_causal,
        recordings=("causal-16k", "memory"),
    ),
}
MENU = {**{q.label: name for name, q in QUESTIONS.items()}, "Own": OWN, "Head to head": DUEL}


# --- what is asked


def choice() -> tuple[str, dict[str, Any]]:
    """Which question, and what the page changes of its timing; another choice leaves the link's job."""
    with st.container(horizontal=True, vertical_alignment="center"):
        label = st.segmented_control(
            "Question", list(MENU), default="Benchmark", required=True, key="latency_question", bind="query-params",
            on_change=sweeps.choose, args=(PAGE,), label_visibility="collapsed",
        )  # fmt: skip
        with st.popover("Timing", icon=":material/timer:"):
            changes = _timing()
    return MENU[label], changes


def _timing() -> dict[str, Any]:
    mode = st.segmented_control(
        "Mode", list(clock.MODES), default="burst", required=True, key="latency_mode", bind="query-params",
        help="burst: a pause between calls, until the GPU's clock is back. sustained: back to back, as in a long "
        "job; the clock falls under load. Two measurements, never in one chart.",
    )  # fmt: skip
    narrow = st.toggle(
        "Go on until the median is known to 1 %", key="latency_interval", bind="query-params",
        help="Until the 95 % interval of the median is narrower than 1 % of it, or the time limit is reached.",
    )  # fmt: skip
    cold = st.toggle(
        "Cold L2", key="latency_cold", bind="query-params",
        help="Each call gets other copies of the inputs, more than the cache holds. Labelled on every point.",
    )  # fmt: skip
    return {"mode": mode, "stop": "interval" if narrow else "repeats", "cold_l2": cold}


def asked(name: str, problem: Problem, names: Sequence[str], changes: dict[str, Any]) -> Asked | None:
    """The chosen question as points; None if the own sweep can't be had, and then it has been said why."""
    here = jobs.device()
    on_gpu = here is not None and here.is_gpu
    base = QUESTIONS[name].protocol if name in QUESTIONS else clock.LAB_SWEEP
    used = sweeps.timed(replace(base, **changes), here)
    if name == OWN:
        return _own(problem, names, used)
    question = QUESTIONS[name]
    points = tuple(question.points(on_gpu))
    fewer = f" On this CPU: at most {used.repeats} repeats and {used.limit_s:g} s a point." if not on_gpu else ""
    st.caption(question.about + fewer)
    recorded = recordings.several(question.recordings)
    if name == "next":
        recorded = [r for r in recorded if r.problem.q_len in NEXT_LENGTHS]
    return Asked(
        name=name, label=question.label, about=question.about, axis=question.axis, points=points, protocol=used,
        recorded=tuple(recorded),
    )  # fmt: skip


def _own(problem: Problem, names: Sequence[str], used: Protocol) -> Asked | None:
    st.caption("Any axis, any values, any backends; the other sizes are the sidebar's.")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        axis = st.selectbox(
            "Axis", list(OWN_VALUES), key="latency_axis", bind="query-params", width=150,
            help="What changes. kv_len follows q_len, and kv_heads follows heads, where they are equal.",
        )  # fmt: skip
        text = st.text_input(
            "Values", OWN_VALUES[axis], key=f"latency_values_{axis}", bind="query-params", width=240,
            help="By commas or start:stop:step; 1k is 1,024. Order and doubles don't matter.",
        )  # fmt: skip
        chosen = st.multiselect(
            "Backends and dtypes", SPECS, key="latency_specs", bind="query-params", width=320,
            placeholder=", ".join(names) or "none chosen in the sidebar",
            help="Empty: the sidebar's backends in the sidebar's dtype.",
        )  # fmt: skip
        tokens = st.text_input(
            "Batch × T fixed at", key="latency_tokens", bind="query-params", width=140, placeholder="off",
            help="Constant work: the batch shrinks as T grows. For the axis q_len.", disabled=axis != "q_len",
        )  # fmt: skip
    try:
        points = sweep.points(
            problem, chosen or names, axis=axis, values=parse_list(text),
            tokens=parse_length(tokens) if tokens and axis == "q_len" else None,
        )  # fmt: skip
    except ValueError as error:
        st.error(f"This can't be swept: {error}", icon=":material/error:")
        return None
    return Asked(
        name=OWN, label=f"{axis} {text}", about="", axis=axis, points=tuple(points), protocol=used,
        recorded=tuple(recordings.matching(points)),
    )  # fmt: skip


# --- what is shown


def show(one: Asked, made: Sweep) -> None:
    """Measured here, and recorded elsewhere: side by side where there is no GPU, else one below the other."""
    records, here = made.records, jobs.device()
    recorded = [] if made.is_other else list(one.recorded)
    axis = sweep.axis_of([measure.blank(p.problem, p.backend, "cancelled", "-") for p in made.points])
    axis = one.axis if not made.is_other else axis
    if not records and not recorded:
        st.info("Nothing is measured yet: press Run, and the points appear one by one.", icon=":material/play_arrow:")
        return
    rows, recorded_rows = (curves.labelled(record.rows(group), axis) for group in (records, recorded))
    on, is_log, baseline = _switches(curves.series([*rows, *recorded_rows]))
    look = View(name=one.name, axis=axis, clock=on, is_log=is_log, baseline=baseline)
    if records and recorded and not (here is not None and here.is_gpu):
        left, right = st.columns(2, gap="large")
        with left:
            _live(records, rows, made, look)
        with right:
            _recorded(recorded, recorded_rows, look)
    elif records:
        _live(records, rows, made, look, is_wide=True)
        if recorded:
            with st.expander(f"Beside it: {recordings.describe(recorded)}"):
                _recorded(recorded, recorded_rows, look, is_wide=True)
    else:
        _recorded(recorded, recorded_rows, look, is_wide=True)


Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How records are looked at."""

    name: str
    axis: str
    clock: Clock
    is_log: bool
    baseline: str


def _switches(names: list[str]) -> tuple[Clock, bool, str]:
    """The clock, log axes, and the baseline of the speed-ups, one of these series."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        on = st.segmented_control(
            "Clock", ["wall", "device"], default="wall", required=True, key="latency_clock", bind="query-params",
            help="Wall: one call, then wait, as a caller feels it (the lab's method). Device: the kernels' own time, "
            "from a profiler trace. A CPU has no device clock.",
        )  # fmt: skip
        baseline = st.selectbox(
            "Baseline", names, key="latency_baseline", width=240, help="Whose time the speed-ups are measured by."
        )
        is_log = st.toggle("Log axes", value=True, key="latency_log", bind="query-params")
    return "device_ms" if on == "device" else "wall_ms", is_log, baseline or names[0]


def _live(records: list[Record], rows: Rows, made: Sweep, look: View, *, is_wide: bool = False) -> None:
    where = next((r.where for r in records if r.environment), None) or "this machine"
    st.subheader(f"Measured here: {where}", anchor=False)
    if made.missing:
        st.warning(f"Incomplete: {len(records) - made.missing} of {len(records)} points were measured.")
    view(records, rows, look, key="live", is_wide=is_wide)


def _recorded(records: list[Record], rows: Rows, look: View, *, is_wide: bool = False) -> None:
    st.subheader(f"Recorded: {records[0].where}", anchor=False)
    st.caption(f":material/history: Not measured here: {recordings.describe(records)}.")
    view(records, rows, look, key="recorded", is_wide=is_wide)


def view(records: list[Record], rows: Rows, look: View, *, key: str, is_wide: bool) -> None:
    """Charts, what has no time and why, table and exports of one place's records, as labelled rows too."""
    suspects(rows)
    on = look.clock
    if not any(row[on] is not None for row in rows):
        _no_times(rows, on)
    elif len({row[look.axis] for row in rows}) == 1:
        panels.chart(charts_time.bars(rows, on), say=charts_time.say_bars(rows, on), key=f"latency-bars-{key}")
    else:
        drawn = curves.thin(rows, look.axis, log=look.is_log)
        _curves(drawn, look, key=key, is_wide=is_wide)
        if len(drawn) < len(rows):
            st.caption(f"{len(drawn):,} of {len(rows):,} points are drawn, evenly along the axis; the table and the "
                       "exports hold all.")  # fmt: skip
    panels_reasons(rows, look.axis)
    notes(rows)
    exports.popover(records, f"{look.name}-sweep", drawing=_main(rows, look), key=f"-{key}")
    with st.expander("Table", expanded=len(rows) <= 6):
        panels.table(table(rows, look.axis), alt_text=f"Every point: both clocks, TFLOP/s, evidence, result ({key})")


def _main(rows: Sequence[curves.Row], look: View) -> Callable[[], Any] | None:
    """The chart that an export draws."""
    if not any(row[look.clock] is not None for row in rows):
        return None
    if len({row[look.axis] for row in rows}) == 1:
        return lambda: charts_time.bars(rows, look.clock)
    return lambda: charts_time.times(rows, look.axis, look.clock, log=look.is_log)


def _curves(rows: Sequence[curves.Row], look: View, *, key: str, is_wide: bool) -> None:
    axis, on = look.axis, look.clock
    drawn: list[Callable[[], None]] = [lambda: _speed_up(rows, look, key)]
    if look.name == "causal":
        drawn.insert(0, lambda: _causal_share(rows, look, key))
    if look.name == "next":
        drawn.append(lambda: _memory(rows, look, key))
    drawn.append(lambda: _hidden(rows, look, key))
    times = charts_time.times(rows, axis, on, log=look.is_log)
    said = charts_time.say_times(rows, axis, on)
    if not is_wide:
        panels.chart(times, say=said, key=f"latency-times-{key}")
        for draw in drawn:
            draw()
        return
    if look.name == "next":
        with st.grid(3, min_column_width=300):
            with st.container():
                st.markdown(f"**Time**, {charts.CLOCKS[on]}")
                panels.chart(times, say=said, key=f"latency-times-{key}")
            for draw in drawn[:2]:
                with st.container():
                    draw()
        drawn[2]()
        return
    panels.chart(times, say=said, key=f"latency-times-{key}")
    with st.grid(2, min_column_width=340):
        for draw in drawn:
            with st.container():
                draw()


def _speed_up(rows: Sequence[curves.Row], look: View, key: str) -> None:
    baseline = look.baseline if look.baseline in curves.series(rows) else curves.series(rows)[0]
    st.markdown(f"**Speed-up over {baseline}**, {charts.CLOCKS[look.clock]}")
    found = curves.speed_ups(rows, look.axis, look.clock, baseline)
    if all(row["speed_up"] is None for row in found):
        st.caption(f"{MISSING} {baseline} has no time to compare with.")
        return
    drawing = charts_time.speed_up(rows, look.axis, look.clock, baseline, log=look.is_log)
    said = charts_time.say_values(found, look.axis, "speed_up", f"Speed against {baseline}", "{:.2f} ×")
    panels.chart(drawing, say=said, key=f"latency-speed-{key}")


def _hidden(rows: Sequence[curves.Row], look: View, key: str) -> None:
    st.markdown("**What the wall clock hides**")
    found = curves.hidden(rows)
    if all(row["hidden"] is None for row in found):
        st.caption(f"{MISSING} Not known without a device clock: {_why_no_device(rows)}.")
        return
    drawing = charts_time.hidden(rows, look.axis, log=look.is_log)
    said = charts_time.say_values(found, look.axis, "hidden", "Share of the wall clock that is not kernels", "{:.0%}")
    panels.chart(drawing, say=said, key=f"latency-hidden-{key}")
    st.caption("Launching, the host and waiting, within each call. Where it is high, the wall clock compares launches.")


def _memory(rows: Sequence[curves.Row], look: View, key: str) -> None:
    st.markdown("**Memory**, compiler's analysis")
    if not any(row["temp_bytes"] for row in rows):
        st.caption(f"{MISSING} The compiler gave no analysis.")
        return
    drawing = charts_time.memory_curve(rows, look.axis, log=look.is_log)
    last = [{**row, "size": memory.gib(row["temp_bytes"])} for row in rows if row["temp_bytes"]]
    said = charts_time.say_values(last, look.axis, "size", "Temporary memory by the compiler", "{}")
    panels.chart(drawing, say=said, key=f"latency-memory-{key}")


def _causal_share(rows: Sequence[curves.Row], look: View, key: str) -> None:
    st.markdown(f"**Causal against unmasked**, {charts.CLOCKS[look.clock]}")
    found = curves.causal_shares(rows, look.clock)
    if not found:
        st.caption(f"{MISSING} A causal time and the unmasked one of the same call are needed.")
        return
    for row in found:  # one mask is left, so the series need no name for it
        row["series"], row["style"] = charts.label(row["backend"]), ""
    panels.chart(
        charts_time.causal_share(found, look.axis, look.clock, log=look.is_log),
        say=charts_time.say_values(found, look.axis, "causal_share", "Causal time over unmasked time", "{:.0%}"),
        key=f"latency-causal-{key}",
    )
    last = {row["backend"]: row for row in found}.values()
    lines = [f"{r['series']} {r['says']} ({r['causal_share']:.0%} at {_at(r, look.axis)})" for r in last]
    st.caption("; ".join(lines) + ".")


def _at(row: dict[str, Any], axis: str) -> str:
    return f"{AXIS_LETTERS[axis]}={curves.length(row[axis])}"


# --- parts that other pages use too


def suspects(rows: Sequence[dict[str, Any]]) -> None:
    """What can't be right is said first."""
    for row in rows:
        if row["suspect"]:
            st.error(f"{row['series']}, T={row['q_len']}: {row['suspect']}", icon=":material/report:")


def panels_reasons(rows: list[dict[str, Any]], axis: str) -> None:
    """Points without a time, those with one reason together."""
    for gap in curves.reasons(rows, axis):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.html(f"{panels.tag(gap['backend'])}", width="content")
            st.markdown(panels.badge(gap["status"]), width="content")
            st.caption(f"{gap['where']}: {gap['reason']}", width="stretch")


def notes(rows: Sequence[dict[str, Any]]) -> None:
    """What the marks mean, as far as they occur."""
    timed = [row for row in rows if row["wall_ms"] is not None]
    said = []
    if any(not row["proven"] for row in timed):
        why = "a CPU has no kernel trace" if all(row["device_ms"] is None for row in timed) else "see its hover"
        said.append(f"Hollow: which kernel ran is not proven ({why}).")
    if len(timed) < len(rows):
        said.append(f"{charts_time.GAP_SIGN}: no time, for the reason given.")
    if timed:
        modes = ", ".join(dict.fromkeys(row["mode"] for row in timed))
        cold = ", cold L2" if any(row["cold_l2"] for row in timed) else ""
        said.append(f"Mode: {modes}{cold}. Bands and whiskers: p10 to p90.")
    st.caption(" ".join(said))


def table(rows: Sequence[dict[str, Any]], axis: str) -> list[dict[str, Any]]:
    """The points for reading: figures with their units, or the reason."""
    return [
        {
            "series": row["series"],
            AXIS_LETTERS[axis]: row[axis],
            "wall": charts.ms(row["wall_ms"]),
            "p10 – p90": f"{charts.ms(row['wall_p10_ms'])} – {charts.ms(row['wall_p90_ms'])}"
            if row["wall_ms"] is not None
            else MISSING,
            "device": charts.ms(row["device_ms"]),
            "TFLOP/s": f"{charts.number(row['tflops'])} ({row['tflops_clock']})" if row["tflops"] else MISSING,
            "kernel": f"{row['verdict'] or MISSING}{'' if row['proven'] else ', not proven'}",
            "result": row["accuracy"] or "not checked",
            "temporary": memory.gib(row["temp_bytes"]) if row["temp_bytes"] is not None else MISSING,
            "status": row["status"] if row["status"] == "ok" else f"{row['status']}: {row['reason']}",
        }
        for row in rows
    ]


def _no_times(rows: Sequence[dict[str, Any]], on: Clock) -> None:
    if on == "device_ms" and any(row["wall_ms"] is not None for row in rows):
        st.info(f"There is no device clock here: {_why_no_device(rows)}. The wall clock has the times.",
                icon=":material/timer_off:")  # fmt: skip
    else:
        st.info("No point has a time; the reasons are below.", icon=":material/block:")


def _why_no_device(rows: Sequence[curves.Row]) -> str:
    return "a CPU has none" if any(row["wall_ms"] is not None for row in rows) else "nothing was timed"


# --- two backends in turns


def duel(problem: Problem, names: Sequence[str], changes: dict[str, Any], status: Any) -> Answer:
    """A B A B in one job on the sidebar's problem, and the verdict on each clock."""
    st.caption(
        "Two backends in turns, A B A B, so that a drift of the clock meets both alike. On the sidebar's problem."
    )
    first = f"{names[0]}:{problem.dtype}" if names else SPECS[0]
    second = f"{names[-1]}:{problem.dtype}" if len(names) > 1 else f"xla:{problem.dtype}"
    with st.container(horizontal=True, vertical_alignment="bottom"):
        a = st.selectbox("A", SPECS, SPECS.index(first), key="latency_a", bind="query-params", width=280)
        b = st.selectbox("B", SPECS, SPECS.index(second), key="latency_b", bind="query-params", width=280)
    used = replace(versus.PROTOCOL, **changes)
    st.markdown(panels.problem_line(problem))
    call = {"problem": problem.to_json(), "specs": [a, b], "protocol": used}
    if a == b:
        st.error(f"Two different ones are needed to compare, got {a} twice.", icon=":material/error:")
        return Answer.of("", None)
    button = st.container()
    answer = jobs.look(versus.run, call)
    if panels.was_pressed("latency_duel_run"):
        answer = jobs.ask(versus.run, call, slot="duel", again=True, label="head to head", status=status)
    with button:
        panels.run_button(answer, key="latency_duel_run", prediction=f"Up to {used.limit_s:g} s on each clock.")
    if answer.is_over and answer.error:
        st.error(answer.error, icon=":material/dangerous:")
    outcome = answer.results[-1] if answer.results else None
    if outcome is None:
        if not answer.is_pending:
            st.info("Not compared yet.", icon=":material/play_arrow:")
    elif outcome.reason:
        st.warning(outcome.reason, icon=":material/block:")
    else:
        _verdicts(outcome, a, b)
    return answer


def _verdicts(outcome: versus.Outcome, a: str, b: str) -> None:
    with st.grid(2, min_column_width=320):
        for name, found in (("wall", outcome.wall), ("device", outcome.device)):
            with st.container(border=True, height="stretch"):
                if found is None:
                    why = outcome.a.timing.device_reason if outcome.a.timing else None
                    st.markdown(f"**{name} clock**: {MISSING} {why or 'not measured'}")
                    continue
                low, high = found.interval
                st.metric(f"A on the {name} clock", found.verdict, help=f"A = {a}, B = {b}, mode {outcome.mode}.")
                st.caption(
                    f"A's time is {found.ratio:.3f} of B's (95 %: {low:.3f} to {high:.3f}), {len(found.a_ms)} pairs. "
                    f"{_side('A', found.a_ms)}, {_side('B', found.b_ms)}."
                )
                drawing = charts_time.duel(
                    found.ratios.values, found.interval, f"A / B, {name} clock (below 1: A wins)"
                )
                said = f"{len(found.a_ms)} ratios of A's time over B's on the {name} clock, median {found.ratio:.3f}"
                panels.chart(drawing, say=said, key=f"latency-duel-{name}")
    exports.popover([outcome.a, outcome.b], "head-to-head")


def _side(name: str, times: Sequence[float]) -> str:
    return f"{name} {charts.ms(record.quantile(times, 0.5))}"
