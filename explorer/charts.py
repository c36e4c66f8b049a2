"""Charts: tables in, Altair charts out; one colour and one shape per backend, in light and dark. No I/O."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import io
import math
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import altair as alt
import numpy as np
import pyarrow as pa
from altair.utils import schemapi

from explorer.backends import BACKENDS
from explorer.problem import AXIS_LETTERS

Row = Mapping[str, Any]
# Vega-Lite as it is written in JSON, with a table (see `table`) where data stands. For charts that change at every move
# of a slider: Altair takes 10 to 60 ms to make one of these, a dict none.
Plain = dict[str, Any]
Clock = Literal["wall_ms", "device_ms"]
Mode = Literal["light", "dark"]

CLOCKS: dict[Clock, str] = {"wall_ms": "wall clock", "device_ms": "device clock"}
MISSING = "—"
ORDER = tuple(BACKENDS)
# As chartCategoricalColors in .streamlit/config.toml, which the app's charts follow: one per backend, in order.
COLOURS: dict[Mode, tuple[str, ...]] = {
    "light": ("#6B7280", "#0E7C86", "#2563C9", "#4D7C0F", "#B45309", "#7C3AED", "#BE2A73"),
    "dark": ("#9AA5B1", "#4FD1C5", "#6EA8FE", "#A3D14B", "#F2A65A", "#B794F6", "#F48FB8"),
}
# A second sign beside the colour, for eyes that don't tell colours apart: Vega's shape and the same as a character.
SHAPES = ("circle", "triangle-down", "square", "diamond", "triangle-up", "cross", "triangle-right")
SIGNS = ("●", "▼", "■", "◆", "▲", "✚", "▶")
# Pictures carry their own colours, the same in both modes: blue and orange keep apart without colour vision.
DIVERGING = ("#7A3E06", "#B8671A", "#E3A868", "#F6E0C6", "#FFFFFF", "#CFE1F3", "#7FB0DD", "#2F74B5", "#133F75")
SEQUENTIAL = ("#F7FBFA", "#CDE9E4", "#8CCBC4", "#479F9A", "#156F6B", "#04393C")
NOT_FINITE = "#BE2A73"
NEUTRAL = "#7D8890"  # lines and figures that must show on light and on dark
TIMES_OF_BARS = {"ms": "median", "p10": "p10", "p90": "p90"}
COLUMNS = alt.ExprRef("width < 340 ? 2 : 0")  # of a legend: a narrow chart would cut one line off; 0 is one line
LARGEST_CELLS = 64  # a side; beyond it, one mark a cell is slow, and a picture is sent instead


def colour(backend: str, mode: Mode = "light") -> str:
    return COLOURS[mode][ORDER.index(backend)]


def sign(backend: str) -> str:
    return SIGNS[ORDER.index(backend)]


def label(backend: str) -> str:
    return BACKENDS[backend].label


def ms(value: float | int | None) -> str:
    """A time for a sentence, three digits, in the unit that fits: 0.0065 is 6.50 µs."""
    if value is None or not math.isfinite(value):
        return MISSING
    for factor, unit, below in ((1e3, "µs", 0.1), (1, "ms", 1e3), (1e-3, "s", math.inf)):
        if value < below:
            scaled = value * factor
            digits = max(0, 2 - math.floor(math.log10(scaled))) if scaled > 0 else 0
            return f"{scaled:.{digits}f} {unit}"
    return MISSING


def number(value: float | int | None) -> str:
    """Three digits, or that there is none."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:.3g}"


def flop(count: float | int) -> str:
    """A count of floating-point operations for a sentence."""
    for factor, unit in ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} FLOP"


def present(rows: Iterable[Row]) -> list[str]:
    """The backends that occur, in the registry's order."""
    found = {row["backend"] for row in rows}
    return [name for name in ORDER if name in found]


def backend_colour(rows: Iterable[Row], *, field: str = "backend", legend: bool = True) -> alt.Color:
    """The backend's own colour, from the theme's palette, so that it follows light and dark by itself."""
    shown = _legend(rows) if legend else None
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=list(ORDER)), legend=shown)


def backend_shape(rows: Iterable[Row], *, field: str = "backend", legend: bool = True) -> alt.Shape:
    shown = _legend(rows) if legend else None
    return alt.Shape(f"{field}:N", scale=alt.Scale(domain=list(ORDER), range=list(SHAPES)), legend=shown)


def _legend(rows: Iterable[Row]) -> alt.Legend:
    """Full colours, also where the first layer is a pale band."""
    return alt.Legend(
        title=None, values=present(rows), orient="top", labelExpr=_label_expr(), symbolOpacity=1, columns=COLUMNS
    )


