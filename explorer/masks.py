"""Masks: which query may look at which key, as a predicate, as an array and as a count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """A boolean mask: True means the query sees the key. Positions count from 0, top-left aligned.

    Top-left: with q_len != kv_len, causal query i still sees keys 0 ... i (jax.nn and cuDNN agree).
    """

    causal: bool = False
    window: tuple[int, int] | None = None  # keys from i - left to i + right, as jax.nn's local_window_size
    kv_valid: int | None = None  # only the first kv_valid keys are real, the rest is padding

    @property
    def name(self) -> str:
        parts = ["causal"] if self.causal else []
        if self.window is not None:
            parts.append(f"window {self.window[0]},{self.window[1]}")
        if self.kv_valid is not None:
            parts.append(f"padding {self.kv_valid}")
        return "+".join(parts) or "full"

    def allows(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Whether query i sees key j, elementwise with broadcasting."""
        seen = np.ones(np.broadcast_shapes(np.shape(i), np.shape(j)), bool)
        if self.causal:
            seen &= j <= i
        if self.window is not None:
            seen &= (j >= i - self.window[0]) & (j <= i + self.window[1])
        if self.kv_valid is not None:
            seen &= j < self.kv_valid
        return seen

    def dense(self, q_len: int, kv_len: int) -> Bool[np.ndarray, "t s"]:
        return self.allows(np.arange(q_len)[:, None], np.arange(kv_len)[None, :])

    def row_bounds(self, i: np.ndarray, kv_len: int) -> tuple[np.ndarray, np.ndarray]:
        """First live key and one past the last, for each query i; every mask here is one run of keys a row."""
        first, last = np.zeros_like(i), np.full_like(i, kv_len)
        if self.causal:
            last = np.minimum(last, i + 1)
        if self.window is not None:
            first = np.maximum(first, i - self.window[0])
            last = np.minimum(last, i + self.window[1] + 1)
        if self.kv_valid is not None:
            last = np.minimum(last, self.kv_valid)
        return first, np.maximum(first, last)

    def live_pairs(self, q_len: int, kv_len: int) -> int:
        """Number of (query, key) pairs that are seen: exact, without the array."""
        if self.window is None:  # closed form, since q_len can be 2^31 - 1
            keys = kv_len if self.kv_valid is None else min(kv_len, self.kv_valid)
            if not self.causal:
                return q_len * keys
            rising = min(q_len, keys)
            return rising * (rising + 1) // 2 + (q_len - rising) * keys
        total, step = 0, 1 << 20
        for start in range(0, q_len, step):
            first, last = self.row_bounds(np.arange(start, min(q_len, start + step), dtype=np.int64), kv_len)
            total += int((last - first).sum())
        return total

    @property
    def plain(self) -> bool:
        """Full or causal, without window or padding."""
        return self.window is None and self.kv_valid is None
