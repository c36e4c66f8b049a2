"""Recordings: every figure of every shipped record follows from its own samples and errors. Passes without any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from explorer import ceilings, cost, evidence, recordings
from explorer.backends import BACKENDS
from explorer.record import Record, quantile
from explorer.recordings import sets

FILES = sorted(recordings.FOLDER.glob("*.jsonl"))
LINES = [(path, number, line) for path in FILES for number, line in enumerate(path.read_text().splitlines(), 1)]


def test_how_many_there_are_is_said() -> None:
    print(f"{len(FILES)} recordings with {len(LINES)} records")
    if not FILES:
        pytest.skip("no recording is shipped: nothing to recompute")
    for path in FILES:
        found = recordings.read(path)
        assert not found.losses, found.losses
        assert found.label.startswith("recorded on ")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_figure_follows_from_its_samples(path: Path) -> None:
    for number, text in enumerate(path.read_text().splitlines(), 1):
        raw = json.loads(text)
        record = Record.from_json(raw)
        where = f"line {number}: {record.backend} {record.problem}"
        assert record.environment["gpu"], where
        assert record.time, where
        _medians(raw, where)
        _verdict(raw, where)
        _costs(raw, record, where)
        _evidence(raw, record, where)


def _medians(raw: dict[str, Any], where: str) -> None:
    assert (raw["timing"] is None) == (raw["status"] != "ok"), where
    for name in ("wall_ms", "device_ms", "kernel_ms"):
        part = (raw["timing"] or {}).get(name)
        if part is not None:
            for said, share in (("median", 0.5), ("p10", 0.1), ("p90", 0.9)):
                assert part[said] == pytest.approx(quantile(part["samples"], share)), f"{where} {name} {said}"
            assert min(part["samples"]) > 0, where


def _verdict(raw: dict[str, Any], where: str) -> None:
    """The verdict follows from the stored error and budget; where a mask was recovered, it rests on the cells too."""
    accuracy = raw["accuracy"]
    if raw["status"] in ("ok", "disagrees"):
        assert (raw["status"] == "ok") == (accuracy["verdict"] == "agrees"), where
    if accuracy is None:
        return
    error, budget = accuracy["max_abs_error"], accuracy["budget"]
    assert budget >= 0, where  # without a visible key the result is exactly 0
    if error is None:
        assert accuracy["verdict"] == "not checked", where
        assert accuracy["reference"] or raw["reason"], where
    elif "recovered" in accuracy:
        assert error <= budget or accuracy["verdict"] == "disagrees", where
    else:
        assert (error <= budget) == (accuracy["verdict"] == "agrees"), where


def _costs(raw: dict[str, Any], record: Record, where: str) -> None:
    found = raw["cost"]
    assert found["flops"] == cost.flops(record.problem), where
    assert isinstance(found["flops"], int), where
    assert found["min_bytes"] == cost.min_bytes(record.problem), where
    if record.timing is None:
        assert found["tflops"] is None, where
        return
    on = raw["timing"]["device_ms"] or raw["timing"]["wall_ms"]
    assert found["tflops"] == pytest.approx(found["flops"] / quantile(on["samples"], 0.5) / 1e9), where
    assert found["tflops_clock"] == ("device" if raw["timing"]["device_ms"] else "wall"), where
    assert found["suspect"] is None, where
    if found["bound_tflops"] is not None:
        bound = cost.roofline_tflops(found["intensity"], found["peak_tflops"], found["copy_tb_s"])
        assert found["bound_tflops"] == pytest.approx(bound), where
        assert found["tflops"] <= ceilings.TOLERANCE["device"] * found["peak_tflops"], where


def _evidence(raw: dict[str, Any], record: Record, where: str) -> None:
    found = raw["evidence"]
    if record.timing is None or found is None or BACKENDS[record.backend].explain is not None:
        return  # an explained verdict also rests on what the library said at the run
    again = evidence.judge(
        marker=BACKENDS[record.backend].marker,
        calls=found["custom_calls"],
        ran=found["kernels"],
        dtype=record.problem.dtype,
        on_gpu=True,
        error=raw["accuracy"]["max_abs_error"],
    )
    assert (found["fused"], found["verdict"]) == (again["fused"], again["verdict"]), where
    shares = [kernel["share"] for kernel in found["kernels"]]
    assert not shares or sum(shares) == pytest.approx(1), where


@pytest.mark.parametrize("name", ["lab-benchmark", "lab-sequence", "lab-batch", "nvidia-points", "causal-16k"])
def test_a_recording_holds_exactly_its_set(name: str) -> None:
    if name not in recordings.names():
        pytest.skip(f"{name} is not recorded")
    found = {(r.problem, r.backend) for r in recordings.load(name).records}
    assert found == {(p.problem, p.backend) for p in sets.SETS[name].points}
    protocol = sets.SETS[name].protocol
    for record in recordings.load(name).records:
        if record.timing is not None:
            assert record.timing.mode == protocol.mode
            assert len(record.timing.wall_ms.values) == protocol.repeats


def test_nvidias_points_are_near_nvidias_figures() -> None:
    if "nvidia-points" not in recordings.names():
        pytest.skip("nvidia-points is not recorded")
    for record in recordings.load("nvidia-points").records:
        assert record.cost is not None
        ratio = sets.nvidia_ratio(record.problem, record.cost["tflops"])
        assert ratio is not None
        assert 0.9 < ratio < 1.03, f"{record.problem}: {ratio:.3f}"


def test_a_changed_sample_would_be_noticed() -> None:
    """The check itself can fail: one sample more than the rest, and the median is another."""
    if not LINES:
        pytest.skip("no recording is shipped")
    raw = json.loads(next(line for _, _, line in LINES if json.loads(line)["timing"]))
    samples = raw["timing"]["wall_ms"]["samples"]
    samples[:] = [2 * each for each in samples]
    with pytest.raises(AssertionError):
        _medians(raw, "changed")


def test_modes_are_kept_apart() -> None:
    from explorer import curves, record

    wanted = [n for n in ("nvidia-points", "nvidia-points-sustained") if n in recordings.names()]
    if len(wanted) < 2:
        pytest.skip("both modes are needed")
    rows = record.rows(recordings.several(wanted))
    with pytest.raises(ValueError, match="one timing mode, got burst and sustained"):
        curves.labelled(rows)


def test_a_peak_is_at_least_inputs_and_output() -> None:
    if "memory" not in recordings.names():
        pytest.skip("memory is not recorded")
    for record in recordings.load("memory").records:
        peak = (record.memory or {}).get("peak_bytes")
        if peak is not None:
            assert peak >= cost.input_bytes(record.problem) + cost.output_bytes(record.problem)


def test_ceilings_stand_in_the_records() -> None:
    for path in FILES:
        if path.stem.startswith(("lab-", "nvidia-", "memory", "causal")):
            for record in recordings.read(path).records:
                if record.timing is not None:
                    assert (record.cost or {}).get("copy_tb_s"), f"{path.stem}: {record.problem}"
