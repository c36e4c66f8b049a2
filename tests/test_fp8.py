"""FP8: formats, what rounding loses, and the backend's scales around an FP8 kernel computed in JAX on the CPU."""

from __future__ import annotations

import functools
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from explorer import backends, fp8, jaxcheck, measure, numerics, private_fp8
from explorer.backends import cudnn_fp8
from explorer.masks import Mask
from explorer.problem import Problem

SMALL = Problem.of(
    batch=2, q_len=37, kv_len=53, heads=4, kv_heads=2, head_dim=16, dtype="bfloat16", causal=True, seed=5
)


@pytest.mark.parametrize("name", fp8.FORMATS)
def test_the_formats_are_those_of_ml_dtypes(name: str) -> None:
    form, info = fp8.FORMATS[name], ml_dtypes.finfo(fp8.numpy_dtype(name))
    assert form.largest == float(info.max)
    assert form.smallest_normal == float(info.smallest_normal)
    assert form.smallest == float(info.smallest_subnormal)
    assert (form.mantissa_bits, form.exponent_bits) == (info.nmant, info.nexp)
    assert form.step_at_one == float(info.eps)


def test_e4m3_has_253_numbers_and_e5m2_247() -> None:
    """256 codes; E4M3 spends 2 on NaN, E5M2 8 on NaN and infinity; +0 and -0 are one number."""
    assert len(fp8.values(fp8.E4M3)) == 256 - 2 - 1
    assert len(fp8.values(fp8.E5M2)) == 256 - 8 - 1


def test_scale_brings_the_largest_to_448() -> None:
    array = np.array([0.5, -2.0, 1.0], np.float32)
    assert fp8.scale_of(array) == 224.0
    assert fp8.quantise(array, 224.0).astype(float).tolist() == [112.0, -448.0, 224.0]


@pytest.mark.parametrize(
    ("array", "scale"),
    [([0.0, 0.0], 1.0), ([np.nan, 2.0], 224.0), ([np.inf, -4.0], 112.0), ([np.nan], 1.0), ([1e-38], 2.0**100)],
)
def test_scale_of_awkward_arrays(array: list[float], scale: float) -> None:
    assert fp8.scale_of(np.array(array, np.float32)) == np.float32(scale)


def test_loss_by_hand() -> None:
    """At scale 1: 1000 clips, 2^-11 is flushed, 2^-8 is subnormal, NaN is not finite, 0 is nothing."""
    found = fp8.loss(np.array([1000.0, 2.0**-11, 2.0**-8, np.nan, 0.0, 1.0, 448.0, 2.0**-10], np.float32), scale=1.0)
    assert (found.clipped, found.flushed, found.subnormal, found.nonfinite) == (1 / 8, 2 / 8, 1 / 8, 1 / 8)
    assert found.amax == 1000.0


def test_loss_counts_what_quantise_does() -> None:
    array = (np.random.default_rng(0).standard_normal(5000) ** 9).astype(np.float32)
    for scale in (0.01, 1.0, 300.0):
        found, after = fp8.loss(array, scale=scale), fp8.quantise(array, scale).astype(np.float64)
        assert found.flushed == ((after == 0) & (array != 0)).mean()
        assert found.subnormal == ((after != 0) & (np.abs(array * np.float32(scale)) < 2.0**-6)).mean()
        assert found.clipped == (np.abs(array * np.float32(scale)) > 464).mean()


def test_what_clips_is_what_rounding_alone_does_not_lead_to_the_largest_number() -> None:
    assert [fp8.FORMATS[name].clips_from for name in (fp8.E4M3, fp8.E5M2)] == [464.0, 61440.0]
    found = fp8.loss(np.array([448.0, 463.0, 464.0, 465.0], np.float32), scale=1.0)
    assert found.clipped == 1 / 4


def test_loss_in_parts_is_the_loss_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    array = numerics.draw(SMALL.but(inputs="outliers"))["q"]
    whole = fp8.loss(array)
    monkeypatch.setattr(fp8, "_CHUNK", 100)
    assert fp8.loss(array).to_json() == pytest.approx(whole.to_json())


