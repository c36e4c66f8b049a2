"""Charts of the Steps page: arrays as heatmaps, one query through the steps, the online softmax, bytes moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import numpy as np
import pandas as pd

from explorer import heads, steps
from explorer.charts import NEUTRAL
from explorer.steps import Block, Steps

PICK = "pick"
MARK = "#E08A00"  # the row that is followed, on light and on dark
BARS = "#2C8882"
LEFT = 46  # pixels left of the plots of one query, so that their keys stand above each other
Drawing = alt.LayerChart | alt.FacetChart  # alt.layer gives the second where its data is faceted
Palette = Literal["diverging", "sequential"]


def positions(count: int) -> list[int]:
    """About eight of range(count), evenly, from 0."""
    step = next(2**k for k in range(40) if count <= 8 * 2**k)
    return list(range(0, count, step))


def axis(title: str | None, count: int, **more: Any) -> alt.Axis:
    """Positions from 0, about eight of them named."""
    return alt.Axis(title=title, values=positions(count), labelAngle=0, ticks=False, domain=False, **more)


def _long(array: np.ndarray, rows: str, columns: str) -> pd.DataFrame:
    """One line for each finite cell, in few bytes."""
    i, j = np.nonzero(np.isfinite(array))
    return pd.DataFrame(
        {rows: i.astype(np.int16), columns: j.astype(np.int16), "value": array[i, j].astype(np.float32)}
    )


def _colour(array: np.ndarray, palette: Palette, *, legend: bool = True) -> alt.Color:
    """The theme's scale, so that it follows light and dark; diverging has its middle at 0."""
    finite = np.abs(array[np.isfinite(array)])
    largest = float(finite.max(initial=0.0)) or 1.0
    shown = None
    if legend:
        shown = alt.Legend(
            title=None,
            orient="bottom",
            direction="horizontal",
            gradientThickness=8,
            gradientLength=110,
            tickCount=3,
            format=".2~g",
        )
    if palette == "diverging":
        scale = alt.Scale(domain=[-largest, largest], domainMid=0, interpolate="rgb")
        return alt.Color("value:Q", scale=scale, legend=shown)
    return alt.Color("value:Q", scale=alt.Scale(domain=[0, largest]), legend=shown)


def array(
    values: np.ndarray,
    *,
    title: str,
    subtitle: str,
    columns: str,
    palette: Palette,
    row: int | None = None,
    rows: str = "query",
    height: int = 340,
    is_first: bool = True,
) -> Drawing:
    """A heatmap of up to 64 × 64 with one row framed; a click picks a row (selection PICK). Blank: masked."""
    n, m = values.shape
    base = alt.Chart(_long(values, rows, columns)).mark_rect(stroke=None)
    cells = base.encode(
        x=alt.X(f"{columns}:O", scale=alt.Scale(domain=list(range(m)), padding=0), axis=axis(columns, m)),
        y=alt.Y(
            f"{rows}:O", scale=alt.Scale(domain=list(range(n)), padding=0), axis=axis(rows if is_first else None, n)
        ),
        color=_colour(values, palette),
        tooltip=[alt.Tooltip(f"{rows}:O"), alt.Tooltip(f"{columns}:O"), alt.Tooltip("value:Q", format=".4f")],
    ).add_params(alt.selection_point(name=PICK, fields=[rows], on="click", clear=False))
    layers = [cells]
    if row is not None:
        frame = alt.Chart(pd.DataFrame({rows: [row]})).mark_rect(filled=False, stroke=MARK, strokeWidth=2)
        layers.append(frame.encode(y=alt.Y(f"{rows}:O"), x=alt.XValue(0), x2=alt.X2Value("width")))
    heading = alt.Title(
        title, subtitle=subtitle, anchor="start", fontSize=13, subtitleFontSize=12, subtitleColor=NEUTRAL
    )
    return alt.layer(*layers).properties(title=heading, height=height)


def picked(selection: Any) -> int | None:
    """The row of a click, from the chart's selection state; None where nothing is picked."""
    points = (selection or {}).get(PICK) or []
    return int(points[0]["query"]) if points and "query" in points[0] else None


@dataclass(frozen=True, kw_only=True)
class Follow:
    """One query's way as three charts over the same keys, to be stacked: their plots have the same left edge."""

    scores: Drawing
    weights: Drawing
    mixture: Drawing


