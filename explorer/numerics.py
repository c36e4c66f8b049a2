"""Numerics: seeded inputs, the exact result in float64, error measures, the error budget and the verdict.

All in NumPy on the host, but for the lab's own random keys and the plain computation, which run where the backend runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from explorer import fp8
from explorer.masks import Mask
from explorer.problem import Problem

EXACT_FLOPS = 6e8  # what the float64 result may cost: the lab's T=256 whole, a tenth of a second on two cores
LAB_TOLERANCE = {"float32": 1e-3, "bfloat16": 1e-2, "float16": 1e-2}  # the lab's steps 4 and 5
PINNED = {  # naive against exact, absolute, for outputs of size 1: (default matmul precision, highest)
    "float32": (1e-3, 1e-5),  # TF32 on a GPU gives 6.5e-4, float32 5.5e-7 (H200)
    "bfloat16": (4e-2, 4e-2),
    "float16": (5e-3, 5e-3),
    fp8.E4M3: (0.15, 0.15),  # weights and output each rounded by up to 1/16 of themselves
}


def numpy_dtype(name: str) -> np.dtype:
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def epsilon(name: str) -> float:
    """Distance from 1 to the next number."""
    import ml_dtypes

    return float(ml_dtypes.finfo(numpy_dtype(name)).eps)


def draw(p: Problem) -> dict[str, np.ndarray]:
    """q, k, v (backward: also g, the output's gradient) in float32 on the host: the same bits on any machine.

    Each array has a generator of its own, so that k does not change when q_len does.
    """
    arrays = _lab_arrays(p) if p.inputs == "lab" else {n: _draw_one(p, n, i) for i, n in enumerate(("q", "k", "v"))}
    if p.input_scale != 1.0:
        arrays["q"] = arrays["q"] * np.float32(p.input_scale)
        arrays["k"] = arrays["k"] * np.float32(p.input_scale)
    if p.backward:
        arrays["g"] = np.random.default_rng((p.seed, 3)).standard_normal(p.q_shape, np.float32)
    return arrays


def _draw_one(p: Problem, name: str, index: int) -> np.ndarray:
    rng = np.random.default_rng((p.seed, index))
    shape = p.q_shape if name == "q" else p.kv_shape
    if p.inputs == "zeros":
        return np.zeros(shape, np.float32)
    array = rng.standard_normal(shape, np.float32)
    if p.inputs == "outliers":
        rare = rng.random(shape, np.float32) < 0.001
        array += np.float32(10) * rng.standard_normal(shape, np.float32) * rare
    elif p.inputs == "spike" and name != "v":
        array.flat[0] = 1e4
    elif p.inputs == "nan" and name == "v":
        array.flat[0] = np.nan
    return array


def _lab_arrays(p: Problem) -> dict[str, np.ndarray]:
    """The lab's step 2: jax.random.normal from three splits of key(seed)."""
    import jax

    keys = jax.random.split(jax.random.PRNGKey(p.seed), 3)
    shapes = {"q": p.q_shape, "k": p.kv_shape, "v": p.kv_shape}
    return {n: np.asarray(jax.random.normal(key, shapes[n])) for n, key in zip(shapes, keys, strict=True)}


def cast(arrays: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """Rounded to dtype on the host, so that the exact result and the backend see the same numbers."""
    with np.errstate(over="ignore", invalid="ignore"):
        return {name: array.astype(numpy_dtype(dtype)) for name, array in arrays.items()}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The part on which a problem is checked: some (batch, head) pairs and some query rows, over all keys."""

    pairs: np.ndarray  # (pairs, 2): batch, query head
    rows: np.ndarray  # query rows, in order
    whole: bool

    def take(self, array: np.ndarray) -> np.ndarray:
        """Rows of a (b, t, n, h) array as (pairs, rows, h)."""
        return array[self.pairs[:, 0, None], self.rows[None, :], self.pairs[:, 1, None]]

    def take_kv(self, array: np.ndarray, group: int) -> np.ndarray:
        """Keys or values of the pairs' heads as (pairs, s, h)."""
        return array[self.pairs[:, 0], :, self.pairs[:, 1] // group]


def spread(count: int, most: int) -> np.ndarray:
    """Up to most indices of range(count): both ends, and evenly between."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def sample(p: Problem, budget_flops: float = EXACT_FLOPS) -> Sample:
    """Everything where it is cheap; else 64 or more rows, and as many (batch, head) pairs as the budget allows."""
    a_row = 4.0 * p.kv_len * p.head_dim
    pairs = p.batch * p.heads
    if a_row * pairs * p.q_len <= budget_flops:
        chosen, rows = np.arange(pairs), np.arange(p.q_len)
    else:
        rows = spread(p.q_len, max(64, int(budget_flops / a_row / min(pairs, 8))))
        chosen = spread(pairs, max(2, int(budget_flops / a_row / len(rows))))
    return Sample(
        pairs=np.stack([chosen // p.heads, chosen % p.heads], axis=1),
        rows=rows,
        whole=len(chosen) == pairs and len(rows) == p.q_len,
    )


def exact(q: np.ndarray, k: np.ndarray, v: np.ndarray, live: np.ndarray) -> np.ndarray:
    """softmax(q kᵀ / √H) v in float64 for (pairs, r, h) queries, (pairs, s, h) keys and a (r, s) mask.

    A row that sees no key has no defined result; it is NaN here.
    """
    out = np.empty(q.shape, np.float64)
    for pair in range(q.shape[0]):  # one pair at a time bounds the memory
        weights = exact_weights(q[pair], k[pair], live)
        out[pair] = weights @ v[pair].astype(np.float64)
    return out


def exact_weights(q: np.ndarray, k: np.ndarray, live: np.ndarray) -> np.ndarray:
    """The softmax weights of one head in float64: (r, s), rows summing to 1."""
    with np.errstate(invalid="ignore", over="ignore"):
        weights = q.astype(np.float64) @ k.astype(np.float64).T  # in place from here: at 16k these passes are the cost
        weights /= np.sqrt(q.shape[-1])
        weights[~live] = -np.inf
        weights -= weights.max(axis=-1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= weights.sum(axis=-1, keepdims=True)
        return weights


def exact_gradients(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, mask: Mask
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """dq, dk, dv in float64 of sum(out · g), for one batch entry: q, g (t, n, h); k, v (s, kv, h)."""
    q, k, v, g = (x.astype(np.float64) for x in (q, k, v, g))
    group, root = q.shape[1] // k.shape[1], np.sqrt(q.shape[-1])
    live = mask.dense(q.shape[0], k.shape[0])
    dq, dk, dv = np.empty_like(q), np.zeros_like(k), np.zeros_like(v)
    for n in range(q.shape[1]):
        m = n // group
        w = exact_weights(q[:, n], k[:, m], live)
        dw = g[:, n] @ v[:, m].T
        ds = w * (dw - (w * dw).sum(axis=-1, keepdims=True)) / root
        dq[:, n] = ds @ k[:, m]
        dk[:, m] += ds.T @ q[:, n]
        dv[:, m] += w.T @ g[:, n]
    return dq, dk, dv


def plain(q: Any, k: Any, v: Any, live: Any) -> Any:
    """The plain computation of the error budget: the naive backend's steps on sampled rows, in the inputs' dtype."""
    import jax
    import jax.numpy as jnp

    scores = jnp.einsum("prh,psh->prs", q, k) * (q.shape[-1] ** -0.5)
    scores = jnp.where(live, scores, jnp.array(-jnp.inf, scores.dtype))
    return jnp.einsum("prs,psh->prh", jax.nn.softmax(scores, axis=-1), v)


def plain_fp8(q: np.ndarray, k: np.ndarray, v: np.ndarray, live: np.ndarray, v_scale: float) -> np.ndarray:
    """The plain computation of FP8's error budget, on the host: float32 products and sums of inputs that are already
    rounded to FP8, weights and output rounded to E4M3 with the backend's scales."""
    out = np.empty((*q.shape[:2], v.shape[-1]), np.float64)
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    for pair in range(q.shape[0]):
        with np.errstate(invalid="ignore", over="ignore"):
            scores = (q[pair] @ k[pair].T) * np.float32(q.shape[-1] ** -0.5)
            scores[~live] = -np.inf
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            sums = weights.sum(axis=-1, keepdims=True)
            out[pair] = fp8.rounded(
                (fp8.rounded(weights, fp8.WEIGHT_SCALE).astype(np.float32) @ v[pair]) / sums, v_scale
            )
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How far a result is from the exact one. NaN where it isn't finite. worst: index of the largest error."""

    max_abs: float
    mean_abs: float
    rmse: float
    worst: tuple[int, ...]
    largest_exact: float  # largest |exact|, the scale of a rounding step
    nonfinite: int

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.max_abs))


def errors(out: np.ndarray, truth: np.ndarray) -> Errors:
    """Elementwise against truth; where truth is NaN (a row that sees nothing) nothing is compared."""
    with np.errstate(invalid="ignore", over="ignore"):
        out64 = out.astype(np.float64)
        known = np.isfinite(truth)
        off = np.where(known, np.abs(out64 - truth), 0.0)
        bad = known & ~np.isfinite(out64)
        worst = np.unravel_index(int(np.argmax(np.where(bad, np.inf, off))), off.shape)
        largest = float(np.abs(truth[known]).max()) if known.any() else 0.0
        if bad.any():
            nan = float("nan")
            return Errors(max_abs=nan, mean_abs=nan, rmse=nan, worst=tuple(map(int, worst)), largest_exact=largest,
                          nonfinite=int(bad.sum()))  # fmt: skip
        count = max(1, int(known.sum()))
        return Errors(
            max_abs=float(off.max()),
            mean_abs=float(off.sum() / count),
            rmse=float(np.sqrt((off**2).sum() / count)),
            worst=tuple(map(int, worst)),
            largest_exact=largest,
            nonfinite=0,
        )


def nonfinite(array: np.ndarray) -> int:
    """How many elements of the whole output are NaN or infinite; by the exponent bits where NumPy is slow."""
    if array.dtype.itemsize == 2:
        exponent = np.uint16(0x7C00 if array.dtype == np.float16 else 0x7F80)
        return int(((array.view(np.uint16) & exponent) == exponent).sum())
    return int((~np.isfinite(array)).sum())


def pinned(dtype: str, largest_exact: float, *, highest: bool) -> float:
    """The absolute tolerance that pins the plain computation itself, for outputs of that size."""
    return PINNED[dtype][1 if highest else 0] * max(1.0, largest_exact)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What error is allowed, and why."""

    value: float
    plain_error: float | None
    basis: str


def budget(dtype: str, plain_errors: Errors | None, largest_exact: float, *, highest: bool) -> Budget:
    """Twice the plain computation's error plus one rounding step of the largest output (DESIGN's rule).

    Where the plain computation itself is not finite or beyond its pin, its pin takes its place.
    """
    step = epsilon(dtype) * largest_exact
    pin = pinned(dtype, largest_exact, highest=highest)
    if plain_errors is not None and plain_errors.is_finite and plain_errors.max_abs <= pin:
        return Budget(
            value=2 * plain_errors.max_abs + step,
            plain_error=plain_errors.max_abs,
            basis=f"2 × {plain_errors.max_abs:.2g} (plain {dtype}) + {step:.2g} (one rounding step)",
        )
    found = None if plain_errors is None or not plain_errors.is_finite else plain_errors.max_abs
    return Budget(
        value=2 * pin + step,
        plain_error=found,
        basis=f"2 × {pin:.2g} (the pinned tolerance: plain {dtype} is itself off) + {step:.2g} (one rounding step)",
    )


def lab_close(out: np.ndarray, truth: np.ndarray, dtype: str) -> bool:
    """The lab's own check, allclose: atol 1e-3 with JAX's rtol 1e-5 in float32, rtol = atol = 1e-2 in 16 bits."""
    tolerance = LAB_TOLERANCE[dtype]
    known = np.isfinite(truth)
    rtol = 1e-5 if dtype == "float32" else tolerance
    return bool(np.allclose(out.astype(np.float64)[known], truth[known], rtol=rtol, atol=tolerance))
