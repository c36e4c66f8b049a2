"""Charts of the Masks page: a mask as intended, as executed, and where the two differ; verdicts; causal against full.

Every picture says by shape what it says by colour: a leak has stripes or a cross, a missed key dots or a circle.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from explorer import charts, recover
from explorer.charts import LARGEST_CELLS, NEUTRAL, SEQUENTIAL
from explorer.charts_steps import Drawing, axis
from explorer.recover import HIDDEN, LEAKED, MISSED, NAN, SEEN, Recovered

HEIGHT = 330
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


def cells(states: np.ndarray, *, title: str, height: int = HEIGHT, right: dict[int, str] | None = None) -> Drawing:
    """A mask by cell: what is right in two tones, what is wrong in a colour and a shape of its own."""
    present = [state for state in STATES if (states == state).any()]
    if max(states.shape) > LARGEST_CELLS:
        url = "data:image/png;base64," + base64.b64encode(cells_png(states, right)).decode()
        legend, domain = _state_legend(present, right), {"state": [STATES[s] for s in present]}
        return _picture(url, states.shape, title, height, legend, domain)
    i, j = np.indices(states.shape)
    table = pd.DataFrame(
        {
            "query": i.ravel().astype(np.int16),
            "key": j.ravel().astype(np.int16),
            "state": [STATES[s] for s in states.ravel()],
        }
    )
    n, m = states.shape
    x = alt.X("key:O", scale=alt.Scale(domain=list(range(m)), padding=0), axis=axis("key", m))
    y = alt.Y("query:O", scale=alt.Scale(domain=list(range(n)), padding=0), axis=axis("query", n))
    tooltip = [alt.Tooltip("query:O"), alt.Tooltip("key:O"), alt.Tooltip("state:N")]
    legend = _state_legend(present, right)
    seams = alt.Stroke("state:N", scale=_state_scale(present, right), legend=None)  # else the page shines through
    squares = alt.Chart(table).mark_rect(strokeWidth=0.7).encode(x=x, y=y, color=legend, stroke=seams, tooltip=tooltip)
    wrong = table[~table["state"].isin([STATES[SEEN], STATES[HIDDEN]])]
    layers: list[Any] = [squares]
    if len(wrong):
        size = (min(height, 260) / max(n, m)) ** 2 * 0.45
        names = [STATES[s] for s in STATE_SHAPES if s in present]
        shape = alt.Shape(
            "state:N",
            scale=alt.Scale(domain=names, range=[STATE_SHAPES[s] for s in STATE_SHAPES if s in present]),
            legend=None,
        )
        signs = alt.Chart(wrong).mark_point(
            filled=True, opacity=1, size=size, color="#17242B", stroke="#FFFFFF", strokeWidth=0.5
        )
        layers.append(signs.encode(x=x, y=y, shape=shape, tooltip=tooltip))
    return (
        alt.layer(*layers)
        .resolve_scale(color="independent")
        .properties(title=alt.Title(title, anchor="start", fontSize=13), height=height)
    )


def difference(states: np.ndarray) -> Drawing:
    """Where the mask as executed differs from the mask: what is right is pale."""
    return cells(states, title="Difference", right=PALE)


def _state_scale(present: Sequence[int], right: dict[int, str] | None) -> alt.Scale:
    colours = STATE_COLOURS | (right or {})
    return alt.Scale(domain=[STATES[s] for s in present], range=[colours[s] for s in present])


def _state_legend(present: Sequence[int], right: dict[int, str] | None = None) -> alt.Color:
    return alt.Color(
        "state:N",
        scale=_state_scale(present, right),
        legend=alt.Legend(
            title=None,
            orient="bottom",
            direction="vertical",
            labelLimit=220,
            symbolType="square",
            symbolStrokeColor=NEUTRAL,
            symbolStrokeWidth=0.5,
            symbolOpacity=1,
        ),
    )


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


def _picture(url: str, shape: tuple[int, ...], title: str, height: int, colour: alt.Color, domain: dict) -> Drawing:
    """A PNG under axes of its cells. Marks that can't be seen bring the legend along; domain: field -> its values."""
    ((field, found),) = domain.items()
    n, m = shape
    values = [{"x": 0, "y": 0, field: value, "url": url if k == 0 else ""} for k, value in enumerate(found)]
    base = alt.Chart(alt.Data(values=values))
    x = alt.X("x:Q", scale=alt.Scale(domain=[0, m], nice=False), axis=alt.Axis(title="key", grid=False, format="d"))
    y = alt.Y(
        "y:Q",
        scale=alt.Scale(domain=[0, n], nice=False, reverse=True),
        axis=alt.Axis(title="query", grid=False, format="d"),
    )
    image = base.transform_filter("datum.url != ''").mark_image(
        align="left",
        baseline="top",
        aspect=False,
        smooth=False,
        width=alt.ExprRef("width"),
        height=alt.ExprRef("height"),
    )
    unseen = base.mark_point(opacity=0).encode(x=x, y=y, color=colour)
    return alt.layer(image.encode(x=x, y=y, url=alt.Url("url:N")), unseen).properties(
        title=alt.Title(title, anchor="start", fontSize=13), height=height
    )


