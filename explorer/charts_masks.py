"""Charts of the Masks page: a mask as intended, as executed, and where the two differ; verdicts; causal against full.

Every picture says by shape what it says by colour: a leak has stripes or a cross, a missed key dots or a circle.
All are Plain drawings: each move of a slider makes all of them anew.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from explorer import charts, recover
from explorer.charts import LARGEST_CELLS, NEUTRAL, SEQUENTIAL, Plain, on, table
from explorer.charts_steps import axis, heading, places
from explorer.recover import HIDDEN, LEAKED, MISSED, NAN, SEEN, Recovered

HEIGHT = 190  # of the cells alone, so that pictures with longer legends are not smaller
STATES = {
    SEEN: "seen",
    HIDDEN: "hidden",
    LEAKED: "✚ leaked: hidden, but read",
    MISSED: "● missed: not read",
    NAN: "▲ NaN",
}
STATE_COLOURS = {SEEN: "#156F6B", HIDDEN: "#E6ECEC", LEAKED: "#F28C28", MISSED: "#6B2FA0", NAN: "#BE2A73"}
PALE = {SEEN: "#BFDEDC"}  # under a difference
STATE_SHAPES = {LEAKED: "cross", MISSED: "circle", NAN: "triangle-up"}
PATTERN = {LEAKED: "#3A1E00", MISSED: "#FFFFFF", NAN: "#FFFFFF"}
VERDICT_SIGNS = {
    "as meant": "✓",
    "leaks": "L",
    "misses": "M",
    "leaks and misses": "LM",
    "wrong weights": "W",
    "undefined": "∅",
    "refused": "–",
    "failed": "!",
}
VERDICT_COLOURS = {
    "as meant": "#2C8882",
    "leaks": "#F28C28",
    "misses": "#6B2FA0",
    "leaks and misses": "#B0361E",
    "wrong weights": "#B0361E",
    "undefined": "#E3B07C",
    "refused": "#D5DCDD",
    "failed": "#17242B",
}


def cells(states: np.ndarray, *, title: str, height: int = HEIGHT, right: dict[int, str] | None = None) -> Plain:
    """A mask by cell: what is right in two tones, what is wrong in a colour and a shape of its own."""
    present = [state for state in STATES if (states == state).any()]
    if max(states.shape) > LARGEST_CELLS:
        url = "data:image/png;base64," + base64.b64encode(cells_png(states, right)).decode()
        names = {"state": [STATES[s] for s in present]}
        return _picture(url, states.shape, title, height, _state_legend(present, right), names)
    n, m = states.shape
    place = {**_place(n, m), "tooltip": [on("query:O"), on("key:O"), on("state:N")]}
    seams = on("state:N", scale=_state_scale(present, right), legend=None)  # else the page shines through
    layers: list[Plain] = [
        {
            "data": _state_table(states, np.ones_like(states, bool)),
            "mark": {"type": "rect", "strokeWidth": 0.7},
            "encoding": {**place, "color": _state_legend(present, right), "stroke": seams},
        }
    ]
    wrong = (states != SEEN) & (states != HIDDEN)
    if wrong.any():
        shown = [s for s in STATE_SHAPES if s in present]
        scale = {"domain": [STATES[s] for s in shown], "range": [STATE_SHAPES[s] for s in shown]}
        sign = {"type": "point", "filled": True, "opacity": 1, "color": "#17242B", "stroke": "#FFFFFF"}
        size = (min(height, 260) / max(n, m)) ** 2 * 0.45
        layers.append(
            {
                "data": _state_table(states, wrong),
                "mark": {**sign, "strokeWidth": 0.5, "size": size},
                "encoding": {**place, "shape": on("state:N", scale=scale, legend=None)},
            }
        )
    return {**_frame(title, height), "resolve": {"scale": {"color": "independent"}}, "layer": layers}


def _frame(title: str, height: int) -> Plain:
    return {"title": heading(title), "height": height, "autosize": {"type": "fit-x", "contains": "padding"}}


def _place(n: int, m: int) -> Plain:
    return {
        "x": on("key:O", scale=places(m), axis=axis("key", m)),
        "y": on("query:O", scale=places(n), axis=axis("query", n)),
    }


def _state_table(states: np.ndarray, where: np.ndarray) -> pa.Table:
    i, j = np.nonzero(where)
    named = pa.array(STATES[state] for state in range(len(STATES))).take(pa.array(states[i, j]))
    return table(query=i.astype(np.int16), key=j.astype(np.int16), state=named)


def difference(states: np.ndarray) -> Plain:
    """Where the mask as executed differs from the mask: what is right is pale."""
    return cells(states, title="Difference", right=PALE)


def _state_scale(present: Sequence[int], right: dict[int, str] | None) -> Plain:
    colours = STATE_COLOURS | (right or {})
    return {"domain": [STATES[s] for s in present], "range": [colours[s] for s in present]}


def _state_legend(present: Sequence[int], right: dict[int, str] | None = None) -> Plain:
    legend = {
        "title": None,
        "orient": "bottom",
        "direction": "vertical",
        "labelLimit": 220,
        "symbolType": "square",
        "symbolStrokeColor": NEUTRAL,
        "symbolStrokeWidth": 0.5,
        "symbolOpacity": 1,
    }
    return on("state:N", scale=_state_scale(present, right), legend=legend)


def cells_png(states: np.ndarray, right: dict[int, str] | None = None) -> bytes:
    """One pixel a cell, or a square of them; leaks striped, missed keys dotted, so that grey tones tell them apart."""
    from PIL import Image

    factor = max(1, 512 // max(states.shape))
    big = np.kron(states.astype(np.uint8), np.ones((factor, factor), np.uint8))
    i, j = np.indices(big.shape)
    index = big.copy()
    index[(big == LEAKED) & ((i + j) % 6 < 2)] = LEAKED + 8
    index[(big == MISSED) & (i % 4 == 0) & (j % 4 == 0)] = MISSED + 8
    index[(big == NAN) & ((i - j) % 6 < 2)] = NAN + 8
    table = np.zeros((16, 3), np.uint8)
    for state, colour in (STATE_COLOURS | (right or {})).items():
        table[state] = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    for state, colour in PATTERN.items():
        table[state + 8] = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    image = Image.fromarray(index, mode="P")
    image.putpalette(table.ravel().tolist())
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True)
    return out.getvalue()


def _picture(url: str, shape: tuple[int, ...], title: str, height: int, colour: Plain, domain: dict) -> Plain:
    """A PNG under axes of its cells. Marks that can't be seen bring the legend along; domain: field -> its values."""
    ((field, found),) = domain.items()
    n, m = shape
    zeros, urls = [0] * len(found), [url, *[""] * (len(found) - 1)]
    place = {
        "x": on("x:Q", scale={"domain": [0, m], "nice": False}, axis={"title": "key", "grid": False, "format": "d"}),
        "y": on(
            "y:Q",
            scale={"domain": [0, n], "nice": False, "reverse": True},
            axis={"title": "query", "grid": False, "format": "d"},
        ),
    }
    image = {"type": "image", "align": "left", "baseline": "top", "aspect": False, "smooth": False}
    return {
        **_frame(title, height),
        "data": table(**{"x": zeros, "y": zeros, field: found, "url": urls}),
        "layer": [
            {
                "transform": [{"filter": "datum.url != ''"}],
                "mark": {**image, "width": {"expr": "width"}, "height": {"expr": "height"}},
                "encoding": {**place, "url": on("url:N")},
            },
            {"mark": {"type": "point", "opacity": 0, "filled": True}, "encoding": {**place, "color": colour}},
        ],
    }


