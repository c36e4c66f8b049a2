"""transformer_engine: te.flax.DotProductAttention as in the lab's step 12, and under an FP8 recipe (step 13)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from explorer.masks import Mask
from explorer.problem import Problem

MARKER = "te_fused_attn_forward_ffi"
# The lab's step 13, and the two other FP8 recipes; each name is a class of transformer_engine.common.recipe
RECIPES = {
    "DelayedScaling": "margin 0, HYBRID, amax history 1024, max",
    "Float8CurrentScaling": "scale from each tensor's own amax, HYBRID",
    "MXFP8BlockScaling": "a scale for every 32 elements; Blackwell and later",
}
LAB_RECIPE = "DelayedScaling"


def attend(q: Any, k: Any, v: Any, *, mask: Mask) -> Any:
    """TransformerEngine's fused kernel, or, with no more than a warning, its unfused path."""
    import jax

    module = functools.partial(_apply, mask=mask)

    # deterministic=True is TransformerEngine's inference: it keeps nothing for a backward pass
    @jax.custom_vjp
    def attention(q: Any, k: Any, v: Any) -> Any:
        return module(q, k, v, deterministic=True)

    def forward(q: Any, k: Any, v: Any) -> Any:
        return jax.vjp(functools.partial(module, deterministic=False), q, k, v)

    attention.defvjp(forward, lambda pull, g: pull(g))
    return attention(q, k, v)


def _apply(q: Any, k: Any, v: Any, *, mask: Mask, deterministic: bool) -> Any:
    import jax
    from transformer_engine.jax.flax import DotProductAttention  # pyright: ignore[reportMissingImports]

    if not mask.plain:
        raise NotImplementedError(f"TransformerEngine is driven here with a full or a causal mask, got {mask.name}")
    module = DotProductAttention(
        head_dim=q.shape[-1],
        num_attention_heads=q.shape[2],
        num_gqa_groups=k.shape[2],
        attention_dropout=0.0,
        attn_mask_type="causal" if mask.causal else "no_mask",
        transpose_batch_sequence=False,
    )
    run = functools.partial(module.apply, deterministic=deterministic)
    # init once: attention alone has no parameters, so its shapes suffice and nothing runs
    variables = jax.eval_shape(functools.partial(module.init, deterministic=True), jax.random.PRNGKey(0), q, k, v)
    if jax.tree.leaves(variables):
        raise NotImplementedError(f"DotProductAttention should have no parameters, got {variables}")
    return run({}, q, k, v)


def attend_fp8(q: Any, k: Any, v: Any, *, mask: Mask, recipe: str = LAB_RECIPE) -> Any:
    """The same under te.autocast. Raises NotImplementedError with TransformerEngine's reason where it won't."""
    with under(recipe):
        return attend(q, k, v, mask=mask)


@contextmanager
def under(recipe: str | None) -> Iterator[None]:
    """te.autocast with a recipe by name; None: no recipe. Acts while a function is traced, not when it runs."""
    if recipe is None:
        yield
        return
    import transformer_engine.jax as te  # pyright: ignore[reportMissingImports]

    try:
        context = te.autocast(enabled=True, recipe=build(recipe))
        context.__enter__()
    except AssertionError as error:  # how autocast says that the GPU has no such FP8
        raise NotImplementedError(f"{recipe}: {error}") from error
    try:
        yield
    finally:
        context.__exit__(None, None, None)


def build(recipe: str) -> Any:
    from transformer_engine.common import recipe as recipes  # pyright: ignore[reportMissingImports]

    if recipe == "DelayedScaling":
        return recipes.DelayedScaling(
            margin=0, fp8_format=recipes.Format.HYBRID, amax_history_len=1024, amax_compute_algo="max"
        )
    return getattr(recipes, recipe)()


