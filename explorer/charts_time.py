"""Charts of measured points: times and what follows from them along an axis, bars, roofline, memory. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt

from explorer import charts, curves, memory
from explorer.charts import CLOCKS, MISSING, Clock, Row
from explorer.problem import AXIS_LETTERS

if TYPE_CHECKING:
    import pandas

HEIGHT = 340
DASHES = ([1, 0], [6, 3], [2, 3], [8, 3, 2, 3], [4, 2, 1, 2, 1, 2])
POINT, MANY_POINTS, MANY = 70, 18, 800  # the area of a point, and of each where there are many
GAP_SIGN = "✕"
MOST_TICKS = 14
WORDS = {  # axis: how it is called on the chart
    "batch": "batch size B",
    "q_len": "sequence length T",
    "kv_len": "key and value length S",
    "heads": "query heads N",
    "kv_heads": "key and value heads K",
    "head_dim": "head dimension H",
}
LENGTH_LABEL = "datum.value >= 1024 && datum.value % 1024 === 0 ? datum.value / 1024 + 'k' : format(datum.value, '~g')"
TIME_LABEL = (
    "datum.value < 0.001 ? format(datum.value * 1e6, '~g') + ' ns' : datum.value < 1 ? "
    "format(datum.value * 1000, '~g') + ' µs' : datum.value < 1000 ? format(datum.value, '~g') + ' ms' : "
    "format(datum.value / 1000, '~g') + ' s'"
)
BYTE_LABEL = (
    "datum.value >= 1099511627776 ? format(datum.value / 1099511627776, '.3~g') + ' TiB' : datum.value >= 1073741824 ? "
    "format(datum.value / 1073741824, '.3~g') + ' GiB' : datum.value >= 1048576 ? "
    "format(datum.value / 1048576, '.3~g') + ' MiB' : datum.value >= 1024 ? "
    "format(datum.value / 1024, '.3~g') + ' KiB' : format(datum.value, '.3~g') + ' B'"
)
# What an exported picture needs that the app's theme gives on the screen
EXPORT_CONFIG: dict[str, Any] = {
    "background": "white",
    "font": "IBM Plex Sans, Helvetica, Arial, sans-serif",
    "range": {"category": list(charts.COLOURS["light"])},
    "view": {"continuousWidth": 640, "stroke": None},
    "axis": {"gridColor": "#E3E8E9", "domainColor": "#9AA5AB", "labelFontSize": 12, "titleFontSize": 13},
    "legend": {"labelFontSize": 12},
}


# --- hovering


def hover(row: Row) -> dict[str, str]:
    """The whole record in words, for the tooltip of its point."""
    shape = " ".join(f"{letter}={row[name]}" for name, letter in AXIS_LETTERS.items())
    proof = "proven by a trace" if row["proven"] else "kernel not proven"
    error = f"{charts.number(row['max_abs_error'])}, allowed {charts.number(row['budget'])}"
    tflops, share = row["tflops"], row["bound_share"]
    rate = f"{charts.number(tflops)} ({row['tflops_clock']} clock)" if tflops is not None else MISSING
    return {
        "what": row["series"],
        "shape": f"{shape}, {row['dtype']}, {row['mask']}",
        "wall": _times(row, "wall_ms"),
        "device": _times(row, "device_ms"),
        "rate": rate + (f", {share:.0%} of the roofline's bound" if share is not None else ""),
        "proof": f"{row['verdict'] or MISSING}, {row['precision'] or MISSING}, {proof}",
        "kernels": row["kernels"] or MISSING,
        "right": f"{row['accuracy'] or 'not checked'}, largest error {error}",
        "bytes": f"temporary {_size(row['temp_bytes'])}, by formula {_size(row['formula_bytes'])}",
        "built": f"compile {charts.ms(row['compile_ms'])}, first call {charts.ms(row['first_call_ms'])}",
        "how": f"{row['mode']}, ended by {row['stopped_by']}"
        + (", cold L2" if row["cold_l2"] else "")
        + (f", SM {row['sm_clock_mhz']} MHz" if row["sm_clock_mhz"] else ""),
        "origin": f"{'recorded on' if row['recorded'] else 'measured on'} {row['where']}, {row['time'] or MISSING}",
        "versions": row["versions"],
        "doubt": row["suspect"] or "none",
    }


HOVER = {
    "what": "series",
    "shape": "problem",
    "wall": "wall clock",
    "device": "device clock",
    "rate": "TFLOP/s",
    "proof": "evidence",
    "kernels": "kernels",
    "right": "result",
    "bytes": "memory",
    "built": "build",
    "how": "timing",
    "origin": "where, when",
    "versions": "versions",
    "doubt": "doubts",
}


def _times(row: Row, clock: Clock) -> str:
    median = row[clock]
    if median is None:
        return MISSING
    low, high = (charts.ms(row[clock.replace("_ms", f"_{p}_ms")]) for p in ("p10", "p90"))
    return f"{charts.ms(median)} ({low} to {high}, {row[clock.replace('_ms', '_samples')]} samples)"


def _size(value: float | int | None) -> str:
    return MISSING if value is None else memory.gib(value)


def _tooltip(*first: alt.Tooltip) -> list[alt.Tooltip]:
    return [*first, *(alt.Tooltip(f"{name}:N", title=title) for name, title in HOVER.items())]


# --- curves along an axis


def times(rows: Sequence[Row], axis: str, clock: Clock, *, log: bool = True) -> alt.LayerChart:
    """Median against the axis, the band from p10 to p90; hollow where the kernel is not proven, ✕ where there is none.

    rows: as curves.labelled gives them.
    """
    low, high = (clock.replace("_ms", f"_{p}_ms") for p in ("p10", "p90"))
    title = f"time of a call, {CLOCKS[clock]} (lower is better)"
    y_axis = alt.Axis(title=title, labelExpr=TIME_LABEL, tickCount=6)
    scale = alt.Scale(zero=True)
    found = [row[name] for row in rows for name in (clock, low, high) if row[name]]
    if log and found:
        # Room at the foot for the signs of what has no time
        foot = 1.3 * 1.25 ** len({gap["series"] for gap in curves.gaps(rows, axis, clock)})
        bottom, top = min(found) / foot, max(found) * 1.2
        scale = alt.Scale(type="log", domain=[bottom, top], nice=False)
        y_axis = alt.Axis(title=title, labelExpr=TIME_LABEL, values=log_ticks(bottom, top))
    return _stack(_curves(rows, axis, y=clock, y_scale=scale, y_axis=y_axis, band=(low, high), log=log))


def speed_up(rows: Sequence[Row], axis: str, clock: Clock, baseline: str, *, log: bool = True) -> alt.LayerChart:
    """How many times the baseline's speed, with a rule at 1."""
    found = curves.speed_ups(rows, axis, clock, baseline)
    title = "speed-up (higher is better)"
    y_axis = alt.Axis(title=title, labelExpr="format(datum.value, '~g') + ' ×'", tickCount=6)
    scale = alt.Scale(zero=True, nice=True)
    return _stack(_curves(found, axis, y="speed_up", y_scale=scale, y_axis=y_axis, log=log, level=1.0))


