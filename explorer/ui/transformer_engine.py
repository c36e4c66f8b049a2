"""TransformerEngine: what its page is made of: whether it is here, the lab's causal sweep, the kernels behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from explorer import charts, charts_time, clock, curves, evidence, measure, record, recordings, sweep
from explorer.backends import BACKENDS
from explorer.charts import MISSING, Clock
from explorer.device import Device
from explorer.engine import Call
from explorer.problem import Problem
from explorer.record import Record
from explorer.ui import controls, exports, jobs, machine, panels
from explorer.ui.jobs import Answer

LENGTHS = "128,256,512,1024,2048"
LONG = "128,256,512,1024,2048,4096,8192,16384"
MOST_LENGTHS = 16
NAMES = ("transformer_engine", "cudnn", "xla")
RECORDING = "te-sweep"
CLOSE = 0.05  # of cuDNN's device time: the same kernel
LONG_ENOUGH = 1024  # from this T on the kernel is what the device time consists of
PROTOCOL = clock.LAB_SWEEP


def here(device: Device | None) -> None:
    """Whether TransformerEngine can run in the worker, and if not: why, and how to get it."""
    if device is None:
        machine.starting()
        return
    problem = Problem(dtype="bfloat16", causal=True)
    why = BACKENDS["transformer_engine"].why_not(problem, device)
    if why is None:
        version = device.versions.get("transformer_engine")
        st.markdown(f":green-badge[:material/check_circle: ready] TransformerEngine {version} on {device.name}")
        return
    with st.container(border=True):
        st.markdown(f":gray-badge[:material/block: not here] {why}")
        if device.versions.get("transformer_engine") is None:
            st.markdown(
                "It is an extra, built from source. On a machine with an NVIDIA driver (no CUDA toolkit is needed):"
            )
            st.code("make te", language="bash")
        st.caption("The rest of this page shows what was recorded on a machine that has it.")


def base_of(problem: Problem) -> Problem:
    """The sidebar's shape as the lab asks for it: causal, in 16 bits."""
    dtype = problem.dtype if problem.dtype in ("bfloat16", "float16") else "bfloat16"
    return problem.but(dtype=dtype, causal=True, backward=False, kv_len=problem.q_len, inputs="normal", input_scale=1.0)


def lengths() -> tuple[int, ...]:
    """The lengths to run, from the page's own field."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = st.text_input(
            "Sequence lengths", LENGTHS, key="te_lengths", bind="query-params", width=320,
            help="By commas or start:stop:step; 1k is 1024.",
        )  # fmt: skip
        st.button("To 16k", key="te_long", on_click=_set_lengths, args=(LONG,), icon=":material/expand:")
    found, complaint = controls.sizes(text, "q_len", usual=LENGTHS, most=MOST_LENGTHS, called="lengths")
    if complaint:
        st.markdown(f":red[:material/error: {complaint}; {LENGTHS} is used instead]")
    return found


def _set_lengths(text: str) -> None:
    st.session_state["te_lengths"] = text


def calls(base: Problem, found: Sequence[int]) -> list[Call]:
    points = sweep.points(base, NAMES, axis="q_len", values=found)
    return [
        Call(sweep.measure_point, {"problem": p.problem.to_json(), "backend": p.backend, "protocol": PROTOCOL})
        for p in points
    ]


def ask(base: Problem, found: Sequence[int], status: Any) -> Answer:
    """The sweep, run on the button alone."""
    asked = calls(base, found)
    pressed = panels.was_pressed("te_run")
    options = {"slot": "te-sweep", "label": "TransformerEngine's sweep", "status": status, "auto": False}
    answer = jobs.ask_many(asked, again=pressed, **options)
    device = jobs.device()
    on_gpu = device is not None and device.is_gpu
    seconds = sum(measure.guess_seconds(base.but(q_len=t, kv_len=t), len(NAMES), on_gpu=on_gpu) for t in found)
    said = f"{len(asked)} points, about {max(1, seconds):.0f} s predicted here, compiling apart."
    panels.run_button(answer, key="te_run", prediction=said)
    return answer


def shown(answer: Answer, base: Problem) -> tuple[list[Record], str | None]:
    """What ran here, or the recording; and what it is, if it is not from here."""
    mine = [found for found in answer.results if isinstance(found, Record)]
    kept, label = recorded()
    offered = (["here"] if mine else []) + (["recorded"] if kept else [])
    if not offered:
        return [], None
    source = offered[0]
    if len(offered) > 1:
        ran = any(r.backend == "transformer_engine" and r.status == "ok" for r in mine)
        source = st.segmented_control(
            "Where", offered, default="here" if ran else "recorded", required=True, key="te_where",
            help="Measured here and now, or the shipped recording.",
        )  # fmt: skip
    return (mine, None) if source == "here" else (list(kept), label)


@st.cache_data(show_spinner=False, max_entries=2)
def recorded() -> tuple[list[Record], str]:
    if RECORDING not in recordings.names():
        return [], ""
    kept = recordings.load(RECORDING)
    return list(kept.records), kept.label


def results(records: Sequence[Record], label: str | None) -> None:
    """Curve, table, kernels, and what has no time."""
    if label:
        st.caption(f":material/history: Not measured here: {label}; {_shape(records[0].problem)}")
    rows = curves.labelled(record.rows(records), "q_len")
    on = _clock(rows)
    if any(row[on] is not None for row in rows):
        panels.chart(charts_time.times(rows, "q_len", on), say=charts_time.say_times(rows, "q_len", on))
    for gap in curves.reasons(rows, "q_len"):
        st.caption(f"{gap['series']} has no time at {gap['where']}: {gap['reason']}")
    panels.table(times(rows, on), alt_text=f"Time of a call by length, {charts.CLOCKS[on]}")
    st.markdown(comparison(records))
    st.subheader("Which kernel ran")
    panels.table(
        kernels(records), alt_text="By length and backend: evidence, precision and the attention kernel's name"
    )
    for line in remarks(records):
        st.caption(line)
    exports.popover(records, "transformer-engine")


def _shape(p: Problem) -> str:
    return f"B={p.batch} N={p.heads} K={p.kv_heads} H={p.head_dim} {p.dtype} {p.mask.name}"


def _clock(rows: Sequence[dict[str, Any]]) -> Clock:
    if not any(row["device_ms"] is not None for row in rows):
        return "wall_ms"
    chosen = st.segmented_control(
        "Clock", ["device", "wall"], default="device", required=True, key="te_clock", bind="query-params",
        help="Device: the kernels' own time. Wall: one call, then wait, as the lab does it.",
    )  # fmt: skip
    return "device_ms" if chosen == "device" else "wall_ms"


def times(rows: Sequence[dict[str, Any]], on: Clock) -> list[dict[str, Any]]:
    """A line a length: each backend's time, and TransformerEngine's over cuDNN's."""
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        found.setdefault(row["q_len"], {})[row["backend"]] = row[on]
    lines = []
    for q_len, ms in sorted(found.items()):
        ours, theirs = ms.get("transformer_engine"), ms.get("cudnn")
        ratio = f"{ours / theirs:.2f} ×" if ours and theirs else None
        line = {"T": q_len} | {charts.label(name): charts.ms(ms.get(name)) for name in NAMES}
        lines.append(line | {"TransformerEngine / cuDNN": ratio})
    return lines


