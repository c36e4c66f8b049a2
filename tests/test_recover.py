"""The mask as executed, recovered from running backends; planted faults must be seen."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from explorer import backends, device, measure, numerics, recover
from explorer.backends import naive, sdpa
from explorer.masks import Mask
from explorer.problem import Problem
from explorer.recover import HIDDEN, LEAKED, MISSED, NAN, SEEN

FULL, CAUSAL = Mask(), Mask(causal=True)
CPU = ("naive", "xla")
GPU = ("naive", "xla", "cudnn", "cudnn_fp8", "transformer_engine", "transformer_engine_fp8")


def small(**values: Any) -> Problem:
    return Problem.of(**{"batch": 2, "q_len": 5, "heads": 4, "head_dim": 6, **values})


def plant(monkeypatch: pytest.MonkeyPatch, attend: Callable[..., Any]) -> None:
    """A backend of that attend under the name "planted"; support knows no rule about it."""
    planted = backends.Backend(name="planted", label="Planted", attend=attend, about="a test's own")
    monkeypatch.setitem(backends.BACKENDS, "planted", planted)


@pytest.fixture(autouse=True)
def _no_planted_programs() -> Iterator[None]:
    yield
    for key in [key for key in measure.CACHE.builds if "planted" in str(key)]:
        del measure.CACHE.builds[key]


@pytest.mark.parametrize("name", CPU)
@pytest.mark.parametrize(("kv_len", "kv_heads", "causal", "dtype"), [  # S < H, S = H, S > H, multiples of H and not
    (3, 4, False, "float32"), (6, 1, True, "float32"), (12, 4, True, "bfloat16"), (17, 1, False, "bfloat16"),
    (3, 1, True, "bfloat16"), (6, 4, False, "bfloat16"), (7, 1, False, "float32"), (17, 4, True, "float32"),
])  # fmt: skip
def test_recovered_weights_are_the_exact_ones(name: str, kv_len: int, kv_heads: int, causal: bool, dtype: str) -> None:
    p = small(kv_len=kv_len, kv_heads=kv_heads, causal=causal, dtype=dtype)
    found = recover.recover(p, name, head=3)
    assert (found.verdict, found.calls) == ("as meant", -(-kv_len // 6))
    q, k = (x.astype(np.float64) for x in list(numerics.cast(numerics.draw(p), dtype).values())[:2])
    exact = numerics.exact_weights(q[0, :, 3], k[0, :, 3 * kv_heads // 4], p.mask.dense(5, kv_len))
    assert found.weights is not None
    # An own tolerance, so that a budget gone too wide is seen: two bfloat16 roundings of scores up to about 4
    assert np.abs(found.weights - exact).max() < (1e-6 if dtype == "float32" else 2e-2)
    assert found.error is not None
    assert found.budget is not None
    assert found.error <= found.budget < (1e-5 if dtype == "float32" else 0.1)


def test_a_head_gets_the_weights_of_its_own_key_head() -> None:
    p = small(q_len=3, heads=6, kv_heads=3, head_dim=7)
    weights, _ = recover.weights_of(p, "xla")
    drawn = numerics.draw(p)
    for b, n in [(0, 0), (1, 5), (1, 2)]:
        exact = numerics.exact_weights(drawn["q"][b, :, n], drawn["k"][b, :, n // 2], FULL.dense(3, 3))
        assert np.abs(weights[b, n] - exact).max() < 1e-6


def test_two_four_six_seven() -> None:
    """(2,4,6,7): K = 3 works, K = 4 is refused with the divisors."""
    assert recover.recover(small(q_len=4, heads=6, kv_heads=3, head_dim=7), "naive").is_as_meant
    with pytest.raises(ValueError, match=r"kv_heads must divide heads=6, got 4; one of 1, 2, 3, 6 would do"):
        small(q_len=4, heads=6, kv_heads=4, head_dim=7)


@pytest.mark.parametrize("name", CPU)
@pytest.mark.parametrize(("values", "calls"), [
    ({"head_dim": 1, "kv_len": 5}, 5),
    ({"q_len": 1, "kv_len": 1}, 1),
    ({"q_len": 1, "kv_len": 9, "causal": True}, 2),
    ({"window": (99, 99)}, 1),
    ({"window": (99, 0), "causal": True}, 1),
    ({"window": (0, 0)}, 1),
    ({"kv_valid": 5}, 1),
    ({"kv_valid": 3, "causal": True}, 1),
    ({"q_len": 9, "kv_len": 4, "causal": True}, 1),
    ({"q_len": 4, "kv_len": 9, "causal": True}, 2),
])  # fmt: skip
def test_edges_are_as_meant(name: str, values: dict[str, Any], calls: int) -> None:
    found = recover.recover(small(**values), name)
    assert (found.verdict, found.calls, found.leaked, found.missed) == ("as meant", calls, 0, 0)


def test_causal_counts_from_the_top_left() -> None:
    """T = 2, S = 4: query 0 sees key 0 alone, query 1 keys 0 and 1."""
    found = recover.recover(small(q_len=2, kv_len=4, causal=True), "xla")
    assert found.cells is not None
    assert found.cells.tolist() == [[SEEN, HIDDEN, HIDDEN, HIDDEN], [SEEN, SEEN, HIDDEN, HIDDEN]]


@pytest.mark.parametrize(("name", "gives"), [("naive", "nan"), ("xla", "mean of v")])
def test_a_key_length_of_0(name: str, gives: str) -> None:
    found = recover.recover(small(kv_valid=0), name)
    assert (found.verdict, found.no_key, found.undefined_rows) == ("undefined", gives, 5)
    assert not found.is_wrong
    assert not found.is_as_meant
    assert found.cells is not None
    assert set(found.cells.flat) == ({NAN} if name == "naive" else {LEAKED})


def test_rows_without_keys_are_told_apart_from_the_others() -> None:
    found = recover.recover(small(q_len=5, kv_len=3, window=(0, 0)), "xla")
    assert (found.verdict, found.no_key, found.undefined_rows) == ("as meant", "mean of v", 2)
    assert "2 rows see no key, for which it gives the mean of all v" in found.sentence


def wrong_mask(change: Callable[[Mask], Mask]) -> Callable[..., Any]:
    def attend(q: Any, k: Any, v: Any, *, mask: Mask) -> Any:
        return naive.attend(q, k, v, mask=change(mask))

    return attend


def shifted_causal(q: Any, k: Any, v: Any, *, mask: Mask) -> Any:
    """The planted off-by-one: query i sees keys 0 … i + 1."""
    del mask
    return naive.attend(q, k, v, mask=Mask(window=(10_000, 1)))


@pytest.mark.parametrize(("length", "dtype"), [(2, "float32"), (300, "float32"), (5, "bfloat16"), (300, "bfloat16")])
def test_a_planted_off_by_one_is_seen(monkeypatch: pytest.MonkeyPatch, length: int, dtype: str) -> None:
    plant(monkeypatch, shifted_causal)
    p = small(batch=1, heads=2, q_len=length, causal=True, dtype=dtype, input_scale=recover.GENTLE)
    found = recover.recover(p, "planted")
    assert found.verdict == "leaks"
    assert found.is_wrong
    assert found.leaked == length - 1
    assert found.sentence == "lets hidden keys in; query 0 sees hidden key 1"
    assert found.cells is not None
    assert [tuple(cell) for cell in np.argwhere(found.cells == LEAKED)] == [(i, i + 1) for i in range(length - 1)]


def test_an_off_by_one_in_one_row_of_many_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 299 of 300 sees one key too few: 1/300 of a weight, below bfloat16's rounding of row 0's weight of 1."""

    def attend(q: Any, k: Any, v: Any, *, mask: Mask) -> Any:
        import jax.numpy as jnp

        out = naive.attend(q, k, v, mask=mask)
        short = naive.attend(q, k, v, mask=Mask(causal=True, kv_valid=299))
        return jnp.concatenate([out[:, :-1], short[:, -1:]], axis=1)

    plant(monkeypatch, attend)
    p = small(batch=1, heads=1, q_len=300, causal=True, dtype="bfloat16", input_scale=recover.GENTLE)
    found = recover.recover(p, "planted")
    assert (found.verdict, found.missed) == ("misses", 1)
    assert found.sentence == "leaves keys out; query 299 misses key 299"


