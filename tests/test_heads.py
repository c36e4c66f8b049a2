"""Heads and the KV cache against published figures and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from explorer import backends, heads, measure
from explorer.backends import naive
from explorer.problem import Problem

GIB, GB = 2**30, 10**9


def test_neighbours_share_a_key_head() -> None:
    assert heads.mapping(6, 3) == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2)]
    assert heads.mapping(3, 3) == [(0, 0), (1, 1), (2, 2)]
    assert heads.mapping(3, 1) == [(0, 0), (1, 0), (2, 0)]
    with pytest.raises(ValueError, match="kv_heads must divide heads=6, got 4; one of 1, 2, 3, 6 would do"):
        heads.mapping(6, 4)


@pytest.mark.parametrize(("model", "context", "dtype", "expected"), [
    ("llama3-8b", 8192, "bfloat16", GIB),  # 2 · 32 layers · 8 KV heads · 128 · 2 bytes = 128 KiB a token
    ("llama2-7b", 4096, "float16", 2 * GIB),  # 32 KV heads: 512 KiB a token
    ("llama3-70b", 8192, "bfloat16", 2.5 * GIB),  # 80 layers: 320 KiB a token
    ("llama3-8b", 8192, "float8", GIB / 2),
    ("gpt2", 1024, "float32", 72 * 2**20),  # 2 · 12 · 12 · 64 · 4 · 1024
])  # fmt: skip
def test_published_caches(model: str, context: int, dtype: str, expected: float) -> None:
    cache = heads.Cache.of(heads.MODELS[model], dtype)
    assert cache.bytes(context=context, batch=1) == expected
    assert cache.bytes(context=context, batch=3) == 3 * expected
    assert cache.token_bytes * context == expected


def test_the_lab_s_savings() -> None:
    """8 heads against 2 and 1: a quarter and an eighth."""
    whole, two, one = (
        heads.Cache(layers=1, kv_heads=k, head_dim=64, item_bytes=2).bytes(context=64, batch=2) for k in (8, 2, 1)
    )
    assert (whole, two * 4, one * 8) == (2 * 2 * 64 * 8 * 64 * 2, whole, whole)


def test_a_cache_dtype_must_be_known() -> None:
    with pytest.raises(ValueError, match="cache dtype must be one of float32, bfloat16, float16, float8, got 'int4'"):
        heads.Cache.of(heads.MODELS["gpt2"], "int4")


def test_where_the_cache_no_longer_fits() -> None:
    """Llama-3 8B in bf16 on an L4: 24 GB − 16.06 GB of weights = 7.94 GB = 60,577 tokens of 131,072 bytes."""
    model = heads.MODELS["llama3-8b"]
    cache = heads.Cache.of(model, "bfloat16")
    found = {fit.gpu: fit for fit in heads.fits(cache, context=8192, batch=1, weights_bytes=2 * model.parameters)}
    l4 = found["NVIDIA L4"]
    assert l4.room_bytes == 7_940_000_000
    assert l4.context == 60_577
    assert l4.batch == 7  # 7 · 1 GiB = 7.52 GB fit, 8 GiB = 8.59 GB don't
    assert l4.holds(7 * GIB)
    assert not l4.holds(8 * GIB)
    t4 = found["NVIDIA T4"]
    assert (t4.room_bytes, t4.context, t4.batch) == (0, 0, 0)
    memories = [fit.memory_bytes for fit in found.values()]
    assert memories == sorted(memories)


def test_the_last_that_fits_fits_and_one_more_does_not() -> None:
    cache = heads.Cache.of(heads.MODELS["llama2-7b"], "float16")
    for fit in heads.fits(cache, context=1000, batch=3, weights_bytes=13.5e9):
        assert fit.holds(cache.bytes(context=fit.context, batch=3))
        assert not fit.holds(cache.bytes(context=fit.context + 1, batch=3))
        assert fit.holds(cache.bytes(context=1000, batch=fit.batch))
        assert not fit.holds(cache.bytes(context=1000, batch=fit.batch + 1))


def test_the_explanation_is_a_calculation() -> None:
    cache = heads.Cache.of(heads.MODELS["llama3-8b"], "bfloat16")
    by_gpu = {fit.gpu: fit for fit in heads.fits(cache, context=8192, batch=8, weights_bytes=16e9)}
    no = heads.explain(by_gpu["NVIDIA L4"], cache, context=8192, batch=8)
    assert "8 × 8,192 tokens × 128 KiB = 8 GiB (8.59 GB) do not fit" in no
    assert "or a batch of 7" in no
    assert "fit in the" in heads.explain(by_gpu["NVIDIA H200"], cache, context=8192, batch=8)
    none = heads.explain(by_gpu["NVIDIA T4"], cache, context=8192, batch=8)
    assert none == "NVIDIA T4: the weights alone take more than its 16 GB"


def test_sizes_name_gib_and_gb() -> None:
    assert heads.size(GIB) == "1 GiB (1.074 GB)"
    assert heads.size(131_072) == "128 KiB"
    assert heads.size(3 * 2**20) == "3 MiB"
    assert heads.size(12) == "12 bytes"


def test_curve_rows() -> None:
    cache = heads.Cache(layers=2, kv_heads=4, head_dim=8, item_bytes=2)
    rows = heads.cache_curve(cache, heads=8, batch=1, contexts=(1, 1024), kv_heads=(8, 4, 1))
    assert [(r["K"], r["context"], r["bytes"]) for r in rows] == [
        ("K=8 (MHA)", 1, 512), ("K=8 (MHA)", 1024, 524_288),
        ("K=4 (GQA)", 1, 256), ("K=4 (GQA)", 1024, 262_144),
        ("K=1 (MQA)", 1, 64), ("K=1 (MQA)", 1024, 65_536),
    ]  # fmt: skip


def test_models_have_sources_and_fitting_heads() -> None:
    for model in heads.MODELS.values():
        assert model.heads % model.kv_heads == 0
        assert model.source
        assert model.parameters > 1e8


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gqa_is_mha_with_repeated_heads(dtype: str) -> None:
    found = list(heads.proofs(heads.LAB.but(dtype=dtype), ["naive", "xla"]))
    assert [(f.backend, f.kv_heads) for f in found] == [(n, k) for n in ("naive", "xla") for k in (8, 2, 1)]
    for f in found:
        assert f.out_shape == f.q_shape == (2, 64, 8, 64)
        assert f.kv_shape == (2, 64, f.kv_heads, 64)
        assert f.is_equal, f
        assert f.size is not None
        assert f.size > 0.5


def test_a_wrong_grouping_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Query head n reads key head n mod K instead of n // (N/K)."""

    def attend(q: Any, k: Any, v: Any, *, mask: Any) -> Any:
        import jax.numpy as jnp

        group = q.shape[2] // k.shape[2]
        return naive.attend(q, jnp.tile(k, (1, 1, group, 1)), jnp.tile(v, (1, 1, group, 1)), mask=mask)

    planted = backends.Backend(name="planted", label="Planted", attend=attend, about="a test's own")
    monkeypatch.setitem(backends.BACKENDS, "planted", planted)
    found = list(heads.proofs(heads.LAB.but(seed=5), ["planted"]))
    assert [f.is_equal for f in found] == [True, False, True]  # K = 8 and K = 1 leave nothing to confuse