def hidden(rows: Sequence[Row], axis: str, *, log: bool = True) -> alt.LayerChart:
    """The share of the wall time in which the call's kernels did not run: launch, host and waiting."""
    title = "share of the wall clock"
    y_axis = alt.Axis(title=title, format="%", tickCount=5)
    scale = alt.Scale(domain=[0, 1])
    return _stack(_curves(curves.hidden(rows), axis, y="hidden", y_scale=scale, y_axis=y_axis, log=log, gap=False))


def causal_share(rows: Sequence[Row], axis: str, clock: Clock, *, log: bool = True) -> alt.LayerChart:
    """Causal time over the unmasked one; rules where the masked half is skipped and where it is computed all the same.

    rows: as curves.causal_shares gives them.
    """
    title = "causal time / unmasked time"
    y_axis = alt.Axis(title=title, format="%", tickCount=6)
    most = max([1.2, *(row["causal_share"] for row in rows)])
    marks = alt.Chart(alt.Data(values=[{"at": 0.5, "says": "half skipped"}, {"at": 1.0, "says": "full work"}]))
    rule = marks.mark_rule(strokeDash=[4, 4], color=charts.NEUTRAL).encode(y=alt.Y("at:Q"))
    text = marks.mark_text(align="left", dx=4, dy=-7, color=charts.NEUTRAL).encode(
        y=alt.Y("at:Q"), x=alt.XValue(0), text=alt.Text("says:N")
    )
    drawn = _curves(rows, axis, y="causal_share", y_scale=alt.Scale(domain=[0, most]), y_axis=y_axis, log=log)
    return _stack([rule, text, *drawn])


