"""Charts of number formats, of what rounding does to an array, and of FP8's speed. Tables in, charts out; no I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from explorer import charts, fp8
from explorer.charts_time import LENGTH_LABEL, WORDS

POWER_LABEL = (
    "datum.value < {zero} ? '0' : datum.value >= 0 && datum.value <= 10 ? format(pow(2, datum.value), '~g') : "
    "'2^' + datum.value"
)
ROW = 40  # pixels of one format; the axis below takes as much again as two
WHEN = {"before": "as given", "after": "after rounding"}
LOWEST, HIGHEST = -18.0, 18.0  # powers of two on the number line: a little beyond what 8 bits can hold
TWO = ("#D4681C", "#3B86D1")  # before, after: apart without colour vision, seen on light and on dark
SPEEDS = {
    "cudnn": "cuDNN bfloat16, all kernels",
    "cudnn_kernel": "cuDNN bfloat16, kernel alone",
    "kernel": "cuDNN FP8, kernel alone",
    "casts": "cuDNN FP8, with the casts",
}
BACKEND_OF = {"cudnn": "cudnn", "cudnn_kernel": "cudnn", "kernel": "cudnn_fp8", "casts": "cudnn_fp8"}


def _stack(layers: list[Any], height: int) -> alt.LayerChart:
    return alt.layer(*layers).properties(height=height)  # pyright: ignore[reportReturnType]


def number_line() -> alt.LayerChart:
    """Every positive number of E4M3 and E5M2 as a stroke on a logarithmic line; bfloat16 as a band that runs off it."""
    strokes, bands = [], []
    for form in fp8.FORMATS.values():
        low, high = math.log2(form.smallest), math.log2(form.largest)
        bits = f"{form.exponent_bits} bits of exponent, {form.mantissa_bits} of mantissa"
        said = f"{form.smallest:.3g} to {form.largest:.3g}, {bits}"
        bands.append(
            {"format": form.label, "low": max(low, LOWEST), "high": min(high, HIGHEST), "holds": said}
            | {"normal": max(math.log2(form.smallest_normal), LOWEST)}
        )
        if form.exponent_bits + form.mantissa_bits == 7:
            strokes += [
                {"format": form.label, "at": math.log2(x), "value": f"{x:.6g}"} for x in fp8.values(form.name) if x > 0
            ]
    x_axis = alt.Axis(title="size of the number", labelExpr=POWER_LABEL.format(zero=-99), values=[*range(-18, 19, 3)])
    scale = alt.Scale(domain=[LOWEST, HIGHEST], nice=False)
    y = alt.Y("format:N", title=None, sort=None, axis=alt.Axis(ticks=False, domain=False, labelOverlap=False))
    band = alt.Chart(alt.Data(values=bands))
    tooltip = [alt.Tooltip("format:N"), alt.Tooltip("holds:N")]
    layers: list[Any] = [
        band.mark_bar(height=22, opacity=0.16, color=charts.NEUTRAL).encode(
            x=alt.X("low:Q", scale=scale, axis=x_axis), x2=alt.X2("high:Q"), y=y, tooltip=tooltip
        ),
        band.mark_bar(height=22, opacity=0.22, color=charts.NEUTRAL).encode(
            x=alt.X("normal:Q", scale=scale), x2=alt.X2("high:Q"), y=y, tooltip=tooltip
        ),
        alt.Chart(alt.Data(values=strokes))
        .mark_tick(thickness=1.3, height=22, color=TWO[1], opacity=1)
        .encode(x=alt.X("at:Q", scale=scale), y=y, tooltip=[alt.Tooltip("format:N"), alt.Tooltip("value:N")]),
    ]
    return _stack(layers, 5 * ROW)


def octave() -> alt.Chart:
    """The numbers from 1 to 2: eight steps in E4M3, four in E5M2, 128 in bfloat16."""
    strokes = [
        {"format": form.label, "at": 1 + i * form.step_at_one}
        for form in fp8.FORMATS.values()
        for i in range(2**form.mantissa_bits + 1)
    ]
    return (
        alt.Chart(alt.Data(values=strokes))
        .mark_tick(thickness=1.4, height=22, color=TWO[1], opacity=1)
        .encode(
            x=alt.X("at:Q", scale=alt.Scale(domain=[1, 2], nice=False), axis=alt.Axis(title="the numbers from 1 to 2")),
            y=alt.Y("format:N", title=None, sort=None, axis=alt.Axis(ticks=False, domain=False, labelOverlap=False)),
            tooltip=[alt.Tooltip("format:N"), alt.Tooltip("at:Q", format=".6g")],
        )
        .properties(height=5 * ROW)
    )


def say_formats() -> str:
    return "; ".join(
        f"{form.label} holds {form.smallest:.3g} to {form.largest:.3g} with {2**form.mantissa_bits} steps from 1 to 2"
        for form in fp8.FORMATS.values()
    )


def histogram(rows: Sequence[Mapping[str, Any]], limits: tuple[float, float]) -> alt.LayerChart:
    """Shares by size, before and after. limits: the format's smallest and largest in the array's own units, as log2."""
    known = [row for row in rows if row["low"] is not None]
    left = min([limits[0], *(row["low"] for row in known)]) - 3  # zero's place, left of everything else
    right = max([limits[1], *(row["high"] for row in known)]) + 1
    shown = [
        {**row, "when": WHEN[row["when"]]} | ({} if row["low"] is not None else {"low": left, "high": left + 1})
        for row in rows
        if row["share"]
    ]
    x_axis = alt.Axis(title="size |x|", labelExpr=POWER_LABEL.format(zero=left + 1.5), tickMinStep=1, tickCount=14)
    x_scale = alt.Scale(domain=[left - 0.5, right], nice=False)
    y = alt.Y("share:Q", title="share of the numbers", stack=None, axis=alt.Axis(format="~%", tickCount=5))
    names = list(WHEN.values())
    bars = (
        alt.Chart(alt.Data(values=shown))
        .mark_bar(opacity=0.65, cornerRadiusEnd=1, strokeWidth=0)
        .encode(
            x=alt.X("low:Q", bin="binned", scale=x_scale, axis=x_axis),
            x2=alt.X2("high:Q"),
            y=y,
            color=alt.Color(
                "when:N",
                scale=alt.Scale(domain=names, range=list(TWO)),
                legend=alt.Legend(title=None, orient="top"),
            ),
            tooltip=[
                alt.Tooltip("when:N", title="when"),
                alt.Tooltip("said:N", title="size"),
                alt.Tooltip("share:Q", format=".3%"),
            ],
        )
    )
    ends = [{"at": limits[0], "says": "smallest"}, {"at": limits[1], "says": "largest"}]
    rule = alt.Chart(alt.Data(values=ends)).mark_rule(strokeDash=[4, 4], color=charts.NEUTRAL)
    text = alt.Chart(alt.Data(values=ends)).mark_text(dy=-6, baseline="bottom", color=charts.NEUTRAL)
    place = alt.X("at:Q", scale=x_scale)
    return _stack([bars, rule.encode(x=place), text.encode(x=place, y=alt.YValue(0), text=alt.Text("says:N"))], 260)


def speeds(rows: Sequence[Mapping[str, Any]]) -> alt.LayerChart:
    """TFLOP/s against T, in bfloat16 and in FP8: the kernels alone (solid), and all kernels of a call, casts too.

    rows: {q_len, what, tflops, time}, what one of SPEEDS.
    """
    shown = [
        {**row, "series": SPEEDS[row["what"]], "backend": BACKEND_OF[row["what"]]} for row in rows if row["tflops"]
    ]
    lengths = sorted({row["q_len"] for row in rows})
    x = alt.X(
        "q_len:Q",
        scale=alt.Scale(type="log", base=2, nice=False, padding=14),
        axis=alt.Axis(title=WORDS["q_len"], values=lengths, labelExpr=LENGTH_LABEL, grid=False, labelOverlap=True),
    )
    y = alt.Y("tflops:Q", scale=alt.Scale(zero=True), axis=alt.Axis(title="TFLOP/s (higher is better)", tickCount=6))
    color = alt.Color("backend:N", scale=alt.Scale(domain=list(charts.ORDER)), legend=None)
    names = list(SPEEDS.values())
    dash = alt.StrokeDash(
        "series:N", scale=alt.Scale(domain=names, range=[[6, 3], [1, 0], [1, 0], [6, 3]]), legend=None
    )
    shapes = alt.Scale(domain=names, range=["square", "diamond", "triangle-up", "circle"])
    shape = alt.Shape("series:N", scale=shapes, legend=None)
    base = alt.Chart(alt.Data(values=shown))
    tooltip = [
        alt.Tooltip("series:N"),
        alt.Tooltip("q_len:Q", title="T"),
        alt.Tooltip("tflops:Q", format=".4g"),
        alt.Tooltip("time:N"),
    ]
    line = base.mark_line(strokeWidth=1.8).encode(x=x, y=y, color=color, strokeDash=dash, detail=alt.Detail("series:N"))
    point = base.mark_point(filled=True, size=70, opacity=1).encode(x=x, y=y, color=color, shape=shape, tooltip=tooltip)
    ends = [max((r for r in shown if r["what"] == w), key=lambda r: r["q_len"]) for w in SPEEDS
            if any(r["what"] == w for r in shown)]  # fmt: skip
    # Named at their ends: a legend would have to tell one colour's two lines apart
    figures = [
        alt.Chart(alt.Data(values=[{**end, "text": f"{end['series']}: {end['tflops']:.0f}"}]))
        .mark_text(align="right", dx=6, dy=-13 if "kernel" in end["what"] else 17, fontWeight=600)
        .encode(x=x, y=y, text=alt.Text("text:N"), color=color)
        for end in ends
    ]
    return _stack([line, point, *figures], 340)


def say_speeds(rows: Sequence[Mapping[str, Any]]) -> str:
    """The last point of each series in words."""
    parts = []
    for what, name in SPEEDS.items():
        mine = [row for row in rows if row["what"] == what and row["tflops"]]
        if mine:
            last = max(mine, key=lambda row: row["q_len"])
            parts.append(f"{name} {last['tflops']:.0f} TFLOP/s at T={last['q_len']}")
    return f"Speed against sequence length: {'; '.join(parts) or 'no points'}"