def rejection(p: Problem) -> str | None:
    """Why TransformerEngine has no fused kernel for it; "" where it gives no reason (before 2.20); None: it has one."""
    from transformer_engine.jax import attention as names  # pyright: ignore[reportMissingImports]
    from transformer_engine.jax.cpp_extensions.attention import FusedAttnHelper  # pyright: ignore[reportMissingImports]

    given = {
        "is_training": p.backward,
        "batch_size": p.batch,
        "q_dtype": _dtype(p),
        "kv_dtype": _dtype(p),
        "qkv_layout": names.QKVLayout.BSHD_BSHD_BSHD,
        "attn_bias_type": names.AttnBiasType.NO_BIAS,
        "attn_mask_type": names.AttnMaskType.CAUSAL_MASK if p.causal else names.AttnMaskType.NO_MASK,
        "softmax_type": names.AttnSoftmaxType.VANILLA_SOFTMAX,
        "dropout_probability": 0.0,
        "q_num_heads": p.heads,
        "kv_num_heads": p.kv_heads,
        "q_max_seqlen": p.q_len,
        "kv_max_seqlen": p.kv_len,
        "head_dim_qk": p.head_dim,
        "head_dim_v": p.head_dim,
        "window_size": (-1, -1),
        "bottom_right_diagonal": False,
    }
    known = {field.name for field in dataclasses.fields(FusedAttnHelper)}
    helper = FusedAttnHelper(**{name: value for name, value in given.items() if name in known})
    if helper.is_fused_attn_kernel_available():
        return None
    found = helper.get_fused_attn_backend()
    return str(found[1]).strip() if isinstance(found, tuple) else ""


def _dtype(p: Problem) -> Any:
    import jax.numpy as jnp

    return jnp.dtype(p.dtype)


def explain(p: Problem, call: Callable[..., Any], arguments: tuple[Any, ...], found: dict[str, Any]) -> dict[str, Any]:
    """For the record's evidence: why no fused kernel ran, in TransformerEngine's own words where it has some."""
    if found["fused"]:
        return {}
    why = rejection(p)
    if why is None:
        why = "TransformerEngine names a fused kernel for this shape, and yet the program does not hold it"
    elif not why:
        why = "TransformerEngine has no fused kernel for this shape, and gives no reason"
    return {"verdict": "unfused", "proven": False, "remark": f"unfused: {why}"}


def explain_fp8(
    p: Problem, call: Callable[..., Any], arguments: tuple[Any, ...], found: dict[str, Any]
) -> dict[str, Any]:
    """In plain words what became of the FP8 recipe: which kernel ran, and whether a bit differs from bf16."""
    equal, most = compare(call(*arguments), without_recipe(p)(*arguments))
    recipe = f"{LAB_RECIPE} ({RECIPES[LAB_RECIPE]})"
    more = explain(p, call, arguments, found)
    sentences = [say(recipe, found, equal, most), more.get("remark")]
    return more | {
        "recipe": recipe,
        "bitwise_equal": equal,
        "max_abs_difference": most,
        "remark": "; ".join(filter(None, sentences)),
    }


def say(recipe: str, found: dict[str, Any], equal: bool, most: float) -> str:
    """The sentence about one recipe, from what was seen."""
    precision = found["note"]
    if found["kernels"]:
        ran = f"the attention kernel that ran is the {precision} one"
    else:
        ran = "which attention kernel ran was not traced"
    bits = f"output bitwise equal to {precision}" if equal else f"output up to {most:.3g} off the one without a recipe"
    return f"the recipe {recipe} was accepted; {ran}; {bits}"


def compare(ours: Any, theirs: Any) -> tuple[bool, float]:
    """Whether every bit of the outputs is equal, and the largest difference."""
    import jax
    import jax.numpy as jnp

    ours, theirs = (x[0] if isinstance(x, tuple | list) else x for x in (ours, theirs))
    bits = {2: jnp.uint16, 4: jnp.uint32}[ours.dtype.itemsize]
    ours_bits, theirs_bits = (jax.lax.bitcast_convert_type(x, bits) for x in (ours, theirs))
    same = jnp.array_equal(ours_bits, theirs_bits)
    off = jnp.nanmax(jnp.abs(ours.astype(jnp.float32) - theirs.astype(jnp.float32)))
    return bool(same), float(off)


@functools.lru_cache(maxsize=32)
def _without_recipe(mask: Mask) -> Callable[..., Any]:
    import jax

    return jax.jit(functools.partial(attend, mask=mask))


def without_recipe(p: Problem) -> Callable[..., Any]:
    """The same attention with no recipe, on (q, k, v, ...)."""
    return lambda q, k, v, *rest: _without_recipe(p.mask)(q, k, v)
