"""Compare: ratios, intervals and verdicts whose truth is known; what can't be compared says why; the command."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from explorer import __main__ as command
from explorer import compare, record, recordings
from explorer.compare import Middle, Ratio
from explorer.problem import Problem
from explorer.record import Record, Samples, Timing

STEADY = (1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99, 1.0, 1.0)
ENVIRONMENT = {"gpu": "NVIDIA H200", "jax": "0.11.2", "cudnn": "9.14.0"}


def made(times: tuple[float, ...] = STEADY, *, factor: float = 1.0, **changes: Any) -> Record:
    """A record with these wall times; device: also on the device clock, in a tenth of them."""
    device = changes.pop("device", None)
    mode, kernels = changes.pop("mode", "burst"), changes.pop("kernels", ())
    timing = Timing(
        lower_ms=1.0, compile_ms=2.0, cache_hit=False, first_call_ms=3.0, mode=mode,
        wall_ms=Samples(tuple(factor * t for t in times)),
        device_ms=Samples(tuple(device * t / 10 for t in times)) if device else None,
    )  # fmt: skip
    values: dict[str, Any] = {"problem": Problem(), "backend": "naive", "status": "ok", "timing": timing}
    evidence = {"kernels": [{"name": name, "count": 1, "share": 1.0} for name in kernels], "note": "bf16"}
    return Record(**values | {"environment": ENVIRONMENT, "evidence": evidence} | changes)


def bad(status: str = "refused", reason: str = "no such luck", **changes: Any) -> Record:
    return made(**changes).but(status=status, reason=reason, timing=None)


def only(a: Record, b: Record) -> compare.Point:
    (point,) = compare.compare([a], [b]).points
    return point


# --- the ratio and its interval


@pytest.mark.parametrize("n", [3, 5, 10, 20])
def test_the_interval_holds_the_true_ratio_as_often_as_it_says(n: int) -> None:
    """95 % at least, within what 400 trials can tell (2 % is two standard errors)."""
    draw, held = random.Random(n), 0
    for _ in range(400):
        a, b = ([scale * draw.gauss(10, 0.3) for _ in range(n)] for scale in (1, 1.5))
        low, high = Ratio.of(*(Middle.of(Samples(tuple(side))) for side in (a, b))).interval or (0, 0)
        held += low <= 1.5 <= high
    assert held >= 0.93 * 400


def test_the_interval_by_hand() -> None:
    """Five samples: rank 1 to 5, left out on each side with 1/32, that is 1.863 standard errors each way."""
    middle = Middle.of(Samples((1.0, 2.0, 4.0, 8.0, 16.0)))
    assert middle.median == 4
    assert middle.log_error == pytest.approx(2.772589 / (2 * 1.862732), rel=1e-5)
    low, high = Ratio.of(middle, middle).interval or (0, 0)
    assert low * high == pytest.approx(1)


def test_verdicts_are_of_b() -> None:
    assert only(made(), made(factor=2)).verdict == "slower"
    assert only(made(), made(factor=0.5)).verdict == "faster"
    assert only(made(), made()).verdict == "too close to call"
    point = only(made(), made(factor=2))
    assert point.ratio is not None
    assert point.ratio.value == pytest.approx(2)


def test_a_small_difference_is_too_close_however_narrow() -> None:
    assert compare.verdict(1.02, (1.02, 1.02)) == "too close to call"
    assert compare.verdict(1.05, (1.04, 1.06)) == "slower"
    assert compare.verdict(1.05, (0.99, 1.10)) == "too close to call"


def test_the_threshold_is_for_the_interval_not_for_the_median() -> None:
    wide = tuple(1.1 * t for t in (0.5, 0.7, 0.9, 1.0, 1.0, 1.1, 1.3, 1.6))
    ratio = only(made((1.0,) * 8), made(wide)).ratio
    assert ratio is not None
    assert ratio.value > 1.05
    assert not ratio.is_slower_than(1.05)
    unsure = Ratio(value=1.1, interval=(1.04, 1.16))
    assert unsure.verdict == "slower"
    assert not unsure.is_slower_than(1.05)
    sure = only(made(), made(factor=1.2)).ratio
    assert sure is not None
    assert sure.is_slower_than(1.05)
    assert not sure.is_slower_than(1.3)


def test_one_sample_calls_nothing() -> None:
    point = only(made((1.0,)), made((9.0,)))
    assert point.verdict == "too close to call"
    assert "an interval needs 3 samples a side, got 1 and 1" in (point.remark or "")


# --- which clock, which mode


def test_the_device_clock_where_both_have_it() -> None:
    """Equal on the wall, twice as slow in the kernels."""
    point = only(made(device=1.0), made(device=2.0))
    assert (point.clock, point.verdict) == ("device", "slower")


def test_the_wall_clock_where_one_has_no_other() -> None:
    point = only(made(device=1.0), made())
    assert (point.clock, point.verdict) == ("wall", "too close to call")


def test_burst_and_sustained_are_never_compared() -> None:
    point = only(made(), made(mode="sustained"))
    assert point.ratio is None
    assert point.reason == "burst in A, sustained in B: the two are never compared"


def test_each_mode_with_its_own() -> None:
    found = compare.compare([made(), made(mode="sustained", factor=3)], [made(mode="sustained"), made(factor=2)])
    assert {p.mode: p.verdict for p in found.points} == {"burst": "slower", "sustained": "faster"}


def test_a_mode_of_one_side_is_listed() -> None:
    found = compare.compare([made(), made(mode="sustained")], [made()])
    assert [p.reason for p in found.others] == ["sustained only in A"]


# --- nothing is dropped


def test_every_point_of_either_side_is_there() -> None:
    a = [made(), made(backend="xla"), bad(backend="cudnn")]
    b = [made(backend="auto"), made(backend="xla"), bad(backend="cudnn", reason="another"), bad(backend="naive")]
    found = compare.compare(a, b)
    assert {p.backend: p.reason for p in found.points} == {
        "naive": "refused in B: no such luck",
        "xla": None,
        "cudnn": "refused in A: no such luck; refused in B: another",
        "auto": "only in B",
    }
    assert len(found.compared) + len(found.others) == len(found.points)


def test_refused_alike_is_said_once() -> None:
    assert only(bad(), bad()).reason == "refused in both: no such luck"


def test_of_repeats_the_last_counts_and_that_is_said() -> None:
    (point,) = compare.compare([made(factor=9), made()], [made()]).points
    assert point.verdict == "too close to call"
    assert "in A burst 2 times, the last counts" in (point.remark or "")


def test_other_kernels_are_named() -> None:
    point = only(made(kernels=("old", "same")), made(kernels=("same", "new")))
    assert point.remark == "other kernels ran: old only in A, new only in B"
    assert only(made(kernels=("same",)), made(kernels=("same",))).remark is None


@pytest.mark.parametrize("status", compare.LOST)
def test_what_was_ok_and_now_fails_is_lost(status: str) -> None:
    assert only(made(), bad(status)).is_lost
    assert not only(bad(status), made()).is_lost
    assert not only(made(), bad("refused")).is_lost


def test_environments_side_by_side() -> None:
    rows = compare.environments([made()], [made(environment={"gpu": "NVIDIA L4", "jax": "0.11.2"})])
    assert {row["name"]: (row["a"], row["b"]) for row in compare.different(rows)} == {
        "device": ("NVIDIA H200", "NVIDIA L4"),
        "cuDNN": ("9.14.0", None),
    }
    assert [row["same"] for row in rows if row["name"] == "JAX"] == [True]


def test_names_say_what_varies() -> None:
    long = Problem.of(q_len=512)
    found = compare.compare([made(), made(problem=long), made(problem=long, backend="xla")], [made()])
    shared, labels = compare.names(found.points)
    assert labels == ["naive T=128", "naive T=512", "xla T=512"]
    assert shared == "B=4 N=8 K=8 H=64 float32 full seed=0 burst"


# --- the shipped ones


@pytest.mark.parametrize("name", recordings.names())
def test_a_recording_with_itself_is_too_close_everywhere(name: str) -> None:
    records = recordings.load(name).records
    found = compare.compare(records, records)
    timed = sum(r.timing is not None for r in records)
    assert found.counts == {"faster": 0, "slower": 0, "too close to call": timed}
    assert len(found.points) == len(records)
    assert all(r.ratio.value == 1 for r in found.compared if r.ratio)


@pytest.mark.skipif(not {"te-sweep", "causal-16k"} <= set(recordings.names()), reason="not shipped")
def test_cudnn_is_the_same_in_two_shipped_recordings() -> None:
    found = compare.compare(recordings.load("te-sweep").records, recordings.load("causal-16k").records)
    assert not compare.different(found.differences)
    verdicts = {p.problem.q_len: p.verdict for p in found.compared if p.backend == "cudnn"}
    assert len(verdicts) == 7
    assert set(verdicts.values()) == {"too close to call"}
    assert all(p.clock == "device" for p in found.compared)


# --- the command


def written(path: Path, *records: Record) -> str:
    record.write_lines(path, records)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    try:
        code = command.main(["compare", *args])
    except SystemExit as error:
        code = int(error.code or 0)
    done = capsys.readouterr()
    return code, done.out, done.err


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = written(tmp_path / "a.jsonl", made(), made(backend="xla"))
    slower = written(tmp_path / "b.jsonl", made(factor=1.5), made(backend="xla"))
    lost = written(tmp_path / "c.jsonl", bad("failed"), made(backend="xla"))
    assert run(capsys, a, a)[0] == 0
    assert run(capsys, a, slower)[0] == 1
    assert run(capsys, slower, a)[0] == 0
    assert run(capsys, a, slower, "--slower-than", "1.6")[0] == 0
    code, out, _ = run(capsys, a, lost)
    assert code == 1
    assert "not compared, LOST: failed in B: no such luck" in out


def test_json_is_one_point_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = written(tmp_path / "a.jsonl", made(), made(backend="xla"), bad(backend="cudnn"))
    b = written(tmp_path / "b.jsonl", made(factor=1.5), made(backend="xla"))
    code, out, _ = run(capsys, a, b, "--json")
    naive, xla, cudnn = map(json.loads, out.splitlines())
    assert code == 1
    assert (naive["verdict"], naive["exceeds"], naive["clock"], naive["mode"]) == ("slower", True, "wall", "burst")
    assert naive["ratio"] == pytest.approx(1.5)
    assert naive["interval"][0] < 1.5 < naive["interval"][1]
    assert (naive["a"]["median_ms"], naive["b"]["samples"]) == (1.0, len(STEADY))
    assert (xla["verdict"], xla["exceeds"]) == ("too close", False)
    assert (cudnn["verdict"], cudnn["reason"]) == (None, "only in A (refused: no such luck)")


def test_a_broken_last_line_and_an_older_schema_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = written(tmp_path / "a.jsonl", made(), made(backend="xla")), tmp_path / "b.jsonl"
    old = json.dumps(made(backend="xla").to_json() | {"schema": 0})
    b.write_text(record.line(made()) + "\n" + old + "\n" + record.line(made())[:300])
    code, out, err = run(capsys, a, str(b))
    assert code == 0
    assert "line 2 of b.jsonl was left out: a record of schema 1 is needed, got schema 0" in err
    assert "line 3 of b.jsonl was left out" in err
    assert "1 records, 2 lines left out" in out
    assert "xla" in out


@pytest.mark.parametrize(
    ("b", "said"),
    [
        ("nowhere.jsonl", "can't be read .*; a file, or one of "),
        (".", "can't be read"),
        ("empty.jsonl", "holds no record that can be read: the file is empty"),
        ("old.jsonl", "holds no record that can be read: line 1 .* schema 1 is needed, got schema 7"),
        ("other.jsonl", "have no record in common"),
        ("sustained.jsonl", "not one point can be compared: 1 × burst in A, sustained in B"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, b: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "a.jsonl", made())
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "old.jsonl").write_text('{"schema": 7}\n')
    written(tmp_path / "other.jsonl", made(problem=Problem(seed=1)))
    written(tmp_path / "sustained.jsonl", made(mode="sustained"))
    code, out, err = run(capsys, "a.jsonl", b)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert re.search(said, err)


@pytest.mark.parametrize("value", ["0.9", "nan", "inf", "x"])
def test_a_threshold_is_a_ratio_of_one_or_more(capsys: pytest.CaptureFixture[str], value: str) -> None:
    code, out, err = run(capsys, "a", "b", "--slower-than", value)
    assert (code, out, len(err.splitlines())) == (2, "", 1)


@pytest.mark.parametrize(
    "change",
    [
        {"environment": []}, {"backend": 3}, {"reason": ["x"]}, {"timing": "soon"}, {"problem": None}, {"time": 5},
        {"problem": {"causal": "yes"}}, {"problem": {"window": [[1], 2]}}, {"cost": "much"},
    ],
)  # fmt: skip
def test_a_part_of_another_kind_costs_its_line_alone(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(["[]", "[" * 5000, json.dumps(made().to_json() | change), record.line(made())]))
    records, losses = record.read_lines(path)
    assert len(records) == 1
    assert [loss.split(" of ")[0] for loss in losses] == ["line 1", "line 2", "line 3"]
