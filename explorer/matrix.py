"""Matrix: what each backend accepts per head_dim, lettered and coloured; and the time per head_dim. Rows in, charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt

from explorer import charts
from explorer.charts import Clock, Row
from explorer.support import Answer

STATES = {  # state: (letter, fill, the letter's colour, what it means)
    "proven": ("P", "#2F7D32", "#FFFFFF", "proven: compiled, run and checked"),
    "unfused": ("U", "#B45309", "#FFFFFF", "runs, but not fused (u: by rule)"),
    "rule": ("R", "#8FB8DE", "#17242B", "accepted by rule, not run"),
    "refused": ("N", "#93A1A8", "#17242B", "refused"),
    "disagrees": ("D", "#BE2A73", "#FFFFFF", "runs, and its result is wrong"),
    "failed": ("F", "#7A1F1F", "#FFFFFF", "failed or timed out"),
}
SHORT = {
    "naive": "Naive",
    "auto": "Auto",
    "xla": "XLA",
    "cudnn": "cuDNN",
    "cudnn_fp8": "cuDNN FP8",
    "transformer_engine": "TE",
    "transformer_engine_fp8": "TE FP8",
}
SELECTION = "cell"
ROW_PX = 21
MARKED = "#E8A33D"  # stands out on light, on dark and on every fill


def letter(answer: Answer) -> str:
    """One character for a cell; a small u where unfused is said by rule alone."""
    if answer.state == "unfused" and answer.witness != "run":
        return "u"
    return STATES[answer.state][0]


def row(answer: Answer) -> dict[str, Any]:
    proof = answer.proof
    return {
        "backend": answer.backend,
        "head_dim": answer.problem.head_dim,
        "state": answer.state,
        "letter": letter(answer),
        "means": STATES[answer.state][3],
        "witness": answer.witness,
        "reason": answer.reason or "",
        "headline": answer.headline or "",
        "kernel": (proof.kernel if proof else None) or "",
        "max_abs_error": proof.max_abs_error if proof else None,
    }


def chart(rows: Sequence[Row], marked: tuple[str, int] | None = None) -> alt.LayerChart | alt.FacetChart:
    """A cell for each head_dim (down) and backend (across): colour and letter. Clicking selects by both.

    marked: the (backend, head_dim) that the page is about now; it has a frame.
    """
    names = [SHORT[name] for name in charts.present(rows)]
    values = [{**r, "name": SHORT[r["backend"]], "marked": (r["backend"], r["head_dim"]) == marked} for r in rows]
    dims = sorted({r["head_dim"] for r in rows})
    picked = alt.selection_point(name=SELECTION, fields=["backend", "head_dim"], toggle=False, empty=False)
    base = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X(
            "name:N",
            title=None,
            sort=names,
            axis=alt.Axis(orient="top", labelAngle=-40, labelLimit=170, labelOverlap=False, ticks=False, domain=False),
        ),
        y=alt.Y(
            "head_dim:O",
            title="head_dim",
            sort=dims,
            axis=alt.Axis(ticks=False, domain=False, labelOverlap=False, labelFlush=False, labelFontSize=11),
        ),
        tooltip=[
            alt.Tooltip("name:N", title="backend"),
            alt.Tooltip("head_dim:O"),
            alt.Tooltip("means:N", title="state"),
            alt.Tooltip("witness:N", title="strongest witness"),
            alt.Tooltip("reason:N"),
            alt.Tooltip("kernel:N"),
        ],
    )
    shown = [state for state in STATES if any(r["state"] == state for r in rows)]
    scale = alt.Scale(domain=list(STATES), range=[STATES[state][1] for state in STATES])
    said = ",".join(f"'{state}':'{look[0]}   {look[3]}'" for state, look in STATES.items())
    legend = alt.Legend(
        title=None,
        values=shown,
        orient="bottom",
        direction="vertical",
        labelLimit=400,
        labelExpr=f"{{{said}}}[datum.label]",
        symbolType="square",
        symbolStrokeWidth=0,
    )
    fill = (
        base.mark_rect()
        .encode(
            color=alt.Color("state:N", scale=scale, legend=legend),
            strokeWidth=alt.StrokeWidthValue(0.4, condition={"test": "datum.marked", "value": 4}),
            stroke=alt.StrokeValue(charts.NEUTRAL, condition={"test": "datum.marked", "value": MARKED}),
        )
        .add_params(picked)
    )
    ink = alt.Scale(domain=list(STATES), range=[STATES[state][2] for state in STATES])
    text = base.mark_text(fontWeight=600, fontSize=12).encode(
        text=alt.Text("letter:N"), color=alt.Color("state:N", scale=ink, legend=None)
    )
    return alt.layer(fill, text).resolve_scale(color="independent").properties(height=ROW_PX * len(dims))


def ranges(values: Iterable[int], known: Sequence[int]) -> str:
    """8, 16, 24, 40 as "8 … 24, 40": neighbours are those next to each other in known."""
    place = {value: i for i, value in enumerate(known)}
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and place[value] == place[runs[-1][-1]] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    parts = [", ".join(map(str, run)) if len(run) < 3 else f"{run[0]} … {run[-1]}" for run in runs]
    return ", ".join(parts)


def say(rows: Sequence[Row]) -> str:
    """The matrix in words: per backend, which head_dims stand how."""
    known = sorted({r["head_dim"] for r in rows})
    lines = []
    for backend in charts.present(rows):
        parts = []
        for state in STATES:
            dims = [r["head_dim"] for r in rows if r["backend"] == backend and r["state"] == state]
            if dims:
                parts.append(f"{state} {'all' if len(dims) == len(known) > 1 else ranges(dims, known)}")
        lines.append(f"{charts.label(backend)}: {', '.join(parts)}")
    return f"head_dim by backend ({ranges(known, known)}). " + "; ".join(lines)


def count(rows: Iterable[Row]) -> dict[str, int]:
    """How many cells stand how, in STATES' order."""
    found = Counter(r["state"] for r in rows)
    return {state: found[state] for state in STATES if found[state]}