def test_an_outlier_takes_the_small_numbers() -> None:
    """With amax 10,000 the scale is 0.0448: what is below 2^-10 / 0.0448 = 0.0218 becomes 0."""
    array = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    array[0] = 1e4
    found = fp8.loss(array)
    assert found.scale == pytest.approx(0.0448)
    assert found.flushed == pytest.approx((np.abs(array) <= 2.0**-10 / found.scale).mean(), abs=1e-5)
    assert 0.01 < found.flushed < 0.03


# --- the backend, around a kernel of the same contract, computed in JAX


# What XLA's backward graph takes for each scale, by the places at which JAX 0.9 to 0.12 passes them
SWAPPED = {
    "descale_s": "descale_o", "descale_o": "descale_dO", "descale_dO": "descale_s",
    "scale_dP": "scale_dQ", "scale_dQ": "scale_dK", "scale_dK": "scale_dV", "scale_dV": "scale_dP",
}  # fmt: skip


def stand_in(
    q8: Any,
    k8: Any,
    v8: Any,
    *,
    causal: bool,
    softmax_scale: float,
    scales: dict[str, Any],
    swapped: dict[str, str] = {},  # noqa: B006 - only read
) -> Any:
    """cuDNN's FP8 attention by its documentation: every scale at its place, weights, gradients and output in E4M3.

    swapped: the scales that the backward pass gets in the place of others.
    """
    import jax
    import jax.numpy as jnp

    wide, e4m3 = jnp.float32, jnp.float8_e4m3fn
    group = q8.shape[2] // k8.shape[2]
    s = scales

    def narrow(x: Any, scale: Any) -> Any:
        return jnp.clip(x * scale, -448, 448).astype(e4m3)

    def weights(q8: Any, k8: Any) -> tuple[Any, Any, Any]:
        q, k = q8.astype(wide) * s["descale_q"], jnp.repeat(k8.astype(wide) * s["descale_k"], group, axis=2)
        scores = jnp.einsum("btnh,bsnh->bnts", q, k) * softmax_scale
        if causal:
            t, n = scores.shape[2:]
            scores = jnp.where(jnp.arange(t)[:, None] >= jnp.arange(n)[None, :], scores, -jnp.inf)
        return jax.nn.softmax(scores, axis=-1), q, k

    @jax.custom_vjp
    def attention(q8: Any, k8: Any, v8: Any) -> Any:
        p, _, _ = weights(q8, k8)
        v = jnp.repeat(v8.astype(wide) * s["descale_v"], group, axis=2)
        p8 = narrow(p, s["scale_s"]).astype(wide) * s["descale_s"]
        return narrow(jnp.einsum("bnts,bsnh->btnh", p8, v), s["scale_o"])

    def forward(q8: Any, k8: Any, v8: Any) -> Any:
        out = attention(q8, k8, v8)
        return out, (q8, k8, v8, out)

    def backward(kept: Any, g8: Any) -> Any:
        s = scales | {ours: scales[theirs] for ours, theirs in swapped.items()}
        q8, k8, v8, out8 = kept
        p, q, k = weights(q8, k8)
        v = jnp.repeat(v8.astype(wide) * s["descale_v"], group, axis=2)
        g, out = g8.astype(wide) * s["descale_dO"], out8.astype(wide) * s["descale_o"]
        p8 = narrow(p, s["scale_s"]).astype(wide) * s["descale_s"]
        delta = jnp.einsum("btnh,btnh->bnt", g, out)[..., None]
        ds = p * (jnp.einsum("btnh,bsnh->bnts", g, v) - delta) * softmax_scale
        ds = narrow(ds, s["scale_dP"]).astype(wide) * s["descale_dP"]

        def grouped(x: Any) -> Any:
            return x.reshape(*x.shape[:2], -1, group, x.shape[-1]).sum(axis=3)

        dq = jnp.einsum("bnts,bsnh->btnh", ds, k)
        dk = grouped(jnp.einsum("bnts,btnh->bsnh", ds, q))
        dv = grouped(jnp.einsum("bnts,btnh->bsnh", p8, g))
        return narrow(dq, s["scale_dQ"]), narrow(dk, s["scale_dK"]), narrow(dv, s["scale_dV"])

    attention.defvjp(forward, backward)
    return attention(q8, k8, v8)


