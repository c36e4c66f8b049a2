"""Measure: every backend against float64, each status on purpose, and nothing invented."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from explorer import backends, clock, measure, memory, record
from explorer.backends import BACKENDS, Backend
from explorer.problem import Problem
from explorer.record import Record

QUICK = clock.Protocol(warmup=1, repeats=3, trace_calls=3)
SMALL = Problem(batch=2, q_len=11, kv_len=13, heads=8, kv_heads=8, head_dim=7)
CPU_BACKENDS = ("naive", "auto", "xla")


def one(problem: Problem, name: str, **options: Any) -> Record:
    (made,) = measure.run(problem, [name], protocol=QUICK, **options)
    return made


@pytest.mark.parametrize("name", CPU_BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [8, 2, 1])
def test_every_backend_agrees_with_float64(name: str, causal: bool, kv_heads: int) -> None:
    made = one(SMALL.but(causal=causal, kv_heads=kv_heads), name)
    assert made.status == "ok", made.reason
    assert made.accuracy is not None
    assert made.accuracy["verdict"] == "agrees"
    assert made.accuracy["max_abs_error"] < 1e-5
    assert made.accuracy["lab_allclose"] is True


@pytest.mark.parametrize("name", CPU_BACKENDS)
@pytest.mark.parametrize(
    "problem",
    [
        Problem(batch=1, q_len=3, kv_len=5, heads=1, kv_heads=1, head_dim=1),
        Problem(batch=1, q_len=32, kv_len=96, heads=4, kv_heads=2, head_dim=8, causal=True),
        Problem(batch=1, q_len=96, kv_len=32, heads=4, kv_heads=2, head_dim=8, causal=True),
        Problem(batch=1, q_len=1, kv_len=1, heads=1, kv_heads=1, head_dim=1),
        Problem(batch=1, q_len=9, kv_len=9, heads=2, kv_heads=1, head_dim=4, window=(2, 1)),
        Problem(batch=1, q_len=9, kv_len=9, heads=2, kv_heads=1, head_dim=4, kv_valid=4),
        Problem(batch=1, q_len=6, kv_len=8, heads=4, kv_heads=2, head_dim=4, causal=True, backward=True),
        SMALL.but(dtype="bfloat16"),
        SMALL.but(inputs="lab", seed=3),
    ],
    ids=str,
)
def test_odd_shapes_masks_and_gradients(name: str, problem: Problem) -> None:
    made = one(problem, name)
    assert made.status == "ok", made.reason


def test_a_record_of_the_contract_has_every_part() -> None:
    made = one(SMALL, "naive")
    values = json.loads(record.line(made))
    assert values["schema"] == 1
    assert {"backward", "mask"} <= values["problem"].keys()
    timing = values["timing"]
    assert timing["compile_ms"] > 0
    assert timing["first_call_ms"] > 0
    assert timing["device_ms"] is None
    assert timing["device_reason"]
    assert len(timing["wall_ms"]["samples"]) == 3
    assert values["evidence"]["note"] == "fp32"
    assert values["cost"]["flops"] == 4 * 2 * 8 * 11 * 13 * 7
    assert values["cost"]["tflops_clock"] == "wall"
    assert {"gpu", "compute_capability", "jax", "cuda", "cudnn", "transformer_engine", "driver"} <= values[
        "environment"
    ].keys()
    assert values["memory"]["temp_bytes"] is not None
    assert record.line(Record.from_json(values)) == record.line(made)


def test_the_second_run_of_a_shape_is_a_cache_hit_and_keeps_its_compile_time() -> None:
    problem = SMALL.but(q_len=12)
    first, second = one(problem, "naive"), one(problem.but(seed=5), "naive")
    assert first.timing is not None
    assert second.timing is not None
    assert (first.timing.cache_hit, second.timing.cache_hit) == (False, True)
    assert second.timing.compile_ms == first.timing.compile_ms > 0


@pytest.mark.parametrize("name", ["cudnn", "cudnn_fp8", "transformer_engine", "transformer_engine_fp8"])
def test_without_a_gpu_the_gpus_backends_refuse_and_say_why(name: str) -> None:
    import jax

    if jax.devices()[0].platform == "gpu":
        pytest.skip("this machine has a GPU")
    made = one(Problem(dtype="bfloat16"), name)
    assert made.status == "refused"
    assert made.reason
    assert made.timing is None


def test_wrong_requests_raise_before_anything_runs() -> None:
    with pytest.raises(ValueError, match=r"backend must be one of naive, .*, got 'flash'"):
        list(measure.run(SMALL, ["naive", "flash"], protocol=QUICK))
    with pytest.raises(ValueError, match="dtype must be one of"):
        list(measure.run(SMALL, ["naive:float8"], protocol=QUICK))


def test_a_backend_may_have_its_own_dtype() -> None:
    made = list(measure.run(SMALL, ["naive", "naive:bfloat16", "naive"], protocol=QUICK))
    assert [m.problem.dtype for m in made] == ["float32", "bfloat16"]


def test_float16_overflow_disagrees_and_is_never_fast() -> None:
    """Scores of about 60·60·√8 in float16 pass 65,504 only if q and k are large: here they are."""
    made = one(Problem(batch=1, q_len=16, kv_len=16, heads=1, kv_heads=1, dtype="float16", input_scale=60), "naive")
    assert made.status == "disagrees"
    assert made.timing is None
    assert made.reason is not None
    assert "float16 holds nothing above 65,504" in made.reason
    assert made.accuracy is not None
    assert made.accuracy["max_abs_error"] is None
    json.dumps(made.to_json(), allow_nan=False)


def test_a_nan_in_the_inputs_is_not_hidden() -> None:
    made = one(SMALL.but(inputs="nan"), "naive")
    assert made.status == "ok"  # NaN where the exact result is NaN, numbers elsewhere


def test_what_can_not_fit_is_refused_with_both_figures_before_anything_is_allocated() -> None:
    problem = Problem(batch=64, q_len=16384, kv_len=16384, heads=32, kv_heads=32)
    misses = measure.CACHE.misses
    made = one(problem, "naive")
    assert made.status == "out_of_memory"
    assert made.reason is not None
    assert "TiB by formula" in made.reason
    assert "are free" in made.reason
    assert measure.CACHE.misses == misses  # not even compiled
    assert made.memory is not None
    assert made.memory["predicted_bytes"] > made.memory["free_bytes"] > 0


class Lenient(Backend):
    __slots__ = ()

    def why_not(self, problem: Any, device: Any) -> str | None:
        return None


@pytest.fixture
def planted() -> Iterator[dict[str, Any]]:
    """A test's own backend under the name "planted"; the rules know nothing of it and let it pass."""
    holder: dict[str, Any] = {}

    def attend(q: Any, k: Any, v: Any, *, mask: Any) -> Any:
        return holder["attend"](q, k, v, mask=mask)

    BACKENDS["planted"] = Lenient(name="planted", label="Planted", attend=attend, about="a test's own")
    yield holder
    del BACKENDS["planted"]
    for key in [k for k in measure.CACHE.builds if "planted" in str(k)]:
        del measure.CACHE.builds[key]


