"""Charts of the Heads page: which head reads which, the KV cache over the context, a decode step against K."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from explorer import charts, heads
from explorer.charts import NEUTRAL
from explorer.charts_steps import MARK, Drawing
from explorer.heads import Fit

KV_DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])


def head_map(count: int, kv_heads: int) -> Drawing:
    """Query heads above, key/value heads below, a line from each query head to what it reads."""
    pairs = heads.mapping(count, kv_heads)
    group = count // kv_heads
    lines = pd.DataFrame(
        [{"q": n, "x": n + 0.5, "x2": (m + 0.5) * group, "y": 1.0, "y2": 0.0, "group": m % 2} for n, m in pairs]
    )
    nodes = pd.DataFrame(
        [
            {
                "x": n + 0.5,
                "y": 1.0,
                "name": f"q{n}",
                "says": f"query head {n} reads key/value head {m}",
                "group": m % 2,
            }
            for n, m in pairs
        ]
        + [
            {
                "x": (m + 0.5) * group,
                "y": 0.0,
                "name": f"kv{m}",
                "says": f"key/value head {m}: {group} query heads read it",
                "group": m % 2,
            }
            for m in range(kv_heads)
        ]
    )
    x = alt.X("x:Q", scale=alt.Scale(domain=[0, count], nice=False), axis=None)
    y = alt.Y("y:Q", scale=alt.Scale(domain=[-0.25, 1.25], nice=False), axis=None)
    dash = alt.condition("datum.group == 1", alt.value([4, 3]), alt.value([1, 0]))
    links = (
        alt.Chart(lines)
        .mark_rule(strokeWidth=1.5, color=NEUTRAL)
        .encode(x=x, y=y, x2="x2:Q", y2="y2:Q", strokeDash=dash)
    )
    size = 620 if count <= 16 else 260 if count <= 40 else 70
    dots = (
        alt.Chart(nodes)
        .mark_point(filled=True, size=size, opacity=1)
        .encode(
            x=x,
            y=y,
            tooltip=alt.Tooltip("says:N", title="head"),
            shape=alt.condition("datum.y == 1", alt.value("circle"), alt.value("square")),
            color=alt.condition("datum.y == 1", alt.value("#136E69"), alt.value("#2563C9")),
        )
    )
    layers: list[Any] = [links, dots]
    if count <= 16:
        names = alt.Chart(nodes).mark_text(color="#FFFFFF", fontSize=10, fontWeight=600)
        layers.append(names.encode(x=x, y=y, text="name:N"))
    return alt.layer(*layers).properties(height=150)


def say_head_map(count: int, kv_heads: int) -> str:
    group = count // kv_heads
    return f"{count} query heads read {kv_heads} key/value heads: {group} neighbouring query heads share each"


def cache_curve(rows: Sequence[dict[str, Any]], fits: Sequence[Fit], *, context: int) -> Drawing:
    """The cache over the context, a line for each K; GPUs' room as level lines; the chosen context marked."""
    table = pd.DataFrame(list(rows))
    order = list(dict.fromkeys(table["K"]))
    sizes = [row["gib"] for row in rows]
    room: dict[float, list[str]] = {}
    for fit in fits:
        if fit.room_bytes > 0:
            room.setdefault(round(fit.room_bytes / heads.GIB, 4), []).append(fit.gpu.removeprefix("NVIDIA "))
    levels = pd.DataFrame(
        [{"gib": gib, "gpu": ", ".join(names)} for gib, names in room.items()], columns=["gib", "gpu"]
    )
    low, high = min(sizes), max([*sizes, *room])
    x = alt.X(
        "context:Q",
        title="context, tokens",
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(format="~s", grid=False, values=sorted({row["context"] for row in rows})[::2]),
    )
    y = alt.Y(
        "gib:Q",
        title="KV cache, GiB",
        scale=alt.Scale(type="log", domain=[low, high * 1.3], nice=False),
        axis=alt.Axis(format="~g", tickCount=6),
    )
    lines = (
        alt.Chart(table)
        .mark_line(strokeWidth=2.2, point=True)
        .encode(
            x=x,
            y=y,
            color=alt.Color("K:N", sort=order, legend=alt.Legend(title=None, orient="top")),
            strokeDash=alt.StrokeDash(
                "K:N", sort=order, legend=None, scale=alt.Scale(domain=order, range=list(KV_DASHES[: len(order)]))
            ),
            tooltip=[
                alt.Tooltip("K:N"),
                alt.Tooltip("context:Q", format=","),
                alt.Tooltip("gib:Q", title="GiB", format=".4g"),
            ],
        )
    )
    level = alt.Chart(levels).mark_rule(color=NEUTRAL, strokeWidth=1, strokeDash=[2, 3]).encode(y=y)
    names = (
        alt.Chart(levels)
        .mark_text(align="left", dx=4, dy=-5, fontSize=11, color=NEUTRAL)
        .encode(y=y, x=alt.value(0), text="gpu:N")
    )
    here = alt.Chart(pd.DataFrame({"context": [context]})).mark_rule(color=MARK, strokeWidth=1.5).encode(x="context:Q")
    return alt.layer(level, names, here, lines).properties(height=340)


def decode(rows: Sequence[dict[str, Any]], clock: charts.Clock) -> Drawing:
    """Time of a decode step against K, a line for each backend."""
    kept = [row for row in rows if row[clock] is not None]
    table = pd.DataFrame(
        [
            {
                "kv_heads": row["kv_heads"],
                "backend": row["backend"],
                "name": charts.label(row["backend"]),
                "ms": row[clock],
                "low": row[clock.replace("_ms", "_p10_ms")],
                "high": row[clock.replace("_ms", "_p90_ms")],
            }
            for row in kept
        ]
    )
    domain = sorted({row["kv_heads"] for row in kept})
    base = alt.Chart(table).encode(
        x=alt.X("kv_heads:O", title="K, key/value heads", scale=alt.Scale(domain=domain), axis=alt.Axis(labelAngle=0)),
        color=charts.backend_colour(kept),
        tooltip=[
            alt.Tooltip("name:N", title="backend"),
            alt.Tooltip("kv_heads:O", title="K"),
            alt.Tooltip("ms:Q", format=".4g"),
            alt.Tooltip("low:Q", title="p10", format=".4g"),
            alt.Tooltip("high:Q", title="p90", format=".4g"),
        ],
    )
    y = alt.Y("ms:Q", title=f"ms a step, {charts.CLOCKS[clock]}", scale=alt.Scale(zero=True))
    line = base.mark_line(strokeWidth=2).encode(y=y)
    bar = base.mark_rule(strokeWidth=1.5).encode(y="low:Q", y2="high:Q")
    dots = base.mark_point(filled=True, size=80).encode(y=y, shape=charts.backend_shape(kept))
    return alt.layer(bar, line, dots).properties(height=280)


def say_decode(rows: Sequence[dict[str, Any]], clock: charts.Clock) -> str:
    said = [
        f"{charts.label(r['backend'])} K={r['kv_heads']} {charts.ms(r[clock])}" for r in rows if r[clock] is not None
    ]
    return f"Time of a decode step against K, {charts.CLOCKS[clock]}: {', '.join(said) or 'nothing has a time'}"
