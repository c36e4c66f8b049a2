"""The charts of Steps, Masks and Heads, read from their dicts; mask pictures must be small and tell states apart."""

from __future__ import annotations

import io
import json
from typing import Any

import altair as alt
import numpy as np
import pytest

from explorer import charts, charts_heads, charts_masks, charts_steps, heads, recover, steps
from explorer.masks import Mask
from explorer.problem import Problem
from explorer.recover import LEAKED, MISSED, NAN, SEEN

CAUSAL = Mask(causal=True)


def taken_apart(tokens: int = 6) -> steps.Steps:
    q, k, v = steps.inputs(Problem.of(batch=1, q_len=tokens, heads=1, head_dim=4), "random")
    return steps.apart(q, k, v, mask=CAUSAL, scale=0.5)


def text(drawing: charts.Plain) -> str:
    """As JSON, which has no NaN, and checked against Vega-Lite's schema, which charts.spec does not do."""
    return json.dumps(alt.LayerChart.from_dict(charts.whole(drawing)).to_dict(), allow_nan=False)


def faulty(size: int) -> np.ndarray:
    states = charts_masks.intended(CAUSAL.dense(size, size))
    states[0, 1], states[2, 0] = LEAKED, MISSED
    return states


def pixels(png: bytes) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def test_an_array_leaves_masked_cells_blank_and_frames_the_row() -> None:
    found = taken_apart()
    chart = charts_steps.array(found.scaled, title="2", subtitle="s", columns="key", palette="diverging", row=3)
    cells, frame = chart["layer"]
    assert len(cells["data"]) == 21  # 6 · 7 / 2 live ones
    assert frame["data"].to_pylist() == [{"query": 3}]
    assert charts_steps.PICK in json.dumps(chart["params"])


def test_following_a_query_ends_in_the_output() -> None:
    found = taken_apart()
    drawn = charts_steps.follow(found, 4)
    table = drawn.mixture["layer"][0]["data"].to_pylist()
    total = [row["value"] for row in table if row["key"] == "Σ"]
    assert total == pytest.approx(found.output[4].tolist(), rel=1e-5)
    assert "1.000" in text(drawn.weights)


def drawings() -> dict[str, charts.Plain]:
    """One of each kind of the Steps and Masks pages, and of those that hold a picture."""
    found = taken_apart()
    blocks = steps.online(found.q, found.k, found.v, mask=CAUSAL, scale=found.scale, block=2)
    drawn = charts_steps.follow(found, 4)
    refused = recover.Recovered(problem=Problem.of(), backend="xla", verdict="refused", sentence="s")
    small, large = np.full((12, 12), 0.5), np.full((70, 70), 0.5)
    small[0, 0] = np.nan
    return {
        "array": charts_steps.array(found.scaled, title="a", subtitle="s", columns="key", palette="diverging", row=1),
        "scores": drawn.scores,
        "weights": drawn.weights,
        "mixture": drawn.mixture,
        "so far": charts_steps.so_far(blocks, found, 0, 1),
        "maximum": charts_steps.running(blocks, 0, 1)[0],
        "sum": charts_steps.running(blocks, 0, 1)[1],
        "traffic": charts_steps.traffic(steps.bytes_moved(Problem.of())),
        "bars": charts_steps.bars([("a", 1, "x")]),
        "cells": charts_masks.cells(faulty(12), title="c"),
        "picture": charts_masks.cells(faulty(70), title="c"),
        "executed": charts_masks.weights(small, title="w"),
        "executed, picture": charts_masks.weights(large, title="w"),
        "position": charts_masks.per_position(np.array([0.5, 0.0])),
        "verdicts": charts_masks.verdict_grid([refused]),
    }


@pytest.mark.parametrize("name", drawings())
def test_each_drawing_is_vega_lite(name: str) -> None:
    assert '"layer"' in text(drawings()[name])


def sent(drawing: charts.Plain) -> str:
    """What decides whether a browser draws anew: the specification, in which each table stands by its name."""
    found = charts.spec(drawing)
    assert all(isinstance(table, bytes) for table in found.pop("datasets").values())
    return json.dumps(found)


