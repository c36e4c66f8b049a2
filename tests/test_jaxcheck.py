"""The rules against JAX's own checks, for pretended GPUs; and what happens when JAX's internals move."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import jax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from explorer import device, jaxcheck, support
from explorer.device import Device
from explorer.problem import Problem, divisors

# Where a sourced vendor rule is stricter than JAX's check; nothing else may differ.
STRICTER_THAN_JAX = {
    "cudnn-capability": "below 8.0, where JAX lets float16 pass",
    "fp8-capability": "FP8 below 9.0, where JAX lets 7.5 and 8.9 pass",
    "fp8-one-query": "cuDNN has no engine for it, found when it compiles",
}
H100 = (9, 0)


def gpu(capability: tuple[int, int], cudnn: str = "9.19.0") -> Device:
    text = f"{capability[0]}.{capability[1]}"
    versions: dict[str, str | None] = {"jax": jax.__version__, "cudnn": cudnn}
    return Device(platform="gpu", name=text, capability=capability, versions=versions, is_here=False)


lengths = st.one_of(st.integers(1, 300), st.sampled_from([1, 2, 127, 128, 256, 384, 2731, 4096]))
head_dims = st.one_of(st.integers(1, 40).map(lambda n: 8 * n), st.integers(1, 600), st.sampled_from([128, 256]))
windows = st.one_of(st.none(), st.none(), st.tuples(st.integers(0, 40), st.sampled_from([0, 0, 16])))


DIVISORS = {heads: divisors(heads) for heads in range(1, 13)}


@st.composite
def fields(draw: st.DrawFn) -> dict[str, Any]:
    """A Problem's fields; the Problem is made in the test, since beartype draws from the random module."""
    q_len, heads = draw(lengths), draw(st.integers(1, 12))
    kv_len = draw(st.one_of(st.just(q_len), lengths))
    return {
        "batch": draw(st.integers(1, 3)),
        "q_len": q_len,
        "kv_len": kv_len,
        "heads": heads,
        "kv_heads": draw(st.sampled_from(DIVISORS[heads])),
        "head_dim": draw(head_dims),
        "dtype": draw(st.sampled_from(["bfloat16", "bfloat16", "float16", "float32"])),
        "causal": draw(st.booleans()),
        "backward": draw(st.booleans()),
        "window": draw(windows),
        "kv_valid": draw(st.one_of(st.none(), st.none(), st.integers(0, kv_len))),
    }