def memory_curve(rows: Sequence[Row], axis: str, of: str = "temp_bytes", *, log: bool = True) -> alt.LayerChart:
    """Working memory by the compiler's analysis along the axis."""
    scale = alt.Scale(type="log", base=2) if log else alt.Scale(zero=True)
    y_axis = alt.Axis(title="temporary memory (lower is better)", labelExpr=BYTE_LABEL)
    kept = [{**row, of: row[of] or None} for row in rows]  # a log scale has no place for 0
    return _stack(_curves(kept, axis, y=of, y_scale=scale, y_axis=y_axis, log=log))


def _curves(
    rows: Sequence[Row],
    axis: str,
    *,
    y: str,
    y_scale: alt.Scale,
    y_axis: alt.Axis,
    band: tuple[str, str] | None = None,
    log: bool = True,
    level: float | None = None,
    gap: bool = True,
) -> list[Any]:
    """The layers of lines, points and gaps of labelled rows."""
    data = frame(rows, axis, y, *(band or ()))
    x = _x(rows, axis, log=log)
    along = alt.Y(f"{y}:Q", scale=y_scale, axis=y_axis)
    color, shape = charts.backend_colour(rows), charts.backend_shape(rows)
    size = POINT if len(rows) <= MANY else MANY_POINTS
    base = alt.Chart(data)
    layers: list[Any] = []
    if level is not None:
        one = alt.Chart(alt.Data(values=[{"at": level}]))
        layers.append(one.mark_rule(strokeDash=[4, 4], color=charts.NEUTRAL).encode(y=alt.Y("at:Q")))
    if band is not None:
        area = base.mark_area(opacity=0.16, line=False, invalid="break-paths-filter-domains")
        edge = alt.Y(f"{band[0]}:Q", scale=y_scale)
        layers.append(area.encode(x=x, y=edge, y2=f"{band[1]}:Q", color=color, detail=alt.Detail("series:N")))
    line = base.mark_line(strokeWidth=1.8, invalid="break-paths-filter-domains")
    layers.append(line.encode(x=x, y=along, color=color, strokeDash=_dash(rows), detail=alt.Detail("series:N")))
    tooltip = _tooltip()
    for proven in (True, False):
        kept = base.transform_filter(f"datum.proven === {str(proven).lower()} && isValid(datum['{y}'])")
        point = kept.mark_point(filled=proven, size=size, opacity=1, strokeWidth=1.8)
        layers.append(point.encode(x=x, y=along, color=color, shape=shape, tooltip=tooltip))
    if gap:
        layers += _gap_marks(rows, axis, y, color, log=log)
    return layers


def _gap_marks(rows: Sequence[Row], axis: str, y: str, color: alt.Color, *, log: bool) -> list[Any]:
    """A ✕ at the chart's foot for each point without a value, a line of them for each series."""
    x = _x(rows, axis, field="x", log=log)
    found = curves.gaps(rows, axis, y)
    names = list(dict.fromkeys(gap["series"] for gap in found))
    drawn = []
    for place, name in enumerate(names):
        mine = [{**gap, "x": gap[axis]} for gap in found if gap["series"] == name]
        mark = alt.Chart(alt.Data(values=mine)).mark_text(text=GAP_SIGN, fontSize=13, fontWeight=600)
        tooltip = [
            alt.Tooltip("series:N"), alt.Tooltip("x:Q", title=WORDS[axis]), alt.Tooltip("status:N"),
            alt.Tooltip("reason:N"),
        ]  # fmt: skip
        # Of the plot's own height: HEIGHT holds axes and legend too
        place_y = alt.value(alt.expr(f"height - {10 + 14 * place}"))
        drawn.append(mark.encode(x=x, y=place_y, color=color, tooltip=tooltip))
    return drawn


def _stack(layers: list[Any], height: int = HEIGHT) -> alt.LayerChart:
    drawn: Any = alt.layer(*layers)  # altair's own annotation also allows for facets
    return drawn.properties(height=height)


