"""Charts of the Heads page: which head reads which, the KV cache over the context, a decode step against K."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from explorer import charts, heads
from explorer.charts import NEUTRAL
from explorer.charts_steps import MARK
from explorer.heads import Fit

WEIGHTS, CACHE, TOO_LARGE = "weights", "KV cache", "KV cache, ✗ does not fit"
PART_COLOURS = {WEIGHTS: "#95A3A8", CACHE: "#2C8882", TOO_LARGE: "#D1571B"}
TOO_CLOSE = 2.8  # of two sizes, on the curve's logarithmic axis, for a line of text between them
KV_DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
Drawing = alt.LayerChart | alt.FacetChart  # alt.layer gives the second where its data is faceted


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
    dash = alt.StrokeDashValue([1, 0], condition={"test": "datum.group == 1", "value": [4, 3]})
    links = (
        alt.Chart(lines)
        .mark_rule(strokeWidth=1.5, color=NEUTRAL)
        .encode(x=x, y=y, x2=alt.X2("x2:Q"), y2=alt.Y2("y2:Q"), strokeDash=dash)
    )
    size = 620 if count <= 16 else 260 if count <= 40 else 70
    dots = (
        alt.Chart(nodes)
        .mark_point(filled=True, size=size, opacity=1)
        .encode(
            x=x,
            y=y,
            tooltip=alt.Tooltip("says:N", title="head"),
            shape=alt.ShapeValue("square", condition={"test": "datum.y == 1", "value": "circle"}),
            color=alt.ColorValue("#2563C9", condition={"test": "datum.y == 1", "value": "#136E69"}),
        )
    )
    layers: list[Any] = [links, dots]
    if count <= 16:
        names = alt.Chart(nodes).mark_text(color="#FFFFFF", fontSize=10, fontWeight=600)
        layers.append(names.encode(x=x, y=y, text=alt.Text("name:N")))
    return alt.layer(*layers).properties(height=150)


def say_head_map(count: int, kv_heads: int) -> str:
    group = count // kv_heads
    shared = f"{group} neighbouring query heads share each" if group > 1 else "one each, none is shared"
    return f"{count} query heads read {kv_heads} key/value heads: {shared}"


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
        axis=alt.Axis(
            grid=False,
            values=sorted({row["context"] for row in rows})[::2],
            labelExpr="datum.value < 1024 ? datum.value : format(datum.value / 1024, 'd') + 'k'",
        ),
    )
    y = alt.Y(
        "gib:Q",
        title="KV cache, GiB",
        scale=alt.Scale(type="log", domain=[low, high * 1.3], nice=False),
        axis=alt.Axis(format="~g", values=[10.0**k for k in range(-3, 5)]),
    )
    lines = (
        alt.Chart(table)
        .mark_line(strokeWidth=2.2, point=True)
        .encode(
            x=x,
            y=y,
            color=alt.Color("K:N", sort=order, legend=alt.Legend(title=None, orient="top", symbolType="stroke")),
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
    texts = (
        alt.Chart(_named_together(levels))
        .mark_text(align="left", dx=4, dy=-6, fontSize=11, color=NEUTRAL)
        .encode(y=y, x=alt.XValue(0), text=alt.Text("gpu:N"))
    )
    here = (
        alt.Chart(pd.DataFrame({"context": [context]}))
        .mark_rule(color=MARK, strokeWidth=1.5)
        .encode(x=alt.X("context:Q"))
    )
    return alt.layer(level, texts, here, lines).properties(height=340)


def _named_together(levels: pd.DataFrame) -> pd.DataFrame:
    """The names beside the lines: lines too close for two names have theirs on the highest one, from below."""
    named: list[dict[str, Any]] = []
    for gib, gpu in sorted(zip(levels["gib"], levels["gpu"], strict=True)):
        if named and gib / named[-1]["gib"] < TOO_CLOSE:
            gpu = f"{named.pop()['gpu']} < {gpu}"
        named.append({"gib": gib, "gpu": gpu})
    return pd.DataFrame(named, columns=["gib", "gpu"])


def fit_bars(fits: Sequence[Fit], *, cache_bytes: int, weights_bytes: float) -> Drawing:
    """Weights and cache in each GPU's memory, whose end is marked; what does not fit is striped by its own sign."""
    rows, ends = [], []
    for fit in fits:
        holds = fit.room_bytes > 0 and fit.holds(cache_bytes)
        gpu = fit.gpu.removeprefix("NVIDIA ")
        left = weights_bytes / heads.GB
        right = left + cache_bytes / heads.GB
        if left:
            rows.append({"gpu": gpu, "part": WEIGHTS, "from": 0.0, "to": left})
        rows.append({"gpu": gpu, "part": CACHE if holds else TOO_LARGE, "from": left, "to": right})
        says = f"up to {fit.context:,} tokens" if fit.context else "not one token"
        ends.append({"gpu": gpu, "memory": fit.memory_bytes / heads.GB, "says": f"{'✓' if holds else '✗'} {says}"})
    parts = [part for part in (WEIGHTS, CACHE, TOO_LARGE) if any(row["part"] == part for row in rows)]
    order = [end["gpu"] for end in ends]
    most = max(max(end["memory"] for end in ends), min(max(row["to"] for row in rows), 1.2 * ends[-1]["memory"]))
    scale = alt.Scale(domain=[0, most * 1.02], nice=False, clamp=True)
    x = alt.X("from:Q", title="GB (10⁹ bytes)", axis=alt.Axis(grid=False), scale=scale)
    y = alt.Y("gpu:N", sort=order, title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=160))
    bars = (
        alt.Chart(pd.DataFrame(rows))
        .mark_bar(height=14, yOffset=8)
        .encode(
            x=x,
            x2=alt.X2("to:Q"),
            y=y,
            color=alt.Color(
                "part:N",
                scale=alt.Scale(domain=parts, range=[PART_COLOURS[part] for part in parts]),
                legend=alt.Legend(title=None, orient="top", labelLimit=260, columns=charts.COLUMNS),
            ),
            tooltip=[alt.Tooltip("gpu:N"), alt.Tooltip("part:N"), alt.Tooltip("from:Q"), alt.Tooltip("to:Q")],
        )
    )
    base = alt.Chart(pd.DataFrame(ends)).encode(y=y, x=alt.X("memory:Q"))
    tick = base.mark_tick(thickness=3, color=NEUTRAL, size=20, yOffset=8)
    words = base.mark_text(align="left", dy=-8, color=NEUTRAL, fontWeight=600)  # over the bar: there they always fit
    text = words.encode(text=alt.Text("says:N"), x=alt.value(2))
    return alt.layer(bars, tick, text).properties(height=44 * len(ends) + 90)


def decode(rows: Sequence[dict[str, Any]], clock: charts.Clock) -> Drawing:
    """Time of a decode step against K, a line for each backend; hollow where the kernel is not proven."""
    kept = [row for row in rows if row[clock] is not None]
    table = pd.DataFrame(
        [
            {
                "kv_heads": row["kv_heads"],
                "backend": row["backend"],
                "name": charts.label(row["backend"]),
                "ms": row[clock],
                "proven": bool(row["proven"]),
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
    bar = base.mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))
    shape = charts.backend_shape(kept)
    dots = [
        base.transform_filter(f"datum.proven === {str(proven).lower()}")
        .mark_point(filled=proven, size=80, opacity=1)
        .encode(y=y, shape=shape)
        for proven in (True, False)
    ]
    return alt.layer(bar, line, *dots).properties(height=280)


def say_decode(rows: Sequence[dict[str, Any]], clock: charts.Clock) -> str:
    said = [
        f"{charts.label(r['backend'])} K={r['kv_heads']} {charts.ms(r[clock])}" for r in rows if r[clock] is not None
    ]
    return f"Time of a decode step against K, {charts.CLOCKS[clock]}: {', '.join(said) or 'nothing has a time'}"
