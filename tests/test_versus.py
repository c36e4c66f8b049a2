"""Versus: the verdict from pairs whose truth is known, and A B A B on this machine."""

from __future__ import annotations

import pytest

from explorer import clock, versus
from explorer.problem import Problem
from explorer.versus import Duel

TINY = Problem(batch=1, q_len=16, kv_len=16, heads=2, kv_heads=2, head_dim=8)
QUICK = clock.Protocol(warmup=1, repeats=8, limit_s=5.0)


def duel(a: list[float], b: list[float]) -> Duel:
    return Duel(clock="wall", a_ms=tuple(a), b_ms=tuple(b))


def test_the_verdict_is_of_a() -> None:
    steady = [1.0 + 0.001 * (i % 5) for i in range(40)]
    assert duel(steady, [2 * t for t in steady]).verdict == "faster"
    assert duel([2 * t for t in steady], steady).verdict == "slower"
    assert duel(steady, steady).verdict == "too close to call"


def test_a_difference_below_one_percent_is_too_close_however_narrow() -> None:
    found = duel([1.005] * 40, [1.0] * 40)
    assert found.interval == pytest.approx((1.005, 1.005))
    assert found.verdict == "too close to call"


def test_a_wide_interval_is_too_close() -> None:
    found = duel([1.5, 0.5] * 10, [1.0] * 20)
    assert found.interval[0] < 1 < found.interval[1]
    assert found.verdict == "too close to call"


def test_a_drift_meets_both_alike() -> None:
    """The clock falls to a third meanwhile: medians of one after the other would be far off, pairs are not."""
    drift = [1 + i / 20 for i in range(40)]
    found = duel([1.1 * d for d in drift], drift)
    assert found.ratio == pytest.approx(1.1)
    assert found.verdict == "slower"


def test_pairs_without_a_partner_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        _ = duel([1.0, 2.0], [1.0]).ratio


@pytest.mark.parametrize("specs", [["naive"], ["naive", "naive"], []])
def test_two_different_backends_are_needed(specs: list[str]) -> None:
    with pytest.raises(ValueError, match=r"different|at least one|comparison needs"):
        versus.run(TINY.to_json(), specs)


def test_a_comparison_on_this_machine() -> None:
    found = versus.run(TINY.but(q_len=256, kv_len=256, heads=8, kv_heads=8, head_dim=64).to_json(),
                       ["naive:float32", "xla:float32"], protocol=QUICK)  # fmt: skip
    assert found.reason is None
    assert found.wall is not None
    assert len(found.wall.a_ms) == len(found.wall.b_ms) == QUICK.repeats
    assert found.device is None  # a CPU has no device clock: not a 0, not the wall clock's
    assert found.wall.verdict in ("faster", "slower", "too close to call")


def test_a_refused_side_says_why_and_is_no_verdict() -> None:
    found = versus.run(TINY.to_json(), ["naive:float32", "cudnn:float32"], protocol=QUICK)
    assert (found.wall, found.device) == (None, None)
    assert "cudnn float32 can't be compared: " in (found.reason or "")


def test_cancelled_between_two_calls() -> None:
    with pytest.raises(clock.Cancelled):
        versus._on_wall([(lambda: None, ()), (lambda: None, ())], QUICK, lambda: True)
