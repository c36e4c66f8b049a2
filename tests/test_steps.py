"""Steps against values derived by hand, and the online softmax against the whole one."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from explorer import numerics, steps
from explorer.masks import Mask
from explorer.problem import Problem

FULL, CAUSAL = Mask(), Mask(causal=True)


def drawn(t: int, s: int, h: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((t, h)), rng.standard_normal((s, h)), rng.standard_normal((s, h))


def test_two_keys_by_hand() -> None:
    """Scores 0 and 2, halved by H = 4: weights 1/(1+e) and e/(1+e); v = 0 and 1."""
    q, k = np.array([[1.0, 0, 0, 0]]), np.array([[0.0, 0, 0, 0], [2.0, 0, 0, 0]])
    found = steps.apart(q, k, np.array([[0.0], [1.0]]).repeat(4, axis=1), mask=FULL, scale=steps.scale_of("1/√H", 4))
    assert found.scores.tolist() == [[0, 2]]
    assert found.scaled.tolist() == [[0, 1]]
    assert found.weights[0] == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)])
    assert found.output[0] == pytest.approx([math.e / (1 + math.e)] * 4)
    assert found.shares(0).sum(axis=0) == pytest.approx(found.output[0])


def test_equal_scores_are_a_mean_and_causal_is_a_running_mean() -> None:
    q, k, v = np.zeros((3, 2)), np.ones((3, 2)), np.array([[1.0, 0], [2.0, 0], [6.0, 0]])
    assert steps.apart(q, k, v, mask=FULL, scale=1.0).output[:, 0] == pytest.approx([3, 3, 3])
    assert steps.apart(q, k, v, mask=CAUSAL, scale=1.0).output[:, 0] == pytest.approx([1, 1.5, 3])


@pytest.mark.parametrize("mask", [FULL, CAUSAL, Mask(window=(2, 0)), Mask(kv_valid=5)])
def test_the_steps_give_the_exact_result(mask: Mask) -> None:
    q, k, v = drawn(7, 11, 5)
    found = steps.apart(q, k, v, mask=mask, scale=5**-0.5)
    truth = numerics.exact(q[None], k[None], v[None], mask.dense(7, 11))[0]
    assert np.allclose(found.output, truth, atol=1e-14, equal_nan=True)
    assert np.allclose(found.weights.sum(axis=1), 1)


def test_the_shown_tokens_are_the_first_of_the_problem() -> None:
    whole = Problem(q_len=128, kv_len=128)
    first = steps.inputs(steps.shown(whole, 5), "random", batch=0, head=3)
    drawn_whole = numerics.draw(whole)
    assert all(np.array_equal(part, drawn_whole[name][0, :5, 3]) for part, name in zip(first, "qkv", strict=True))


def test_a_query_head_reads_its_own_key_head() -> None:
    """N = 6, K = 3: query head 5 reads key/value head 2."""
    p = Problem.of(batch=2, q_len=4, heads=6, kv_heads=3, head_dim=7)
    _, k, v = steps.inputs(p, "random", batch=1, head=5)
    drawn_all = numerics.draw(p)
    assert np.array_equal(k, drawn_all["k"][1, :, 2])
    assert np.array_equal(v, drawn_all["v"][1, :, 2])


def attend(kind: str, tokens: int, head_dim: int, mask: Mask = FULL) -> steps.Steps:
    p = Problem.of(batch=1, q_len=tokens, heads=1, head_dim=head_dim)
    q, k, v = steps.inputs(p, kind)
    return steps.apart(q, k, v, mask=mask, scale=steps.scale_of("1/√H", head_dim))


@pytest.mark.parametrize(("tokens", "head_dim"), [(1, 8), (5, 8), (8, 8), (64, 64)])
def test_one_hot_tokens_find_themselves(tokens: int, head_dim: int) -> None:
    found = attend("one-hot", tokens, head_dim)
    assert found.weights.argmax(axis=1).tolist() == list(range(tokens))
    assert found.weights.diagonal().min() > 0.97


def test_one_hot_tokens_that_return_share_the_weight() -> None:
    """Five tokens of two kinds: the kind of token 0 stands three times, that of token 1 twice."""
    weights = attend("one-hot", 5, 2).weights
    assert weights[0, 0] == pytest.approx(weights[0, 2]) == pytest.approx(weights[0, 4])
    assert weights[1, 1] == pytest.approx(weights[1, 3])
    assert weights[0, 0] > 0.32


@pytest.mark.parametrize(("tokens", "head_dim"), [(2, 8), (9, 8), (17, 16), (64, 64)])
def test_copy_puts_each_weight_on_the_token_before(tokens: int, head_dim: int) -> None:
    found = attend("copy", tokens, head_dim)
    assert found.weights[1:].argmax(axis=1).tolist() == list(range(tokens - 1))
    assert found.weights[0] == pytest.approx([1 / tokens] * tokens)  # nothing stands before token 0


def test_copy_copies_the_tokens() -> None:
    found = attend("copy", 8, 8, CAUSAL)
    assert found.output[1:].argmax(axis=1).tolist() == list(range(7))


def test_scale_names() -> None:
    assert [steps.scale_of(name, 16) for name in steps.SCALES] == [0, 1 / 16, 1 / 4, 1]
    with pytest.raises(ValueError, match=r"scale must be one of 0, 1/H, 1/√H, 1, got '2'"):
        steps.scale_of("2", 16)


def test_keys_attended() -> None:
    rows = np.array([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25, 0.25, 0.25, 0.25], [np.nan] * 4])
    assert steps.keys_attended(rows)[:3] == pytest.approx([1, 2, 4])
    assert np.isnan(steps.keys_attended(rows)[3])


def test_a_forgotten_root_sharpens_and_no_score_flattens() -> None:
    q, k, v = drawn(32, 32, 64)
    by_scale = {
        name: steps.keys_attended(steps.apart(q, k, v, mask=FULL, scale=steps.scale_of(name, 64)).weights).mean()
        for name in steps.SCALES
    }
    assert by_scale["0"] == pytest.approx(32)
    assert by_scale["0"] > by_scale["1/H"] > by_scale["1/√H"] > 5 > by_scale["1"]


@pytest.mark.parametrize("block", [1, 3, 13])
@pytest.mark.parametrize("mask", [FULL, CAUSAL, Mask(window=(3, 1)), Mask(kv_valid=4)])
def test_online_softmax_has_the_same_result(block: int, mask: Mask) -> None:
    q, k, v = drawn(13, 13, 6)
    blocks = steps.online(q, k, v, mask=mask, scale=6**-0.5, block=block)
    whole = steps.apart(q, k, v, mask=mask, scale=6**-0.5)
    assert len(blocks) == -(-13 // block)
    assert (blocks[0].first, blocks[-1].last) == (0, 13)
    assert steps.difference(blocks, whole) < 1e-14


def test_online_softmax_by_hand() -> None:
    """Scores 0, 1, 2 with v = 1, 1, 4, one key at a time."""
    q, k, v = np.array([[1.0]]), np.array([[0.0], [1.0], [2.0]]), np.array([[1.0], [1.0], [4.0]])
    blocks = steps.online(q, k, v, mask=FULL, scale=1.0, block=1)
    assert [b.highest[0] for b in blocks] == [0, 1, 2]
    assert [b.total[0] for b in blocks] == pytest.approx([1, 1 + 1 / math.e, 1 + 1 / math.e + math.e**-2])
    assert [b.correction[0] for b in blocks[1:]] == pytest.approx([1 / math.e, 1 / math.e])
    assert blocks[1].output[0, 0] == pytest.approx(1)
    assert blocks[2].output[0, 0] == pytest.approx((1 + math.e + 4 * math.e**2) / (1 + math.e + math.e**2))


@pytest.mark.parametrize("block", [1, 3, 8])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_online_softmax_of_huge_scores(block: int, dtype: str) -> None:
    """Scores of ±1e4: exp would overflow without the running maximum."""
    q = np.array([[1e4], [-1e4], [1.0]])
    k = np.linspace(-1, 1, 8)[:, None]
    v = np.arange(8.0)[:, None]
    with np.errstate(all="raise", under="ignore"):
        blocks = steps.online(q, k, v, mask=FULL, scale=1.0, block=block, dtype=dtype)
    assert blocks[-1].output[:2, 0] == pytest.approx([7, 0])
    assert all(np.isfinite(b.output).all() and np.isfinite(b.total).all() for b in blocks)
    whole = steps.apart(q, k, v, mask=FULL, scale=1.0)
    assert steps.difference(blocks, whole) < (1e-12 if dtype == "float64" else 1e-5)


def test_only_a_row_that_sees_nothing_is_nan() -> None:
    """T = 6, S = 3, a window of the key itself: rows 3, 4 and 5 see no key; 0/0 has no right answer."""
    q, k, v = drawn(6, 3, 4)
    mask = Mask(window=(0, 0))
    whole = steps.apart(q, k, v, mask=mask, scale=0.5)
    with np.errstate(all="raise", under="ignore"):
        blocks = steps.online(q, k, v, mask=mask, scale=0.5, block=1)
    assert steps.undefined_rows(whole) == [3, 4, 5]
    for output in (whole.output, blocks[-1].output):
        assert np.isnan(output[3:]).all()
        assert np.array_equal(output[:3], v)
    # Row 2 sees the last key alone: no value yet after two blocks, and its sum is 0, not NaN
    assert np.isnan(blocks[1].output[2]).all()
    assert blocks[1].total[2] == 0


def test_an_online_nan_in_a_row_that_sees_keys_is_seen() -> None:
    q, k, v = drawn(2, 3, 4)
    whole = steps.apart(q, k, v, mask=FULL, scale=0.5)
    blocks = steps.online(q, k, np.full_like(v, np.nan), mask=FULL, scale=0.5, block=2)
    assert math.isnan(steps.difference(blocks, whole))


@settings(max_examples=60, deadline=None)
@given(
    t=some.integers(1, 9),
    s=some.integers(1, 9),
    h=some.integers(1, 5),
    block=some.integers(1, 10),
    causal=some.booleans(),
    valid=some.none() | some.integers(0, 1),
    size=some.sampled_from([1e-3, 1.0, 1e4]),
    seed=some.integers(0, 999),
)
def test_online_equals_whole_whatever_the_shape(
    t: int, s: int, h: int, block: int, causal: bool, valid: int | None, size: float, seed: int
) -> None:
    q, k, v = drawn(t, s, h, seed)
    mask = Mask(causal=causal, kv_valid=None if valid is None else valid * s)
    blocks = steps.online(q * size, k, v, mask=mask, scale=1.0, block=block)
    whole = steps.apart(q * size, k, v, mask=mask, scale=1.0)
    # A score of 1e4 is itself known to 1e-12 only
    assert steps.difference(blocks, whole) < (1e-9 if size > 1 else 1e-13)
    assert np.isnan(blocks[-1].output).any() == bool(steps.undefined_rows(whole))


def test_block_must_hold_a_key() -> None:
    with pytest.raises(ValueError, match="block must be 1 key or more, got 0"):
        steps.online(*drawn(2, 2, 2), mask=FULL, scale=1.0, block=0)


def test_head_dim_one_and_one_token() -> None:
    for kind in steps.KINDS:
        found = attend(kind, 1, 1)
        assert found.weights.tolist() == [[1.0]]
        assert np.isfinite(attend(kind, 7, 1).output).all()


@pytest.mark.parametrize(("kind", "batch", "head", "says"), [
    ("ramp", 0, 0, "kind must be one of random, one-hot, copy, got 'ramp'"),
    ("random", 4, 0, "batch and head must be below 4 and 8, got batch 4 and head 0"),
    ("random", 0, 8, "got batch 0 and head 8"),
])  # fmt: skip
def test_wrong_requests(kind: str, batch: int, head: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        steps.inputs(Problem(), kind, batch=batch, head=head)


def test_bytes_moved_by_hand() -> None:
    """B=4 N=8 T=S=128 H=64 float32: q, k, v, o 1 MiB each; scores 2 MiB, written and read, and the weights too."""
    moved = steps.bytes_moved(Problem())
    assert moved == {"naive": 4 * 2**20 + 4 * 2 * 2**20, "fused": 4 * 2**20}


def test_steps_need_no_jax() -> None:
    code = (
        "import sys; from explorer import steps; from explorer.problem import Problem\n"
        "steps.inputs(steps.shown(Problem(inputs='lab'), 9), 'random'); print('jax' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
