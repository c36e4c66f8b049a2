"""cudnn_fp8: cuDNN's FP8 attention: quantise q, k, v to E4M3 with a scale per tensor, attend, dequantise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from explorer import fp8, private_fp8
from explorer.masks import Mask

LARGEST = fp8.FORMATS[fp8.E4M3].largest
WEIGHT_SCALE = fp8.WEIGHT_SCALE
HEADROOM = 4.0  # of the gradients' scale: how far the largest may lie above what is expected for normal inputs
SPREAD = 6.0  # largest over RMS of some million normal numbers


def attend(q: Any, k: Any, v: Any, *, mask: Mask, kernel: Callable[..., Any] = private_fp8.attention) -> Any:
    """Forward, and backward where JAX's rules allow it; casts included, in one program. kernel: the FP8 attention.

    JAX 0.9 to 0.12 hands XLA the backward pass's scales in another order than XLA gives them names (jax:
    fp8_params_keys_bwd; xla: GetCudnnFlashAttentionBackwardF8OperationGraph): descale_o, descale_dO, descale_s against
    descale_s, descale_o, descale_dO, and scale_dQ, dK, dV, dP against scale_dP, dQ, dK, dV. JAX's own tests pass 1
    for each. So here those that change places are equal: v, the output's gradient, the weights and the output all
    come with WEIGHT_SCALE as their scale, the gradients with a common one, and since attention is linear in v and in
    the output's gradient, what is missing from their scales is put back at the end. Right in either order.
    """
    import jax
    import jax.numpy as jnp

    softmax_scale = q.shape[-1] ** -0.5
    fixed = {"scale_s": WEIGHT_SCALE, "scale_o": WEIGHT_SCALE}
    # An average of v's rows is nowhere larger than v's largest: with v's scale the output never clips
    fixed |= dict.fromkeys(("descale_v", "descale_s", "descale_o", "descale_dO"), 1 / WEIGHT_SCALE)

    def forward(q8: Any, k8: Any, v8: Any, scales: dict[str, Any]) -> Any:
        return kernel(q8, k8, v8, causal=mask.causal, softmax_scale=softmax_scale, scales=scales)

    def quantised(q: Any, k: Any, v: Any) -> tuple[tuple[Any, Any, Any], Any, dict[str, Any]]:
        arrays, (q_scale, k_scale, v_scale) = zip(*map(quantise, (q, k, v)), strict=True)
        return arrays, v_scale, fixed | {"descale_q": 1 / q_scale, "descale_k": 1 / k_scale}

    def dequantise(array: Any, scale: Any) -> Any:
        return (array.astype(jnp.float32) / scale).astype(q.dtype)

    @jax.custom_vjp
    def attention(q: Any, k: Any, v: Any) -> Any:
        arrays, v_scale, scales = quantised(q, k, v)
        return dequantise(forward(*arrays, scales), v_scale)

    def with_residuals(q: Any, k: Any, v: Any) -> Any:
        arrays, v_scale, scales = quantised(q, k, v)
        common = gradient_scale(arrays, scales, softmax_scale, mask.causal)
        more = {"descale_dP": 1 / common, **dict.fromkeys(("scale_dP", "scale_dQ", "scale_dK", "scale_dV"), common)}
        out, pull = jax.vjp(lambda q8, k8, v8: forward(q8, k8, v8, scales | more), *arrays)
        return dequantise(out, v_scale), (pull, common, v_scale)

    def backward(residuals: Any, g: Any) -> Any:
        pull, common, v_scale = residuals
        g8, g_scale = quantise(g)
        dq, dk, dv = pull(g8)
        # The kernel took the output's gradient to be g8 / WEIGHT_SCALE, and v to be v8 / WEIGHT_SCALE
        dv_scale = common * g_scale / WEIGHT_SCALE
        both = dv_scale * v_scale / WEIGHT_SCALE
        return dequantise(dq, both), dequantise(dk, both), dequantise(dv, dv_scale)

    attention.defvjp(with_residuals, backward)
    return attention(q, k, v)


def explain(
    problem: Any, call: Callable[..., Any], arguments: tuple[Any, ...], found: dict[str, Any]
) -> dict[str, Any]:
    """For the record's evidence: whether two calls on the same arrays give the same output.

    Causal FP8 attention did not on an H200 with cuDNN 9.14 at B=4 T=2048 N=8 H=64: a check may then pass by luck.
    """
    import jax.numpy as jnp

    first, second = (jnp.asarray(x[0] if problem.backward else x) for x in (call(*arguments), call(*arguments)))
    if bool(jnp.array_equal(first, second, equal_nan=True)):
        return {}
    off = float(jnp.nanmax(jnp.abs(first.astype(jnp.float32) - second.astype(jnp.float32))))
    return {
        "repeatable": False,
        "remark": f"two calls on the same arrays gave different outputs, up to {off:.3g} apart",
    }


def quantise(x: Any) -> tuple[Any, Any]:
    """(E4M3 array, scale): as fp8.scale_of and fp8.quantise on the host; what isn't finite becomes NaN."""
    import jax.numpy as jnp

    wide = x.astype(jnp.float32)
    good = jnp.isfinite(wide)
    amax = jnp.max(jnp.where(good, jnp.abs(wide), 0.0))
    scale = jnp.where(amax > 0, jnp.minimum(LARGEST / amax, fp8.LARGEST_SCALE), 1.0)
    scaled = jnp.clip(wide * scale, -LARGEST, LARGEST)
    return jnp.where(good, scaled, jnp.nan).astype(jnp.float8_e4m3fn), scale


