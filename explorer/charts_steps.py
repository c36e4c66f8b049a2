"""Charts of the Steps page: arrays as heatmaps, one query through the steps, the online softmax, bytes moved.

All are Plain drawings: each move of a slider makes all of them anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from explorer import heads, steps
from explorer.charts import NEUTRAL, Plain, on, table
from explorer.steps import Block, Steps

PICK = "pick"
MARK = "#E08A00"  # the row that is followed, on light and on dark
BARS = "#2C8882"
LEFT = 46  # pixels left of the plots of one query, so that their keys stand above each other
FRAME: Plain = {"type": "rect", "filled": False, "stroke": MARK, "strokeWidth": 2}
ACROSS: Plain = {"x": {"value": 0}, "x2": {"value": "width"}}
Palette = Literal["diverging", "sequential"]


def positions(count: int) -> list[int]:
    """About eight of range(count), evenly, from 0."""
    step = next(2**k for k in range(40) if count <= 8 * 2**k)
    return list(range(0, count, step))


def axis(title: str | None, count: int, **more: Any) -> Plain:
    """Positions from 0, about eight of them named."""
    look = {"labelAngle": 0, "labelFlush": False, "ticks": False, "domain": False}  # flush would leave its own cell
    return {"title": title, "values": positions(count), **look, **more}


def places(count: int, padding: float = 0) -> Plain:
    """The scale of positions from 0."""
    return {"domain": list(range(count)), "padding": padding}


def heading(text: str, **more: Any) -> Plain:
    return {"text": text, "anchor": "start", "fontSize": 13, **more}


def _long(array: np.ndarray, rows: str, columns: str) -> pa.Table:
    """One line for each finite cell, in few bytes."""
    i, j = np.nonzero(np.isfinite(array))
    return table(**{rows: i.astype(np.int16), columns: j.astype(np.int16), "value": array[i, j].astype(np.float32)})


def _colour(array: np.ndarray, palette: Palette) -> Plain:
    """The theme's scale, so that it follows light and dark; diverging has its middle at 0."""
    finite = np.abs(array[np.isfinite(array)])
    largest = float(finite.max(initial=0.0)) or 1.0
    legend = {
        "title": None,
        "orient": "bottom",
        "direction": "horizontal",
        "gradientThickness": 8,
        "gradientLength": 110,
        "tickCount": 3,
        "format": ".2~g",
    }
    scale: Plain = {"domain": [0, largest]}
    if palette == "diverging":
        scale = {"domain": [-largest, largest], "domainMid": 0, "interpolate": "rgb"}
    return on("value:Q", scale=scale, legend=legend)


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
) -> Plain:
    """A heatmap of up to 64 × 64 with one row framed; a click picks a row (selection PICK). Blank: masked."""
    n, m = values.shape
    cells = {
        "name": "cells",
        "data": _long(values, rows, columns),
        "mark": {"type": "rect", "stroke": None},
        "encoding": {
            "x": on(f"{columns}:O", scale=places(m), axis=axis(columns, m)),
            "y": on(f"{rows}:O", scale=places(n), axis=axis(rows if is_first else None, n)),
            "color": _colour(values, palette),
            "tooltip": [on(f"{rows}:O"), on(f"{columns}:O"), on("value:Q", format=".4f")],
        },
    }
    pick = {"type": "point", "fields": [rows], "on": "click", "clear": False}
    layers = [cells]
    if row is not None:
        layers.append({"data": table(**{rows: [row]}), "mark": FRAME, "encoding": {"y": on(f"{rows}:O"), **ACROSS}})
    return {
        "title": heading(title, subtitle=subtitle, subtitleFontSize=12, subtitleColor=NEUTRAL),
        "height": height,
        "params": [{"name": PICK, "select": pick, "views": ["cells"]}],
        "layer": layers,
    }


def picked(selection: Any) -> int | None:
    """The row of a click, from the chart's selection state; None where nothing is picked."""
    points = (selection or {}).get(PICK) or []
    return int(points[0]["query"]) if points and "query" in points[0] else None


@dataclass(frozen=True, kw_only=True)
class Follow:
    """One query's way as three charts over the same keys, to be stacked: their plots have the same left edge."""

    scores: Plain
    weights: Plain
    mixture: Plain


def follow(found: Steps, row: int) -> Follow:
    """Scores, weights, and weight × v, whose last column Σ is the sum: the output."""
    s, h = found.v.shape
    domain = [*(str(j) for j in range(s)), "", "Σ"]
    seen = np.flatnonzero(found.live[row])
    names = [str(j) for j in seen]
    bars = table(key=names, score=found.scaled[row, seen], weight=found.weights[row, seen])

    def keys(shown: Plain) -> Plain:
        return on("key:N", scale={"domain": domain, "paddingInner": 0.1, "paddingOuter": 0}, sort=None, axis=shown)

    quiet = {"labels": False, "ticks": False, "title": None, "domain": False}

    def panel(field: str, title: str) -> Plain:
        shown = {"title": title, "tickCount": 3, "minExtent": LEFT, "maxExtent": LEFT}
        return {
            "data": bars,
            "mark": {"type": "bar", "color": BARS},
            "encoding": {
                "x": keys(quiet),
                "y": on(f"{field}:Q", axis=shown),
                "tooltip": [on("key:N"), on(f"{field}:Q", format=".4f")],
            },
        }

    sum_up = {
        "data": table(key=["Σ"], text=[f"{found.weights[row].sum():.3f}"], at=[0.0]),
        "mark": {"type": "text", "baseline": "bottom", "dy": -4, "fontWeight": 600, "fontSize": 12, "color": NEUTRAL},
        "encoding": {"x": keys(quiet), "y": on("at:Q"), "text": on("text:N")},
    }
    values = np.concatenate([found.shares(row)[seen].ravel(), found.output[row]]).astype(np.float32)
    dims = np.tile(np.arange(h, dtype=np.int16), len(seen) + 1)
    y_axis = axis("dim of weight × v", h, minExtent=LEFT, maxExtent=LEFT)
    mixture = {
        "data": table(key=[name for name in [*names, "Σ"] for _ in range(h)], dim=dims, value=values),
        "mark": {"type": "rect"},
        "encoding": {
            "x": keys(axis("key", s) | {"values": [*(str(j) for j in positions(s)), "Σ"]}),
            "y": on("dim:O", scale=places(h), axis=y_axis),
            "color": _colour(values, "diverging"),
            "tooltip": [on("key:N"), on("dim:O"), on("value:Q", format=".4f")],
        },
    }
    return Follow(
        scores={"height": 100, "layer": [panel("score", "scaled score")]},
        weights={"height": 100, "layer": [panel("weight", "weight"), sum_up]},
        mixture={"height": 300, "layer": [mixture]},
    )


