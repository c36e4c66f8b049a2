"""Roofline: what the Roofline page is made of: the ceilings of this device, and measured points under them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import streamlit as st

from explorer import ceilings, charts, charts_time, clock, curves, device, record, recordings, sweep
from explorer.ceilings import Ceilings
from explorer.charts import MISSING
from explorer.problem import Problem
from explorer.record import Record
from explorer.recordings.sets import SETS, nvidia_ratio
from explorer.ui import exports, jobs, latency, panels, sweeps
from explorer.ui.jobs import Answer
from explorer.ui.sweeps import Asked, Sweep

PAGE = "roofline"
LENGTHS = "lengths"
MENU = {
    "NVIDIA's points": "nvidia-points",
    "Back to back": "nvidia-points-sustained",
    "Decode step": "decode",
    "Own problem": LENGTHS,
}
GPU_LENGTHS, CPU_LENGTHS = (256, 512, 1024, 2048, 4096, 8192), (64, 128, 256, 512)


def choice() -> str:
    """Which points; another choice leaves the link's job and may run by itself."""
    label = st.segmented_control(
        "Points", list(MENU), default="NVIDIA's points", required=True, key="roofline_points", bind="query-params",
        on_change=sweeps.choose, args=(PAGE,), label_visibility="collapsed",
    )  # fmt: skip
    return MENU[label]


def asked(name: str, problem: Problem, names: Sequence[str]) -> Asked | None:
    """The chosen points. A sweep here measures the ceilings first, if they are not known yet."""
    here = jobs.device()
    if name == LENGTHS:
        if not names:
            st.info("Choose at least one backend in the sidebar.", icon=":material/tune:")
            return None
        values = GPU_LENGTHS if here is not None and here.is_gpu else CPU_LENGTHS
        points = tuple(sweep.points(problem, names, axis="q_len", values=values))
        about, protocol = f"T = {values[0]} … {values[-1]}, the rest as in the sidebar.", clock.LAB_SWEEP
        recorded = recordings.matching(points)
    else:
        points, about, protocol = SETS[name].points, SETS[name].about, SETS[name].protocol
        recorded = recordings.several([name])
    st.caption(about)
    label = next(label for label, each in MENU.items() if each == name)
    return Asked(
        name=name, label=label, about=about, axis="q_len", points=points, protocol=sweeps.timed(protocol, here),
        recorded=tuple(recorded), with_ceilings=True,
    )  # fmt: skip


def known(made: Sweep, status: Any) -> tuple[Ceilings | None, list[Answer]]:
    """The ceilings of this device: just measured, measured with the sweep, or kept; and what is still under way."""
    if jobs.device() is None:
        return None, []
    kept = jobs.ask(ceilings.kept_here, {}, slot="ceilings kept", settle_s=0.3, label="ceilings", status=status)
    call = {"again": True}
    measured = jobs.look(ceilings.here, call)
    if panels.was_pressed("roofline_ceilings"):
        measured = jobs.ask(ceilings.here, call, slot="ceilings", again=True, label="ceilings", status=status)
    found = [each for answer in (kept, made.answer, measured) for each in answer.results if isinstance(each, Ceilings)]
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        st.markdown(f"**Ceilings of this device** · {_sentence(found[-1]) if found else f'{MISSING} not measured yet'}")
        st.button(
            "Measure again" if found else "Measure",
            icon=":material/speed:",
            key="roofline_ceilings",
            disabled=measured.is_pending,
            on_click=panels.press,
            args=("roofline_ceilings",),
            help="A large matrix product in each dtype and a large copy, on random numbers: about 10 s, then kept.",
        )
    if measured.error:
        st.error(measured.error, icon=":material/dangerous:")
    return (found[-1] if found else None), [measured, kept]


def _sentence(found: Ceilings) -> str:
    rates = ", ".join(f"{dtype} {charts.number(rate)}" for dtype, rate in found.tflops.items())
    text = f"{found.where}, {found.clock} clock: {rates} TFLOP/s; copy {charts.number(found.copy_tb_s)} TB/s"
    if (sheet := device.datasheet(found.where)) is not None:
        rate = f"{charts.number(sheet.bf16_tflops)} TFLOP/s in bf16" if sheet.bf16_tflops else "no bf16"
        text += f". Datasheet: {rate}, {charts.number(sheet.bandwidth_tb_s)} TB/s ({sheet.source})"
    return f"{text}. Measured {found.time[:10]}."


