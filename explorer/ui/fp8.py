"""FP8: what its page is made of: formats, rounding, the lab's table with the kernels that ran, speed, outliers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from explorer import (
    casts,
    charts,
    charts_fp8,
    clock,
    fp8,
    measure,
    plain,
    recipes,
    recordings,
    rounding,
    support,
    sweep,
)
from explorer.backends import BACKENDS
from explorer.charts import MISSING
from explorer.device import Device
from explorer.engine import Call
from explorer.problem import Problem
from explorer.record import Record
from explorer.support.rules import ELSEWHERE
from explorer.ui import controls, jobs, panels, transformer_engine
from explorer.ui.jobs import Answer

FORMATS = (fp8.E4M3, fp8.E5M2)
WIDE = Problem(batch=1, q_len=16384, kv_len=16384, heads=16, kv_heads=16, head_dim=128, dtype="bfloat16")
SPEED_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
SPEED_NAMES = ("cudnn", "cudnn_fp8")
# RMSE by FlashAttention-3 (Shah et al., 2024, section 4.3), on this recipe of outliers; ours: cuDNN's kernels
PAPER = {
    "cudnn": "1.9e-4 (FlashAttention-2 and -3, FP16)",
    "cudnn_fp8": "2.4e-2 (a scale per tensor), 9.1e-3 (FlashAttention-3: scales per block, incoherent processing)",
    "naive": "3.2e-4 (standard attention, FP16)",
}
SPIKES = [0.0, 0.0001, 0.001, 0.01, 0.1]
SIZES = [3, 10, 30, 100, 1000]


# --- what the formats hold, and what they lose


def formats() -> None:
    st.markdown(
        "**E4M3** (weights, activations) has 3 bits of mantissa and ends at 448; **E5M2** (gradients) trades one of "
        "them for range; **bfloat16** has float32's range and 7 bits. Every 8-bit number there is, on one line:"
    )
    panels.chart(charts_fp8.number_line(), say=charts_fp8.say_formats(), key="fp8_line")
    panels.chart(charts_fp8.octave(), say=charts_fp8.say_formats(), key="fp8_octave")
    st.caption(
        "Strong band: numbers with all their digits; faint: below the smallest normal number, where digits are lost "
        "one by one until nothing is left but 0."
    )


def quantising(problem: Problem) -> None:
    """The sidebar's q, k or v before and after; outliers, format and scale to play with."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        name = st.segmented_control(
            "Array", rounding.ARRAYS, default="q", required=True, key="fp8_array", bind="query-params"
        )
        dtype = st.segmented_control(
            "Format", FORMATS, default=fp8.E4M3, required=True, key="fp8_format", bind="query-params",
            format_func=lambda each: fp8.FORMATS[each].label,
        )  # fmt: skip
        share = st.select_slider(
            "Outliers", SPIKES, value=0.0, key="fp8_outliers", bind="query-params", width=220,
            format_func=_share, help="How many of the numbers get a large normal one added.",
        )  # fmt: skip
        size = st.select_slider(
            "Their size", SIZES, value=10, key="fp8_size", bind="query-params", width=180, disabled=not share,
            format_func=lambda each: f"{each} ×", help="Times a normal number; FlashAttention-3's test has 10.",
        )  # fmt: skip
        shift = st.slider(
            "Scale × 2 to the", -6, 6, 0, key="fp8_shift", bind="query-params", width=180,
            help="0: the largest number lands on the format's largest. Above, it clips; below, small ones vanish.",
        )  # fmt: skip
    seen = rounding.view(problem, name, dtype=dtype, outliers=float(share), size=float(size), shift=shift)
    drawn = charts_fp8.histogram(rounding.histogram(seen), rounding.limits(seen))
    panels.chart(drawn, say=f"{name} in {fp8.FORMATS[dtype].label}: {rounding.sentence(seen)}", key="fp8_histogram")
    lost = seen.loss
    with st.grid(4, min_column_width=150):
        form = fp8.FORMATS[dtype]
        clips = f"Scaled above {form.clips_from:,.0f}, which rounding alone does not bring to {form.largest:,.0f}."
        st.metric("Clipped", rounding.percent(lost.clipped), border=True, help=clips)
        st.metric("Became 0", rounding.percent(lost.flushed), border=True, help="Not 0 before.")
        st.metric(
            "Fewer digits", rounding.percent(lost.subnormal), border=True, help="Below the smallest normal number."
        )
        error = MISSING if lost.relative_rmse is None else f"{lost.relative_rmse:.2%}"
        st.metric("Rounding error", error, border=True, help="RMS of the error over the RMS of the array.")
    st.caption(f"{name}, {len(seen.before):,} numbers: {rounding.sentence(seen)}.")


def _share(value: float | int) -> str:
    return "none" if not value else f"1 in {1 / value:,.0f}"


# --- the lab's table


