"""auto, xla, cudnn: jax.nn.dot_product_attention and its three implementations."""

from __future__ import annotations

import functools
from typing import Any

from explorer.masks import Mask


def attend(q: Any, k: Any, v: Any, *, mask: Mask, implementation: str | None) -> Any:
    import jax
    import jax.numpy as jnp

    lengths = None if mask.kv_valid is None else jnp.full((q.shape[0],), mask.kv_valid, jnp.int32)
    return jax.nn.dot_product_attention(  # pyright: ignore[reportCallIssue] - a plain str names the implementation
        q,
        k,
        v,
        is_causal=mask.causal,
        local_window_size=mask.window,
        key_value_seq_lengths=lengths,
        implementation=implementation,  # pyright: ignore[reportArgumentType]
    )


auto = functools.partial(attend, implementation=None)
xla = functools.partial(attend, implementation="xla")
cudnn = functools.partial(attend, implementation="cudnn")
