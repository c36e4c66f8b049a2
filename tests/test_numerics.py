"""Numerics: goldens by hand, the exact result against the plain formula, gradients against differences, budgets."""

import math

import numpy as np
import pytest

from explorer import numerics
from explorer.masks import Mask
from explorer.problem import Problem

P = Problem(batch=2, q_len=3, kv_len=5, heads=6, kv_heads=2, head_dim=7)


def test_two_keys_by_hand() -> None:
    """Scores 0 and 1 give weights 1/(1+e) and e/(1+e); v is 0 and 1."""
    q, k, v = np.ones((1, 1, 1)), np.array([[[0.0], [1.0]]]), np.array([[[0.0], [1.0]]])
    out = numerics.exact(q, k, v, np.ones((1, 2), bool))
    assert out.item() == pytest.approx(math.e / (1 + math.e), abs=1e-15)


def test_the_scale_is_one_over_root_head_dim() -> None:
    """q·k = 4 with head_dim 4 gives a score of 2."""
    q = k = np.ones((1, 1, 4))
    k = np.concatenate([np.zeros((1, 1, 4)), k], axis=1)
    weights = numerics.exact_weights(q[0], k[0], np.ones((1, 2), bool))
    assert weights[0, 1] == pytest.approx(math.e**2 / (1 + math.e**2))


def test_a_row_without_keys_is_nan_and_is_not_compared() -> None:
    q = np.ones((1, 2, 1))
    live = np.array([[False], [True]])
    truth = numerics.exact(q, np.ones((1, 1, 1)), np.full((1, 1, 1), 3.0), live)
    assert np.isnan(truth[0, 0, 0])
    assert truth[0, 1, 0] == 3.0
    off = numerics.errors(np.array([[[9.0], [3.5]]]), truth)
    assert off.max_abs == 0.5
    assert off.worst == (0, 1, 0)


def test_scores_of_ten_thousand_do_not_overflow() -> None:
    q, k, v = np.array([[[1e4]]]), np.array([[[1.0], [-1.0]]]), np.array([[[2.0], [7.0]]])
    assert numerics.exact(q, k, v, np.ones((1, 2), bool)).item() == 2.0


def test_inputs_are_seeded_and_independent_of_each_others_shapes() -> None:
    a, b, c = numerics.draw(P), numerics.draw(P.but(q_len=9)), numerics.draw(P.but(seed=1))
    assert a["q"].dtype == np.float32
    assert a["q"].shape == (2, 3, 6, 7)
    assert a["v"].shape == (2, 5, 2, 7)
    np.testing.assert_array_equal(a["k"], b["k"])
    assert not np.array_equal(a["k"], c["k"])
    assert not np.array_equal(a["k"], a["v"])


def test_the_same_float32_bits_on_every_machine() -> None:
    """Golden values: NumPy's PCG64 and ziggurat are stable across versions and platforms."""
    q = numerics.draw(Problem())["q"].ravel()
    assert q[:3].tolist() == pytest.approx(
        [float(x) for x in np.random.default_rng((0, 0)).standard_normal(3, np.float32)]
    )
    assert abs(float(q.mean())) < 0.01
    assert abs(float(q.std()) - 1) < 0.01


def test_the_labs_own_keys() -> None:
    import jax

    key_q, _, key_v = jax.random.split(jax.random.PRNGKey(0), 3)
    arrays = numerics.draw(Problem(inputs="lab"))
    np.testing.assert_array_equal(arrays["q"], np.asarray(jax.random.normal(key_q, (4, 128, 8, 64))))
    np.testing.assert_array_equal(arrays["v"], np.asarray(jax.random.normal(key_v, (4, 128, 8, 64))))


def test_special_inputs() -> None:
    assert not numerics.draw(P.but(inputs="zeros"))["q"].any()
    assert np.isnan(numerics.draw(P.but(inputs="nan"))["v"]).sum() == 1
    assert numerics.draw(P.but(inputs="spike"))["k"].max() == 1e4
    wild = numerics.draw(Problem(inputs="outliers", q_len=512, kv_len=512))["q"]
    assert 10 < np.abs(wild).max() < 100
    scaled = numerics.draw(P.but(input_scale=3.0))
    np.testing.assert_allclose(scaled["q"], 3 * numerics.draw(P)["q"])
    np.testing.assert_array_equal(scaled["v"], numerics.draw(P)["v"])


def naive_formula(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Mask) -> np.ndarray:
    """The textbook formula on (b, t, n, h), another way than exact's."""
    group = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, group, axis=2), np.repeat(v, group, axis=2)
    scores = np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(q.shape[-1])
    weights = np.where(mask.dense(q.shape[1], k.shape[1]), np.exp(scores), 0)
    return np.einsum("bnts,bsnh->btnh", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [6, 2, 1])
