"""Steps: softmax(q kᵀ · scale) v of one head taken apart, whole and block by block. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from explorer import cost, numerics
from explorer.masks import Mask
from explorer.problem import Problem

LONGEST = 64  # tokens that one cell each can still show
MOST_BATCHES = 4
SEPARATION = 4.0  # the score by which the right key of a made-up pattern stands above log(tokens): its weight is 0.98
KINDS = {
    "random": "q, k and v from N(0, 1), as in the lab",
    "one-hot": "token i is a unit vector: each query finds the keys of its own kind",
    "copy": "query i asks for position i − 1: each token copies the one before it",
}
SCALES = {"0": "no score counts", "1/H": "too small", "1/√H": "the formula", "1": "√H forgotten"}


def scale_of(name: str, head_dim: int) -> float:
    """The factor on q kᵀ that goes by this name; raises ValueError."""
    if name not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {name!r}")
    return {"0": 0.0, "1/H": 1 / head_dim, "1/√H": head_dim**-0.5, "1": 1.0}[name]


def shown(problem: Problem, tokens: int) -> Problem:
    """The first tokens of a problem, few enough to see each: T = S = tokens, at most 4 batch entries, N(0, 1)."""
    return problem.but(
        batch=min(problem.batch, MOST_BATCHES), q_len=tokens, kv_len=tokens, backward=False, window=None, kv_valid=None,
        inputs="normal", input_scale=1.0,
    )  # fmt: skip


def inputs(
    problem: Problem, kind: str, *, batch: int = 0, head: int = 0
) -> tuple[Float[np.ndarray, "t h"], Float[np.ndarray, "s h"], Float[np.ndarray, "s h"]]:
    """q, k and v of one query head in float64. The made-up patterns are the same for every head; raises ValueError."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if not (0 <= batch < problem.batch and 0 <= head < problem.heads):
        raise ValueError(
            f"batch and head must be below {problem.batch} and {problem.heads}, got batch {batch} and head {head}"
        )
    t, s, h = problem.q_len, problem.kv_len, problem.head_dim
    if kind == "random":
        drawn = numerics.draw(problem)
        shared = head // (problem.heads // problem.kv_heads)
        q, k, v = drawn["q"][batch, :, head], drawn["k"][batch, :, shared], drawn["v"][batch, :, shared]
        return q.astype(np.float64), k.astype(np.float64), v.astype(np.float64)
    tokens = np.eye(h)[np.arange(s) % h]
    if kind == "one-hot":
        strength = _strength(tokens, s, h)
        return np.eye(h)[np.arange(t) % h] * strength, tokens * strength, tokens
    codes = position_codes(max(t, s), h)
    strength = _strength(codes, s, h)
    asked = np.concatenate([np.zeros((1, h)), codes[: t - 1]])  # nothing stands before token 0
    return asked * strength, codes[:s] * strength, tokens


