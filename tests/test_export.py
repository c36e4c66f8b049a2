"""Export: tables and lines that read back the same, pictures, and a script that needs only JAX."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from explorer import charts_time, clock, curves, export, measure, record, recordings
from explorer.problem import Problem
from explorer.record import Record

TINY = Problem(batch=1, q_len=32, kv_len=32, heads=4, kv_heads=4, head_dim=16)


@pytest.fixture(scope="module")
def made() -> list[Record]:
    """One with times, one refused."""
    return list(measure.run(TINY, ["xla", "cudnn"], protocol=clock.Protocol(warmup=1, repeats=5)))


def test_csv_has_empty_cells_for_what_is_missing(made: list[Record]) -> None:
    timed, refused = csv.DictReader(io.StringIO(export.to_csv(made)))
    assert timed["backend"] == "xla"
    assert float(timed["wall_ms"]) == pytest.approx(_wall(made[0]))
    assert timed["device_ms"] == ""
    assert (refused["status"], refused["wall_ms"], refused["tflops"]) == ("refused", "", "")


def test_lines_read_back_as_the_same_records(made: list[Record]) -> None:
    """But marked as recorded: what comes from a file was not measured now."""
    lines = export.to_json_lines(made).splitlines()
    found = [Record.from_json(json.loads(line)) for line in lines]
    assert found == [replace(each, recorded=True) for each in made]


def test_nothing_to_export_is_an_empty_file() -> None:
    assert (export.to_csv([]), export.to_json_lines([])) == ("", "")


def test_figures_that_json_has_not_become_null() -> None:
    assert json.loads(export.rows_to_json_lines([{"a": float("nan"), "b": float("inf"), "c": 1}])) == {
        "a": None, "b": None, "c": 1
    }  # fmt: skip


def _wall(found: Record) -> float:
    assert found.timing is not None
    return found.timing.wall_ms.median


# --- the script


def _run(text: str, folder: Path) -> float:
    """The median that the script prints, on its own in an empty folder."""
    file = folder / "alone.py"
    file.write_text(text)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, cwd=folder, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    number = r"(\d+\.\d+)"
    lines = [
        rf"wall median {number} ms of 5 calls, p10 {number}, p90 {number}",
        rf"recorded +{number} ms of 5 calls, p10 {number}, p90 {number}",
    ]
    found = [re.fullmatch(line, said) for line, said in zip(lines, done.stdout.splitlines()[-2:], strict=True)]
    assert all(found), done.stdout
    for each in found:
        assert each is not None
        median, low, high = map(float, each.groups())
        assert 0 < low <= median <= high
    assert found[0] is not None
    return float(found[0][1])


def _check(text: str) -> None:
    compile(text, "exported", "exec")
    assert len(text.splitlines()) < 60
    assert "explorer" not in text


def test_the_script_prints_a_wall_median(made: list[Record], tmp_path: Path) -> None:
    text = export.script(made[0])
    _check(text)
    assert f"recorded    {_wall(made[0]):.4f} ms of 5 calls, p10 " in text
    assert 0 < _run(text, tmp_path) < 1000 * _wall(made[0])


def test_the_longest_script_runs_too(made: list[Record], tmp_path: Path) -> None:
    """Naive with every mask, shared keys and the backward pass."""
    hard = TINY.but(kv_heads=2, causal=True, window=(8, 0), kv_valid=20, backward=True, input_scale=2.0)
    (found,) = measure.run(hard, ["naive"], protocol=clock.Protocol(warmup=1, repeats=5))
    text = export.script(found)
    _check(text)
    assert _run(text, tmp_path) > 0


@pytest.mark.parametrize("change", [{"causal": True}, {"window": (4, 4)}, {"kv_valid": 7}, {"kv_heads": 1}])
@pytest.mark.parametrize("backend", ["naive", "auto", "xla", "cudnn"])
def test_the_script_computes_what_the_backend_does(made: list[Record], backend: str, change: dict[str, Any]) -> None:
    """Its attend against the backend's own, on the same numbers; cuDNN has no GPU here, so XLA stands in for it."""
    import jax
    import numpy as np

    from explorer.backends import BACKENDS

    problem = TINY.but(**change)
    text = export._attend(backend, problem).replace("'cudnn'", "'xla'")
    names: dict[str, Any] = {"jax": jax, "jnp": jax.numpy}
    exec(text, names)
    draw = np.random.default_rng(0).standard_normal
    q, k, v = (draw(s, np.float32) for s in (problem.q_shape, problem.kv_shape, problem.kv_shape))
    expected = BACKENDS["naive"].attend(q, k, v, mask=problem.mask)
    np.testing.assert_allclose(names["attend"](q, k, v), expected, atol=1e-5)


def test_a_script_without_times_is_refused(made: list[Record]) -> None:
    with pytest.raises(ValueError, match="a record with times, got status refused"):
        export.script(made[1])


def test_every_shipped_record_has_a_script_or_a_reason() -> None:
    for name in recordings.names():
        for found in recordings.load(name).records:
            try:
                _check(export.script(found))
            except ValueError as error:
                assert str(error).startswith("a script ")  # noqa: PT017 - either is right, for some records each


# --- pictures


@pytest.fixture(scope="module")
def drawing(made: list[Record]) -> dict[str, Any]:
    pytest.importorskip("vl_convert", reason="pictures need vl-convert-python")
    return charts_time.export(charts_time.bars(curves.labelled(record.rows(made), "q_len"), "wall_ms"))


def test_png(drawing: dict[str, Any]) -> None:
    picture = export.to_png(drawing)
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", picture[16:24])
    assert width > 600
    assert height > 50


def test_svg_says_what_the_chart_says(drawing: dict[str, Any]) -> None:
    picture = export.to_svg(drawing)
    assert picture.startswith("<svg")
    assert "shorter is better" in picture


def test_the_picture_library_is_loaded_only_when_exporting() -> None:
    code = "import sys, explorer.export, explorer.ui.exports; print('vl_convert' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split()[-1] == "False"
