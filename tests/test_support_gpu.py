"""On a GPU: what the rules and the checks say is what the card does."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from explorer import backends, device, prove, support
from explorer.cli.support import at_hand
from explorer.problem import Problem

# TransformerEngine warns of JAX's old names while it is traced; that is no error of ours
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

BF16 = Problem(dtype="bfloat16")


def widest() -> int:
    capability = device.here().capability
    return 256 if capability is not None and capability >= (9, 0) else 128


def verdict(backend: str, problem: Problem) -> support.Answer:
    here = device.here()
    (found,) = prove.prove([(backend, problem)])
    proof = prove.proof_of(found.to_json(), recorded=False)
    return support.answer(backend, problem, here, check=prove.check(backend, problem, here), proof=proof)


def test_the_quick_look_and_jax_see_the_same_gpu() -> None:
    quick, real = at_hand(), device.here()
    assert (quick.name, quick.capability, quick.is_gpu) == (real.name, real.capability, True)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_cudnn_at_the_ends_of_its_range(dtype: str, backward: bool) -> None:
    for head_dim in (8, 72, widest()):
        found = verdict("cudnn", BF16.but(dtype=dtype, head_dim=head_dim, backward=backward))
        assert (found.state, found.witness, found.headline) == ("proven", "run", None), found
        assert [w.says for w in found.witnesses] == ["yes"] * 4


@pytest.mark.parametrize("changes", [{"head_dim": 100}, {"head_dim": 264}, {"dtype": "float32"}])
def test_what_cudnn_refuses_its_check_refuses(changes: dict) -> None:
    found = verdict("cudnn", BF16.but(**changes))
    assert not found.supported
    assert [w.says for w in found.witnesses[:2]] == ["no", "no"]


@pytest.mark.parametrize("q_len", [1, 127])
def test_odd_lengths_run_forward_only(q_len: int) -> None:
    problem = BF16.but(q_len=q_len, kv_len=q_len)
    assert verdict("cudnn", problem).state == "proven"
    assert not verdict("cudnn", problem.but(backward=True)).supported


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_heads_run(kv_heads: int) -> None:
    for backward in (False, True):
        assert verdict("cudnn", BF16.but(kv_heads=kv_heads, backward=backward)).state == "proven"


def test_a_left_window_without_causal_is_silently_wrong_and_said_so() -> None:
    """cuDNN lets future keys in; the rules don't hide it, the run shows it."""
    found = verdict("cudnn", BF16.but(window=(16, 0)))
    assert (found.supported, found.state) == (False, "disagrees")


def test_fp8_forward_and_backward() -> None:
    if widest() < 256:
        pytest.skip("cuDNN's FP8 attention starts with compute capability 9.0")
    assert verdict("cudnn_fp8", BF16.but(head_dim=80)).state == "proven"
    assert not verdict("cudnn_fp8", BF16.but(head_dim=72)).supported
    assert not verdict("cudnn_fp8", BF16.but(head_dim=64, backward=True)).supported
    assert verdict("cudnn_fp8", BF16.but(head_dim=128, backward=True)).state == "proven"


def test_transformer_engine_says_when_it_is_not_fused() -> None:
    if why := device.here().missing.get("transformer_engine"):
        pytest.skip(why)
    found = verdict("transformer_engine", BF16)
    assert found.state == "proven", found
    found = verdict("transformer_engine", BF16.but(head_dim=264))  # cuDNN 9.14 has a kernel for it, 9.19 has none
    assert found.supported, found
    assert found.proof is not None
    if found.proof.fused:
        assert found.state == "proven", found
        assert str(found.headline).startswith("the rules said unfused, the run was fused: cudnn"), found
    else:
        assert found.state == "unfused", found
        assert "not by the fused kernel" in str(found.reason)


def test_the_rules_and_the_run_say_the_same_of_transformer_engine_s_kernel() -> None:
    """72 depends on cuDNN: fused with 9.14, unfused with 9.19."""
    if why := device.here().missing.get("transformer_engine"):
        pytest.skip(why)
    for head_dim in (40, 72, 128):
        found = verdict("transformer_engine", BF16.but(head_dim=head_dim))
        assert (found.supported, found.headline) == (True, None), found


def test_cudnns_32_head_dims_in_under_90_seconds(tmp_path: Path) -> None:
    """From cold in this process: forward and backward, compiled in parallel, each checked."""
    cells = prove.cells_of("cudnn")
    start = time.perf_counter()
    found = list(prove.prove(cells, path=tmp_path / "proofs.jsonl"))
    took = time.perf_counter() - start
    here = device.here()
    expected = [backends.BACKENDS[name].why_not(p, here) is None for name, p in cells]
    assert [r.status == "ok" for r in found] == expected, [r.reason for r in found if r.status != "ok"]
    assert took < 90, f"took {took:.0f} s"