def test_whatever_changes_in_a_picture_is_sent_anew() -> None:
    found = taken_apart()
    other = found.scores.copy()
    other[2, 2] += 1e-3  # a cell within the scale: nothing but the data changes
    blocks = steps.online(found.q, found.k, found.v, mask=CAUSAL, scale=found.scale, block=2)
    words: Any = {"title": "a", "subtitle": "s", "columns": "key", "palette": "diverging"}
    arrays = [charts_steps.array(values, row=row, **words) for values in (found.scores, other) for row in (0, 1)]
    follows = [getattr(charts_steps.follow(found, row), kind) for row in (3, 4) for kind in ("scores", "weights")]
    online = [charts_steps.so_far(blocks, found, row, shown) for row in (4, 5) for shown in (0, 1)]
    sums = [charts_steps.running(blocks, row, shown)[1] for row in (4, 5) for shown in (0, 1)]
    masks = []
    for size in (12, 70):
        states = faulty(size)
        moved = states.copy()
        moved[[2, 3], 0] = moved[[3, 2], 0]  # the missed key one row further down
        masks += [charts_masks.cells(states, title="c"), charts_masks.cells(moved, title="c")]
        masks += [charts_masks.difference(states), charts_masks.difference(moved)]
    for group in (arrays, follows, online, sums, masks):
        assert len({sent(drawing) for drawing in group}) == len(group)
    assert sent(arrays[0]) == sent(charts_steps.array(found.scores.copy(), row=0, **words))


def test_a_large_mask_is_one_small_picture() -> None:
    for mask in (CAUSAL, Mask(window=(40, 8)), Mask(kv_valid=300)):
        states = charts_masks.intended(mask.dense(512, 512))
        states[300:330, 100:300] = LEAKED
        states[400:430, 0:50] = MISSED
        png = charts_masks.cells_png(states)
        assert len(png) < 50_000
        assert pixels(png).shape == (512, 512, 3)
        assert len(text(charts_masks.cells(states, title="x"))) < 70_000  # base64 and axes included


@pytest.mark.parametrize("state", [LEAKED, MISSED, NAN])
def test_wrong_cells_are_told_apart_without_colour(state: int) -> None:
    """Each wrong state has a pattern of two grey tones; what is right has one."""
    plain = pixels(charts_masks.cells_png(np.full((512, 512), SEEN, np.uint8)))
    wrong = pixels(charts_masks.cells_png(np.full((512, 512), state, np.uint8)))
    assert len(np.unique(plain.reshape(-1, 3), axis=0)) == 1
    tones = np.unique(wrong.reshape(-1, 3).astype(float) @ [0.2126, 0.7152, 0.0722])
    assert len(tones) == 2
    assert np.ptp(tones) > 60


def test_patterns_differ_from_each_other() -> None:
    shapes = []
    for state in (LEAKED, MISSED, NAN):
        picture = pixels(charts_masks.cells_png(np.full((512, 512), state, np.uint8)))
        shapes.append((picture == picture[1, 3]).all(axis=2)[:24, :24])
    assert not any(np.array_equal(shapes[a], shapes[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def test_small_masks_mark_the_wrong_cells_by_shape() -> None:
    drawn = text(charts_masks.cells(faulty(12), title="x"))
    assert "cross" in drawn
    assert "circle" in drawn
    assert "triangle" not in drawn


def test_a_mask_in_words() -> None:
    said = charts_masks.say_cells(faulty(12), "XLA")
    assert said.startswith("XLA: 12 queries by 12 keys, 77 seen, 65 hidden, 1 ✚ leaked")
    assert said.endswith("the first wrong one is query 0, key 1")


def test_the_verdict_grid_has_a_sign_for_each_verdict() -> None:
    found = [
        recover.Recovered(problem=case.problem(), backend="xla", verdict=verdict, sentence="s")
        for case, verdict in zip(recover.CASES.values(), recover.VERDICTS, strict=False)
    ]
    table = charts_masks.verdict_grid(found)["data"].to_pylist()
    assert [row["sign"] for row in table] == [charts_masks.VERDICT_SIGNS[r.verdict] for r in found]
    assert [row["mask"] for row in table] == [case.label for case in recover.CASES.values()][: len(table)]
    assert set(charts_masks.VERDICT_SIGNS) == set(charts_masks.VERDICT_COLOURS) == set(recover.VERDICTS)


def test_the_head_map_links_each_query_head_to_what_it_reads() -> None:
    drawn = charts_heads.head_map(6, 3).to_dict()
    lines = next(data for data in drawn["datasets"].values() if "q" in data[0])
    assert [(row["x"], row["x2"]) for row in lines] == [(0.5, 1), (1.5, 1), (2.5, 3), (3.5, 3), (4.5, 5), (5.5, 5)]


def test_what_does_not_fit_is_named() -> None:
    cache = heads.Cache.of(heads.MODELS["llama3-8b"], "bfloat16")
    fits = heads.fits(cache, context=8192, batch=16, weights_bytes=16e9)
    drawn = charts_heads.fit_bars(fits, cache_bytes=16 * 2**30, weights_bytes=16e9).to_dict()
    rows = next(data for data in drawn["datasets"].values() if "part" in data[0])
    by_gpu = {row["gpu"]: row["part"] for row in rows if row["part"] != charts_heads.WEIGHTS}
    assert by_gpu["L4"] == charts_heads.TOO_LARGE
    assert by_gpu["H200"] == charts_heads.CACHE
