"""Sweep: points, lists, the command line, and what became of each point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from explorer import __main__ as command
from explorer import clock, measure, recordings, sweep
from explorer.problem import Problem, parse_list
from explorer.record import Record

TINY = Problem(batch=1, q_len=8, kv_len=8, heads=2, kv_heads=2, head_dim=8)
QUICK = clock.Protocol(warmup=0, repeats=2)


def test_values_may_come_twice_and_unsorted_and_1k_is_1024() -> None:
    assert parse_list("512,64, 1k,64") == (64, 512, 1024)
    found = sweep.points(TINY, ["naive", "naive"], axis="q_len", values=[16, 8, 16])
    assert [(p.problem.q_len, p.problem.kv_len) for p in found] == [(8, 8), (16, 16)]


def test_kv_len_follows_only_where_it_was_equal() -> None:
    found = sweep.points(TINY.but(kv_len=4), ["naive"], axis="q_len", values=[16])
    assert found[0].problem.kv_len == 4
    (heads,) = sweep.points(TINY, ["naive"], axis="heads", values=[6])
    assert heads.problem.kv_heads == 6


def test_the_labs_four_curves_are_one_preset() -> None:
    found = sweep.points(Problem(), sweep.LAB_VARIANTS, axis="q_len", values=sweep.LAB_LENGTHS)
    assert len(found) == 20
    assert {(p.backend, p.problem.dtype) for p in found} == {
        ("naive", "float32"), ("xla", "float32"), ("xla", "bfloat16"), ("cudnn", "bfloat16")
    }  # fmt: skip


def test_constant_work() -> None:
    found = sweep.points(TINY, ["naive"], axis="q_len", values=[8, 16, 32], tokens=64)
    assert [(p.problem.batch, p.problem.q_len) for p in found] == [(8, 8), (4, 16), (2, 32)]
    with pytest.raises(ValueError, match="multiple of q_len, got q_len=24"):
        sweep.points(TINY, ["naive"], axis="q_len", values=[24], tokens=64)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"axis": "colour"}, "axis must be one of"),
        ({"values": []}, "at least one value"),
        ({"specs": []}, "at least one backend"),
        ({"axis": "kv_heads", "values": [3]}, "kv_heads must divide"),
    ],
)
def test_wrong_sweeps(wrong: dict[str, Any], words: str) -> None:
    asked = {"specs": ["naive"], "axis": "q_len", "values": [8]} | wrong
    with pytest.raises(ValueError, match=words):
        sweep.points(TINY, asked["specs"], axis=asked["axis"], values=asked["values"])


def test_every_point_is_measured_or_says_why_not() -> None:
    """cuDNN has no GPU here, or takes no float32: refused, and the others go on."""
    chosen = sweep.points(TINY, ["naive", "cudnn"], axis="q_len", values=[8, 16])
    made = list(sweep.run(chosen, protocol=QUICK))
    assert [(r.problem, r.backend) for r in made] == [(p.problem, p.backend) for p in chosen]
    for record in made:
        assert (record.status == "ok") == (record.backend == "naive")
        assert record.timing is None or record.timing.compile_ms > 0
        assert record.status == "ok" or "cuDNN" in (record.reason or "")


STUCK = """
import sys, time
from explorer import __main__, sweep

usual = sweep._compile_quietly
sweep._compile_quietly = lambda point, here: time.sleep(60) if point.problem.head_dim == 16 else usual(point, here)
sweep.COMPILE_LIMIT_S = 1.0
__main__.leave(__main__.main(sys.argv[1:]))
"""


def test_a_compiler_that_does_not_end_ends_the_command_with_a_sentence(tmp_path: Path) -> None:
    words = ["--axis", "head_dim", "--values", "8,16", "--q-len", "8", "--backend", "naive", "--json"]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", STUCK, "sweep", *words], capture_output=True, text=True, timeout=100,
        env=os.environ | {"EXPLORER_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "no program was finished for 1 s; the compiler is still at naive B=4 T=8 S=8 N=8 K=8 H=16" in done.stderr
    assert done.stderr.count("\n") == 1
    assert time.monotonic() - began < 50  # it does not wait for the compiler, which takes 60 s
    assert any((tmp_path / "jax").iterdir())  # what was compiled is kept


def test_cancelled_at_a_third_keeps_what_was_measured_and_names_the_rest() -> None:
    chosen = sweep.points(TINY, ["naive"], axis="q_len", values=[8, 16, 24])
    made: list[Record] = []
    for record in sweep.run(chosen, protocol=QUICK, cancelled=lambda: len(made) >= 1):
        made.append(record)
    whole = sweep.complete(chosen, made, "cancelled before it was measured")
    assert [r.status for r in whole] == ["ok", "cancelled", "cancelled"]
    assert all(r.timing is None for r in whole[1:])
    assert sweep.complete(chosen, made, None) == made


def test_the_axis_of_records() -> None:
    made = [measure.blank(TINY.but(batch=b), "naive", "cancelled", "-") for b in (1, 2)]
    assert sweep.axis_of(made) == "batch"


@pytest.mark.parametrize("values", ["", ",", "64,x", "8:2"])
def test_a_wrong_list_is_exit_2_with_one_line(values: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = command.main(["sweep", "--axis", "q_len", "--values", values])
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1


def test_the_command_prints_one_record_a_line_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    code = command.main(
        [
            *("sweep", "--axis", "q_len", "--values", "16,8,16", "--batch", "1", "--heads", "2", "--head-dim", "8"),
            *("--backend", "naive,cudnn", "--repeats", "2", "--warmup", "0", "--json"),
        ]
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert code == 0
    assert [(r["problem"]["q_len"], r["backend"], r["status"]) for r in lines] == [
        (8, "naive", "ok"), (8, "cudnn", "refused"), (16, "naive", "ok"), (16, "cudnn", "refused")
    ]  # fmt: skip
    assert all((r["timing"] is None) == (r["status"] != "ok") for r in lines)


def test_recordings_of_another_folder(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("EXPLORER_RECORDINGS", str(tmp_path))
    assert recordings.names() == []
    assert recordings.several(["lab-sequence"]) == []
    with pytest.raises(ValueError, match="must be one of none"):
        recordings.load("lab-sequence")