def so_far(blocks: Sequence[Block], found: Steps, row: int, shown: int) -> Plain:
    """The output of one query after each block of keys; the last row is that of the whole softmax."""
    h = found.output.shape[1]
    lines = [f"{b.first} … {b.last - 1}" if b.last - b.first > 1 else str(b.first) for b in blocks]
    values = np.stack([*(b.output[row] for b in blocks[: shown + 1]), found.output[row]])
    i, j = np.nonzero(np.isfinite(values))
    names = [*lines[: shown + 1], "whole"]
    y_axis = {"title": "keys of the block", "ticks": False, "domain": False, "labelLimit": 90}
    cells = {
        "data": table(keys=[names[k] for k in i], dim=j, value=values[i, j]),
        "mark": {"type": "rect"},
        "encoding": {
            "x": on("dim:O", scale=places(h), axis=axis("dim", h)),
            "y": on("keys:N", scale={"domain": [*lines, "whole"], "padding": 0.08}, sort=None, axis=y_axis),
            "color": _colour(values, "diverging"),
            "tooltip": [on("keys:N"), on("dim:O"), on("value:Q", format=".4f")],
        },
    }
    frame = {
        "data": table(keys=[lines[shown]]), "mark": FRAME, "encoding": {"y": on("keys:N", sort=None), **ACROSS}
    }  # fmt: skip
    return {
        "title": heading("Output so far"), "height": min(480, 170 + 24 * (len(lines) + 1)), "layer": [cells, frame]
    }  # fmt: skip


def running(blocks: Sequence[Block], row: int, shown: int) -> tuple[Plain, Plain]:
    """Running maximum and running sum of one query after each block; where the kernel stands is marked."""
    data = table(
        keys=[b.last for b in blocks],
        highest=np.array([b.highest[row] for b in blocks]),
        total=np.array([b.total[row] for b in blocks]),
        shrink=np.array([b.correction[row] for b in blocks]),
        **{"is": ["now" if i == shown else "before" if i < shown else "to come" for i in range(len(blocks))]},
    )
    return _running(data, "highest", "running maximum m"), _running(data, "total", "running sum ℓ")


def _running(data: pa.Table, field: str, title: str) -> Plain:
    place = {
        "x": on("keys:Q", title="keys seen", axis={"tickMinStep": 1, "format": "d"}),
        "y": on(f"{field}:Q", title=None, scale={"zero": field == "total"}, axis={"tickCount": 4}),
    }
    line = {"type": "line", "interpolate": "step-after", "strokeWidth": 1.5, "color": NEUTRAL}
    dots = {
        "size": {"value": 40, "condition": {"test": "datum.is == 'now'", "value": 140}},
        "color": {"value": BARS, "condition": {"test": "datum.is == 'now'", "value": MARK}},
        "opacity": {"value": 1, "condition": {"test": "datum.is == 'to come'", "value": 0.3}},
        "tooltip": [
            on("keys:Q", title="keys seen"),
            on(f"{field}:Q", title=title, format=".4f"),
            on("shrink:Q", title="old sums ×", format=".4f"),
        ],
    }
    return {
        "title": heading(title),
        "height": 170,
        "data": data,
        "layer": [
            {"mark": line, "encoding": place},
            {"mark": {"type": "point", "filled": True}, "encoding": {**place, **dots}},
        ],
    }


def bars(rows: Sequence[tuple[str, float | int, str]], title: str | None = None) -> Plain:
    """A bar for each (name, size, figure in words), with the figure at its end."""
    names, values, texts = zip(*rows, strict=True)
    place = {
        "y": on("name:N", title=None, sort=None, axis={"labelLimit": 320, "ticks": False, "domain": False}),
        "x": on("value:Q", title=title, axis={} if title else None, scale={"zero": True}),
    }
    bar = {"type": "bar", "height": {"band": 0.6}, "cornerRadiusEnd": 2, "color": BARS}
    text = {"type": "text", "align": "left", "dx": 6, "fontWeight": 600, "color": NEUTRAL}
    return {
        "height": 34 * len(rows) + (70 if title else 14),
        "data": table(name=names, value=np.array(values, float), text=texts),
        "layer": [
            {"mark": bar, "encoding": place},
            {"mark": text, "encoding": {**place, "text": on("text:N")}},
        ],
    }


def traffic(moved: dict[str, int]) -> Plain:
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