def test_exact_on_a_sample_is_the_formula(causal: bool, kv_heads: int) -> None:
    p = P.but(causal=causal, kv_heads=kv_heads)
    arrays = {name: a.astype(np.float64) for name, a in numerics.draw(p).items()}
    part = numerics.sample(p)
    assert part.whole
    live = p.mask.allows(part.rows[:, None], np.arange(p.kv_len)[None, :])
    group = p.heads // p.kv_heads
    truth = numerics.exact(
        part.take(arrays["q"]), part.take_kv(arrays["k"], group), part.take_kv(arrays["v"], group), live
    )
    whole = naive_formula(arrays["q"], arrays["k"], arrays["v"], p.mask)
    np.testing.assert_allclose(truth, part.take(whole), atol=1e-14)


def test_a_sample_of_a_large_problem_is_small_and_keeps_both_ends() -> None:
    p = Problem(batch=2, q_len=16384, kv_len=16384, heads=64, kv_heads=8, head_dim=128)
    part = numerics.sample(p)
    assert not part.whole
    assert 4.0 * p.kv_len * p.head_dim * len(part.rows) * len(part.pairs) < 2 * numerics.EXACT_FLOPS
    assert (part.rows[0], part.rows[-1]) == (0, 16383)
    assert part.pairs[0].tolist() == [0, 0]
    assert part.pairs[-1].tolist() == [1, 63]


def test_gradients_against_differences() -> None:
    rng = np.random.default_rng(1)
    q, g = rng.standard_normal((4, 6, 3)), rng.standard_normal((4, 6, 3))
    k, v = rng.standard_normal((5, 2, 3)), rng.standard_normal((5, 2, 3))
    mask = Mask(causal=True)

    def loss(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> float:
        return float((naive_formula(q[None], k[None], v[None], mask)[0] * g).sum())

    ours = numerics.exact_gradients(q, k, v, g, mask)
    for which, gradient in enumerate(ours):
        for place in [(0, 0, 0), (3, 1, 2), (1, 0, 1)]:
            arrays = [q.copy(), k.copy(), v.copy()]
            arrays[which][place] += 1e-6
            up = loss(*arrays)
            arrays[which][place] -= 2e-6
            assert gradient[place] == pytest.approx((up - loss(*arrays)) / 2e-6, abs=1e-7)


def test_error_measures_by_hand() -> None:
    off = numerics.errors(np.array([[1.0, 2.0], [3.0, 8.0]]), np.array([[1.0, 2.5], [3.0, 4.0]]))
    assert (off.max_abs, off.worst, off.largest_exact) == (4.0, (1, 1), 4.0)
    assert off.mean_abs == 4.5 / 4
    assert off.rmse == pytest.approx(math.sqrt((0.25 + 16) / 4))


def test_a_nan_is_an_error_without_a_size_and_has_a_place() -> None:
    off = numerics.errors(np.array([[1.0, np.nan]]), np.array([[1.0, 1.0]]))
    assert not off.is_finite
    assert off.nonfinite == 1
    assert off.worst == (0, 1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_nonfinite_elements_are_counted(dtype: str) -> None:
    array = np.array([[1.0, np.nan, np.inf], [-np.inf, 0.0, -2.0]]).astype(numerics.numpy_dtype(dtype))
    assert numerics.nonfinite(array) == 3


def test_budget_is_twice_plain_plus_a_step() -> None:
    plain = numerics.errors(np.array([1.0 + 1e-6]), np.array([1.0]))
    allowed = numerics.budget("float32", plain, 1.0, highest=True)
    assert allowed.value == pytest.approx(2e-6 + 2**-23, rel=1e-6)


def test_budget_falls_back_to_the_pin_where_plain_is_off() -> None:
    broken = numerics.errors(np.array([np.nan]), np.array([1.0]))
    allowed = numerics.budget("float16", broken, 1.0, highest=False)
    assert allowed.value == pytest.approx(2 * 5e-3 + 2**-10)
    assert allowed.plain_error is None
    assert "pinned" in allowed.basis


def test_the_labs_allclose() -> None:
    truth = np.array([1.0])
    assert numerics.lab_close(np.array([1.0009]), truth, "float32")
    assert not numerics.lab_close(np.array([1.0011]), truth, "float32")
    assert numerics.lab_close(np.array([1.019]), truth, "bfloat16")
    assert not numerics.lab_close(np.array([1.021]), truth, "bfloat16")
