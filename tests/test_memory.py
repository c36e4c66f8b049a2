"""Memory: formula, compiler's analysis, and the peak that a fresh process measures; and where memory ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from explorer import cost, memory, peak
from explorer.problem import Problem

ROOT = Path(__file__).resolve().parent.parent
SHAPE = Problem(batch=1, q_len=1024, kv_len=1024, heads=8, kv_heads=8, head_dim=64)
EXTRA = 256 * 2**20


@pytest.fixture(scope="module")
def plain() -> peak.Peak:
    return peak.measure(SHAPE, "naive")


def test_the_peak_is_what_the_call_takes(plain: peak.Peak) -> None:
    """A CPU's program may reuse the scores' memory for the weights, or keep both: within a factor of two."""
    assert plain.outcome == "fits", plain.reason
    assert plain.peak_bytes is not None
    formula = peak.formula("naive", SHAPE)
    assert plain.formula_bytes == formula
    assert formula / 2 < plain.peak_bytes < 2 * formula
    assert plain.compiler_bytes is not None
    assert plain.compiler_bytes > cost.input_bytes(SHAPE)


def test_a_known_extra_allocation_is_measured_and_only_there(plain: peak.Peak) -> None:
    more = peak.measure(SHAPE, "naive", extra_bytes=EXTRA)
    assert more.outcome == "fits", more.reason
    assert more.peak_bytes is not None
    assert plain.peak_bytes is not None
    assert more.peak_bytes - plain.peak_bytes == pytest.approx(EXTRA, rel=0.1)
    assert (more.formula_bytes, more.compiler_bytes) == (plain.formula_bytes, plain.compiler_bytes)


def test_more_than_the_limit_is_no_figure() -> None:
    """Scores of 2 GiB where 256 MiB may be taken: the child fails, this process does not, and no peak is claimed."""
    found = peak.measure(SHAPE.but(q_len=8192, kv_len=8192), "naive", limit_bytes=256 * 2**20)
    assert found.outcome in ("out_of_memory", "died")
    assert found.peak_bytes is None
    assert found.reason


def test_a_refused_call_takes_nothing() -> None:
    found = peak.measure(SHAPE, "cudnn")
    assert (found.outcome, found.peak_bytes) == ("refused", None)
    assert "cuDNN" in (found.reason or "")


def test_a_stopped_or_late_process_is_ended() -> None:
    stop = threading.Event()
    stop.set()
    assert peak.measure(SHAPE, "naive", stop=stop).outcome == "cancelled"
    assert peak.measure(SHAPE, "naive", limit_s=0.05).outcome == "timed_out"


@pytest.mark.parametrize("backend", ["naive", "cudnn"])
@pytest.mark.parametrize("room", [2**28, 2**31, 141 * 10**9])
def test_the_edge_lies_between_two_lengths(backend: str, room: int) -> None:
    found = peak.edge(backend, SHAPE, room)
    fits, misfit = (
        peak.formula(backend, SHAPE.but(q_len=t, kv_len=t)) for t in (found.fits_q_len, found.first_misfit_q_len)
    )
    assert fits <= memory.MARGIN * room
    assert misfit > room
    before = found.first_misfit_q_len - peak.STEP
    assert peak.formula(backend, SHAPE.but(q_len=before, kv_len=before)) <= room


def test_no_room_at_all() -> None:
    assert peak.longest("naive", SHAPE, 1) == 0


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1 KiB"), (3 * 2**29, "1.5 GiB"), (None, "an unknown size")],
)
def test_sizes_in_words(size: int | None, said: str) -> None:
    assert memory.gib(size) == said


# --- on a GPU


@pytest.mark.gpu
def test_on_a_gpu_compiling_hides_no_peak() -> None:
    """XLA tries candidates as large as the call itself while it compiles; the second process finds the program kept."""
    p = Problem(dtype="bfloat16", q_len=2048, kv_len=2048)
    found = peak.measure(p, "naive")
    assert found.peak_bytes is not None, found.reason
    assert peak.formula("naive", p) * 0.9 < found.peak_bytes < 2 * peak.formula("naive", p)


@pytest.mark.gpu
@pytest.mark.parametrize("allocator", ["platform", "cuda_async"])
def test_on_a_gpu_an_allocator_that_tells_no_limit_refuses_nothing(allocator: str) -> None:
    command = [sys.executable, "-m", "explorer", "run", "--backend", "naive", "--dtype", "bfloat16", "--json"]
    environment = {**os.environ, "XLA_PYTHON_CLIENT_ALLOCATOR": allocator}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    (made,) = map(json.loads, done.stdout.splitlines())
    assert (made["status"], made["reason"]) == ("ok", None)
    assert made["memory"]["free_bytes"] > 2**30