def test_an_off_by_one_mask_disagrees(planted: dict[str, Any]) -> None:
    from explorer.masks import Mask

    planted["attend"] = lambda q, k, v, mask: BACKENDS["naive"].attend(q, k, v, mask=Mask(window=(11, 1)))
    made = one(SMALL.but(kv_len=11, causal=True), "planted")
    assert made.status == "disagrees"
    assert made.timing is None
    assert made.reason is not None
    assert "is allowed" in made.reason


def test_a_failure_is_kept_and_the_others_go_on(planted: dict[str, Any]) -> None:
    def broken(q: Any, k: Any, v: Any, mask: Any) -> Any:
        raise RuntimeError("a kernel that breaks\nwith a second line")

    planted["attend"] = broken
    made = list(measure.run(SMALL, ["planted", "naive"], protocol=QUICK))
    assert made[0].status == "refused"
    assert made[0].reason == "the rules said yes, the library said no: RuntimeError: a kernel that breaks"
    assert made[1].status == "ok"


def test_a_real_resource_exhausted_is_out_of_memory(planted: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA's own error, from a temporary far larger than this machine, with the prediction switched off."""
    import jax.numpy as jnp

    monkeypatch.setattr(memory, "MARGIN", float("inf"))

    def huge(q: Any, k: Any, v: Any, mask: Any) -> Any:
        wide = jnp.sort(jnp.broadcast_to(q.ravel()[0] + jnp.arange(2**43, dtype=jnp.float32), (2**43,)))
        return q + wide[0]

    planted["attend"] = huge
    made = one(SMALL, "planted")
    assert made.status == "out_of_memory", made.reason
    assert made.timing is None


def test_cancel_acts_between_samples() -> None:
    asked = iter([False] * 3 + [True] * 100)
    made = one(SMALL, "naive", cancelled=lambda: next(asked))
    assert made.status == "cancelled"
    assert made.timing is None


def test_a_wrong_output_shape_is_a_failure(planted: dict[str, Any]) -> None:
    planted["attend"] = lambda q, k, v, mask: q[:, :1]
    made = one(SMALL, "planted")
    assert made.status == "failed"
    assert made.reason is not None
    assert "the output must be (2, 11, 8, 7)" in made.reason


def test_outputs_of_one_head_for_the_heatmaps() -> None:
    found = measure.outputs(SMALL, ["naive", "xla", "cudnn"], batch=1, head=3)
    naive, xla = found["naive"], found["xla"]
    assert not isinstance(naive, str)
    assert not isinstance(xla, str)
    assert naive.shape == (11, 7)
    assert abs(naive - xla).max() < 1e-5
    other = measure.outputs(SMALL, ["naive"], batch=1, head=4)["naive"]
    assert not isinstance(other, str)
    assert abs(naive - other).max() > 0.1


def test_the_cache_of_compiled_programs_is_bounded_and_counts() -> None:
    cache = clock.Cache(most=2)
    build = clock.Build(call=None, program="", lower_ms=1.0, compile_ms=1.0)
    for name in ("a", "b", "a", "c", "b"):
        cache.get(name, lambda: build)
    assert cache.info() == {"hits": 1, "misses": 4, "size": 2, "most": 2}
    assert list(cache.builds) == ["c", "b"]


def test_every_backend_has_a_label_and_says_what_it_is() -> None:
    assert all(b.name == name and b.label and b.about for name, b in backends.BACKENDS.items())


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [8, 2, 1])
def test_on_a_gpu_cudnn_is_right_and_proven(causal: bool, kv_heads: int) -> None:
    made = one(Problem(dtype="bfloat16", causal=causal, kv_heads=kv_heads), "cudnn")
    assert made.status == "ok", made.reason
    assert made.evidence is not None
    assert made.timing is not None
    assert any("__cudnn$fmha" in call for call in made.evidence["custom_calls"])
    assert made.evidence["verdict"] == "fused"
    assert made.evidence["proven"] is True
    assert made.timing.device_ms is not None
    assert made.timing.device_ms.median < made.timing.wall_ms.median