def _label_expr() -> str:
    return "{" + ",".join(f"'{name}':'{label(name)}'" for name in ORDER) + "}[datum.label] || datum.label"


_Drawn = TypeVar("_Drawn", bound=Callable[..., Any])
_DRAWINGS: OrderedDict[bytes, Any] = OrderedDict()
_DRAWINGS_MOST = 64
_SPECS: OrderedDict[int, tuple[Any, dict[str, Any]]] = OrderedDict()
schemapi.disable_debug_mode()  # Altair checks each part as it is made; the tests check the whole
alt.data_transformers.disable_max_rows()  # a page decides itself how much it shows
alt.theme.enable("none")  # sizes come from the page, colours from Streamlit's theme


def kept(make: _Drawn) -> _Drawn:
    """The last drawings by their data: Altair takes 100 ms to build one, and a rerun asks for the same again."""

    @functools.wraps(make)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        key = hashlib.blake2b(
            pickle.dumps((make.__module__, make.__qualname__, args, sorted(kwargs.items())), protocol=5)
        ).digest()
        found = _DRAWINGS.get(key)
        if found is None:
            found = make(*args, **kwargs)
            _keep(_DRAWINGS, key, found)
        return found

    return drawn  # pyright: ignore[reportReturnType]


def spec(drawing: Any) -> dict[str, Any]:
    """The Vega-Lite specification of a drawing, its data as Arrow tables; the last ones are kept with their drawings.

    Unlike st.altair_chart this checks no schema: that takes four fifths of a rerun's time, and the tests do it.
    A Plain drawing is one already and is quick to make: none is kept.
    """
    if isinstance(drawing, dict):
        tables: dict[str, bytes] = {}
        return {"$schema": alt.SCHEMA_URL, **_named(drawing, tables), "datasets": tables}
    known = _SPECS.get(id(drawing))
    if known is None:
        made = drawing.to_dict(validate=False)
        if "values" in made.get("data", {}):
            made["datasets"] = {**made.get("datasets", {}), "inline": made["data"].pop("values")}
            made["data"]["name"] = "inline"
        made["datasets"] = {name: _table(rows) for name, rows in made.get("datasets", {}).items()}
        known = (drawing, made)  # the drawing is kept, so that no other one gets its id
        _keep(_SPECS, id(drawing), known)
    return dict(known[1])  # Streamlit takes the data out of what it is given


def _named(view: Plain, tables: dict[str, bytes]) -> Plain:
    """The view, its tables moved to `tables` under names made of their content: what changes has another name."""
    found = dict(view)
    if "data" in view:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, view["data"].schema) as stream:
            stream.write_table(view["data"])
        content = sink.getvalue().to_pybytes()
        found["data"] = {"name": f"data-{hashlib.blake2b(content, digest_size=16).hexdigest()}"}
        tables[found["data"]["name"]] = content
    if "layer" in view:
        found["layer"] = [_named(each, tables) for each in view["layer"]]
    return found


def whole(view: Plain) -> Plain:
    """A Plain drawing with its tables as rows: for a file, or whatever else can't be given an Arrow table."""
    found = dict(view)
    if "data" in view:
        found["data"] = {"values": view["data"].to_pylist()}
    if "layer" in view:
        found["layer"] = [whole(each) for each in view["layer"]]
    return found


def table(**columns: Any) -> pa.Table:
    """The data of a Plain drawing; a number that is not finite is null, as it is in JSON."""
    return pa.table({name: _column(values) for name, values in columns.items()})


def _column(values: Any) -> pa.Array:
    is_float = isinstance(values, np.ndarray) and values.dtype.kind == "f"
    return pa.array(values, mask=~np.isfinite(values)) if is_float else pa.array(values)


def on(field: str, **more: Any) -> Plain:
    """A channel of a Plain drawing on a field with its kind's letter, as Altair writes it: on("key:O", title=None)."""
    name, _, kind = field.partition(":")
    return {"field": name, "type": {"Q": "quantitative", "O": "ordinal", "N": "nominal"}[kind], **more}


def _keep(kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    kept[key] = value
    while len(kept) > _DRAWINGS_MOST:
        with contextlib.suppress(KeyError):  # another thread may have been quicker
            kept.popitem(last=False)


def _table(rows: Sequence[Row]) -> pa.Table:
    """A column holds one kind of value, as Arrow has it; raises pa.ArrowInvalid for numbers and texts in one."""
    columns = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in columns})