def weights(found: np.ndarray, *, title: str, height: int = HEIGHT) -> Plain:
    """Recovered weights, each row against its largest, so that long rows don't fade; NaN in a colour of its own."""
    with np.errstate(invalid="ignore", divide="ignore"):
        top = np.nanmax(np.where(np.isnan(found), 0, found), axis=1, keepdims=True)
        share = np.where(top > 0, found / np.where(top > 0, top, 1), found)
    n, m = share.shape
    legend = {
        "title": "weight, of the row's largest",
        "orient": "bottom",
        "direction": "horizontal",
        "gradientLength": 150,
        "gradientThickness": 8,
        "tickCount": 3,
    }
    scale = {"domain": [0, 1], "range": list(SEQUENTIAL), "interpolate": "rgb", "clamp": True}
    colour = on("value:Q", scale=scale, legend=legend)
    if max(n, m) > LARGEST_CELLS:
        url = charts.picture(share, (0.0, 1.0), SEQUENTIAL)
        return _picture(url, share.shape, title, height, colour, {"value": [0, 1]})
    i, j = np.indices(share.shape).astype(np.int16)
    squares = {
        "mark": {"type": "rect", "stroke": None, "invalid": "show"},
        "encoding": {
            **_place(n, m),
            "color": {
                "value": STATE_COLOURS[NAN],
                "condition": {"test": "isValid(datum.value) && isFinite(datum.value)", **colour},
            },
            "tooltip": [on("query:O"), on("key:O"), on("weight:Q", format=".5f")],
        },
    }
    values, raw = share.ravel().astype(np.float32), found.ravel().astype(np.float32)
    return {
        **_frame(title, height),
        "data": table(query=i.ravel(), key=j.ravel(), value=values, weight=raw),
        "layer": [squares],
    }