@pytest.mark.parametrize(("change", "verdict"), [
    (lambda mask: FULL, "leaks"),
    (lambda mask: Mask(causal=True, window=(1, 0)), "misses"),
    (lambda mask: Mask(window=(0, 1)), "leaks and misses"),
    (lambda mask: mask, "as meant"),
])  # fmt: skip
def test_each_wrong_mask_has_its_name(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Mask], Mask], verdict: str
) -> None:
    plant(monkeypatch, wrong_mask(change))
    assert recover.recover(small(causal=True, input_scale=recover.GENTLE), "planted").verdict == verdict


def test_a_wrong_scale_is_seen_though_the_mask_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, lambda q, k, v, *, mask: naive.attend(q * 1.05, k, v, mask=mask))
    found = recover.recover(small(causal=True, dtype="bfloat16"), "planted")
    assert found.verdict == "wrong weights"
    assert "off by" in found.sentence


def test_heads_in_the_wrong_order_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, lambda q, k, v, *, mask: naive.attend(q, k[:, :, ::-1], v[:, :, ::-1], mask=mask))
    assert recover.recover(small(kv_heads=2, input_scale=recover.GENTLE), "planted").verdict == "wrong weights"


@pytest.mark.parametrize(("made", "gives"), [
    (lambda weights, unmasked: np.zeros_like(weights), "zeros"),
    (lambda weights, unmasked: unmasked, "as if unmasked"),
    (lambda weights, unmasked: weights * 3, "something else"),
])  # fmt: skip
def test_what_a_row_without_keys_gives(made: Callable[..., np.ndarray], gives: str) -> None:
    p = small(kv_valid=0)
    unmasked, _ = recover.weights_of(p.but(kv_valid=None), "naive")
    uniform = np.full((2, 4, 5, 5), 0.2, np.float32)
    assert recover.judge(p, "naive", made(uniform, unmasked)).no_key == gives