def table(problem: Problem, device: Device | None, status: Any) -> Answer:
    """Every way with FP8 beside the same way without, here on the button, else as recorded; or why it did not run."""
    lab = problem.but(
        dtype=problem.dtype if problem.dtype != "float32" else "bfloat16", backward=False, inputs="normal",
        input_scale=1.0, window=None, kv_valid=None,
    )  # fmt: skip
    st.markdown(panels.problem_line(lab))
    why = None if device is None else BACKENDS["transformer_engine_fp8"].why_not(lab, device)
    pressed = panels.was_pressed("fp8_table")
    answer = jobs.ask(
        recipes.compare, {"problem": lab}, slot="fp8-table", auto=False, again=pressed, label="FP8 table",
        limit_s=300.0, status=status,
    )  # fmt: skip
    panels.run_button(
        answer, key="fp8_table", prediction="Ten ways, compiled and run: about 10 s on an H200.", shortcut=None
    )
    if answer.error:
        status.error(answer.error, icon=":material/dangerous:")
    rows, label = list(answer.results), None
    if not any(row["status"] == "ok" for row in rows):
        _nothing_ran({row["label"]: row["reason"] for row in rows})
        kept, kept_label = recorded_table()
        rows, label = (kept, kept_label) if kept else (rows, None)
    if label:
        st.caption(f":material/history: Not measured here: {label}; {Problem.from_json(rows[0]['problem'])}")
    if rows:
        off = "max difference"
        rows = doubted(rows)
        shown = [{**row, off: charts.number(row[off])} for row in recipes.table(rows)]
        panels.table(
            shown,
            alt_text="Each way with FP8: what came of it, kernel, dtypes, shape, difference to without",
            **{"what came of it": st.column_config.TextColumn(width=520)},
        )
        for row in rows:
            if row["doubt"]:
                st.markdown(
                    f":orange[:material/warning:] {plain.markdown(row['label'])}: {plain.markdown(row['doubt'])}."
                )
        st.caption(
            "max difference: largest absolute difference of the outputs with and without FP8. A whole layer's is that "
            "of its output, to which the projections add theirs."
        )
    if why is not None:
        st.markdown(f":gray-badge[:material/block: not here] {why}. This is the code that would run:")
        st.code(recipes.code(lab), language="python")
    return answer


def _nothing_ran(reasons: dict[str, str]) -> None:
    if reasons:
        said = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        st.caption(f":material/block: Nothing ran here. {plain.markdown(said)}.")


def doubted(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, with what is known against cuDNN's FP8 output at their problem: a recorded check, or the rule."""
    kept = _recording("fp8-table")
    known = {(r.backend, r.problem): r for r in (kept.records if kept else ())}
    found = []
    for row in rows:
        problem, doubt = Problem.from_json(row["problem"]), None
        if row["way"] == "cudnn_fp8":
            checked = known.get(("cudnn_fp8", problem))
            if checked is not None and checked.status == "disagrees":
                doubt = f"checked on {checked.where}, wrong: {checked.reason}"
            elif rules := support.broken("cudnn_fp8", problem, ELSEWHERE, "doubt"):
                doubt = rules[0].sentence(problem, ELSEWHERE)
        found.append({**row, "doubt": doubt})
    return found


@st.cache_data(show_spinner=False, max_entries=2)
def recorded_table() -> tuple[list[dict[str, Any]], str]:
    """The rows that ship with the record of TransformerEngine under the lab's recipe."""
    kept = _recording("fp8-table")
    if kept is None:
        return [], ""
    rows = [row for r in kept.records for row in (r.evidence or {}).get("recipes", ())]
    return rows, kept.label if rows else ""


def _recording(name: str) -> recordings.Recording | None:
    return recordings.load(name) if name in recordings.names() else None


# --- speed


def speed(problem: Problem, device: Device | None, status: Any) -> Answer:
    """FP8 against bfloat16 along T, kernel alone and with the casts."""
    base = problem.but(
        dtype=problem.dtype if problem.dtype != "float32" else "bfloat16", backward=False, inputs="normal",
        input_scale=1.0, window=None, kv_valid=None,
    )  # fmt: skip
    points = sweep.points(base.but(kv_len=base.q_len), SPEED_NAMES, axis="q_len", values=SPEED_LENGTHS)
    asked = [
        Call(sweep.measure_point, {"problem": p.problem.to_json(), "backend": p.backend, "protocol": clock.LAB_SWEEP})
        for p in points
    ]
    pressed = panels.was_pressed("fp8_speed")
    answer = jobs.ask_many(
        asked, slot="fp8-speed", auto=False, again=pressed, label="FP8 speed", status=status
    )  # fmt: skip
    on_gpu = device is not None and device.is_gpu
    able = [p for p in points if device is None or BACKENDS[p.backend].why_not(p.problem, device) is None]
    seconds = sum(measure.guess_seconds(p.problem, 1, on_gpu=on_gpu) for p in able)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Take B=1 N=16 H=128", key="fp8_wide", icon=":material/tune:", on_click=controls.set_to,
            kwargs={"problem": WIDE}, help="Moves the sidebar to the shape of the recording.",
        )  # fmt: skip
        said = f"the sidebar's shape at T = 512 … 16384, {len(points)} points"
        said += f", about {max(1, seconds):.0f} s predicted" if able else ", none of which can run here"
        panels.run_button(answer, key="fp8_speed", prediction=said, shortcut=None)
    if answer.error:
        status.error(answer.error, icon=":material/dangerous:")
    if device is not None:
        for rule in support.broken("cudnn_fp8", base.but(q_len=max(SPEED_LENGTHS)), device, "doubt"):
            st.caption(f":material/warning: {rule.sentence(base, device)} ({rule.sources[0]}).")
    mine = [r for r in answer.results if isinstance(r, Record)]
    if all(r.status == "refused" for r in mine):
        _nothing_ran({charts.label(r.backend): r.reason or MISSING for r in mine})
    found, label = _speed_records(mine)
    if label:
        st.caption(f":material/history: Not measured here: {label}; {_shape(found[0].problem)}")
    drawn = casts.points(found)
    if not drawn:
        st.caption(f"{MISSING} No point has a device time: this needs a GPU, or the recording.")
    else:
        panels.chart(charts_fp8.speeds(drawn), say=charts_fp8.say_speeds(drawn), key="fp8_speeds")
        for line in transformer_engine.remarks(found):
            st.markdown(f":orange[:material/warning:] {plain.markdown(line)}.")
        gained = casts.gains(drawn)
        st.markdown(casts.sentence(gained))
        panels.table(
            [
                {"T": g["q_len"], "kernel alone": f"{g['kernel']:.2f} ×", "with the casts": f"{g['casts']:.2f} ×"}
                | {"casts' share of the time": f"{g['casts_share']:.0%}"}
                for g in gained
            ],
            alt_text="FP8's speed over bfloat16's by length: kernel alone, with the casts, the casts' share",
        )
        st.caption("Kernel alone: attention kernel against attention kernel. With the casts: all kernels of a call.")
    _without_time([r for r in found if r.status != "ok"])
    others(found)
    return answer