def follow(found: Steps, row: int) -> Follow:
    """Scores, weights, and weight × v, whose last column Σ is the sum: the output."""
    s, h = found.v.shape
    domain = [*(str(j) for j in range(s)), "", "Σ"]
    seen = np.flatnonzero(found.live[row])
    bars = pd.DataFrame(
        {"key": [str(j) for j in seen], "score": found.scaled[row, seen], "weight": found.weights[row, seen]}
    )

    def keys(shown: alt.Axis) -> alt.X:
        return alt.X("key:N", scale=alt.Scale(domain=domain, paddingInner=0.1, paddingOuter=0), sort=None, axis=shown)

    quiet = alt.Axis(labels=False, ticks=False, title=None, domain=False)

    def panel(field: str, title: str) -> alt.Chart:
        shown = alt.Axis(title=title, tickCount=3, minExtent=LEFT, maxExtent=LEFT)
        tooltip = [alt.Tooltip("key:N"), alt.Tooltip(f"{field}:Q", format=".4f")]
        return (
            alt.Chart(bars)
            .mark_bar(color=BARS)
            .encode(x=keys(quiet), y=alt.Y(f"{field}:Q", axis=shown), tooltip=tooltip)
        )

    total = pd.DataFrame({"key": ["Σ"], "text": [f"{found.weights[row].sum():.3f}"], "at": [0.0]})
    sum_up = alt.Chart(total).mark_text(baseline="bottom", dy=-4, fontWeight=600, fontSize=12, color=NEUTRAL)
    parts = pd.DataFrame(
        {
            "key": np.repeat([str(j) for j in seen], h),
            "dim": np.tile(np.arange(h), len(seen)),
            "value": found.shares(row)[seen].ravel(),
        }
    )
    whole = pd.DataFrame({"key": "Σ", "dim": np.arange(h), "value": found.output[row]})
    table = pd.concat([parts, whole]).astype({"dim": "int16", "value": "float32"})
    named = [str(j) for j in positions(s)]
    x_axis = alt.Axis(title="key", values=[*named, "Σ"], labelAngle=0, ticks=False, domain=False)
    y_axis = axis("dim of weight × v", h, minExtent=LEFT, maxExtent=LEFT)
    mixture = (
        alt.Chart(table)
        .mark_rect()
        .encode(
            x=keys(x_axis),
            y=alt.Y("dim:O", scale=alt.Scale(domain=list(range(h)), padding=0), axis=y_axis),
            color=_colour(table["value"].to_numpy(), "diverging"),
            tooltip=[alt.Tooltip("key:N"), alt.Tooltip("dim:O"), alt.Tooltip("value:Q", format=".4f")],
        )
    )
    return Follow(
        scores=alt.layer(panel("score", "scaled score")).properties(height=100),
        weights=alt.layer(
            panel("weight", "weight"), sum_up.encode(x=keys(quiet), y=alt.Y("at:Q"), text=alt.Text("text:N"))
        ).properties(height=100),
        mixture=alt.layer(mixture).properties(height=300),
    )


def so_far(blocks: Sequence[Block], found: Steps, row: int, shown: int) -> Drawing:
    """The output of one query after each block of keys; the last row is that of the whole softmax."""
    h = found.output.shape[1]
    lines = [f"{b.first} … {b.last - 1}" if b.last - b.first > 1 else str(b.first) for b in blocks]
    labels = [*lines, "whole"]
    values = np.stack([*(b.output[row] for b in blocks[: shown + 1]), found.output[row]])
    names = [*lines[: shown + 1], "whole"]
    table = pd.DataFrame(
        {"keys": np.repeat(names, h), "dim": np.tile(np.arange(h), len(names)), "value": values.ravel()}
    )
    table = table[np.isfinite(table["value"])]
    cells = (
        alt.Chart(table)
        .mark_rect()
        .encode(
            x=alt.X("dim:O", scale=alt.Scale(domain=list(range(h)), padding=0), axis=axis("dim", h)),
            y=alt.Y(
                "keys:N",
                scale=alt.Scale(domain=labels, padding=0.08),
                sort=None,
                axis=alt.Axis(title="keys of the block", ticks=False, domain=False, labelLimit=90),
            ),
            color=_colour(values, "diverging"),
            tooltip=[alt.Tooltip("keys:N"), alt.Tooltip("dim:O"), alt.Tooltip("value:Q", format=".4f")],
        )
    )
    frame = (
        alt.Chart(pd.DataFrame({"keys": [lines[shown]]}))
        .mark_rect(filled=False, stroke=MARK, strokeWidth=2)
        .encode(y=alt.Y("keys:N", sort=None), x=alt.XValue(0), x2=alt.X2Value("width"))
    )
    title = alt.Title("Output so far", anchor="start", fontSize=13)
    return alt.layer(cells, frame).properties(title=title, height=min(480, 170 + 24 * len(labels)))