def show(one: Asked, made: Sweep, found: Ceilings | None) -> None:
    """Measured here and recorded elsewhere, each under its own ceilings."""
    records, recorded = made.records, [] if made.is_other else list(one.recorded)
    here = jobs.device()
    if not records and not recorded:
        st.info("Nothing is measured yet: press Run, and the points appear one by one.", icon=":material/play_arrow:")
        return
    if records and recorded and not (here is not None and here.is_gpu):
        left, right = st.columns(2, gap="large")
    else:
        left = right = st.container()
    if records:
        with left:
            st.subheader(f"Measured here: {next((r.where for r in records if r.environment), 'this machine')}")
            if made.missing:
                st.warning(f"Incomplete: {len(records) - made.missing} of {len(records)} points were measured.")
            view(records, one.name, key="live", found=found)
    if recorded:
        with right:
            st.subheader(f"Recorded: {recorded[0].where}")
            st.caption(f":material/history: Not measured here: {recordings.describe(recorded)}.")
            view(recorded, one.name, key="recorded")


def view(records: list[Record], name: str, *, key: str, found: Ceilings | None = None) -> None:
    """The chart, what is wrong or missing, the figures, and exports of one place's records."""
    axis = sweep.axis_of(records)
    rows = curves.labelled(record.rows(records), axis)
    latency.suspects(rows)
    roofs = roofs_of(records, found)
    if not any(row["tflops"] for row in rows):
        st.info("No point has a time; the reasons are below.", icon=":material/block:")
    else:
        if not roofs:
            st.caption(f"Ceilings: {MISSING} not measured where these points were.")
        drawing = charts_time.roofline(rows, roofs)
        panels.chart(drawing, say=charts_time.say_roofline(rows, roofs), key=f"roofline-{key}")
        clocks = ", ".join(dict.fromkeys(row["tflops_clock"] for row in rows if row["tflops"]))
        st.caption(
            f"FLOPs: 4·B·N·T·S·H, half of it causal (T = S). TFLOP/s by the {clocks} clock. A point above the slope, "
            "but not above the roof, found its inputs in the cache."
        )
    latency.panels_reasons(rows, axis)
    latency.notes(rows)
    made = (lambda: charts_time.roofline(rows, roofs)) if any(row["tflops"] for row in rows) else None
    exports.popover(records, name, drawing=made, key=f"-{key}")
    panels.table(table(records), alt_text="TFLOP/s, the roofline's bound, the share of it and NVIDIA's figure")


def roofs_of(records: Iterable[Record], found: Ceilings | None) -> list[dict[str, Any]]:
    """The measured roofs that the records' own figures stand under, and the datasheet's of the same card."""
    roofs: dict[str, dict[str, Any]] = {}

    def add(name: str, peak: float | None, rate: float | None, *, is_measured: bool) -> None:
        if peak and rate:
            said = f"{name}: {charts.number(peak)} TFLOP/s, {charts.number(rate)} TB/s"
            roofs[said] = {"name": said, "peak_tflops": peak, "copy_tb_s": rate, "is_measured": is_measured}

    places = set()
    for made in records:
        cost, note = made.cost or {}, (made.evidence or {}).get("note") or ""
        if made.timing is not None:
            places.add(made.where)
            peak = cost.get("peak_tflops") or (found.peak_tflops(note) if found else None)
            rate = cost.get("copy_tb_s") or (found.copy_tb_s if found else None)
            add(f"{note} product and copy", peak, rate, is_measured=True)
    for place in sorted(places):
        if (sheet := device.datasheet(place)) is not None:
            add("bf16 datasheet", sheet.bf16_tflops, sheet.bandwidth_tb_s, is_measured=False)
    return list(roofs.values())


def table(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Each timed point's rate beside what bounds it, and beside NVIDIA's published figure where there is one."""
    rows = []
    for made in records:
        row = record.row(made)
        on_h200 = made.where == device.DATASHEETS["h200"].label
        ratio = nvidia_ratio(made.problem, row["tflops"]) if row["tflops"] and on_h200 else None
        rows.append(
            {
                "backend": charts.label(made.backend),
                "problem": str(made.problem),
                "TFLOP/s": charts.number(row["tflops"]),
                "bound": charts.number(row["bound_tflops"]),
                "share of the bound": MISSING if row["bound_share"] is None else f"{row['bound_share']:.0%}",
                "of NVIDIA's figure": MISSING if ratio is None else f"{ratio:.3f}",
                "SM clock, MHz": row["sm_clock_mhz"],
                "status": row["status"],
            }
        )
    return rows