def per_position(off: np.ndarray) -> Plain:
    """Largest |causal − full| at each position: position 0 large, the last 0."""
    place = {
        "x": on("position:Q", title="query position", scale={"nice": False}, axis={"format": "d", "tickMinStep": 1}),
        "y": on("difference:Q", title="largest |causal − full|", scale={"zero": True}),
        "tooltip": [on("position:Q"), on("difference:Q", format=".4f")],
    }
    return {
        "height": 220,
        "data": table(position=np.arange(len(off)), difference=off.astype(np.float32)),
        "layer": [
            {"mark": {"type": "area", "opacity": 0.25}, "encoding": place},
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": place},
        ],
    }


def verdict_grid(found: Sequence[Recovered]) -> Plain:
    """Backend × mask: a sign and a colour for each verdict."""
    names = {case.problem(): case.label for case in recover.CASES.values()}
    by_mask = {(p.mask, p.q_len, p.kv_len): label for p, label in names.items()}
    masks = [by_mask.get((r.problem.mask, r.problem.q_len, r.problem.kv_len), r.problem.mask.name) for r in found]
    verdicts = [r.verdict for r in found]
    present = [v for v in VERDICT_SIGNS if v in verdicts]
    bare = {"ticks": False, "domain": False, "labelOverlap": False, "labelFlush": False}
    upright = {"labelAngle": {"expr": "width < 340 ? -90 : -30"}, "labelAlign": "left", "labelBaseline": "middle"}
    place = {
        "x": on(
            "backend:N",
            sort=[charts.label(name) for name in charts.ORDER],
            title=None,
            axis={"orient": "top", "labelLimit": 160, **upright, **bare},
        ),
        "y": on(
            "mask:N",
            sort=[case.label for case in recover.CASES.values()],
            title=None,
            axis={"labelLimit": 200, **bare},
        ),
        "tooltip": [on("backend:N"), on("mask:N"), on("says:N", title="verdict")],
    }
    legend = {
        "title": None,
        "orient": "bottom",
        "columns": 4,
        "symbolType": "square",
        "labelLimit": 200,
        "labelExpr": "{" + ",".join(f"'{v}':'{VERDICT_SIGNS[v]}  {v}'" for v in present) + "}[datum.label]",
    }
    scale = {"domain": present, "range": [VERDICT_COLOURS[v] for v in present]}
    ink = {"value": "#17242B", "condition": {"test": "datum.dark", "value": "#FFFFFF"}}
    return {
        "height": 26 * len(set(masks)),
        "autosize": {"type": "fit-x", "contains": "padding"},
        "resolve": {"scale": {"color": "independent"}},
        "data": table(
            backend=[charts.label(r.backend) for r in found],
            verdict=verdicts,
            sign=[VERDICT_SIGNS[v] for v in verdicts],
            mask=masks,
            says=[r.sentence for r in found],
            dark=[v not in ("refused", "undefined", "leaks") for v in verdicts],
        ),
        "layer": [
            {
                "mark": {"type": "rect", "cornerRadius": 3, "xOffset": 0},
                "encoding": {**place, "color": on("verdict:N", scale=scale, legend=legend)},
            },
            {
                "mark": {"type": "text", "fontWeight": 700, "fontSize": 13},
                "encoding": {**place, "text": on("sign:N"), "color": ink},
            },
        ],
    }


def say_cells(states: np.ndarray, what: str) -> str:
    """A mask picture in words: how many cells of each kind, and where the first wrong one stands."""
    n, m = states.shape
    counts = ", ".join(f"{int((states == s).sum())} {STATES[s]}" for s in STATES if (states == s).any())
    wrong = np.argwhere((states == LEAKED) | (states == MISSED) | (states == NAN))
    first = f"; the first wrong one is query {wrong[0][0]}, key {wrong[0][1]}" if len(wrong) else ""
    return f"{what}: {n} queries by {m} keys, {counts}{first}"


def intended(mask_dense: np.ndarray) -> np.ndarray:
    """A mask's cells as they are meant: SEEN and HIDDEN."""
    return np.where(mask_dense, SEEN, HIDDEN).astype(np.uint8)
