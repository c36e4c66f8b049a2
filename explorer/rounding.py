"""Rounding: one array before and after it is stored in a narrow format, for a look at what is lost. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from explorer import fp8, numerics
from explorer.problem import Problem

ARRAYS = ("q", "k", "v")
MOST = 200_000  # numbers looked at: a histogram of more looks the same
LOWEST, HIGHEST = -24, 16  # of the histogram, as powers of two
BINS_AN_OCTAVE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """An array as drawn, and what the format makes of it. shift: the scale is that from amax times 2^shift."""

    name: str
    dtype: str
    shift: int
    before: np.ndarray  # float64
    after: np.ndarray  # float64, dequantised
    loss: fp8.Loss


def view(
    problem: Problem, name: str, *, dtype: str = fp8.E4M3, outliers: float = 0.0, size: float = 10.0, shift: int = 0
) -> View:
    """outliers: share of the numbers to which a normal one times size is added, as FlashAttention-3's test does."""
    one = problem.but(batch=1, window=None, kv_valid=None)
    array = numerics.draw(one)[name].reshape(-1)[:MOST].copy()
    if outliers:
        rng = np.random.default_rng((problem.seed, 7))
        rare = rng.random(array.shape) < outliers
        array += np.float32(size) * rng.standard_normal(array.shape, np.float32) * rare
    scale = np.float32(fp8.scale_of(array, dtype) * np.float32(2.0**shift))
    return View(
        name=name,
        dtype=dtype,
        shift=shift,
        before=array.astype(np.float64),
        after=fp8.rounded(array, scale, dtype),
        loss=fp8.loss(array, dtype, scale),
    )


def histogram(seen: View) -> list[dict[str, Any]]:
    """Shares of |x| by size, before and after: {when, low, high, share, said}, low and high as powers of two.

    What is 0, before or only after, has a row with low None: it has no place on a logarithmic line.
    """
    rows: list[dict[str, Any]] = []
    edges = np.arange(LOWEST * BINS_AN_OCTAVE, HIGHEST * BINS_AN_OCTAVE + 1) / BINS_AN_OCTAVE
    for when, array in (("before", seen.before), ("after", seen.after)):
        size = np.abs(array[np.isfinite(array)])
        rows.append({"when": when, "low": None, "high": None, "share": float((size == 0).mean()), "said": "0"})
        found, _ = np.histogram(np.clip(np.log2(size[size > 0]), LOWEST, HIGHEST - 1e-9), edges)
        for count, low, high in zip(found.tolist(), edges.tolist(), edges[1:].tolist(), strict=False):
            if count:
                said = f"{2.0**low:.3g} to {2.0**high:.3g}"
                rows.append({"when": when, "low": low, "high": high, "share": count / array.size, "said": said})
    return rows


def limits(seen: View) -> tuple[float, float]:
    """The smallest and the largest number that the format can hold, in the array's own units, as powers of two."""
    form, scale = fp8.FORMATS[seen.dtype], seen.loss.scale
    return float(np.log2(form.smallest / scale)), float(np.log2(form.largest / scale))


def percent(share: float) -> str:
    """A share for a figure; what is there never reads as none."""
    return "< 0.01%" if 0 < share < 0.0001 else f"{share:.2%}"


def sentence(seen: View) -> str:
    """What is lost, in words."""
    lost, form = seen.loss, fp8.FORMATS[seen.dtype]
    parts = [f"amax {lost.amax:.3g}, scale {lost.scale:.3g}"]
    parts.append(
        f"{percent(lost.clipped)} clipped to ±{form.largest / lost.scale:.3g}" if lost.clipped else "none clipped"
    )
    parts.append(f"{lost.flushed:.3%} became 0" if lost.flushed else "none became 0")
    parts.append(f"{lost.subnormal:.2%} have fewer digits than the format has" if lost.subnormal else "all digits kept")
    if lost.relative_rmse is not None:
        parts.append(f"rounding error {lost.relative_rmse:.2%} of the array's RMS")
    return "; ".join(parts)