def position_codes(count: int, width: int) -> Float[np.ndarray, "p h"]:
    """Points on circles, one frequency for two columns: two positions' dot product falls off with their distance."""
    angle = 2 * np.pi * np.arange(count)[:, None] / max(count, 2)
    frequency = np.arange(1, width // 2 + 2)[None, :]
    both = np.stack([np.cos(angle * frequency), np.sin(angle * frequency)], axis=-1).reshape(count, -1)
    return both[:, :width]


def _strength(keys: np.ndarray, count: int, head_dim: int) -> float:
    """Factor on q and on k under which the best key's scaled score is log(count) + SEPARATION."""
    best = float((keys**2).sum(axis=1).max())
    return float(np.sqrt((np.log(count) + SEPARATION) * np.sqrt(head_dim) / best))


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """One head's arrays on the way, in float64. scaled is -inf where masked; a row that sees no key has NaN weights."""

    q: Float[np.ndarray, "t h"]
    k: Float[np.ndarray, "s h"]
    v: Float[np.ndarray, "s h"]
    live: Bool[np.ndarray, "t s"]
    scale: float
    scores: Float[np.ndarray, "t s"]
    scaled: Float[np.ndarray, "t s"]
    weights: Float[np.ndarray, "t s"]
    output: Float[np.ndarray, "t h"]

    def shares(self, row: int) -> Float[np.ndarray, "s h"]:
        """What each key adds to the output of a query row: weight × v. The column sums are the output."""
        return self.weights[row][:, None] * self.v


def apart(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, mask: Mask, scale: float) -> Steps:
    """The lab's four steps: scores, scale and mask, softmax, weighted sum."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    live = mask.dense(len(q), len(k))
    scores = q @ k.T
    scaled = np.where(live, scores * scale, -np.inf)
    with np.errstate(invalid="ignore"):  # -inf - -inf in a row that sees nothing: NaN, as it should
        weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        output = weights @ v
    return Steps(q=q, k=k, v=v, live=live, scale=scale, scores=scores, scaled=scaled, weights=weights, output=output)


def keys_attended(weights: np.ndarray) -> Float[np.ndarray, " t"]:
    """exp(entropy) of each row: 1 where one key has all the weight, n where n keys share it evenly."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(weights > 0, weights * np.log(weights), np.where(np.isnan(weights), np.nan, 0.0))
    return np.exp(-terms.sum(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The online softmax after one block of keys, for every query row. output is NaN while a row has seen no key."""

    first: int
    last: int  # one past the block's last key
    highest: Float[np.ndarray, " t"]
    correction: Float[np.ndarray, " t"]  # exp(old highest − new highest): what the sums so far shrink by
    total: Float[np.ndarray, " t"]
    output: Float[np.ndarray, "t h"]


def online(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, mask: Mask, scale: float, block: int, dtype: str = "float64"
) -> list[Block]:
    """What a fused kernel keeps: a running maximum, a running sum and an output, updated by blocks of keys.

    Milakov and Gimelshein (2018), Online normalizer calculation for softmax; Dao et al. (2022), FlashAttention,
    algorithm 1. The scores of one block are all that ever exists. Raises ValueError.
    """
    if block < 1:
        raise ValueError(f"block must be 1 key or more, got {block}")
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    rows = np.arange(len(q))[:, None]
    highest = np.full(len(q), -np.inf, dtype)
    total, summed = np.zeros(len(q), dtype), np.zeros((len(q), v.shape[1]), dtype)
    blocks: list[Block] = []
    for first in range(0, len(k), block):
        last = min(first + block, len(k))
        live = mask.allows(rows, np.arange(first, last)[None, :])
        scores = np.where(live, (q @ k[first:last].T) * np.asarray(scale, dtype), -np.inf).astype(dtype)
        risen = np.maximum(highest, scores.max(axis=1))
        # While a row has seen nothing its maximum is -inf; 0 in its place keeps exp(-inf - -inf) from giving NaN.
        anchor = np.where(np.isneginf(risen), 0, risen)
        correction = np.exp(np.where(np.isneginf(highest), anchor, highest) - anchor)
        share = np.exp(scores - anchor[:, None])
        total = total * correction + share.sum(axis=1)
        summed = summed * correction[:, None] + share @ v[first:last]
        with np.errstate(invalid="ignore"):
            output = summed / np.where(total == 0, np.nan, total)[:, None]
        highest = risen
        blocks.append(
            Block(first=first, last=last, highest=highest, correction=correction, total=total, output=output)
        )  # fmt: skip
    return blocks


def difference(blocks: list[Block], steps: Steps) -> float:
    """Largest |online − whole| over the rows that see a key; NaN if the online softmax has one there."""
    known = np.isfinite(steps.output)
    off = np.abs(np.where(known, blocks[-1].output - steps.output, 0.0))
    return float(off.max())


def undefined_rows(steps: Steps) -> list[int]:
    """Rows that see no key: 0/0, no right answer exists."""
    return [int(row) for row in np.flatnonzero(~steps.live.any(axis=1))]


def bytes_moved(problem: Problem) -> dict[str, int]:
    """Traffic to the GPU's memory: naive writes and reads the scores and the weights, fused moves q, k, v and o once.

    A lower bound for both: what a cache can't hold is read again.
    """
    least = cost.min_bytes(problem)
    return {"naive": least + 4 * cost.score_bytes(problem, problem.item_bytes), "fused": least}
