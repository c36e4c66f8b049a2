"""Masks against literal arrays, and the count against the array."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.masks import Mask

CAUSAL = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
WINDOW_1_0 = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
WINDOW_0_2 = [[1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]]
PADDING_2 = [[1, 1, 0, 0]] * 4


@pytest.mark.parametrize(
    ("mask", "literal"),
    [
        (Mask(), [[1] * 4] * 4),
        (Mask(causal=True), CAUSAL),
        (Mask(window=(1, 0)), WINDOW_1_0),
        (Mask(window=(0, 2)), WINDOW_0_2),
        (Mask(kv_valid=2), PADDING_2),
        (Mask(causal=True, kv_valid=2), [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]]),
        (Mask(kv_valid=0), [[0] * 4] * 4),
    ],
)
def test_literal(mask: Mask, literal: list[list[int]]) -> None:
    assert mask.dense(4, 4).astype(int).tolist() == literal


def test_causal_is_top_left_when_lengths_differ() -> None:
    assert Mask(causal=True).dense(2, 4).astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0]]
    assert Mask(causal=True).dense(4, 2).astype(int).tolist() == [[1, 0], [1, 1], [1, 1], [1, 1]]


def test_names() -> None:
    assert Mask().name == "full"
    assert Mask(causal=True, window=(16, 0)).name == "causal+window 16,0"
    assert Mask(kv_valid=5).name == "padding 5"


@given(
    q_len=st.integers(1, 40),
    kv_len=st.integers(1, 40),
    causal=st.booleans(),
    window=st.none() | st.tuples(st.integers(0, 50), st.integers(0, 50)),
    padding=st.none() | st.integers(0, 40),
)
def test_live_pairs_count_the_array(
    q_len: int, kv_len: int, causal: bool, window: tuple[int, int] | None, padding: int | None
) -> None:
    mask = Mask(causal=causal, window=window, kv_valid=padding)
    assert mask.live_pairs(q_len, kv_len) == int(mask.dense(q_len, kv_len).sum())


def test_live_pairs_of_the_largest_lengths_need_no_array() -> None:
    most = 2**31 - 1
    assert Mask(causal=True).live_pairs(most, most) == most * (most + 1) // 2
    assert Mask().live_pairs(most, most) == most * most


def test_row_bounds_are_the_arrays_runs() -> None:
    mask = Mask(causal=True, window=(2, 1), kv_valid=5)
    first, last = mask.row_bounds(np.arange(7), 6)
    dense = mask.dense(7, 6)
    for i in range(7):
        assert np.flatnonzero(dense[i]).tolist() == list(range(first[i], last[i]))
