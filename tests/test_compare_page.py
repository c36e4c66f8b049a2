"""The Compare page under AppTest, and its chart by its specification. No worker is needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from page import APP, said, texts
from streamlit.testing.v1 import AppTest

from explorer import charts_compare, compare, export, record, recordings
from explorer.problem import Problem
from explorer.record import Record, Samples, Timing
from explorer.ui import compare as page

NASTY = "<img src=x onerror=alert(1)> **bold** :red[x] [a](http://b) $x$"


def made(factor: float = 1.0, **changes: Any) -> Record:
    times = tuple(factor * t for t in (1.0, 1.01, 0.99, 1.0, 1.02, 1.0))
    timing = Timing(lower_ms=1.0, compile_ms=2.0, cache_hit=False, first_call_ms=3.0, wall_ms=Samples(times))
    values: dict[str, Any] = {"problem": Problem(), "backend": "naive", "status": "ok", "timing": timing}
    return Record(**{**values, "environment": {"gpu": "NVIDIA H200"}, **changes})


def opened(**params: str) -> AppTest:
    test = AppTest.from_file(str(APP), default_timeout=60)
    test.query_params.update({"backend": "", **params})
    return test.switch_page("pages/compare.py").run()


def figures(test: AppTest) -> dict[str, str]:
    return {metric.label[2:]: str(metric.value) for metric in test.metric}


def cells(test: AppTest) -> str:
    return "\n".join(str(frame.value.to_csv()) for frame in test.dataframe)


@pytest.mark.skipif(not {"te-sweep", "causal-16k"} <= set(recordings.names()), reason="not shipped")
def test_two_shipped_recordings_and_one_with_itself() -> None:
    test = opened()
    assert not test.exception
    assert said(test, r"^B is slower than 1\.05 × A at 1 of 13 points")  # XLA at T=256: 10 %, the other is 4 %
    assert figures(test) == {"faster": "0", "slower": "2", "too close to call": "11", "not compared": "18"}
    assert len(test.get("vega_lite_chart")) == 1
    assert "only in A" in cells(test)
    same = test.selectbox(key="compare_b").set_value("te-sweep").run()
    assert not same.exception
    assert said(same, r"^B is nowhere slower than 1\.05 × A, at 23 points")
    assert figures(same)["too close to call"] == "23"


def test_a_link_s_recording_that_is_not_here_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLORER_RECORDINGS", str(tmp_path))
    record.write_lines(tmp_path / "mine.jsonl", [made()])
    test = opened(compare_a="mine", compare_b="elsewhere")
    assert not test.exception
    assert said(test, "This link's recording is not here: elsewhere")


def test_texts_of_a_recording_are_no_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, reasons, environments and broken lines: what stands in Markdown is escaped, the rest are table cells."""
    monkeypatch.setenv("EXPLORER_RECORDINGS", str(tmp_path))
    strange: dict[str, Any] = {"environment": {"gpu": NASTY, "jax": NASTY}}
    refused = made(backend=f"xla{NASTY}").but(status="refused", reason=NASTY, timing=None)
    record.write_lines(tmp_path / "a.jsonl", [made(**strange), made(**strange, problem=Problem(seed=1)), refused])
    record.write_lines(tmp_path / "b.jsonl", [made(2.0, **strange), made(backend=NASTY)])
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write(f'{{"schema": "{NASTY}"}}\n{{"schema": 1, "pro')
    test = opened(compare_a="a", compare_b="b")
    assert not test.exception
    assert figures(test) == {"faster": "0", "slower": "1", "too close to call": "0", "not compared": "3"}
    assert said(test, r"line 4 of b\\?\.jsonl was left out")
    shown = [text for text in texts(test) if "img" in text]
    assert len(shown) >= 3  # both labels, and the broken line
    for text in shown:
        assert not re.search(r"(?<!\\)(<img|\*\*bold|\[x\]|\[a\])|:red|(?<!\\)\$", text), text
    assert NASTY in cells(test)


def test_what_was_ok_and_fails_now_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLORER_RECORDINGS", str(tmp_path))
    record.write_lines(tmp_path / "a.jsonl", [made(), made(backend="xla")])
    record.write_lines(
        tmp_path / "b.jsonl", [made(), made(backend="xla").but(status="failed", reason="boom", timing=None)]
    )
    test = opened(compare_a="a", compare_b="b")
    assert said(test, "1 points that were ok in A fail or disagree in B")
    assert "lost: failed in B: boom" in cells(test)


def test_a_file_of_one_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLORER_RECORDINGS", str(tmp_path))
    record.write_lines(tmp_path / "a.jsonl", [made()])
    test = opened(compare_a="a", compare_b=page.OWN)
    assert not test.exception
    assert said(test, "^Choose two recordings")
    text = record.line(made(2.0)) + "\n{"
    test.file_uploader(key="compare_b_file").set_value(("mine.jsonl", text.encode(), "application/jsonl")).run()
    assert not test.exception
    assert figures(test)["slower"] == "1"
    assert said(test, "line 2 of mine")


# --- the chart


def rows() -> list[dict[str, Any]]:
    a = [made(), made(backend="xla"), made(backend="auto")]
    b = [made(2.0), made(0.5, backend="xla"), made(backend="auto")]
    return page.rows_of(compare.compare(a, b))


def test_faster_and_slower_differ_in_shape_word_and_colour() -> None:
    drawn = charts_compare.ratios(rows(), 1.05).to_dict()
    points = next(layer for layer in drawn["layer"] if layer["mark"]["type"] == "point")
    scales = [points["encoding"][name]["scale"] for name in ("shape", "color")]
    assert [scale["domain"] for scale in scales] == [list(compare.VERDICTS)] * 2
    assert all(len(set(scale["range"])) == 3 for scale in scales)
    data = points["data"]["values"] if "data" in points else drawn["datasets"][points["data"]["name"]]
    assert [row["end"] for row in data] == ["2.000 × slower", "0.500 × faster", "1.000 × too close to call"]


def test_every_interval_is_on_the_axis_and_1_has_a_tick() -> None:
    drawn = charts_compare.ratios(rows(), 1.05).to_dict()
    x = next(layer for layer in drawn["layer"] if layer["mark"]["type"] == "point")["encoding"]["x"]
    low, high = x["scale"]["domain"]
    assert all(low < row["low"] and row["high"] < high for row in rows())
    assert 1 in x["axis"]["values"]


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.1), (0.01, 1.2), (0.9, 1000), (0.001, 1000)])
def test_ticks_stand_apart(low: float, high: float) -> None:
    found = charts_compare.ticks(low, high)
    assert 2 <= len(found) <= 12
    assert 1 in found


def test_the_chart_in_words_and_as_a_picture() -> None:
    said = charts_compare.say_ratios(rows())
    assert said.startswith("Time of B over A at 3 points: 1 faster, 1 slower, 1 too close to call; from 0.5 (")
    pytest.importorskip("vl_convert", reason="pictures need vl-convert-python")
    assert "2.000 × slower" in export.to_svg(charts_compare.ratios(rows(), 1.05).to_dict())