def test_a_refusal_and_a_failure_are_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = recover.recover(small(), "cudnn")
    if not device.here().is_gpu:
        assert (refused.verdict, refused.weights) == ("refused", None)
        assert "needs an NVIDIA GPU" in refused.sentence

    def attend(q: Any, k: Any, v: Any, *, mask: Mask) -> Any:
        raise RuntimeError("planted\nwith a second line")

    plant(monkeypatch, attend)
    failed = recover.recover(small(), "planted")
    assert (failed.verdict, failed.sentence) == ("failed", "RuntimeError: planted")


def test_wrong_requests() -> None:
    with pytest.raises(ValueError, match="head must be below 4, got 4"):
        recover.recover(small(), "naive", head=4)
    with pytest.raises(ValueError, match=r"33,554,432 at most, got 134,217,728"):
        recover.recover(Problem.of(batch=1, q_len=4096), "naive")


def test_every_pair_gets_a_verdict() -> None:
    told: list[str] = []
    found = list(recover.every_pair(["naive", "xla"], ["causal", "window-left", "padding-all"],
                                    report=lambda done, total, text: told.append(text)))  # fmt: skip
    assert [(r.backend, r.verdict) for r in found] == [
        ("naive", "as meant"), ("xla", "as meant"),
        ("naive", "as meant"), ("xla", "as meant"),
        ("naive", "undefined"), ("xla", "undefined"),
    ]  # fmt: skip
    assert told[0] == "Causal, naive"
    assert told[-1] == "done"
    assert not list(recover.every_pair(["naive"], cancelled=lambda: True))


def test_every_case_fits_every_fused_kernel() -> None:
    """The plain masks are refused by no rule on an H200, so that each verdict there is a run."""
    h200 = device.named("h200")
    for name in GPU:
        for case in ("full", "causal", "causal-short", "causal-long"):
            assert backends.BACKENDS[name].why_not(recover.CASES[case].problem(), h200) is None
    for case in recover.CASES.values():
        assert backends.BACKENDS["naive"].why_not(case.problem(), h200) is None


@pytest.mark.parametrize("name", ["naive", "xla"])
def test_the_mask_as_an_array_is_the_same_mask(name: str) -> None:
    p = small(causal=True, window=(2, 0), kv_valid=4)
    assert recover.recover(p, name, as_array=True).is_as_meant


def test_the_traps_run_here() -> None:
    found = {name: {r.backend: r for r in recover.trap(name)} for name in recover.TRAPS}
    assert found["window"]["xla"].is_as_meant
    assert found["length-0"]["xla"].no_key == "mean of v"
    assert found["no-key"]["naive"].no_key == "nan"


def test_causal_against_full_fades_with_the_position() -> None:
    """The lab's row 6: position 0 differs much, the last not at all."""
    found = recover.causal_difference(Problem.of(batch=2, q_len=32), "xla")
    assert isinstance(found, np.ndarray)
    assert found[0] > 2
    assert found[-1] < 1e-6
    assert found[:8].mean() > 2 * found[-8:].mean()
    if not device.here().is_gpu:
        refused = recover.causal_difference(Problem.of(q_len=8), "cudnn")
        assert isinstance(refused, str)


def test_a_record_holds_the_mask_as_executed() -> None:
    made = recover.record(recover.CASES["causal-short"].problem("float32"), "xla")
    assert made.status == "ok"
    found = recover.of_record(type(made).from_json(made.to_json()))
    assert found is not None
    assert (found.verdict, found.calls) == ("as meant", 3)
    assert found.cells is not None
    assert np.array_equal(found.cells == SEEN, CAUSAL.dense(24, 40))


def test_a_record_of_a_leak_disagrees_and_has_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leak too small for the output's own budget is still a leak."""
    plant(monkeypatch, shifted_causal)
    made = recover.record(recover.CASES["causal"].problem("float32"), "planted")
    assert (made.status, made.timing) == ("disagrees", None)
    found = recover.of_record(made)
    assert found is not None
    assert (found.verdict, found.leaked) == ("leaks", 39)
    assert found.cells is not None
    assert {SEEN, HIDDEN, LEAKED} == set(found.cells.flat)
    assert MISSED not in found.cells