@functools.cache
def program(mask: Mask, *, backward: bool = False, by_place: bool = False) -> Any:
    """The backend around the stand-in, compiled once for each mask. by_place: with XLA's order of the scales."""
    import jax

    kernel = functools.partial(stand_in, swapped=SWAPPED if by_place else {})
    attend = functools.partial(cudnn_fp8.attend, mask=mask, kernel=kernel)
    if not backward:
        return jax.jit(attend)

    def both(q: Any, k: Any, v: Any, g: Any) -> Any:
        out, pull = jax.vjp(attend, q, k, v)
        return out, *pull(g)

    return jax.jit(both)


def checked(p: Problem, *, by_place: bool = False) -> tuple[dict[str, Any], str | None]:
    from explorer import device

    host = numerics.cast(numerics.draw(p), p.dtype)
    result = program(p.mask, backward=p.backward, by_place=by_place)(*host.values())
    return measure.check(p, "cudnn_fp8", host, result, device.here())


@pytest.mark.parametrize(
    ("causal", "kv_heads", "dtype"), [(False, 4, "bfloat16"), (True, 2, "bfloat16"), (True, 1, "float16")]
)
def test_backend_agrees_on_rounded_inputs_and_tells_what_is_lost(causal: bool, kv_heads: int, dtype: str) -> None:
    accuracy, complaint = checked(SMALL.but(causal=causal, kv_heads=kv_heads, dtype=dtype))
    assert complaint is None
    assert accuracy["verdict"] == "agrees"
    assert "float8_e4m3fn" in accuracy["reference"]
    assert accuracy["unrounded"]["rmse"] > accuracy["rmse"] > 0
    assert accuracy["rounded_inputs"]["q"]["clipped"] == 0


def test_budget_sees_a_wrong_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores 10 % too large: within any tolerance for FP8 by feel, but not within the budget."""
    right = cudnn_fp8.quantise
    monkeypatch.setattr(cudnn_fp8, "quantise", lambda x: (right(x)[0], right(x)[1] * 0.8))
    program.cache_clear()
    _, complaint = checked(SMALL)
    program.cache_clear()
    assert complaint is not None
    assert "is allowed" in complaint


def test_quantise_on_the_device_is_quantise_on_the_host() -> None:
    import jax

    array = numerics.draw(SMALL.but(inputs="outliers", dtype="float32"))["q"]
    array.flat[:3] = [np.nan, np.inf, -np.inf]
    on_device, scale = jax.jit(cudnn_fp8.quantise)(array)
    assert float(scale) == pytest.approx(float(fp8.scale_of(array)), rel=1e-6)
    host = fp8.quantise(array, fp8.scale_of(array))
    assert np.array_equal(np.asarray(on_device).astype(np.float32), host.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("inputs", ["normal", "zeros", "spike", "nan", "outliers"])
def test_awkward_inputs_are_either_right_or_said(inputs: str) -> None:
    accuracy, complaint = checked(SMALL.but(inputs=inputs))
    assert complaint is None, "the stand-in computes in float32, so only rounding is left, which the reference shares"
    lost = accuracy["rounded_inputs"]
    assert lost["v"]["nonfinite"] == (1 / (2 * 53 * 2 * 16) if inputs == "nan" else 0)
    assert (lost["q"]["flushed"] > 0.01) == (inputs == "spike")


@pytest.mark.parametrize(("kv_heads", "causal", "by_place"), [(4, False, False), (2, True, True)])
def test_gradients_are_right_in_either_order_of_the_scales(kv_heads: int, causal: bool, by_place: bool) -> None:
    p = SMALL.but(q_len=61, kv_len=67, kv_heads=kv_heads, causal=causal, backward=True, batch=1)
    accuracy, complaint = checked(p, by_place=by_place)
    assert complaint is None
    assert set(accuracy["gradient_max_abs_error"]) == {"dq", "dk", "dv"}


def test_xla_places_are_those_of_this_jax() -> None:
    """JAX's order is read from JAX; XLA's is written down here from its source."""
    import importlib

    jax_order = importlib.import_module(private_fp8.MODULE).fp8_params_keys_bwd
    xla_order = [
        "descale_q", "descale_k", "descale_v", "descale_s", "descale_o", "descale_dO", "descale_dP",
        "scale_s", "scale_dP", "scale_dQ", "scale_dK", "scale_dV",
    ]  # fmt: skip
    found = {theirs: ours for ours, theirs in zip(jax_order, xla_order, strict=True) if ours != theirs}
    assert found in ({}, SWAPPED)


def test_gradients_of_large_and_tiny_output_gradients() -> None:
    """The output gradient's own scale is taken out and put back: gradients are linear in it."""
    p = SMALL.but(backward=True, q_len=61, kv_len=67, batch=1)
    host = numerics.cast(numerics.draw(p), "bfloat16")
    call, inputs = program(p.mask, backward=True, by_place=True), [host[n] for n in ("q", "k", "v")]
    base = call(*inputs, host["g"])[1:]
    for factor in (2.0**-20, 2.0**12):
        scaled = (host["g"].astype(np.float32) * factor).astype(host["g"].dtype)
        for ours, theirs in zip(call(*inputs, scaled)[1:], base, strict=True):
            assert np.array_equal(np.asarray(ours, np.float32), np.asarray(theirs, np.float32) * factor)


