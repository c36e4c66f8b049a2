"""Evidence: no kernel passes for another one."""

from __future__ import annotations

import pytest

from explorer import backends, evidence

CUDNN_CALL = '%x = f32[2] custom-call(%a), custom_call_target="__cudnn$fmhaSoftmax"'
SDPA = [{"name": "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob", "count": 20, "share": 1.0}]
SEVERAL = [
    {"name": "gemm_fusion_dot_1", "count": 20, "share": 0.6},
    {"name": "triton_softmax_2", "count": 20, "share": 0.4},
]


def judged(name: str, calls: list[str], ran: list[dict]) -> dict:
    marker = backends.BACKENDS[name].marker
    return evidence.judge(marker=marker, calls=calls, ran=ran, dtype="bfloat16", on_gpu=True)


def test_targets_come_once_and_without_sharding_marks() -> None:
    text = f'{CUDNN_CALL}\n{CUDNN_CALL}\n custom_call_target="Sharding"'
    assert evidence.custom_calls(text) == ["__cudnn$fmhaSoftmax"]


def test_cudnn_with_its_call_and_its_kernel_is_proven() -> None:
    found = judged("cudnn", ["__cudnn$fmhaSoftmax"], SDPA)
    assert (found["verdict"], found["fused"], found["proven"], found["note"]) == ("fused", True, True, "bf16")


def test_a_naive_backend_renamed_cudnn_is_exposed() -> None:
    found = judged("cudnn", ["__cublas$lt$matmul"], SEVERAL)
    assert (found["verdict"], found["fused"], found["proven"]) == ("fell back", False, False)


def test_a_naive_program_behind_the_name_cudnn_is_exposed_by_a_real_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way on this machine: naive's function in cuDNN's place, with cuDNN's marker."""
    from explorer import measure
    from explorer.clock import Protocol
    from explorer.problem import Problem

    class Lenient(backends.Backend):
        def why_not(self, problem: Problem, device: object) -> None:
            return None

    cudnn, naive = backends.BACKENDS["cudnn"], backends.BACKENDS["naive"]
    fake = Lenient(name="cudnn", label=cudnn.label, attend=naive.attend, about=cudnn.about, marker=cudnn.marker)
    monkeypatch.setitem(backends.BACKENDS, "cudnn", fake)
    monkeypatch.setattr(measure, "CACHE", measure.Cache())
    made = measure.measure(
        Problem(batch=1, q_len=8, kv_len=8, heads=1, kv_heads=1, head_dim=8),
        "cudnn",
        protocol=Protocol(warmup=0, repeats=2),
    )
    assert made.status == "ok", made.reason
    assert made.evidence is not None
    assert (made.evidence["verdict"], made.evidence["proven"]) == ("fell back", False)


def test_without_a_trace_nothing_is_proven_and_the_reason_is_kept() -> None:
    found = judged("cudnn", ["__cudnn$fmhaSoftmax"], [])
    assert not found["proven"]
    assert found["kernels_reason"] == "the trace held no kernel"


def test_a_trace_that_contradicts_the_program_is_not_proof() -> None:
    assert not judged("cudnn", ["__cudnn$fmhaSoftmax"], SEVERAL)["proven"]
    assert not judged("naive", [], SDPA)["proven"]


def test_shares_and_counts_by_hand() -> None:
    found = evidence.kernels([("a", 1.0), ("b", 3.0), ("a", 1.0), ("b", 3.0)])
    assert found == [{"name": "b", "count": 2, "share": 0.75}, {"name": "a", "count": 2, "share": 0.25}]
    assert evidence.kernels([]) == []


def test_precision_by_the_kernels_name_or_by_the_error() -> None:
    tf32 = evidence.precision("float32", SEVERAL, on_gpu=True, error=6.5e-4)
    fp32 = evidence.precision("float32", SEVERAL, on_gpu=True, error=5.5e-7)
    assert (tf32, fp32) == ("tf32", "fp32")
    assert evidence.precision("float16", SDPA, on_gpu=True) == "fp16"
    assert evidence.precision("float32", [], on_gpu=False, error=1.0) == "fp32"


def test_a_program_that_does_not_read_an_input_is_noticed() -> None:
    """Compiled for real: v is a constant caught in the closure, so its array is not read."""
    import jax
    import jax.numpy as jnp

    from explorer import clock

    shape = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    caught = jnp.ones((4, 4))
    honest = clock.build(lambda q, k, v: q @ k @ v, [shape] * 3)
    folded = clock.build(lambda q, k, v: q @ k @ caught, [shape] * 3)
    assert evidence.unread_inputs(honest.program, 3) == []
    assert evidence.unread_inputs(folded.program, 3)
