"""Cost: what an attention call must at least compute and move, and how much memory each way stores."""

from __future__ import annotations

from explorer.problem import Problem


def flops(p: Problem) -> int:
    """Floating-point operations of the two matrix products: 4·B·N·T·S·H.

    Convention (FlashAttention's and cuDNN's): causal with T = S counts half; causal with T != S, windows and padding
    count the live pairs; the backward pass is 2.5 times the forward pass (five products instead of two): forward and
    backward together 3.5 times.
    """
    if p.mask.plain and (not p.causal or p.q_len == p.kv_len):
        forward = 4 * p.batch * p.heads * p.q_len * p.kv_len * p.head_dim // (2 if p.causal else 1)
    else:
        forward = 4 * p.batch * p.heads * p.head_dim * p.mask.live_pairs(p.q_len, p.kv_len)
    return forward * 7 // 2 if p.backward else forward


def input_bytes(p: Problem) -> int:
    """Bytes of q, k and v."""
    return p.item_bytes * p.batch * p.head_dim * (p.q_len * p.heads + 2 * p.kv_len * p.kv_heads)


def output_bytes(p: Problem) -> int:
    """Bytes of the output (and, backward, of the three gradients)."""
    out = p.item_bytes * p.batch * p.head_dim * p.q_len * p.heads
    return out + input_bytes(p) if p.backward else out


def min_bytes(p: Problem) -> int:
    """Least traffic: q, k and v read once and the output written once; backward also reads the output's gradient."""
    gradient = p.item_bytes * p.batch * p.head_dim * p.q_len * p.heads if p.backward else 0
    return input_bytes(p) + output_bytes(p) + gradient


def intensity(p: Problem) -> float:
    """FLOP per byte of least traffic."""
    return flops(p) / min_bytes(p)


def score_bytes(p: Problem, item_bytes: int) -> int:
    """One (B, N, T, S) array of scores: what a fused kernel never stores."""
    return item_bytes * p.batch * p.heads * p.q_len * p.kv_len


def formula_bytes(backend: str, p: Problem) -> int:
    """Working memory beyond inputs and outputs, by formula: O(T·S) for naive and XLA, O(T) for fused kernels.

    naive keeps scores and weights in the inputs' dtype; XLA's path keeps logits and weights in float32 as well
    (jax.nn.dot_product_attention computes the softmax in float32). A fused kernel keeps one float32 log-sum-exp a row.
    """
    if backend == "naive":
        return 2 * score_bytes(p, p.item_bytes) * (2 if p.backward else 1)
    if backend in ("xla", "auto"):
        return score_bytes(p, 4 + p.item_bytes) * (2 if p.backward else 1)
    return 4 * p.batch * p.heads * p.q_len * (2 if p.backward else 1)


def roofline_tflops(intensity_flop_per_byte: float, peak_tflops: float, bandwidth_tb_s: float) -> float:
    """The bound at that intensity: min(peak, intensity × bandwidth) (Williams et al., Roofline, 2009)."""
    return min(peak_tflops, intensity_flop_per_byte * bandwidth_tb_s)


def kv_cache_bytes(*, layers: int, batch: int, context: int, kv_heads: int, head_dim: int, item_bytes: int) -> int:
    """Keys and values of every layer: 2·layers·batch·context·kv_heads·head_dim·item_bytes."""
    return 2 * layers * batch * context * kv_heads * head_dim * item_bytes
