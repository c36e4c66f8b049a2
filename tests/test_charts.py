"""Charts: read as specifications, never as pixels (but for the one picture that is sent as pixels)."""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pytest

from explorer import charts, charts_time, curves, measure, record, recordings
from explorer.backends import BACKENDS
from explorer.problem import AXIS_LETTERS

ROOT = Path(__file__).resolve().parent.parent
THEME = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())["theme"]


def row(backend: str, wall: float | None, device: float | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"backend": backend, "dtype": "float32", **dict.fromkeys(AXIS_LETTERS, 2)}
    for clock, median in (("wall", wall), ("device", device)):
        found[f"{clock}_ms"] = median
        found[f"{clock}_p10_ms"] = median and median * 0.9
        found[f"{clock}_p90_ms"] = median and median * 1.2
        found[f"{clock}_samples"] = median and 50
    return found


ROWS = [row("naive", 2.1), row("xla", 1.2), row("cudnn", None)]


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_backend_has_its_own_colour_and_shape() -> None:
    count = len(BACKENDS)
    for palette in charts.COLOURS.values():
        assert len(set(palette)) == count
    assert len(set(charts.SHAPES)) == len(set(charts.SIGNS)) == count


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_the_theme_gives_each_backend_its_colour(mode: charts.Mode) -> None:
    assert tuple(THEME[mode]["chartCategoricalColors"][: len(BACKENDS)]) == charts.COLOURS[mode]
    background = THEME[mode]["backgroundColor"]
    assert min(contrast(colour, background) for colour in charts.COLOURS[mode]) >= 3  # WCAG 1.4.11, graphics
    assert contrast(charts.NEUTRAL, background) >= 3


def test_colours_don_t_move_with_what_is_shown() -> None:
    drawn: list[Any] = [charts.backend_colour(rows).to_dict() for rows in (ROWS, ROWS[1:2])]
    scales = [one["scale"] for one in drawn]
    assert scales[0] == scales[1] == {"domain": list(BACKENDS)}


def test_bars_start_at_zero_and_say_which_direction_is_better() -> None:
    spec = charts.whole(charts.bars(ROWS))
    alt.LayerChart.from_dict(spec).to_dict()  # Vega-Lite's schema holds
    bar, whisker, figure = spec["layer"]
    assert bar["encoding"]["x"]["scale"]["zero"] is True
    assert "shorter is better" in bar["encoding"]["x"]["title"]
    assert "wall clock" in bar["encoding"]["x"]["title"]
    assert (whisker["encoding"]["x"]["field"], whisker["encoding"]["x2"]["field"]) == ("p10", "p90")
    assert figure["encoding"]["text"]["field"] == "text"
    values = spec["data"]["values"]
    assert [value["backend"] for value in values] == ["naive", "xla"]  # what has no time has no bar of length 0
    assert [value["text"] for value in values] == ["2.10 ms", "1.20 ms"]


def test_bars_of_the_device_clock() -> None:
    spec = charts.whole(charts.bars([row("cudnn", 0.137, 0.0065), *ROWS], "device_ms"))
    assert [value["text"] for value in spec["data"]["values"]] == ["6.50 µs"]
    assert "device clock" in spec["layer"][0]["encoding"]["x"]["title"]


def test_bars_in_words() -> None:
    assert charts.say_bars(ROWS) == (
        "Time of one call at B=2 T=2 S=2 N=2 K=2 H=2, wall clock: SDPA XLA 1.20 ms, Naive JAX 2.10 ms; "
        "without a time: SDPA cuDNN"
    )
    assert "no backend has a time" in charts.say_bars(ROWS[2:])


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0065, "6.50 µs"), (0.137, "0.137 ms"), (1, "1.00 ms"), (12.34, "12.3 ms"), (999, "999 ms"), (1234, "1.23 s"),
     (None, "—"), (math.nan, "—")],
)  # fmt: skip
def test_times_in_words(value: float | None, said: str) -> None:
    assert charts.ms(value) == said


def test_a_small_heatmap_has_a_mark_a_cell() -> None:
    array = np.array([[1.0, -2.0], [np.nan, 0.5]])
    spec = charts.heatmap(array, rows="query", columns="dim").to_dict()
    assert spec["mark"]["type"] == "rect"
    assert [v["v"] for v in spec["data"]["values"]] == [1.0, -2.0, None, 0.5]
    assert [v["text"] for v in spec["data"]["values"]] == ["1", "-2", "nan", "0.5"]
    colour = spec["encoding"]["color"]
    assert colour["condition"]["scale"]["domain"] == [-2.0, 2.0]
    assert colour["value"] == charts.NOT_FINITE  # what isn't finite stands on no scale
    assert (spec["encoding"]["y"]["axis"]["title"], spec["encoding"]["x"]["axis"]["title"]) == ("query", "dim")


def test_a_chart_s_data_goes_as_a_table_of_one_kind_a_column() -> None:
    drawn = charts.heatmap(np.array([[1.0, np.nan, np.inf]]), rows="query", columns="dim")
    first, again = charts.spec(drawn), charts.spec(drawn)
    table = first["datasets"]["inline"]
    assert first["data"] == {"name": "inline"}
    assert table.to_pydict()["v"] == [1.0, None, None]
    assert table.to_pydict()["text"] == ["1", "nan", "inf"]
    assert again == first
    assert again is not first  # Streamlit takes the data out of what it gets
    del first["datasets"]
    assert "datasets" in charts.spec(drawn)