def weights(found: np.ndarray, *, title: str, height: int = HEIGHT) -> Drawing:
    """Recovered weights, each row against its largest, so that long rows don't fade; NaN in a colour of its own."""
    with np.errstate(invalid="ignore", divide="ignore"):
        top = np.nanmax(np.where(np.isnan(found), 0, found), axis=1, keepdims=True)
        share = np.where(top > 0, found / np.where(top > 0, top, 1), found)
    n, m = share.shape
    colour = alt.Color(
        "value:Q",
        scale=alt.Scale(domain=[0, 1], range=list(SEQUENTIAL), interpolate="rgb", clamp=True),
        legend=alt.Legend(
            title="weight, of the row's largest",
            orient="bottom",
            direction="horizontal",
            gradientLength=150,
            gradientThickness=8,
            tickCount=3,
        ),
    )
    if max(n, m) > LARGEST_CELLS:
        url = charts.picture(share, (0.0, 1.0), SEQUENTIAL)
        return _picture(url, share.shape, title, height, colour, {"value": [0, 1]})
    i, j = np.indices(share.shape)
    table = pd.DataFrame(
        {
            "query": i.ravel().astype(np.int16),
            "key": j.ravel().astype(np.int16),
            "value": share.ravel().astype(np.float32),
            "weight": found.ravel().astype(np.float32),
        }
    )
    x = alt.X("key:O", scale=alt.Scale(domain=list(range(m)), padding=0), axis=axis("key", m))
    y = alt.Y("query:O", scale=alt.Scale(domain=list(range(n)), padding=0), axis=axis("query", n))
    shown: Any = colour.to_dict()
    squares = (
        alt.Chart(table)
        .mark_rect(stroke=None, invalid="show")
        .encode(
            x=x,
            y=y,
            color=alt.ColorValue(
                STATE_COLOURS[NAN],
                condition={"test": "isValid(datum.value) && isFinite(datum.value)"} | shown,
            ),
            tooltip=[alt.Tooltip("query:O"), alt.Tooltip("key:O"), alt.Tooltip("weight:Q", format=".5f")],
        )
    )
    return alt.layer(squares).properties(title=alt.Title(title, anchor="start", fontSize=13), height=height)


def per_position(off: np.ndarray) -> Drawing:
    """Largest |causal − full| at each position: position 0 large, the last 0."""
    table = pd.DataFrame({"position": np.arange(len(off)), "difference": off.astype(np.float32)})
    base = alt.Chart(table).encode(
        x=alt.X(
            "position:Q", title="query position", scale=alt.Scale(nice=False), axis=alt.Axis(format="d", tickMinStep=1)
        ),
        y=alt.Y("difference:Q", title="largest |causal − full|", scale=alt.Scale(zero=True)),
        tooltip=[alt.Tooltip("position:Q"), alt.Tooltip("difference:Q", format=".4f")],
    )
    return alt.layer(base.mark_area(opacity=0.25), base.mark_line(strokeWidth=2)).properties(height=220)


def verdict_grid(found: Sequence[Recovered]) -> Drawing:
    """Backend × mask: a sign and a colour for each verdict."""
    names = {case.problem(): case.label for case in recover.CASES.values()}
    by_mask = {(p.mask, p.q_len, p.kv_len): label for p, label in names.items()}
    rows = [
        {
            "backend": charts.label(r.backend),
            "verdict": r.verdict,
            "sign": VERDICT_SIGNS[r.verdict],
            "mask": by_mask.get((r.problem.mask, r.problem.q_len, r.problem.kv_len), r.problem.mask.name),
            "says": r.sentence,
            "dark": r.verdict not in ("refused", "undefined", "leaks"),
        }
        for r in found
    ]
    present = [v for v in VERDICT_SIGNS if any(row["verdict"] == v for row in rows)]
    masks = [case.label for case in recover.CASES.values()]
    order = [charts.label(name) for name in charts.ORDER]
    base = alt.Chart(pd.DataFrame(rows)).encode(
        x=alt.X(
            "backend:N",
            sort=order,
            title=None,
            axis=alt.Axis(orient="top", labelAngle=-30, labelLimit=160, ticks=False, domain=False),
        ),
        y=alt.Y("mask:N", sort=masks, title=None, axis=alt.Axis(labelLimit=200, ticks=False, domain=False)),
        tooltip=[alt.Tooltip("backend:N"), alt.Tooltip("mask:N"), alt.Tooltip("says:N", title="verdict")],
    )
    colour = alt.Color(
        "verdict:N",
        scale=alt.Scale(domain=present, range=[VERDICT_COLOURS[v] for v in present]),
        legend=alt.Legend(
            title=None,
            orient="bottom",
            columns=4,
            symbolType="square",
            labelLimit=200,
            labelExpr="{" + ",".join(f"'{v}':'{VERDICT_SIGNS[v]}  {v}'" for v in present) + "}[datum.label]",
        ),
    )
    boxes = base.mark_rect(cornerRadius=3, xOffset=0).encode(color=colour)
    text = base.mark_text(fontWeight=700, fontSize=13).encode(
        text=alt.Text("sign:N"), color=alt.ColorValue("#17242B", condition={"test": "datum.dark", "value": "#FFFFFF"})
    )
    count = len({row["mask"] for row in rows})
    return alt.layer(boxes, text).resolve_scale(color="independent").properties(height=30 * count + 20)


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