def _shape(p: Problem) -> str:
    return f"B={p.batch} N={p.heads} K={p.kv_heads} H={p.head_dim} {p.dtype} {p.mask.name}"


def _speed_records(mine: list[Record]) -> tuple[list[Record], str | None]:
    if any(r.status == "ok" and r.backend == "cudnn_fp8" for r in mine):
        return mine, None
    kept = _recording("fp8-sweep")
    if kept is None:
        return mine, None
    return [r for r in kept.records if is_wide(r.problem)], kept.label


def is_wide(p: Problem) -> bool:
    """Of the recording's points along T: the others are single shapes."""
    return p.but(q_len=WIDE.q_len, kv_len=WIDE.kv_len) == WIDE


def _without_time(records: Sequence[Record]) -> None:
    for r in records:
        st.caption(f"{charts.label(r.backend)} has no time at T = {r.problem.q_len}: {r.reason}")


def others(shown: Sequence[Record]) -> None:
    """The recording's other shapes: the lab's own, causal, and with gradients; right or not."""
    kept = _recording("fp8-sweep")
    rest = [r for r in kept.records if not is_wide(r.problem)] if kept else []
    if not rest:
        return
    st.markdown("**The lab's shape, causal, and with gradients**")
    panels.table(
        [
            {
                "shape": str(r.problem) + (" with gradients" if r.problem.backward else ""),
                "backend": charts.label(r.backend),
                "verdict": panels.STATUS[r.status][2],
                "kernel": charts.ms(r.timing.kernel_ms.median) if r.timing and r.timing.kernel_ms else None,
                "all kernels": charts.ms(r.timing.device_ms.median) if r.timing and r.timing.device_ms else None,
                "largest error": charts.number((r.accuracy or {}).get("max_abs_error")),
                "reason": r.reason,
            }
            for r in rest
        ],
        alt_text="Other shapes in FP8 and bfloat16: verdict, times, largest error, reason",
    )
    st.caption(f":material/history: {kept.label if kept else ''}")


# --- outliers


def outliers() -> None:
    """RMSE on FlashAttention-3's outliers, next to the paper's, as recorded."""
    kept = _recording("fa3-outliers")
    if kept is None:
        st.caption(f"{MISSING} Not recorded yet.")
        return
    st.caption(f":material/history: {kept.label}; {kept.records[0].problem}, inputs N(0,1) + 10·N(0,1) in 1 of 1000.")
    panels.table(
        [
            {
                "backend": charts.label(r.backend),
                "precision": (r.evidence or {}).get("note"),
                "RMSE on the inputs as given": charts.number(given_rmse(r)),
                "RMSE on the rounded inputs": charts.number((r.accuracy or {}).get("rmse"))
                if (r.accuracy or {}).get("unrounded")
                else "(takes them as they are)",
                "the paper's": PAPER.get(r.backend),
            }
            for r in kept.records
        ],
        alt_text="RMSE against the exact result on FlashAttention-3's outliers, beside the paper's figures",
    )


def given_rmse(found: Record) -> float | None:
    """Against the exact result on the inputs as they were given, before any rounding to FP8."""
    accuracy = found.accuracy or {}
    return (accuracy.get("unrounded") or accuracy).get("rmse")