def gradient_scale(arrays: tuple[Any, Any, Any], scales: dict[str, Any], softmax_scale: float, causal: bool) -> Any:
    """One scale for dq, dk, dv and the scores' gradient, of an output gradient whose largest is LARGEST / WEIGHT_SCALE.

    The gradients' sizes are not known before they are computed (training takes them from earlier steps). Here they
    are what random arrays of these RMS would give, with HEADROOM; E4M3 keeps its digits over 15 powers of two, and
    the check against the exact gradients tells where that was not enough.
    """
    import jax.numpy as jnp

    q8, k8, v8 = arrays
    (t, s), head_dim, group = (q8.shape[1], k8.shape[1]), q8.shape[-1], q8.shape[2] // k8.shape[2]

    def rms(array: Any, descale: Any) -> Any:
        return jnp.sqrt(jnp.mean(jnp.square(array.astype(jnp.float32)))) * descale

    q, k, v = rms(q8, scales["descale_q"]), rms(k8, scales["descale_k"]), rms(v8, scales["descale_v"])
    g = LARGEST / WEIGHT_SCALE / SPREAD
    sigma = q * k * math.sqrt(head_dim) * softmax_scale  # of the scores
    # The largest weight, and the largest root of a row's summed squares; a causal first row has the one weight 1
    highest = jnp.exp(jnp.minimum(sigma * math.sqrt(2 * math.log(t * s + 1)) - sigma**2 / 2 - math.log(s), 0.0))
    row = jnp.minimum(jnp.exp(sigma**2 / 2) / math.sqrt(s), 1.0)
    highest, row = (jnp.ones_like(sigma), jnp.ones_like(sigma)) if causal else (highest, row)
    dp = g * v * math.sqrt(head_dim) * softmax_scale
    largest = SPREAD * jnp.maximum(
        jnp.maximum(dp * highest, dp * row * jnp.maximum(k, q * math.sqrt(group * t / s))),
        g * row * math.sqrt(group * t / s),
    )
    ratio = LARGEST / (HEADROOM * largest)
    return jnp.where(jnp.isfinite(ratio) & (ratio > 0), jnp.minimum(ratio, fp8.LARGEST_SCALE), 1.0)