def latency(rows: Sequence[Row], clock: Clock) -> alt.LayerChart | alt.FacetChart:
    """Median time against head_dim, a line a backend; hollow where it fell back, a tick at 0 where there is no time."""
    values = [
        {
            "backend": r["backend"],
            "name": charts.label(r["backend"]),
            "head_dim": r["head_dim"],
            "ms": r[clock],
            "p10": r[clock.replace("_ms", "_p10_ms")],
            "p90": r[clock.replace("_ms", "_p90_ms")],
            "text": charts.ms(r[clock]),
            "filled": r["fused"] is not False or r["verdict"] == "several kernels",
            "why": r["reason"] or "",
        }
        for r in rows
    ]
    timed, without = [v for v in values if v["ms"] is not None], [v for v in values if v["ms"] is None]
    x = alt.X("head_dim:Q", title="head_dim", scale=alt.Scale(zero=False, nice=False, padding=12))
    y = alt.Y("ms:Q", title=f"ms a call, {charts.CLOCKS[clock]}", scale=alt.Scale(zero=True))
    base = alt.Chart(alt.Data(values=timed)).encode(
        x=x,
        y=y,
        color=charts.backend_colour(timed),
        tooltip=[
            alt.Tooltip("name:N", title="backend"),
            alt.Tooltip("head_dim:Q"),
            alt.Tooltip("ms:Q", title="median, ms", format=".4g"),
            alt.Tooltip("p10:Q", format=".4g"),
            alt.Tooltip("p90:Q", format=".4g"),
        ],
    )
    points = base.mark_point(size=55).encode(
        shape=charts.backend_shape(timed),
        fillOpacity=alt.FillOpacityValue(0, condition={"test": "datum.filled", "value": 1}),
        fill=alt.Fill("backend:N", scale=alt.Scale(domain=list(charts.ORDER)), legend=None),
    )
    layers: list[alt.Chart] = [base.mark_line(opacity=0.6), points]
    if without:
        layers.append(
            alt.Chart(alt.Data(values=without))
            .mark_tick(thickness=2, size=12, orient="vertical")
            .encode(
                x=x,
                y=alt.datum(0),
                color=charts.backend_colour(timed, legend=False),
                tooltip=[alt.Tooltip("name:N"), alt.Tooltip("head_dim:Q"), alt.Tooltip("why:N", title="no time")],
            )
        )
    return alt.layer(*layers).properties(height=340)


def say_latency(rows: Sequence[Row], clock: Clock) -> str:
    """The times in words."""
    parts = []
    for backend in charts.present(rows):
        timed = sorted((r["head_dim"], r[clock]) for r in rows if r["backend"] == backend and r[clock] is not None)
        if timed:
            parts.append(f"{charts.label(backend)} " + ", ".join(f"{h}: {charts.ms(t)}" for h, t in timed))
    return f"Time of one call against head_dim, {charts.CLOCKS[clock]}: " + ("; ".join(parts) or "no times")