def test_drawings_of_one_name_in_two_modules_are_kept_apart() -> None:
    def bars(rows: int) -> str:
        return f"other {rows}"

    def again(rows: int) -> str:
        return f"first {rows}"

    again.__name__, again.__qualname__, again.__module__ = bars.__name__, bars.__qualname__, "elsewhere"
    first, other = charts.kept(again), charts.kept(bars)
    assert (first(1), other(1), first(2), first(1)) == ("first 1", "other 1", "first 2", "first 1")


def decoded(spec: dict[str, Any]) -> np.ndarray:
    from PIL import Image

    url = spec["data"]["values"][0]["picture"]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB"))


def test_a_large_heatmap_is_a_picture_with_axes_and_legend() -> None:
    array = np.zeros((128, 64))
    array[3, 5], array[4, 5], array[5, 5] = 1.0, -1.0, np.nan
    spec = charts.heatmap(array, rows="query", columns="dim").to_dict()
    assert len(json.dumps(spec)) < 20_000
    image, scale_only = spec["layer"]
    assert image["mark"]["type"] == "image"
    assert image["encoding"]["y"]["axis"]["title"] == "query"
    assert scale_only["encoding"]["color"]["legend"]["title"] == "value"
    pixels = decoded(spec)
    factor = pixels.shape[0] // 128
    assert pixels.shape == (128 * factor, 64 * factor, 3)

    def cell(r: int, c: int) -> str:
        return "#{:02X}{:02X}{:02X}".format(*pixels[r * factor, c * factor])

    assert (cell(3, 5), cell(4, 5), cell(5, 5)) == (charts.DIVERGING[-1], charts.DIVERGING[0], charts.NOT_FINITE)
    assert cell(0, 0) == charts.DIVERGING[len(charts.DIVERGING) // 2]


def test_heatmaps_in_words() -> None:
    array = np.array([[1.0, -2.0], [np.nan, 0.5]])
    said = charts.say_heatmap(array, what="Output of naive", rows="query", columns="dim")
    assert said.startswith("Output of naive: 2 query by 2 dim, from -2 to 1, the largest in size at row 0, column 1")
    assert said.endswith("1 values are not finite")
    assert charts.say_difference(np.array([[0.0, -3.0]])) == "largest difference 3 (row 0, column 1), mean 1.5"


def test_the_sign_of_a_gap_stands_within_the_plot_as_a_page_draws_it() -> None:
    vl_convert = pytest.importorskip("vl_convert")
    made = [each for each in recordings.load("lab-sequence").records if each.backend == "xla"]
    gap = measure.blank(made[-1].problem.but(q_len=2048, kv_len=2048), "xla", "refused", "no room")
    rows = curves.labelled(record.rows([*made, gap]), "q_len")
    drawn = charts_time.times(rows, "q_len", "wall_ms").to_dict()
    # Streamlit gives a chart its width and this, so that the plot is what the axes and the legend leave of the height
    svg = vl_convert.vegalite_to_svg({**drawn, "width": 700, "autosize": {"type": "fit", "contains": "padding"}})
    (height,) = re.findall(r'class="background"[^>]* d="M0.5,0.5h\d+v(\d+)h', svg)
    (place,) = re.findall(rf"translate\(\d+,(\d+)\)[^>]*>{charts_time.GAP_SIGN}<", svg)
    assert 0 < int(place) < int(height)


def causal_pair(causal: tuple[float, float, float], full: tuple[float, float, float]) -> list[dict[str, Any]]:
    names = ("wall_ms", "wall_p10_ms", "wall_p90_ms")
    times = {"causal": causal, "full": full}
    return [
        {**row("naive", 1.0), "mask": mask, "where": "here"} | dict(zip(names, times[mask], strict=True))
        for mask in times
    ]


@pytest.mark.parametrize(
    ("causal", "full", "says"),
    [
        ((0.5, 0.49, 0.52), (1.0, 0.98, 1.02), "skips the masked half"),
        ((1.0, 0.98, 1.02), (1.0, 0.98, 1.02), "does the full work"),
        ((0.55, 0.5, 1.3), (1.0, 0.9, 1.9), "may skip the masked half: its times spread too far to say"),
        ((1.0, 0.5, 1.3), (1.0, 0.9, 1.9), "may do the full work: its times spread too far to say"),
        ((0.8, 0.79, 0.81), (1.0, 0.98, 1.02), "between"),
    ],
)
def test_who_skips_the_masked_half_is_said_only_where_the_times_agree(
    causal: tuple[float, float, float], full: tuple[float, float, float], says: str
) -> None:
    (found,) = curves.causal_shares(causal_pair(causal, full), "wall_ms")
    assert found["says"] == says


def test_many_places_are_thinned_evenly_and_whole_and_few_are_not() -> None:
    rows = [{"q_len": 64 * n, "series": name} for n in range(1, 1251) for name in ("a", "b")]
    for log in (True, False):
        kept = curves.thin(rows, "q_len", log=log)
        places = sorted({row["q_len"] for row in kept})
        assert curves.MOST / 2 < len(places) <= curves.MOST + 1
        assert (places[0], places[-1]) == (64, 64 * 1250)
        assert len(kept) == 2 * len(places)
        assert all(row in rows for row in kept[:20])
        at = [math.log(place) if log else place for place in places]
        steps = [b - a for a, b in itertools.pairwise(at)]
        assert max(steps[len(steps) // 2 :]) < 3 * (at[-1] - at[0]) / curves.MOST
    assert curves.thin(rows[: 2 * curves.MOST], "q_len", log=True) == rows[: 2 * curves.MOST]