@pytest.mark.gpu
@pytest.mark.parametrize(("q_len", "kv_len"), [(32, 96), (96, 32)])
@pytest.mark.parametrize("name", ["naive", "auto", "xla", "cudnn"])
def test_on_a_gpu_causal_is_top_left(name: str, q_len: int, kv_len: int) -> None:
    made = one(Problem(dtype="bfloat16", q_len=q_len, kv_len=kv_len, causal=True), name)
    assert made.status == "ok", made.reason


@pytest.mark.gpu
def test_on_a_gpu_head_dim_100_is_refused_and_the_others_run() -> None:
    made = list(measure.run(Problem(dtype="bfloat16", head_dim=100), ["naive", "xla", "cudnn"], protocol=QUICK))
    assert [m.status for m in made] == ["ok", "ok", "refused"]


@pytest.mark.gpu
def test_on_a_gpu_too_large_is_refused_and_the_process_survives() -> None:
    made = one(Problem(batch=64, q_len=16384, kv_len=16384, heads=32, kv_heads=32), "naive")
    assert made.status == "out_of_memory"
    assert one(Problem(), "naive").status == "ok"


@pytest.mark.gpu
def test_on_a_gpu_float32_is_tf32_by_default_and_named() -> None:
    made = one(Problem(q_len=512, kv_len=512), "naive")
    assert made.status == "ok", made.reason
    assert made.evidence is not None
    assert made.accuracy is not None
    assert (made.evidence["note"] == "tf32") == (made.accuracy["max_abs_error"] > 2e-5)