def _second_legend(**look: Any) -> alt.Legend:
    """Below the chart: beside the backends' legend it would run out of a narrow one."""
    return alt.Legend(title=None, orient="bottom", **look)


def frame(rows: Sequence[Row], *numbers: str) -> pandas.DataFrame:
    """What the charts need of labelled rows, as a frame: it goes to the browser in Arrow, not in the chart's text."""
    import pandas

    kept = [
        {name: row[name] for name in numbers}
        | {"backend": row["backend"], "series": row["series"], "style": row["style"], "proven": bool(row["proven"])}
        | hover(row)
        for row in rows
    ]
    return pandas.DataFrame(kept)


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with their double and fivefold where that makes a handful."""
    steps = (1, 2, 5) if high / low < 1e3 else (1,)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [tick for k in decades for step in steps if low <= (tick := step * 10.0**k) <= high]


def _x(rows: Sequence[Row], axis: str, *, log: bool, field: str = "") -> alt.X:
    values = sorted({row[axis] for row in rows})
    scale = alt.Scale(type="log", base=2, nice=False, padding=14) if log else alt.Scale(zero=False, padding=14)
    return alt.X(f"{field or axis}:Q", scale=scale, axis=_sizes(WORDS[axis], values))


def _sizes(title: str, values: Sequence[int]) -> alt.Axis:
    """An axis with a mark at each of the sizes, as long as they are few."""
    some: dict[str, Any] = {"values": list(values)} if len(values) <= MOST_TICKS else {}
    return alt.Axis(title=title, labelExpr=LENGTH_LABEL, grid=False, labelOverlap=True, **some)


def _dash(rows: Sequence[Row]) -> Any:
    styles = list(dict.fromkeys(row["style"] for row in rows))
    if len(styles) < 2:
        return alt.value(DASHES[0])
    found = [list(DASHES[i % len(DASHES)]) for i in range(len(styles))]
    legend = _second_legend(symbolType="stroke", symbolSize=400)
    return alt.StrokeDash("style:N", scale=alt.Scale(domain=styles, range=found), legend=legend)


# --- bars


def bars(rows: Sequence[Row], clock: Clock) -> alt.LayerChart:
    """A bar a series: median, whisker p10 to p90, the figure over it; hollow where the kernel is not proven."""
    kept = [
        {"series": r["series"], "backend": r["backend"], "proven": bool(r["proven"]), "ms": r[clock]}
        | {"p10": r[clock.replace("_ms", "_p10_ms")], "p90": r[clock.replace("_ms", "_p90_ms")]}
        | {"text": charts.ms(r[clock]) + ("" if r["proven"] else "  (not proven)")}
        | hover(r)
        for r in rows
        if r[clock] is not None
    ]  # fmt: skip
    most: float = max(r[clock.replace("_ms", "_p90_ms")] for r in rows if r[clock] is not None)
    base = alt.Chart(alt.Data(values=kept)).encode(
        y=alt.Y("series:N", title=None, sort=None, axis=alt.Axis(labelLimit=260, ticks=False, domain=False)),
        tooltip=_tooltip(),
    )
    scale = alt.Scale(domain=[0, 1.02 * most], nice=False)
    x = alt.X("ms:Q", title=f"ms a call, {CLOCKS[clock]} (shorter is better)", scale=scale)
    colour = charts.backend_colour(kept, legend=False)
    proven = alt.FillOpacityValue(0.12, condition={"test": "datum.proven", "value": 0.92})
    bar = base.mark_bar(height=18, yOffset=8, cornerRadiusEnd=2, strokeWidth=1.5).encode(
        x=x, color=colour, stroke=colour_of_stroke(), fillOpacity=proven
    )
    whisker = base.mark_rule(strokeWidth=1.5, yOffset=8).encode(
        x=alt.X("p10:Q"), x2=alt.X2("p90:Q"), color=alt.ColorValue(charts.NEUTRAL)
    )
    # Over the bar: at its end a narrow page would cut the longer ones
    figure = base.mark_text(align="left", dy=-11, fontWeight=600).encode(
        x=alt.value(2), text=alt.Text("text:N"), color=alt.ColorValue(charts.NEUTRAL)
    )
    return _stack([bar, whisker, figure], 44 * len(kept) + 70)


def colour_of_stroke() -> alt.Stroke:
    return alt.Stroke("backend:N", scale=alt.Scale(domain=list(charts.ORDER)), legend=None)


# --- roofline


KINDS = {True: "measured", False: "datasheet"}


def roofline(rows: Sequence[Row], roofs: Sequence[Mapping[str, Any]]) -> alt.LayerChart:
    """Measured points under the roofs. roofs: {name, peak_tflops, copy_tb_s, is_measured} each; rows: labelled.

    A point above every measured roof is a measuring error and has a red ring.
    """
    points = [row for row in rows if row["tflops"]]
    ridges = [roof["peak_tflops"] / roof["copy_tb_s"] for roof in roofs]
    at = [*(row["intensity"] for row in points), *ridges] or [1.0]
    span = min(at) / 2.5, max(at) * 2.5
    lines = [line for roof in roofs for line in _roof(roof, span)]
    rates = [*(row["tflops"] for row in points), *(line["y"] for line in lines)] or [1.0]
    bottom, top = min(rates) / 1.5, max(rates) * 1.5

    def place(x: str, y: str) -> dict[str, Any]:
        across = alt.Axis(title="intensity, FLOP per byte of least traffic", labelExpr=LENGTH_LABEL, grid=False)
        up = alt.Axis(title="TFLOP/s (higher is better)", format="~g", values=log_ticks(bottom, top))
        return {
            "x": alt.X(f"{x}:Q", scale=alt.Scale(type="log", base=2, domain=list(span), nice=False), axis=across),
            "y": alt.Y(f"{y}:Q", scale=alt.Scale(type="log", domain=[bottom, top], nice=False), axis=up),
        }

    dash = alt.StrokeDash(
        "kind:N",
        scale=alt.Scale(domain=list(KINDS.values()), range=[list(DASHES[0]), list(DASHES[1])]),
        legend=_second_legend(symbolType="stroke", symbolSize=400),
    )
    line = alt.Chart(alt.Data(values=lines)).mark_line(strokeWidth=1.5, color=charts.NEUTRAL)
    layers: list[Any] = [line.encode(**place("x", "y"), strokeDash=dash, detail=alt.Detail("name:N"))]
    for is_measured, kind in KINDS.items():  # apart, as the lines are close to each other
        corners = [
            max((c for c in lines if c["name"] == roof["name"]), key=lambda c: (c["y"], -c["x"])) for roof in roofs
        ]
        ends = [c for c in corners if c["kind"] == kind]
        mark: dict[str, Any] = {"dx": 10, "dy": 12} if is_measured else {"dx": 0, "dy": -10}
        name = alt.Chart(alt.Data(values=ends)).mark_text(align="left", color=charts.NEUTRAL, **mark)
        layers.append(name.encode(**place("x", "y"), text=alt.Text("name:N")))
    if points:
        data = frame(points, "intensity", "tflops", "suspect")
        look = {"color": charts.backend_colour(points), "shape": charts.backend_shape(points), "tooltip": _tooltip()}
        size = POINT if len(points) <= MANY else MANY_POINTS
        for proven in (True, False):
            kept = alt.Chart(data).transform_filter(f"datum.proven === {str(proven).lower()}")
            point = kept.mark_point(filled=proven, size=size, opacity=1, strokeWidth=1.8)
            layers.append(point.encode(**place("intensity", "tflops"), **look))
        wrong = alt.Chart(data).transform_filter("isValid(datum.suspect)")
        ring = wrong.mark_point(filled=False, size=4 * size, shape="circle", strokeWidth=2, color=charts.NOT_FINITE)
        layers.append(ring.encode(**place("intensity", "tflops"), tooltip=_tooltip()))
    return _stack(layers, 420)


def _roof(roof: Mapping[str, Any], span: tuple[float, float]) -> list[dict[str, Any]]:
    """The corners of min(peak, intensity × bandwidth) within the span."""
    peak, rate = roof["peak_tflops"], roof["copy_tb_s"]
    corners = sorted({span[0], min(max(peak / rate, span[0]), span[1]), span[1]})
    return [
        {"name": roof["name"], "kind": KINDS[roof["is_measured"]], "x": x, "y": min(peak, x * rate)} for x in corners
    ]


# --- memory

COLUMNS = {"formula_bytes": "formula", "compiler_bytes": "compiler", "peak_bytes": "measured peak"}


def footprint(rows: Sequence[Row], room_bytes: int | None = None, edges: Sequence[Row] = ()) -> alt.LayerChart:
    """Bytes that one call holds, against T: the formula as a line, the compiler's and the measured figures as points.

    rows: {backend, q_len, formula_bytes, compiler_bytes, peak_bytes, outcome, reason}. room_bytes: a rule, with what
    is above it out of memory. edges: {backend, q_len}: the first length that no longer fits.
    """
    shown = [
        {"backend": row["backend"], "x": row["q_len"], "bytes": row[name], "column": said}
        | {"size": memory.gib(row[name]), "outcome": row["outcome"] or MISSING}
        for row in rows
        for name, said in COLUMNS.items()
        if row[name]
    ]
    lengths = sorted({row["q_len"] for row in rows} | {edge["q_len"] for edge in edges})
    along = alt.Scale(type="log", base=2, nice=False, padding=14)
    x = alt.X("x:Q", scale=along, axis=_sizes(WORDS["q_len"], lengths))
    # A size on every second power: 1 MiB, 4 MiB, ...
    top = max([*(row["bytes"] for row in shown), room_bytes or 1])
    low = min([row["bytes"] for row in shown] or [1])
    ticks = [4**k for k in range(int(math.log(low, 4)), math.ceil(math.log(top, 4)) + 1)]
    y_axis = alt.Axis(title="memory of one call (lower is better)", labelExpr=BYTE_LABEL, values=ticks)
    y = alt.Y("bytes:Q", scale=alt.Scale(type="log", base=2, domain=[low / 2, top * 4], nice=False), axis=y_axis)
    color = charts.backend_colour(rows)
    tooltip = [
        alt.Tooltip("backend:N"), alt.Tooltip("x:Q", title="T"), alt.Tooltip("column:N", title="by"),
        alt.Tooltip("size:N"), alt.Tooltip("outcome:N"),
    ]  # fmt: skip
    base = alt.Chart(alt.Data(values=shown))
    line = base.transform_filter("datum.column === 'formula'").mark_line(strokeWidth=1.8)
    point = base.transform_filter("datum.column !== 'formula'").mark_point(size=POINT, opacity=1, strokeWidth=1.8)
    kinds = alt.Shape(
        "column:N",
        scale=alt.Scale(domain=list(COLUMNS.values())[1:], range=["cross", "circle"]),
        legend=_second_legend(),
    )
    layers: list[Any] = [
        line.encode(x=x, y=y, color=color, tooltip=tooltip),
        point.encode(x=x, y=y, color=color, shape=kinds, tooltip=tooltip),
    ]
    if room_bytes:
        room = alt.Chart(alt.Data(values=[{"bytes": room_bytes, "says": f"{memory.gib(room_bytes)} free here"}]))
        layers.append(room.mark_rule(strokeDash=[6, 4], strokeWidth=1.5, color=charts.NOT_FINITE).encode(y=y))
        text = room.mark_text(align="left", dx=4, dy=-8, color=charts.NOT_FINITE)
        layers.append(text.encode(y=y, x=alt.XValue(0), text=alt.Text("says:N")))
    if edges:
        marks = [{"backend": e["backend"], "x": e["q_len"], "bytes": room_bytes} for e in edges]
        mark = alt.Chart(alt.Data(values=marks)).mark_text(text=GAP_SIGN, fontSize=16, fontWeight=700, dy=-12)
        found = [alt.Tooltip("backend:N"), alt.Tooltip("x:Q", title="first T that does not fit")]
        layers.append(mark.encode(x=x, y=y, color=color, tooltip=found))
    return _stack(layers, 400)


# --- two backends in turns


def duel(ratios: Sequence[float], interval: tuple[float, float], title: str) -> alt.LayerChart:
    """Each pair's ratio, the interval of their median as a band, and a rule at 1."""
    data = [{"pair": i + 1, "ratio": ratio} for i, ratio in enumerate(ratios)]
    span = max(abs(r - 1) for r in (*ratios, 1.02)) * 1.15
    scale = alt.Scale(domain=[max(0.0, 1 - span), 1 + span], nice=False, clamp=True)
    y = alt.Y("ratio:Q", scale=scale, axis=alt.Axis(title=title, format=".2f", tickCount=6))
    band = alt.Chart(alt.Data(values=[{"low": interval[0], "high": interval[1]}]))
    points = alt.Chart(alt.Data(values=data)).mark_point(filled=True, size=34, color=charts.NEUTRAL)
    one = alt.Chart(alt.Data(values=[{"at": 1}])).mark_rule(strokeDash=[4, 4], color=charts.NEUTRAL)
    spread = alt.Y("low:Q", scale=scale)
    along = alt.X("pair:Q", axis=alt.Axis(title="pair, in order", grid=False, tickMinStep=1))
    tooltip = [alt.Tooltip("pair:Q"), alt.Tooltip("ratio:Q", format=".4f")]
    return _stack(
        [
            band.mark_rect(opacity=0.25, color=charts.NEUTRAL).encode(y=spread, y2=alt.Y2("high:Q")),
            one.encode(y=alt.Y("at:Q")),
            points.encode(x=along, y=y, tooltip=tooltip),
        ],
        240,
    )