def bars(rows: Sequence[Row], clock: Clock = "wall_ms") -> Plain:
    """A bar a backend: median, whisker from p10 to p90, the figure at its end. Rows without a time are left out."""
    lower, upper, samples = (clock.replace("_ms", end) for end in ("_p10_ms", "_p90_ms", "_samples"))
    timed = [row for row in rows if row[clock] is not None]
    data = table(
        backend=[row["backend"] for row in timed],
        name=[label(row["backend"]) for row in timed],
        dtype=[row["dtype"] for row in timed],
        ms=[row[clock] for row in timed],
        p10=[row[lower] for row in timed],
        p90=[row[upper] for row in timed],
        end=[max(row[clock], row[upper]) for row in timed],
        text=[ms(row[clock]) for row in timed],
        samples=[row[samples] for row in timed],
    )
    longest = max((max(row[clock], row[upper]) for row in timed), default=1.0)
    title = f"ms a call, {CLOCKS[clock]} (shorter is better)"
    scale = {"domain": [0, longest], "zero": True, "nice": False}
    shared = {
        "y": on("name:N", title=None, sort=None, axis={"labelLimit": 220, "ticks": False, "domain": False}),
        "tooltip": [
            on("name:N", title="backend"),
            on("dtype:N"),
            *(on(f"{field}:Q", title=f"{said}, ms", format=".4g") for field, said in TIMES_OF_BARS.items()),
            on("samples:Q", title="samples"),
        ],
    }
    colours = on("backend:N", scale={"domain": list(ORDER)}, legend=None)
    grey = {"color": {"value": NEUTRAL}}
    bar = {"x": on("ms:Q", title=title, axis={"tickCount": 6}, scale=scale), "color": colours}
    whisker = {"x": on("p10:Q"), "x2": {"field": "p90"}, **grey}
    figure = {"x": on("end:Q"), "text": on("text:N"), **grey}
    layers = [
        ({"type": "bar", "height": {"band": 0.55}, "cornerRadiusEnd": 2}, bar),
        ({"type": "rule", "strokeWidth": 1.5}, whisker),
        ({"type": "text", "align": "left", "dx": 8, "fontWeight": 600}, figure),
    ]
    # A chart as wide as the page counts its axis in its height: about 60 px
    return {
        "height": 40 * len(timed) + 60,
        "padding": {"left": 5, "top": 5, "right": 72, "bottom": 5},  # for the last bar's figure
        "data": data,
        "layer": [{"mark": mark, "encoding": {**shared, **encoding}} for mark, encoding in layers],
    }


@kept
def heatmap(
    array: np.ndarray,
    *,
    rows: str,
    columns: str,
    title: str = "",
    palette: Literal["diverging", "sequential"] = "diverging",
    limit: float | int | None = None,
    legend: str = "value",
    height: int = 360,
    row_start: int = 0,
    column_start: int = 0,
) -> alt.LayerChart | alt.Chart:
    """A (rows, columns) array with its axes and a legend: marks with figures up to 64 a side, a picture beyond.

    diverging runs from -limit to limit, sequential from 0 to limit; limit is the largest |value| unless given.
    What is not finite has a colour that stands on no scale; a line under the title says so.
    """
    largest = _largest(array) if limit is None else limit
    domain = (-largest, largest) if palette == "diverging" else (0.0, largest)
    colours = DIVERGING if palette == "diverging" else SEQUENTIAL
    scale = alt.Scale(domain=list(domain), range=list(colours), interpolate="rgb", clamp=True)
    colour_axis = alt.Legend(title=legend, orient="right", gradientLength=max(80, height - 60), format=".2~g")
    n, m = array.shape
    y_scale = alt.Scale(domain=[row_start, row_start + n], reverse=True, nice=False)
    x_scale = alt.Scale(domain=[column_start, column_start + m], nice=False)
    x_axis = alt.Axis(title=columns, grid=False, tickMinStep=1, format="d")
    y_axis = alt.Axis(title=rows, grid=False, tickMinStep=1, format="d")
    bad = int((~np.isfinite(array)).sum())
    words: dict[str, Any] = (
        {"subtitle": f"pink: {bad:,} values are NaN or infinite", "subtitleColor": NEUTRAL} if bad else {}
    )
    head = {"title": alt.Title(title, anchor="start", **words)} if title or bad else {}
    shape: dict[str, Any] = {"height": height, **head}
    if max(n, m) > LARGEST_CELLS:
        frame = [{"x": column_start, "y": row_start, "value": domain[0], "picture": picture(array, domain, colours)}]
        base = alt.Chart(alt.Data(values=frame))
        image = base.mark_image(
            align="left", baseline="top", aspect=False, width=alt.ExprRef("width"), height=alt.ExprRef("height")
        ).encode(
            x=alt.X("x:Q", scale=x_scale, axis=x_axis),
            y=alt.Y("y:Q", scale=y_scale, axis=y_axis),
            url=alt.Url("picture:N"),
        )
        scale_only = base.mark_point(opacity=0).encode(
            x=alt.X("x:Q"), y=alt.Y("y:Q"), color=alt.Color("value:Q", scale=scale, legend=colour_axis)
        )
        return alt.LayerChart(layer=[image, scale_only]).properties(**shape)
    i, j = np.indices(array.shape)
    cells = [
        {"r": int(r), "c": int(c), "v": float(v) if np.isfinite(v) else None, "text": f"{v:.4g}"}
        for r, c, v in zip((i + row_start).flat, (j + column_start).flat, array.flat, strict=True)
    ]  # fmt: skip
    return (
        alt.Chart(alt.Data(values=cells))
        .transform_calculate(r2="datum.r + 1", c2="datum.c + 1", value="isNumber(datum.v) ? datum.v : null")
        .mark_rect(invalid="show")
        .encode(
            x=alt.X("c:Q", scale=x_scale, axis=x_axis),
            x2=alt.X2("c2:Q"),
            y=alt.Y("r:Q", scale=y_scale, axis=y_axis),
            y2=alt.Y2("r2:Q"),
            # Not alt.condition, for which Altair tries every class that might fit: a tenth of a second
            color=alt.ColorValue(
                NOT_FINITE,
                condition={
                    "test": "isNumber(datum.v)",
                    "field": "value",
                    "type": "quantitative",
                    "scale": scale,
                    "legend": colour_axis,
                },
            ),
            tooltip=[
                alt.Tooltip("r:Q", title=rows),
                alt.Tooltip("c:Q", title=columns),
                alt.Tooltip("text:N", title=legend),
            ],
        )
        .properties(**shape)
    )


