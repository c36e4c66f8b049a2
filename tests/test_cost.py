"""Cost: formulas by hand, ceilings, and what exceeds them."""

from __future__ import annotations

import pytest

from explorer import ceilings, cost
from explorer.ceilings import Ceilings
from explorer.problem import Problem
from explorer.record import Samples, Timing

P = Problem(batch=2, q_len=3, kv_len=3, heads=4, kv_heads=2, head_dim=5, dtype="bfloat16")
FOUND = Ceilings(
    tflops={"float32": 400.0, "bfloat16": 800.0, "float16": 780.0}, copy_tb_s=4.0, clock="device", side=8192,
    copy_bytes=2**30, where="a GPU", environment={}, time="2026-12-01",
)  # fmt: skip


def timing(ms: float, wall_ms: float | None = None) -> Timing:
    return Timing(
        lower_ms=1.0, compile_ms=1.0, cache_hit=False, first_call_ms=1.0, wall_ms=Samples((wall_ms or 2 * ms,)),
        device_ms=Samples((ms,)),
    )  # fmt: skip


def test_flops_by_hand() -> None:
    assert cost.flops(P) == 4 * 2 * 4 * 3 * 3 * 5
    assert cost.flops(P.but(causal=True)) == 4 * 2 * 4 * 3 * 3 * 5 // 2  # the convention: half where T = S
    wide = P.but(causal=True, kv_len=7)  # query i sees 0 … i: 1 + 2 + 3 live pairs
    assert cost.flops(wide) == 4 * 2 * 4 * 5 * 6
    assert cost.flops(P.but(backward=True)) == cost.flops(P) * 7 // 2


def test_bytes_and_intensity_by_hand() -> None:
    q, k = 2 * 3 * 4 * 5 * 2, 2 * 3 * 2 * 5 * 2
    assert cost.input_bytes(P) == q + 2 * k
    assert cost.min_bytes(P) == q + 2 * k + q
    assert cost.intensity(P) == cost.flops(P) / cost.min_bytes(P)


def test_intensity_is_about_half_of_t_at_two_bytes() -> None:
    p = Problem.of(q_len=2048, dtype="bfloat16")
    assert cost.intensity(p) == 2048 / 2
    assert cost.intensity(p.but(causal=True)) == 2048 / 4


def test_working_memory_is_quadratic_or_linear() -> None:
    one, two = (Problem.of(q_len=n, dtype="bfloat16") for n in (512, 1024))
    for name, factor in (("naive", 4), ("xla", 4), ("cudnn", 2)):
        assert cost.formula_bytes(name, two) == factor * cost.formula_bytes(name, one)


def test_the_roof_has_a_slope_and_a_top() -> None:
    assert cost.roofline_tflops(10.0, 800.0, 4.0) == 40
    assert cost.roofline_tflops(1000.0, 800.0, 4.0) == 800


def test_a_rate_above_the_ceiling_is_a_measuring_error() -> None:
    p = Problem.of(q_len=2048, dtype="bfloat16")
    fast = cost.flops(p) / 900 / 1e9  # ms for 900 TFLOP/s
    assert "measuring error" in ceilings.verdict(p, timing(fast), "bf16", FOUND)["suspect"]
    slow = ceilings.verdict(p, timing(cost.flops(p) / 600 / 1e9), "bf16", FOUND)
    assert slow["suspect"] is None
    assert slow["bound_share"] == pytest.approx(0.75)


def test_float16_may_reach_what_bfloat16_reaches() -> None:
    assert FOUND.most_tflops("fp16") == FOUND.most_tflops("bf16") == 800
    assert FOUND.most_tflops("fp8") == 1600
    assert FOUND.peak_tflops("fp16") == 780
    assert FOUND.peak_tflops("fp8") is None


def test_kernels_longer_than_the_call_are_a_measuring_error() -> None:
    p = Problem.of(q_len=128)
    assert "measuring error" in ceilings.verdict(p, timing(2.0, wall_ms=1.0), "tf32", FOUND)["suspect"]


def test_without_ceilings_there_is_a_rate_and_no_share() -> None:
    found = ceilings.verdict(P, timing(1.0), "bf16", None)
    assert found["tflops"] > 0
    assert found["bound_tflops"] is found["bound_share"] is found["peak_tflops"] is None