# --- in words


def say_times(rows: Sequence[Row], axis: str, clock: Clock) -> str:
    """A line chart in words: each series from its first point to its last, and how many have none."""
    parts = []
    for name in curves.series(rows):
        mine = [row for row in rows if row["series"] == name]
        timed = [row for row in mine if row[clock] is not None]
        lacking = len(mine) - len(timed)
        if not timed:
            parts.append(f"{name} has no time")
            continue
        first, last = timed[0], timed[-1]
        letter = AXIS_LETTERS[axis]
        said = f"{name} {charts.ms(first[clock])} at {letter}={first[axis]}"
        if last is not first:
            said += f" to {charts.ms(last[clock])} at {letter}={last[axis]}"
        parts.append(said + (f", {lacking} without a time" if lacking else ""))
    return f"Time of a call, {CLOCKS[clock]}, against {WORDS[axis]}: {'; '.join(parts) or 'no points'}"


def say_bars(rows: Sequence[Row], clock: Clock) -> str:
    timed = sorted((row for row in rows if row[clock] is not None), key=lambda row: row[clock])
    others = [row["series"] for row in rows if row[clock] is None]
    said = ", ".join(f"{row['series']} {charts.ms(row[clock])}" for row in timed) or "nothing has a time"
    return f"Time of a call, {CLOCKS[clock]}: {said}" + (f"; without a time: {', '.join(others)}" if others else "")


