"""Record: statistics by hand, what a record may not be, and lines that come back as they went."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from explorer import record
from explorer.problem import Problem
from explorer.record import Record, Samples, Timing


def timing(**changes: Any) -> Timing:
    values: dict[str, Any] = {
        "lower_ms": 1.0,
        "compile_ms": 2.0,
        "cache_hit": False,
        "first_call_ms": 3.0,
        "wall_ms": Samples((1.0, 2.0, 4.0)),
    }
    return Timing(**(values | changes))


def test_statistics_by_hand() -> None:
    samples = Samples((4.0, 1.0, 2.0, 3.0))
    assert samples.median == 2.5
    assert samples.p10 == pytest.approx(1.3)
    assert samples.p90 == pytest.approx(3.7)
    assert Samples((5.0,)).p10 == Samples((5.0,)).median == 5.0


def test_the_interval_of_the_median_is_inside_the_samples_and_narrows() -> None:
    few, many = Samples(tuple(map(float, range(1, 11)))), Samples(tuple(float(i % 10 + 1) for i in range(1000)))
    low, high = few.median_interval
    assert 1.0 <= low < few.median < high <= 10.0
    assert many.median_interval[1] - many.median_interval[0] < high - low


@pytest.mark.parametrize("values", [(), (0.0,), (-1.0,), (float("nan"),), (float("inf"),)])
def test_a_sample_is_a_positive_time(values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="positive times"):
        Samples(values)


def test_times_exist_exactly_if_ok() -> None:
    with pytest.raises(ValueError, match="timing must be there exactly if status is ok"):
        Record(problem=Problem(), backend="naive", status="ok")
    with pytest.raises(ValueError, match="timing must be there exactly if status is ok"):
        Record(problem=Problem(), backend="naive", status="disagrees", reason="off", timing=timing())


def test_what_is_not_ok_needs_a_reason_and_a_known_status() -> None:
    with pytest.raises(ValueError, match="needs a reason"):
        Record(problem=Problem(), backend="naive", status="refused")
    with pytest.raises(ValueError, match="status must be one of"):
        Record(problem=Problem(), backend="naive", status="fine", reason="x")


def test_lines_come_back_and_a_broken_one_is_named(tmp_path: Path) -> None:
    made = Record(problem=Problem(window=(3, 0)), backend="naive", status="ok", timing=timing())
    file = tmp_path / "a.jsonl"
    record.write_lines(file, [made])
    record.write_lines(file, [made.but(backend="xla")], append=True)
    with file.open("a") as handle:
        handle.write('{"schema": 1, "problem"')
    read, losses = record.read_lines(file)
    assert [r.backend for r in read] == ["naive", "xla"]
    assert all(r.recorded for r in read)
    assert read[0].timing == made.timing
    assert read[0].problem == made.problem
    assert len(losses) == 1
    assert losses[0].startswith("line 3 of a.jsonl was left out")


def test_another_schema_or_a_missing_part_is_said() -> None:
    made = Record(problem=Problem(), backend="naive", status="ok", timing=timing()).to_json()
    with pytest.raises(ValueError, match="schema 1 is needed, got schema 9"):
        Record.from_json(made | {"schema": 9})
    with pytest.raises(ValueError, match="without 'evidence'"):
        Record.from_json({k: v for k, v in made.items() if k != "evidence"})


def test_json_holds_null_for_what_is_not_finite() -> None:
    made = Record(
        problem=Problem(),
        backend="naive",
        status="disagrees",
        reason="NaN",
        accuracy={"rmse": float("nan"), "n": [1.5]},
    )
    assert json.loads(record.line(made))["accuracy"] == {"rmse": None, "n": [1.5]}


def test_a_row_has_none_for_what_was_not_measured() -> None:
    row = record.row(Record(problem=Problem(), backend="cudnn", status="refused", reason="no GPU"))
    assert row["wall_ms"] is None
    assert row["device_ms"] is None
    assert row["tflops"] is None
    assert 0 not in [v for v in row.values() if not isinstance(v, bool) and v is not row["seed"]]
    full = record.row(Record(problem=Problem(), backend="naive", status="ok", timing=timing()))
    assert (full["wall_ms"], full["wall_samples"], full["device_ms"]) == (2.0, 3, None)


def test_when_is_for_readers() -> None:
    made = Record(problem=Problem(), backend="naive", status="failed", reason="x", time="2026-12-02T01:14:02+00:00")
    assert made.when == "2 Dec 2026, 01:14 UTC"
    assert replace(made, time="2026-12-01T23:14:02-02:00").when == "2 Dec 2026, 01:14 UTC"
    assert replace(made, time=None).when == "at a time that was not kept"
