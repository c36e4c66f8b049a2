"""FP8: what its number formats can hold, and what rounding an array to them loses. NumPy and ml_dtypes only."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

E4M3 = "float8_e4m3fn"
E5M2 = "float8_e5m2"
# Softmax weights are at most 1; times 256 (exact) they use E4M3's range. Unscaled, all below 2^-10 would round to 0.
WEIGHT_SCALE = 256.0
LARGEST_SCALE = 2.0**100  # a scale beyond it would overflow float32 for denormal inputs
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A binary floating-point format. The numbers follow from its bits (checked against ml_dtypes in the tests)."""

    name: str
    label: str
    exponent_bits: int
    mantissa_bits: int
    largest: float
    smallest_normal: float
    smallest: float  # subnormal
    about: str

    @property
    def step_at_one(self) -> float:
        """Distance from 1 to the next number."""
        return 2.0**-self.mantissa_bits

    @property
    def clips_from(self) -> float:
        """Up to half a step above the largest number, rounding alone leads to it: 464 for E4M3, 61440 for E5M2."""
        return self.largest + self.step_at_one * 2.0 ** math.floor(math.log2(self.largest)) / 2


FORMATS: dict[str, Format] = {
    E4M3: Format(
        name=E4M3,
        label="E4M3",
        exponent_bits=4,
        mantissa_bits=3,
        largest=448.0,
        smallest_normal=2.0**-6,
        smallest=2.0**-9,
        about="forward pass: q, k, v, weights and output; NaN but no infinity",
    ),
    E5M2: Format(
        name=E5M2,
        label="E5M2",
        exponent_bits=5,
        mantissa_bits=2,
        largest=57344.0,
        smallest_normal=2.0**-14,
        smallest=2.0**-16,
        about="gradients in HYBRID recipes: more range, fewer digits",
    ),
    "bfloat16": Format(
        name="bfloat16",
        label="bfloat16",
        exponent_bits=8,
        mantissa_bits=7,
        largest=(2 - 2.0**-7) * 2.0**127,
        smallest_normal=2.0**-126,
        smallest=2.0**-133,
        about="float32's range with 8 significant bits",
    ),
}


def numpy_dtype(name: str) -> np.dtype:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name))


def values(name: str) -> np.ndarray:
    """Every finite number of an 8-bit format, in order, as float64."""
    codes = np.arange(256, dtype=np.uint8).view(numpy_dtype(name)).astype(np.float64)
    return np.unique(codes[np.isfinite(codes)])


def amax(array: np.ndarray) -> float:
    """The largest finite |x|; 0 where there is none."""
    flat = array.reshape(-1)
    most = 0.0
    for start in range(0, flat.size, _CHUNK):
        part = np.abs(flat[start : start + _CHUNK].astype(np.float32))
        most = max(most, float(part[np.isfinite(part)].max(initial=0.0)))
    return most


def scale_of(array: np.ndarray, dtype: str = E4M3) -> np.float32:
    """The per-tensor scale of current scaling: what brings the largest finite |x| to the format's largest number.

    In float32, as backends/cudnn_fp8.py computes it on the device; 1 for an array without a number other than 0.
    """
    return scale_for(amax(array), dtype)


def scale_for(largest: float, dtype: str = E4M3) -> np.float32:
    if largest == 0:
        return np.float32(1)
    with np.errstate(over="ignore"):
        return np.minimum(np.float32(FORMATS[dtype].largest) / np.float32(largest), np.float32(LARGEST_SCALE))


def quantise(array: np.ndarray, scale: np.float32 | float, dtype: str = E4M3) -> np.ndarray:
    """x · scale rounded to the format, saturating as the GPU's casts do; what isn't finite becomes NaN."""
    scaled = array.astype(np.float32) * np.float32(scale)
    largest = FORMATS[dtype].largest
    whole = np.where(np.isfinite(array.astype(np.float32)), np.clip(scaled, -largest, largest), np.float32(np.nan))
    return whole.astype(numpy_dtype(dtype))


def rounded(array: np.ndarray, scale: np.float32 | float, dtype: str = E4M3) -> np.ndarray:
    """What the array holds after quantising and dequantising, in float64."""
    return quantise(array, scale, dtype).astype(np.float64) / np.float64(scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What quantising an array does to it. Shares are of all elements."""

    amax: float
    scale: float
    clipped: float  # so far beyond the largest number that rounding alone would not lead to it: saturated
    flushed: float  # not 0 before, 0 after
    subnormal: float  # below the smallest normal number, but not flushed: fewer digits than the format has
    nonfinite: float
    relative_rmse: float | None  # RMS of the rounding error over the RMS of the array

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def loss(array: np.ndarray, dtype: str = E4M3, scale: float | np.float32 | None = None) -> Loss:
    """scale None: from amax. Works through the array in parts, so that a large one needs no second copy."""
    form = FORMATS[dtype]
    factor = np.float32(scale_of(array, dtype) if scale is None else scale)
    flat = array.reshape(-1)
    counts = dict.fromkeys(("clipped", "flushed", "subnormal", "nonfinite"), 0)
    most = squares = wrong = 0.0
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK].astype(np.float32)
        good = np.isfinite(part)
        size = np.where(good, np.abs(part), np.float32(0))
        with np.errstate(over="ignore"):
            scaled = size * factor
        most = max(most, float(size.max(initial=0.0)))
        counts["nonfinite"] += int((~good).sum())
        counts["clipped"] += int((scaled > form.clips_from).sum())
        gone = (size > 0) & (scaled <= form.smallest / 2)
        counts["flushed"] += int(gone.sum())
        counts["subnormal"] += int(((size > 0) & (scaled < form.smallest_normal) & ~gone).sum())
        exact = np.where(good, part, np.float32(0)).astype(np.float64)
        squares += float((exact**2).sum())
        wrong += float(((rounded(exact, factor, dtype) - exact) ** 2).sum())
    return Loss(
        amax=most,
        scale=float(factor),
        relative_rmse=float(np.sqrt(wrong / squares)) if squares else None,
        **{name: count / max(1, flat.size) for name, count in counts.items()},
    )