def _largest(array: np.ndarray) -> float:
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size and finite.max() > 0 else 1.0


def picture(array: np.ndarray, domain: tuple[float, float], colours: Sequence[str], least_side: int = 512) -> str:
    """The array as a PNG in a data: URL, a pixel or a square of pixels a cell, so that no browser blurs it."""
    from PIL import Image

    low, high = domain
    finite = np.isfinite(array)
    place = np.zeros(array.shape)
    np.divide(array - low, high - low, out=place, where=finite)
    index = np.where(finite, np.rint(np.clip(place, 0, 1) * 254), 255).astype(np.uint8)
    factor = max(1, -(-least_side // max(array.shape)))
    image = Image.fromarray(np.kron(index, np.ones((factor, factor), np.uint8)), mode="P")
    stops = np.array([[int(c[k : k + 2], 16) for k in (1, 3, 5)] for c in colours], float)
    levels = np.linspace(0, len(colours) - 1, 255)
    table = np.stack([np.interp(levels, np.arange(len(colours)), stops[:, k]) for k in range(3)], axis=1)
    last = [int(NOT_FINITE[k : k + 2], 16) for k in (1, 3, 5)]
    image.putpalette([*np.rint(table).astype(int).ravel().tolist(), *last])
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def say_bars(rows: Sequence[Row], clock: Clock = "wall_ms") -> str:
    """The bars in words, fastest first."""
    timed = sorted((row for row in rows if row[clock] is not None), key=lambda row: row[clock])
    others = [label(row["backend"]) for row in rows if row[clock] is None]
    said = ", ".join(f"{label(row['backend'])} {ms(row[clock])}" for row in timed) or "no backend has a time"
    shape = " ".join(f"{letter}={rows[0][name]}" for name, letter in AXIS_LETTERS.items()) if rows else ""
    rest = f"; without a time: {', '.join(others)}" if others else ""
    return f"Time of one call at {shape}, {CLOCKS[clock]}: {said}{rest}"


def say_heatmap(array: np.ndarray, *, what: str, rows: str, columns: str) -> str:
    """A heatmap in words: what, its shape, its range, and where its largest value stands."""
    finite = np.isfinite(array)
    if not finite.any():
        return f"{what}: {array.shape[0]} {rows} by {array.shape[1]} {columns}, no finite value"
    size = np.where(finite, np.abs(array), -1.0)
    r, c = np.unravel_index(int(size.argmax()), array.shape)
    bad = int((~finite).sum())
    return (
        f"{what}: {array.shape[0]} {rows} by {array.shape[1]} {columns}, from {array[finite].min():.3g} to "
        f"{array[finite].max():.3g}, the largest in size at row {r}, column {c}"
        + (f"; {bad} values are not finite" if bad else "")
    )


def say_difference(off: np.ndarray) -> str:
    """The largest difference and where it stands, in words."""
    finite = np.isfinite(off)
    if not finite.all():
        return f"at {int((~finite).sum()):,} of {off.size:,} elements one of the two is NaN or infinite"
    r, c = np.unravel_index(int(np.abs(off).argmax()), off.shape)
    return f"largest difference {np.abs(off).max():.3g} (row {r}, column {c}), mean {np.abs(off).mean():.3g}"
