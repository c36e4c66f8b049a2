"""cudnn_fp8: cuDNN's FP8 attention: quantise q, k, v to E4M3 with a scale per tensor, attend, dequantise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from explorer import fp8, private_fp8
from explorer.masks import Mask

LARGEST = fp8.FORMATS[fp8.E4M3].largest
WEIGHT_SCALE = fp8.WEIGHT_SCALE
HEADROOM = 8.0  # of the gradients' scales: what is beyond so many standard deviations saturates


def attend(q: Any, k: Any, v: Any, *, mask: Mask, kernel: Callable[..., Any] = private_fp8.attention) -> Any:
    """Forward, and backward where JAX's rules allow it; casts included, in one program. kernel: the FP8 attention."""
    import jax
    import jax.numpy as jnp

    softmax_scale = q.shape[-1] ** -0.5

    def forward(q8: Any, k8: Any, v8: Any, scales: dict[str, Any]) -> Any:
        return kernel(q8, k8, v8, causal=mask.causal, softmax_scale=softmax_scale, scales=scales)

    def quantised(q: Any, k: Any, v: Any) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
        arrays, factors = zip(*map(quantise, (q, k, v)), strict=True)
        q_scale, k_scale, v_scale = factors
        scales = {
            "descale_q": 1 / q_scale,
            "descale_k": 1 / k_scale,
            "descale_v": 1 / v_scale,
            "scale_s": WEIGHT_SCALE,
            "descale_s": 1 / WEIGHT_SCALE,
            # An average of v's rows is nowhere larger than v's largest: v's scale never clips the output
            "scale_o": v_scale,
            "descale_o": 1 / v_scale,
        }
        return arrays, scales

    def dequantise(array: Any, descale: Any) -> Any:
        return (array.astype(jnp.float32) * descale).astype(q.dtype)

    @jax.custom_vjp
    def attention(q: Any, k: Any, v: Any) -> Any:
        arrays, scales = quantised(q, k, v)
        return dequantise(forward(*arrays, scales), scales["descale_o"])

    def with_residuals(q: Any, k: Any, v: Any) -> Any:
        arrays, scales = quantised(q, k, v)
        # The gradient's own scale is known only later. All is linear in it: it comes normalised to at most 1
        more, factors = gradient_scales(arrays, scales, softmax_scale)
        out, pull = jax.vjp(lambda q8, k8, v8: forward(q8, k8, v8, scales | more), *arrays)
        return dequantise(out, scales["descale_o"]), (pull, factors)

    def backward(residuals: Any, g: Any) -> Any:
        pull, factors = residuals
        g8, g_scale = quantise(g)
        gradients = pull(g8)
        unit = LARGEST / g_scale  # what the normalised gradient was divided by
        return tuple(dequantise(x, unit / f) for x, f in zip(gradients, factors, strict=True))

    attention.defvjp(with_residuals, backward)
    return attention(q, k, v)


def quantise(x: Any) -> tuple[Any, Any]:
    """(E4M3 array, scale): as fp8.scale_of and fp8.quantise on the host; what isn't finite becomes NaN."""
    import jax.numpy as jnp

    wide = x.astype(jnp.float32)
    good = jnp.isfinite(wide)
    amax = jnp.max(jnp.where(good, jnp.abs(wide), 0.0))
    scale = jnp.where(amax > 0, jnp.minimum(LARGEST / amax, fp8.LARGEST_SCALE), 1.0)
    scaled = jnp.clip(wide * scale, -LARGEST, LARGEST)
    return jnp.where(good, scaled, jnp.nan).astype(jnp.float8_e4m3fn), scale


def gradient_scales(arrays: tuple[Any, Any, Any], scales: dict[str, Any], softmax_scale: float) -> Any:
    """Scales of the backward pass for an output gradient whose largest element is 1, and those of dq, dk, dv.

    The gradients' sizes are not known before they are computed (training takes them from earlier steps). Here they
    come from the arrays' RMS with HEADROOM; E4M3 holds its digits over 15 powers of two, and the check against the
    exact gradients tells where that was not enough.
    """
    import jax.numpy as jnp

    q8, k8, v8 = arrays

    def rms(array: Any, descale: Any) -> Any:
        return jnp.sqrt(jnp.mean(jnp.square(array.astype(jnp.float32)))) * descale

    spread = 0.25  # RMS over maximum of a normal variable's gradient, about
    # dP = dO vᵀ over head_dim terms; dS = P (dP − δ), P at most 1
    largest_dp = HEADROOM * spread * math.sqrt(v8.shape[-1]) * rms(v8, scales["descale_v"])
    largest_dv = HEADROOM * spread * 4
    largest_dq = HEADROOM * softmax_scale * largest_dp * rms(k8, scales["descale_k"]) / 4
    largest_dk = HEADROOM * softmax_scale * largest_dp * rms(q8, scales["descale_q"]) / 4

    def scale(largest: Any) -> Any:
        return jnp.where(largest > 0, jnp.minimum(LARGEST / largest, fp8.LARGEST_SCALE), 1.0)

    dp, dq, dk, dv = (scale(jnp.asarray(x, jnp.float32)) for x in (largest_dp, largest_dq, largest_dk, largest_dv))
    more = {
        "descale_dO": 1 / LARGEST,
        "scale_dP": dp,
        "descale_dP": 1 / dp,
        "scale_dQ": dq,
        "scale_dK": dk,
        "scale_dV": dv,
    }
    return more, (dq, dk, dv)
