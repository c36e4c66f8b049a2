"""private_fp8: JAX's private call of cuDNN's FP8 attention, and the only place that makes it.

Known in JAX 0.9 to 0.12 (fused_attention_stablehlo.dot_product_attention with use_fp8=True). Where a name or a
parameter is no longer there, moved() says so and attention() raises NotImplementedError: the other backends go on.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

MODULE = "jax._src.cudnn.fused_attention_stablehlo"
KNOWN = "0.9 to 0.12"
# Scales that the call takes, each float32 of shape (1, 1, 1, 1); the amax_ ones only carry the results of the
# backward pass. P and S are the softmax's weights, dP the scores' gradient.
PARAMETERS = frozenset(
    (
        "amax_dQ", "amax_dK", "amax_dV", "amax_dP", "descale_q", "descale_k", "descale_v", "descale_s", "scale_s",
        "scale_o", "descale_o", "descale_dO", "descale_dP", "scale_dQ", "scale_dK", "scale_dV", "scale_dP",
    )
)  # fmt: skip
ARGUMENTS = frozenset(("query", "key", "value", "scale", "mask_type", "qkv_layout", "fp8_params", "use_fp8"))


def problems(module: Any) -> str | None:
    """What is not as this file knows it, in a few words; None: everything is there."""
    call = getattr(module, "dot_product_attention", None)
    if call is None:
        return "dot_product_attention is gone"
    if missing := ARGUMENTS - set(inspect.signature(call).parameters):
        return f"dot_product_attention has no {', '.join(sorted(missing))}"
    keys = set(getattr(module, "fp8_params_keys", ()))
    if keys != PARAMETERS:
        return f"fp8_params_keys differ: {', '.join(sorted(keys ^ PARAMETERS)) or 'none are there'}"
    if not {"NO_MASK", "CAUSAL"} <= set(getattr(getattr(module, "MaskType", None), "__members__", {})):
        return "MaskType has no NO_MASK or CAUSAL"
    return None


@functools.cache
def moved() -> str | None:
    """None where the private call is as it was, else a sentence. Imports JAX."""
    import jax

    try:
        what = problems(importlib.import_module(MODULE))
    except ImportError as error:
        what = f"{MODULE} can't be imported: {error}"
    if what is None:
        return None
    return (
        f"FP8 attention is a private call in JAX, known to this app in JAX {KNOWN}; in JAX {jax.__version__} it has "
        f"moved ({what})"
    )


def attention(q8: Any, k8: Any, v8: Any, *, causal: bool, softmax_scale: float, scales: dict[str, Any]) -> Any:
    """The FP8 output of one call, (b, t, n, h) as q8. scales: scalars by PARAMETERS' names; 1 for those not named."""
    import jax.numpy as jnp

    if (sentence := moved()) is not None:
        raise NotImplementedError(sentence)
    module = importlib.import_module(MODULE)
    parameters = dict.fromkeys(PARAMETERS, jnp.ones((1, 1, 1, 1), jnp.float32))
    parameters |= {name: jnp.asarray(value, jnp.float32).reshape(1, 1, 1, 1) for name, value in scales.items()}
    return module.dot_product_attention(
        q8,
        k8,
        v8,
        scale=softmax_scale,
        mask_type=module.MaskType.CAUSAL if causal else module.MaskType.NO_MASK,
        qkv_layout="BTNH",
        fp8_params=parameters,
        use_fp8=True,
    )[0]