def test_program_holds_the_fp8_call() -> None:
    """Lowered for CUDA with JAX's questions to the GPU answered; names from JAX itself."""
    import jax

    for backward, calls in ((False, ["__cudnn$fmhaSoftmaxF8"]), (True, ["__cudnn$fmhaSoftmaxBackwardF8"])):
        p = Problem(dtype="bfloat16", head_dim=128, backward=backward, causal=True)
        with jaxcheck._pretend(jaxcheck._module(), (9, 0), "9.19.0"):
            traced = jax.jit(measure.function_of(p, "cudnn_fp8")).trace(*measure.shapes_of(p))
            program = traced.lower(lowering_platforms=("cuda",)).as_text()
        for call in calls:
            assert call in program
        assert "CAUSAL" in program
        assert str(backends.BACKENDS["cudnn_fp8"].marker) in program


# --- the private call


def module(**changes: Any) -> Any:
    import importlib

    real = importlib.import_module(private_fp8.MODULE)
    names = ("dot_product_attention", "fp8_params_keys", "MaskType")
    kept = {name: getattr(real, name) for name in names} | changes
    return types.SimpleNamespace(**{name: value for name, value in kept.items() if value is not None})


def test_the_private_call_is_as_known_here() -> None:
    assert private_fp8.problems(module()) is None
    assert private_fp8.moved() is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dot_product_attention": None}, "dot_product_attention is gone"),
        ({"dot_product_attention": lambda query, key, value: None}, "has no fp8_params"),
        ({"fp8_params_keys": ["descale_q", "scale_new"]}, "scale_new"),
        ({"fp8_params_keys": None}, "fp8_params_keys differ"),
        ({"MaskType": None}, "MaskType"),
    ],
)
def test_a_moved_call_is_said(changes: dict[str, Any], words: str) -> None:
    assert words in str(private_fp8.problems(module(**changes)))


def test_a_moved_call_refuses_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from explorer import device

    private_fp8.moved.cache_clear()
    device.here.cache_clear()
    monkeypatch.setattr(private_fp8, "MODULE", "jax._src.cudnn.nowhere")
    try:
        assert "JAX 0.9 to 0.12" in str(private_fp8.moved())
        with pytest.raises(NotImplementedError, match="has moved"):
            private_fp8.attention(None, None, None, causal=False, softmax_scale=1.0, scales={})
        here = device.Device(
            platform="gpu", name="x", capability=(9, 0), missing={"cudnn_fp8": str(private_fp8.moved())}
        )
        p = Problem(dtype="bfloat16")
        assert "private call" in str(backends.BACKENDS["cudnn_fp8"].why_not(p, here))
        assert backends.BACKENDS["cudnn"].why_not(p, here) is None
        assert "nowhere" in device.here().missing["cudnn_fp8"]
    finally:
        private_fp8.moved.cache_clear()
        device.here.cache_clear()
