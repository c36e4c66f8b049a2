"""naive: attention from scratch, as in the lab's step 3; stores the whole (b, n, t, s) scores."""

from __future__ import annotations

from typing import Any

from explorer.masks import Mask


def attend(q: Any, k: Any, v: Any, *, mask: Mask) -> Any:
    """softmax(q kᵀ · H^-0.5) v in the inputs' dtype; grouped heads by repeating k and v. -inf marks a masked score."""
    import jax
    import jax.numpy as jnp

    group = q.shape[2] // k.shape[2]
    q, k, v = (jnp.transpose(x, (0, 2, 1, 3)) for x in (q, k, v))
    if group > 1:
        k, v = jnp.repeat(k, group, axis=1), jnp.repeat(v, group, axis=1)
    scores = jnp.einsum("bnth,bnsh->bnts", q, k) * (q.shape[-1] ** -0.5)
    if mask != Mask():
        # From two ranges, so that no (t, s) array is baked into the program
        i, j = jnp.arange(scores.shape[2])[:, None], jnp.arange(scores.shape[3])[None, :]
        scores = jnp.where(_allows(mask, i, j), scores, jnp.array(-jnp.inf, scores.dtype))
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.transpose(jnp.einsum("bnts,bnsh->bnth", weights, v), (0, 2, 1, 3))


def _allows(mask: Mask, i: Any, j: Any) -> Any:
    """Mask.allows on traced arrays."""
    seen = (i >= 0) & (j >= 0)
    if mask.causal:
        seen &= j <= i
    if mask.window is not None:
        seen &= (j >= i - mask.window[0]) & (j <= i + mask.window[1])
    if mask.kv_valid is not None:
        seen &= j < mask.kv_valid
    return seen