@pytest.mark.timeout(400)
def test_rules_and_jax_agree_on_2000_questions() -> None:
    """JAX's rules are JAX's check, exactly; the vendor's may be stricter only where the list above says so."""
    asked: dict[tuple[Any, ...], bool] = {}
    stricter: set[str] = set()

    @settings(
        max_examples=2200,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(
        st.sampled_from(jaxcheck.BACKENDS),
        fields(),
        st.sampled_from(device.CAPABILITIES),
        st.sampled_from(["9.8.0", "9.10.2", "9.11.0", "9.19.0"]),
    )
    def agree(backend: str, values: dict[str, Any], capability: tuple[int, int], cudnn: str) -> None:
        problem = Problem(**values)
        here = gpu(capability, cudnn)
        answer = jaxcheck.ask(backend, problem, capability, cudnn)
        refusing = support.broken(backend, problem, here)
        ours = [rule.name for rule in refusing if "jax" in rule.by]
        assert answer.accepted == (not ours), f"JAX: {answer}; our rules of JAX's: {ours}"
        why_not = support.why_not(backend, problem, here)
        if answer.accepted and why_not is not None:
            names = {rule.name for rule in refusing}
            assert names <= set(STRICTER_THAN_JAX), f"stricter than JAX without being listed: {names}"
            stricter.update(names)
        else:
            assert answer.accepted == (why_not is None)
        asked[backend, problem, capability, cudnn] = answer.accepted

    agree()
    assert len(asked) >= 2000
    assert 300 <= sum(asked.values()) <= len(asked) - 300, "both answers must be well represented"
    assert stricter == set(STRICTER_THAN_JAX), "a listed exception that no question meets is not an exception"


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("capability", [(8, 9), (9, 0)], ids=["8.9", "9.0"])
@pytest.mark.parametrize("backend", jaxcheck.BACKENDS)
def test_every_head_dim_by_8_agrees(backend: str, capability: tuple[int, int], backward: bool) -> None:
    for head_dim in range(8, 273, 8):
        problem = Problem(dtype="bfloat16", head_dim=head_dim, backward=backward)
        rules = support.broken(backend, problem, gpu(capability))
        assert jaxcheck.ask(backend, problem, capability).accepted == (not any("jax" in rule.by for rule in rules))


def test_the_same_question_for_two_gpus_is_asked_twice() -> None:
    """A trace cached for one GPU must not answer for another."""
    wide = Problem(dtype="bfloat16", head_dim=192)
    answers = [jaxcheck.ask("cudnn", wide, capability).accepted for capability in (H100, (8, 9), H100, (8, 0))]
    assert answers == [True, False, True, False]


@pytest.mark.parametrize(
    ("backend", "changes", "calls"),
    [
        ("cudnn", {}, ("__cudnn$fmhaSoftmax",)),
        ("cudnn", {"backward": True}, ("__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward")),
        ("cudnn_fp8", {}, ("__cudnn$fmhaSoftmaxF8",)),
        ("cudnn_fp8", {"backward": True}, ("__cudnn$fmhaSoftmaxF8", "__cudnn$fmhaSoftmaxBackwardF8")),
    ],
)
def test_the_lowered_program_holds_the_fused_call(backend: str, changes: dict, calls: tuple[str, ...]) -> None:
    problem = Problem(dtype="bfloat16", head_dim=128).but(**changes)
    assert jaxcheck.lowered(backend, problem, H100).custom_calls == calls
    assert not jaxcheck.lowered(backend, problem.but(head_dim=100), H100).accepted


def test_a_backend_without_a_check_is_a_wrong_request() -> None:
    with pytest.raises(ValueError, match="cudnn and cudnn_fp8 only, got naive"):
        jaxcheck.ask("naive", Problem(), H100)


@pytest.fixture
def internals() -> Iterator:
    """JAX's module, asked anew before and after."""
    jaxcheck._known_answers_hold.cache_clear()
    yield importlib.import_module(jaxcheck.MODULE)
    jaxcheck._known_answers_hold.cache_clear()


PROBLEM = Problem(dtype="bfloat16")


@pytest.mark.parametrize("name", list(jaxcheck.ASKED))
def test_a_renamed_function_is_loud(internals, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delattr(internals, name)
    with pytest.raises(jaxcheck.JaxMoved, match=name):
        jaxcheck.ask("cudnn", PROBLEM, H100)


def test_a_changed_signature_is_loud(internals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "check_compute_capability", lambda capability, device: True)
    with pytest.raises(jaxcheck.JaxMoved, match="check_compute_capability"):
        jaxcheck.ask("cudnn", PROBLEM, H100)


def test_a_check_that_always_refuses_is_loud(internals, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every probe false, and nobody notices: keras-team/keras#21507."""

    def refuse(*args, **kwargs):
        raise NotImplementedError("no")

    monkeypatch.setattr(internals, "check_is_flash_attention", refuse)
    with pytest.raises(jaxcheck.JaxMoved, match="head_dim 64 gave"):
        jaxcheck.ask("cudnn", PROBLEM, H100)


def test_a_check_that_is_gone_is_loud(internals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "check_is_flash_attention", lambda *args, **kwargs: None)
    with pytest.raises(jaxcheck.JaxMoved, match="without asking for the GPU"):
        jaxcheck.ask("cudnn", PROBLEM, H100)


def test_a_module_that_is_gone_is_loud(internals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxcheck, "MODULE", "jax._src.cudnn.no_such_module")
    with pytest.raises(jaxcheck.JaxMoved, match="the module itself"):
        jaxcheck.ask("cudnn", PROBLEM, H100)


def test_jax_is_left_as_it_was(internals) -> None:
    before = {name: getattr(internals, name) for name in jaxcheck.ASKED}
    jaxcheck.ask("cudnn", PROBLEM, H100)
    jaxcheck.ask("cudnn", PROBLEM.but(head_dim=100), H100)
    assert {name: getattr(internals, name) for name in jaxcheck.ASKED} == before