def say_values(rows: Sequence[Row], axis: str, of: str, what: str, form: str = "{:.3g}") -> str:
    """Any curve in words: each series' last value."""
    parts = []
    for name in curves.series(rows):
        found = [row for row in rows if row["series"] == name and row[of] is not None]
        if found:
            last = found[-1]
            parts.append(f"{name} {form.format(last[of])} at {AXIS_LETTERS[axis]}={last[axis]}")
    return f"{what}: {'; '.join(parts) or 'no points'}"


def say_roofline(rows: Sequence[Row], roofs: Sequence[Mapping[str, Any]]) -> str:
    tops = ", ".join(
        f"{roof['name']} {charts.number(roof['peak_tflops'])} TFLOP/s and {charts.number(roof['copy_tb_s'])} TB/s"
        for roof in roofs
    )
    timed = [row for row in rows if row["tflops"]]
    best = max(timed, key=lambda row: row["tflops"], default=None)
    said = f"{len(timed)} points" + (
        f", the highest {best['series']} with {charts.number(best['tflops'])} TFLOP/s" if best else ""
    )
    return f"Roofline: {tops or 'no ceilings'}; {said}"


def export(drawing: alt.TopLevelMixin | charts.Plain) -> dict[str, Any]:
    """The chart's specification with its data and colours inside, for a picture file."""
    is_plain = isinstance(drawing, dict)
    found = {"$schema": alt.SCHEMA_URL, **charts.whole(drawing)} if is_plain else drawing.to_dict()
    config = found.get("config", {})
    legend = config.get("legend", {}) | EXPORT_CONFIG["legend"]
    return found | {"config": config | EXPORT_CONFIG | {"legend": legend}}