def test_a_refused_proof_has_a_reason() -> None:
    (found,) = heads.proofs(heads.LAB.but(head_dim=7), ["cudnn"], [2])
    assert found.reason
    assert not found.is_equal


def test_a_decode_step_is_one_query_for_each_k_and_backend() -> None:
    p = Problem.of(batch=2, q_len=99, kv_len=32, heads=4, head_dim=8, causal=True)
    found = heads.decode_points(p, ["naive", "xla"], [4, 1])
    assert [(point.problem.kv_heads, point.backend) for point in found] == [
        (4, "naive"), (4, "xla"), (1, "naive"), (1, "xla"),
    ]  # fmt: skip
    assert {(point.problem.q_len, point.problem.kv_len, point.problem.causal) for point in found} == {(1, 32, False)}
    made = [measure.measure(point.problem, point.backend, protocol=heads.DECODE) for point in found]
    assert [(r.status, heads.is_decode(r)) for r in made] == [("ok", True)] * 4


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["naive", "xla", "cudnn", "transformer_engine"])
def test_gqa_on_a_gpu(name: str) -> None:
    for f in heads.proofs(heads.LAB, [name]):
        if f.reason:
            pytest.skip(f.reason)
        assert f.is_equal, f
        assert f.out_shape == (2, 64, 8, 64)


def test_shapes_are_plain_numbers() -> None:
    (found,) = heads.proofs(heads.LAB.but(batch=1), ["naive"], [1])
    assert all(type(n) is int for n in (*found.q_shape, *(found.out_shape or ())))
    assert not isinstance(found.difference, np.floating)
