"""Charts of a comparison: each point's ratio with its interval about the line at 1. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from explorer import charts
from explorer.charts import Row
from explorer.compare import CLOSE, FASTER, SLOWER, VERDICTS

ROW_HEIGHT = 38  # a line of words above each interval
MOST = 80  # rows that are drawn
SHAPES = {FASTER: "triangle-left", SLOWER: "triangle-right", CLOSE: "circle"}
SIGNS = {FASTER: "◀", SLOWER: "▶", CLOSE: "●"}
# The same in both modes; each has 3:1 on light and on dark
COLOURS = {FASTER: "#1F8F88", SLOWER: "#C8641B", CLOSE: charts.NEUTRAL}
TICKS = (
    0.001,
    0.01,
    0.1,
    0.2,
    0.25,
    0.33,
    0.5,
    0.67,
    0.8,
    0.9,
    0.95,
    1,
    1.05,
    1.1,
    1.25,
    1.5,
    2,
    3,
    4,
    5,
    10,
    100,
    1000,
)
LEAST_GAP = 0.035  # of the axis, between two ticks


@charts.kept
def ratios(rows: Sequence[Row], threshold: float, one: str = "A", other: str = "B") -> alt.LayerChart:
    """rows: {name, ratio, low, high, verdict, says} each; low and high are None without an interval.

    one, other: what the two sides are called; the ratio is the other's time over the one's.
    """
    drawn = [
        {"at": i, "name": row["name"], "ratio": row["ratio"], "low": row["low"] or row["ratio"]}
        | {"high": row["high"] or row["ratio"], "verdict": row["verdict"], "says": row["says"]}
        | {"end": f"{figure(row['ratio'])} × {row['verdict']}", "between": between(row)}
        for i, row in enumerate(rows)
    ]
    ends: list[float] = [row[name] or row["ratio"] for row in rows for name in ("low", "high")]
    low, high = min([0.94, 1 / threshold, *ends]) / 1.02, max([1.06, threshold, *ends]) * 1.02
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    axis = alt.Axis(
        title=f"time of {other} over {one} (below 1: {other} is faster)",
        values=ticks(low, high),
        format=".3~g",
        orient="top",
        grid=True,
    )
    x = alt.X("ratio:Q", scale=scale, axis=axis)
    y = alt.Y("at:O", axis=None, sort=None, scale=alt.Scale(paddingInner=0, paddingOuter=0))
    tooltip = [
        alt.Tooltip("name:N", title="point"),
        alt.Tooltip("ratio:Q", title=f"{other} over {one}", format=".4f"),
        alt.Tooltip("between:N", title="about 95%"),
        alt.Tooltip("verdict:N"),
        alt.Tooltip("says:N", title="times"),
    ]
    colour = alt.Color(
        "verdict:N", scale=alt.Scale(domain=list(VERDICTS), range=[COLOURS[each] for each in VERDICTS]), legend=None
    )
    shape = alt.Shape(
        "verdict:N", scale=alt.Scale(domain=list(VERDICTS), range=[SHAPES[each] for each in VERDICTS]), legend=None
    )
    base = alt.Chart(alt.Data(values=drawn))
    # A piece of each line beside each interval: a whole line would run through the names where the chart is narrow
    piece: dict[str, Any] = {"orient": "vertical", "size": ROW_HEIGHT // 2, "yOffset": 8, "opacity": 1}
    lines = [alt.Chart(alt.Data(values=[{"at": row["at"], "ratio": at} for row in drawn])) for at in (1, threshold)]
    layers: list[Any] = [
        lines[0].mark_tick(thickness=1.5, color=charts.NEUTRAL, **piece).encode(x=x, y=y),
        base.mark_rule(strokeWidth=2.5, yOffset=8).encode(
            x=alt.X("low:Q", scale=scale, axis=axis), x2=alt.X2("high:Q"), y=y, color=colour, tooltip=tooltip
        ),
        base.mark_point(filled=True, size=90, opacity=1, yOffset=8).encode(
            x=x, y=y, color=colour, shape=shape, tooltip=tooltip
        ),
        base.mark_text(align="left", dy=-8, color=charts.NEUTRAL).encode(x=alt.XValue(2), y=y, text=alt.Text("name:N")),
        base.mark_text(align="right", dy=-8, fontWeight=600).encode(
            x=alt.XValue("width"), y=y, text=alt.Text("end:N"), color=colour
        ),
    ]
    if threshold > 1:
        layers.insert(1, lines[1].mark_tick(thickness=1, color=COLOURS[SLOWER], **piece).encode(x=x, y=y))
    return alt.LayerChart(layer=layers).properties(height=ROW_HEIGHT * len(drawn) + 50)


def ticks(low: float, high: float) -> list[float]:
    """Those of TICKS on the axis; where they would stand too close, 1 and the farther ones stay."""
    span, kept = math.log(high / low), [1.0]
    for tick in sorted((t for t in TICKS if low <= t <= high and t != 1), key=lambda t: -abs(math.log(t))):
        if all(abs(math.log(tick / other)) > LEAST_GAP * 2.5 * span for other in kept):
            kept.append(float(tick))
    return sorted(kept)


def figure(ratio: float) -> str:
    """Three decimals about 1, three digits elsewhere."""
    return f"{ratio:.3f}" if 0.1 <= ratio < 10 else f"{ratio:.3g}"


def between(row: Row) -> str:
    return f"{row['low']:.3f} to {row['high']:.3f}" if row["low"] is not None else "too few samples for an interval"


def say_ratios(rows: Sequence[Row], one: str = "A", other: str = "B") -> str:
    """The chart in words: how many of each verdict, and the two ends."""
    counts = {each: sum(row["verdict"] == each for row in rows) for each in VERDICTS}
    said = ", ".join(f"{count} {each}" for each, count in counts.items() if count)
    if not rows:
        return "No point can be compared"
    first, last = min(rows, key=lambda row: row["ratio"]), max(rows, key=lambda row: row["ratio"])
    return (
        f"Time of {other} over {one} at {len(rows)} points: {said}; from {first['ratio']:.3g} ({first['name']}) "
        f"to {last['ratio']:.3g} ({last['name']})"
    )