def attention_kernel(found: Record) -> str | None:
    """The name of the attention kernel that took the most time, from the trace."""
    ran = (found.evidence or {}).get("kernels") or ()
    return next((k["name"] for k in ran if evidence.ATTENTION_KERNEL.search(k["name"])
                 and "populate_rng_state" not in k["name"]), None)  # fmt: skip


def comparison(records: Sequence[Record]) -> str:
    """TransformerEngine's device time against cuDNN's from T = 1024 on, explained by the kernels' names."""
    by = {(r.backend, r.problem.q_len): r for r in records if r.timing is not None and r.timing.device_ms is not None}
    said, seen = [], 0
    for name, q_len in sorted(by, key=lambda at: at[1]):
        ours, theirs = by[name, q_len], by.get(("cudnn", q_len))
        if name != "transformer_engine" or theirs is None or q_len < LONG_ENOUGH:
            continue
        seen += 1
        assert ours.timing is not None
        assert ours.timing.device_ms is not None
        assert theirs.timing is not None
        assert theirs.timing.device_ms is not None
        off = ours.timing.device_ms.median / theirs.timing.device_ms.median - 1
        if abs(off) > CLOSE:
            one, other = attention_kernel(ours), attention_kernel(theirs)
            why = "though both ran the same kernel" if one == other else f"`{one}` against `{other}`"
            said.append(f"at T = {q_len} it is {off:+.0%} off cuDNN's device time, {why}")
    if not seen:
        return f"TransformerEngine against cuDNN: {MISSING} no length from {LONG_ENOUGH} on has both device times."
    if not said:
        return (
            f"From T = {LONG_ENOUGH} on TransformerEngine's device time is within {CLOSE:.0%} of cuDNN's: "
            "it calls the same kernel of the same library."
        )
    return f"TransformerEngine: {'; '.join(said)}."


def kernels(records: Sequence[Record]) -> list[dict[str, Any]]:
    lines = []
    for found in sorted(records, key=lambda r: (r.problem.q_len, NAMES.index(r.backend) if r.backend in NAMES else 9)):
        proof = found.evidence or {}
        lines.append(
            {
                "T": found.problem.q_len,
                "backend": charts.label(found.backend),
                "status": panels.STATUS[found.status][2],
                "evidence": proof.get("verdict"),
                "proven": "by a trace" if proof.get("proven") else "no",
                "precision": proof.get("note"),
                "attention kernel": attention_kernel(found) or ("several kernels" if proof.get("kernels") else None),
                "max error": charts.number((found.accuracy or {}).get("max_abs_error")),
            }
        )
    return lines


def remarks(records: Sequence[Record]) -> list[str]:
    """What the backends said of their runs, such as why a shape ran unfused; each once."""
    found = {
        f"{charts.label(r.backend)}, T = {r.problem.q_len}: {said}"
        for r in records
        if (said := (r.evidence or {}).get("remark"))
    }
    return sorted(found)