def test_a_record_of_a_mask_as_an_array() -> None:
    p = recover.TRAPS["no-key"].problem.but(dtype="float32")
    made = recover.record(p, "xla", as_array=True)
    found = recover.of_record(made)
    assert made.status == "ok"
    assert found is not None
    assert found.no_key == "mean of v"
    assert made.accuracy is not None
    assert made.accuracy["recovered"]["as_array"] is True


def test_a_refused_record_is_a_verdict_and_an_old_one_is_none() -> None:
    p = small()
    refused = measure.blank(p, "cudnn", "refused", "no")
    found = recover.of_record(refused)
    assert found is not None
    assert (found.verdict, found.sentence) == ("refused", "no")
    assert recover.of_record(measure.blank(p, "cudnn", "failed", "no")) is None


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU)
@pytest.mark.parametrize("kv_len", [24, 64, 96, 100])  # S < H, S = H, S > H, not a multiple of H
@pytest.mark.parametrize("kv_heads", [8, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_recovered_weights_on_a_gpu(name: str, kv_len: int, kv_heads: int, causal: bool) -> None:
    p = Problem.of(
        batch=1, q_len=32, kv_len=kv_len, heads=8, kv_heads=kv_heads, head_dim=64, causal=causal, dtype="bfloat16"
    )
    found = recover.recover(p, name)
    if found.verdict == "refused":
        pytest.skip(found.sentence)
    assert found.verdict == "as meant", found.sentence


@pytest.mark.gpu
def test_the_traps_on_a_gpu() -> None:
    """Seen on an H200 with cuDNN 9.19; where this fails, the library has changed, and the pages' words must follow."""
    found = {name: {r.backend: r for r in recover.trap(name)} for name in recover.TRAPS}
    assert {r.verdict for r in found["window"].values() if r.backend != "cudnn"} == {"as meant"}
    assert found["window"]["cudnn"].verdict == "leaks"
    assert [found["no-key"][n].no_key for n in ("naive", "xla", "cudnn")] == ["nan", "mean of v", "as if unmasked"]
    assert [found["length-0"][n].no_key for n in ("naive", "xla", "cudnn")] == ["nan", "mean of v", "zeros"]


def test_with_array_takes_the_named_implementation() -> None:
    """Under partial, as recover.program calls it."""
    import jax.numpy as jnp

    q = jnp.ones((1, 2, 1, 4))
    out = functools.partial(recover.with_array, name="xla", mask=CAUSAL)(q, q, q)
    assert np.allclose(out, sdpa.xla(q, q, q, mask=CAUSAL))


def test_fp8_weights_are_judged_on_rounded_inputs() -> None:
    """The plain FP8 computation itself passes; the exact weights of the unrounded inputs would not need to."""
    p = recover.CASES["causal"].problem()
    _, plain = recover.truths(p, "float8_e4m3fn")
    found = recover.judge(p, "cudnn_fp8", plain.reshape(1, 4, 40, 40).astype(np.float32))
    assert found.is_as_meant
    assert found.budget is not None
    assert 0.1 < found.budget < 0.5
    shifted = np.roll(plain, 1, axis=2).reshape(1, 4, 40, 40).astype(np.float32)
    assert recover.judge(p, "cudnn_fp8", shifted).verdict == "leaks and misses"


def test_the_recording_holds_every_pair_and_every_trap() -> None:
    from explorer.recordings.sets import SETS

    points = SETS["masks"].points
    wanted = {(case.problem(), name) for case in recover.CASES.values() for name in backends.BACKENDS}
    assert wanted <= {(point.problem, point.backend) for point in points}
    assert len(points) == len(wanted) + 9
    by_array = recover.TRAPS["no-key"].problem
    made = list(recover.records([(by_array, "naive"), (recover.CASES["window"].problem(), "cudnn_fp8")]))
    assert (made[0].backend, made[0].status) == ("naive", "ok")
    assert made[0].accuracy is not None
    assert made[0].accuracy["recovered"]["as_array"] is True
    assert made[1].status == "refused"


def test_a_problem_without_a_right_answer_is_not_called_right() -> None:
    made = recover.record(recover.CASES["padding-all"].problem(), "xla")
    assert (made.status, made.timing) == ("disagrees", None)
    assert "no right answer exists" in (made.reason or "")
    assert made.accuracy is not None
    assert (made.accuracy["verdict"], made.accuracy["max_abs_error"]) == ("not checked", None)
    found = recover.of_record(made)
    assert found is not None
    assert (found.verdict, found.no_key) == ("undefined", "mean of v")
