"""The command line as scripts use it: its own process, stdout for the answer alone, the contract's exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from explorer import __main__


def explorer(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "explorer", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ | environment)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "--kv-heads", "3"], "kv_heads must divide heads=8, got 3; one of 1, 2, 4, 8 would do"),
        (["run", "--head-dim", "0"], "head_dim must be from 1"),
        (["run", "--q-len=-1"], "q_len must be from 1"),
        (["run", "--q-len", "2147483648"], "q_len must be from 1 to 2147483647, got 2147483648"),
        (["run", "--q-len", "abc"], "such as 128 or 2k, got 'abc'"),
        (["run", "--dtype", "float8"], "dtype must be one of float32, bfloat16, float16, got float8"),
        (["run", "--backend", "flash"], "backend must be one of naive"),
        (["run", "--backend", "naive:int8"], "dtype must be one of"),
        (["run", "--backend", ","], "backend needs at least one"),
        (["run", "--preset", "gpt9"], "preset must be one of lab"),
        (["run", "--repeats", "0"], "repeats >= 1"),
        (["run", "--limit", "0"], "limit_s must be more than 0"),
        (["run", "--window", "3"], "a window is LEFT,RIGHT"),
        (["run", "--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["run", "--q-len", "-5,6"], "expected one argument: a value that begins with - is written with ="),
        (["fly"], "a command is needed, one of doctor, run"),
        ([], "a command is needed"),
    ],
)
def test_a_wrong_request_is_one_line_on_stderr_and_exit_2(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = __main__.main(words)
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("first", ["run", "support"])
def test_what_one_command_compiled_the_next_finds_on_disk(first: str, tmp_path: Path) -> None:
    shape = ("--head-dim", "16", "--backend", "naive", "--dtype", "bfloat16", "--json")
    here = {"EXPLORER_CACHE_DIR": str(tmp_path)}
    once = explorer(first, *shape, *(["--prove"] if first == "support" else []), **here)
    assert once.returncode == 0, once.stderr
    again = explorer("run", *shape, **here)
    assert json.loads(again.stdout)["timing"]["disk_hit"]


def test_run_at_the_labs_defaults() -> None:
    done = explorer("run", "--json", "--backend", "naive", "--backend", "xla,cudnn", "--repeats", "3")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["backend"] for r in records] == ["naive", "xla", "cudnn"]
    assert [r["status"] for r in records] == ["ok", "ok", "refused"]
    assert all(r["problem"]["q_len"] == 128 and r["problem"]["dtype"] == "float32" for r in records)
    assert records[2]["timing"] is None
    assert "cuDNN" in records[2]["reason"]


def test_a_disagreement_is_exit_1_and_no_traceback() -> None:
    shape = ["--dtype", "float16", "--input-scale", "60", "--batch", "1", "--q-len", "16", "--heads", "1"]
    done = explorer("run", *shape, "--backend", "naive")
    assert done.returncode == 1
    assert "disagrees" in done.stdout
    assert "65,504" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_default_is_all_backends_and_lengths_follow() -> None:
    done = explorer("run", "--json", "--q-len", "16", "--heads", "4", "--repeats", "1", "--batch", "1")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["backend"] for r in records] == [
        "naive", "auto", "xla", "cudnn", "cudnn_fp8", "transformer_engine", "transformer_engine_fp8",
    ]  # fmt: skip
    assert {(r["problem"]["kv_len"], r["problem"]["kv_heads"]) for r in records} == {(16, 4)}
    assert records[1]["evidence"]["chose"] == "xla"


def test_doctor_says_ready_or_why_not() -> None:
    done = explorer("doctor", "--json")
    assert done.returncode == 0
    (line,) = done.stdout.splitlines()
    answer = json.loads(line)
    assert answer["versions"]["jax"]
    ready = {row["backend"]: row for row in answer["backends"]}
    assert ready["naive"]["ready"]
    assert all(row["ready"] or row["reason"] for row in answer["backends"])
    assert "backends, asked for" in explorer("doctor").stdout


def test_a_closed_pipe_is_no_traceback() -> None:
    shell = f"{sys.executable} -m explorer run --json --repeats 1 --q-len 8 --backend naive,xla | head -c 10"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=100)
    assert "Traceback" not in done.stderr