def running(blocks: Sequence[Block], row: int, shown: int) -> tuple[Drawing, Drawing]:
    """Running maximum and running sum of one query after each block; where the kernel stands is marked."""
    table = pd.DataFrame(
        {
            "keys": [b.last for b in blocks],
            "highest": [float(b.highest[row]) if np.isfinite(b.highest[row]) else None for b in blocks],
            "total": [float(b.total[row]) for b in blocks],
            "shrink": [float(b.correction[row]) for b in blocks],
            "is": ["now" if i == shown else "before" if i < shown else "to come" for i in range(len(blocks))],
        }
    )
    return _running(table, "highest", "running maximum m"), _running(table, "total", "running sum ℓ")


def _running(table: pd.DataFrame, field: str, title: str) -> Drawing:
    x_axis = alt.Axis(tickMinStep=1, format="d")
    base = alt.Chart(table).encode(
        x=alt.X("keys:Q", title="keys seen", axis=x_axis),
        y=alt.Y(f"{field}:Q", title=None, scale=alt.Scale(zero=field == "total"), axis=alt.Axis(tickCount=4)),
    )
    line = base.mark_line(interpolate="step-after", strokeWidth=1.5, color=NEUTRAL)
    dots = base.mark_point(filled=True).encode(
        size=alt.SizeValue(40, condition={"test": "datum.is == 'now'", "value": 140}),
        color=alt.ColorValue(BARS, condition={"test": "datum.is == 'now'", "value": MARK}),
        opacity=alt.OpacityValue(1, condition={"test": "datum.is == 'to come'", "value": 0.3}),
        tooltip=[
            alt.Tooltip("keys:Q", title="keys seen"),
            alt.Tooltip(f"{field}:Q", title=title, format=".4f"),
            alt.Tooltip("shrink:Q", title="old sums ×", format=".4f"),
        ],
    )
    return alt.layer(line, dots).properties(title=alt.Title(title, anchor="start", fontSize=13), height=170)


def bars(rows: Sequence[tuple[str, float | int, str]], title: str | None = None) -> Drawing:
    """A bar for each (name, size, figure in words), with the figure at its end."""
    table = pd.DataFrame(list(rows), columns=["name", "value", "text"])
    base = alt.Chart(table).encode(
        y=alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelLimit=320, ticks=False, domain=False)),
        x=alt.X("value:Q", title=title, axis=alt.Axis() if title else None, scale=alt.Scale(zero=True)),
    )
    text = base.mark_text(align="left", dx=6, fontWeight=600, color=NEUTRAL).encode(text=alt.Text("text:N"))
    bar = base.mark_bar(height={"band": 0.6}, cornerRadiusEnd=2, color=BARS)
    return alt.layer(bar, text).properties(height=34 * len(table) + (70 if title else 14))


def traffic(moved: dict[str, int]) -> Drawing:
    """Bytes that each way moves, with the figure at the bar's end."""
    names = {"naive": "Naive: scores and weights stored", "fused": "Fused: block by block"}
    rows = [(names[way], count / 2**20, heads.size(count)) for way, count in moved.items()]
    return bars(rows, "MiB to and from the GPU's memory, at least")


def say_steps(found: Steps, row: int) -> str:
    """One query's way in words."""
    seen = int(found.live[row].sum())
    best = int(np.nanargmax(found.weights[row])) if seen else 0
    attended = steps.keys_attended(found.weights)[row]
    return (
        f"Query {row} sees {seen} keys, most of all key {best} with weight {found.weights[row, best]:.3f}; its weights "
        f"sum to {found.weights[row].sum():.3f} and are spread over {attended:.1f} keys"
    )
