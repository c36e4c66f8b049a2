"""What each backend accepts: the cases that must come out right, the answers' parts, and the command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from typing import Any

import pytest

from explorer import __main__, backends, device, prove, support
from explorer.device import Device
from explorer.problem import Problem
from explorer.support import Check, Proof
from explorer.support.answer import more_or_less
from explorer.support.rules import parse_version

H200, L4 = device.named("h200"), device.named("l4")
BF16 = Problem(dtype="bfloat16")
EVERY_8 = list(range(8, 257, 8))


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """The answers of `support --json`, which must exit 0."""
    assert __main__.main(["support", *arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def accepted(answers: list[dict[str, Any]], backend: str) -> list[int]:
    return [a["head_dim"] for a in answers if a["backend"] == backend and a["supported"]]


# --- the cases of the issue, on the command line, without a GPU


@pytest.mark.parametrize("gpu", ["h200", "h100", "9.0"])
@pytest.mark.parametrize("passes", [(), ("--backward",)], ids=["forward", "backward"])
def test_hopper_takes_8_to_256_by_8(capsys: pytest.CaptureFixture[str], gpu: str, passes: tuple[str, ...]) -> None:
    asked = ("--gpu", gpu, "--backend", "cudnn", *passes)
    assert accepted(command(capsys, *asked, "--head-dim", "8:256:8"), "cudnn") == EVERY_8
    refused = command(capsys, *asked, "--head-dim", "100,127,264,512")
    assert [a["supported"] for a in refused] == [False] * 4
    assert {a["rule"] for a in refused} == {"cudnn-head-dim"}
    assert "got 264" in refused[2]["reason"]


@pytest.mark.parametrize("gpu", ["8.0", "8.6", "8.9", "a100", "l4"])
@pytest.mark.parametrize("passes", [(), ("--backward",)], ids=["forward", "backward"])
def test_ampere_and_ada_take_up_to_128(capsys: pytest.CaptureFixture[str], gpu: str, passes: tuple[str, ...]) -> None:
    answers = command(capsys, "--gpu", gpu, "--backend", "cudnn", "--head-dim", "8:256:8", *passes)
    assert accepted(answers, "cudnn") == list(range(8, 129, 8))


def test_turing_has_no_cudnn_attention(capsys: pytest.CaptureFixture[str]) -> None:
    answers = command(capsys, "--gpu", "7.5", "--backend", "cudnn,cudnn_fp8", "--dtype", "float16", "--head-dim", "64")
    assert [(a["supported"], a["rule"]) for a in answers] == [(False, "cudnn-capability")] * 2
    assert answers[0]["nearest"][0]["value"] == "8.0"


@pytest.mark.parametrize("gpu", [f"{a}.{b}" for a, b in device.CAPABILITIES])
def test_float32_is_refused_everywhere_by_cudnn(capsys: pytest.CaptureFixture[str], gpu: str) -> None:
    answers = command(capsys, "--gpu", gpu, "--backend", "cudnn,cudnn_fp8", "--dtype", "float32")
    assert not any(a["supported"] for a in answers)
    if gpu != "7.5":
        assert answers[0]["reason"] == "cuDNN attention takes float16 or bfloat16, not float32"
        assert answers[0]["nearest"][0] | {"how": ""} == {
            "axis": "dtype", "value": "bfloat16", "how": "", "flops_ratio": 1, "bytes_ratio": 0.5, "together": None,
            "wall_ms": None, "device_ms": None,
        }  # fmt: skip


@pytest.mark.parametrize("gpu", ["9.0", "10.0", "10.3", "12.0"])
def test_fp8_forward_takes_16_to_256_by_16(capsys: pytest.CaptureFixture[str], gpu: str) -> None:
    answers = command(capsys, "--gpu", gpu, "--backend", "cudnn_fp8", "--head-dim", "8:272:8")
    assert accepted(answers, "cudnn_fp8") == list(range(16, 257, 16))
    assert next(a for a in answers if a["head_dim"] == 72)["rule"] == "fp8-head-dim"


def test_fp8_backward_takes_128_alone_and_lengths_by_128(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--gpu", "h200", "--backend", "cudnn_fp8", "--backward")
    assert accepted(command(capsys, *asked, "--head-dim", "16:256:16", "--q-len", "256"), "cudnn_fp8") == [128]
    (off,) = command(capsys, *asked, "--head-dim", "128", "--q-len", "200")
    assert (off["supported"], off["rule"]) == (False, "fp8-backward-lengths")
    assert [n["value"] for n in off["nearest"]] == [[256, 256], [128, 128]]


@pytest.mark.parametrize("gpu", ["8.0", "8.9", "l4"])
def test_fp8_has_nothing_before_hopper(capsys: pytest.CaptureFixture[str], gpu: str) -> None:
    answers = command(capsys, "--gpu", gpu, "--backend", "cudnn_fp8", "--head-dim", "16:256:16")
    assert {(a["supported"], a["rule"]) for a in answers} == {(False, "fp8-capability")}
    assert ("its matrix units know FP8" in answers[0]["reason"]) == (gpu != "8.0")


@pytest.mark.parametrize("q_len", ["127", "1", "2731"])
def test_odd_lengths_go_forward_only(capsys: pytest.CaptureFixture[str], q_len: str) -> None:
    asked = ("--gpu", "h200", "--backend", "cudnn", "--q-len", q_len)
    (forward,) = command(capsys, *asked)
    (backward,) = command(capsys, *asked, "--backward")
    assert (forward["supported"], backward["supported"]) == (True, False)
    assert backward["rule"] == "cudnn-backward-lengths"
    assert "NVIDIA's documents allow it, JAX does not" in backward["headline"]
    assert backward["nearest"][0]["value"] == [int(q_len) + 1] * 2


def test_an_odd_kv_len_alone_is_refused_too(capsys: pytest.CaptureFixture[str]) -> None:
    (answer,) = command(capsys, "--gpu", "h200", "--backend", "cudnn", "--kv-len", "127", "--backward")
    assert [n["value"] for n in answer["nearest"]] == [[128, 128], [128, 126]]


def test_heads_that_do_not_divide_are_a_wrong_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["support", "--heads", "8", "--kv-heads", "3", "--gpu", "h200"]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert re.search(r"kv_heads must divide heads=8, got 3; one of 1, 2, 4, 8 would do\n$", out.err)


@pytest.mark.parametrize("head_dim", ["72", "264", "512"])
@pytest.mark.parametrize("backend", ["transformer_engine", "transformer_engine_fp8"])
def test_transformer_engine_takes_any_head_dim_but_not_fused(
    capsys: pytest.CaptureFixture[str], backend: str, head_dim: str
) -> None:
    (answer,) = command(capsys, "--gpu", "h100", "--backend", backend, "--head-dim", head_dim)
    assert (answer["supported"], answer["fused"], answer["state"]) == (True, False, "unfused")
    assert answer["reason"].startswith("accepted, but not by the fused kernel: ")
    (fused,) = command(capsys, "--gpu", "h100", "--backend", backend, "--head-dim", "128")
    assert (fused["supported"], fused["fused"], fused["reason"]) == (True, True, None)


def test_a_run_that_was_fused_stands_above_a_rule_that_says_unfused(capsys: pytest.CaptureFixture[str]) -> None:
    """head_dim 72 was seen unfused with cuDNN 9.19, and runs fused in the proofs made with 9.14: both are shown."""
    (answer,) = command(capsys, "--gpu", "h200", "--backend", "transformer_engine", "--head-dim", "72")
    assert (answer["supported"], answer["witness"], answer["fused"]) == (True, "run", True)
    assert answer["headline"].startswith("the rules said unfused, the run was fused: cudnn_generated_fort_native_sdpa")


def test_the_question_of_the_issue(capsys: pytest.CaptureFixture[str]) -> None:
    """Does cuDNN take HEAD_DIM 96 in bf16 on an L4, backward too, with 8 query and 2 KV heads?"""
    (answer,) = command(
        capsys, "--gpu", "l4", "--backend", "cudnn", "--head-dim", "96", "--backward", "--heads", "8", "--kv-heads", "2"
    )
    assert answer["supported"] is True
    assert (answer["witness"], answer["rule"], answer["reason"], answer["nearest"]) == ("rule", None, None, [])
    asked = answer["question"]
    assert (asked["head_dim"], asked["kv_heads"], asked["dtype"], asked["backward"]) == (96, 2, "bfloat16", True)
    assert (asked["gpu"], asked["capability"]) == ("NVIDIA L4", "8.9")


# --- the command


def test_every_backend_and_head_dim_once(capsys: pytest.CaptureFixture[str]) -> None:
    answers = command(capsys, "--gpu", "h200", "--head-dim", "64,32,100,64")
    assert [(a["head_dim"], a["backend"]) for a in answers] == [
        (h, b) for h in (32, 64, 100) for b in backends.BACKENDS
    ]
    needed = {"head_dim", "backend", "supported", "witness", "rule", "reason", "nearest", "sources", "question"}
    assert all(needed <= set(a) for a in answers)
    assert all(isinstance(a["supported"], bool) and a["witness"] in ("rule", "run") for a in answers)


def test_without_a_gpu_this_machine_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if device.nvml_info().get("capability"):
        pytest.skip("this machine has a GPU")
    answers = command(capsys, "--backend", "cudnn,xla")
    assert answers[0]["reason"] == "cuDNN attention needs an NVIDIA GPU; this machine has none"
    assert answers[1]["supported"] is True


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--gpu", "rtx"], r"gpu must be this, or one of .*h200.*, got 'rtx'"),
        (["--gpu", "11.0"], r"gpu must be this"),
        (["--head-dim", "0"], r"head_dim must be from 1"),
        (["--head-dim", "-8"], r"expected one argument|head_dim must be"),
        (["--head-dim", "3000000000"], r"head_dim must be from 1 to 2147483647"),
        (["--head-dim", "8:4:8"], r"a range needs start <= stop"),
        (["--head-dim", "wide"], r"a length is a whole number"),
        (["--backend", "flash"], r"backend must be one of naive"),
        (["--dtype", "int8"], r"dtype must be one of"),
        (["--q-len", "9999999999"], r"q_len must be from 1 to 2147483647"),
        (["--gpu", "h200", "--prove"], r"prove runs on the GPU at hand"),
        (["--proofs", "x.jsonl"], r"proofs goes with --prove"),
        (["--slice", "all"], r"slice must be one of smoke, cudnn, edges, matrix"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    try:
        code = __main__.main(["support", *arguments])
    except SystemExit as stop:  # argparse's own way out
        code = stop.code
    out = capsys.readouterr()
    assert (code, out.out) == (2, "")
    assert re.search(sentence, out.err)
    assert out.err.count("\n") == 1


def test_the_shell_answers_without_jax_in_time() -> None:
    """Under 1.5 s on an idle machine; the limit here leaves room for a busy one."""
    script = (
        "import sys; from explorer.__main__ import main; "
        "code = main(['support', '--gpu', 'h200', '--head-dim', '8:256:8', '--json']); "
        "assert not {'jax', 'streamlit', 'pandas', 'altair'} & set(sys.modules), 'a heavy library was loaded'; "
        "sys.exit(code)"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    took = time.perf_counter() - start
    assert len(done.stdout.splitlines()) == 32 * len(backends.BACKENDS)
    assert took < 6, f"took {took:.1f} s"


def test_text_says_yes_no_why_and_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["support", "--gpu", "h200", "--head-dim", "64,100", "--backend", "cudnn"]) == 0
    out = capsys.readouterr().out
    assert "on NVIDIA H200" in out
    assert "H=64 bfloat16 full   yes, by " in out
    assert "H=100 bfloat16 full  no, by rule" in out
    assert "instead, head_dim 104: pad q, k and v with 4 zeros and keep the scale at 1/√100" in out
    assert "check_is_flash_attention" in out


def test_check_asks_jax_for_a_named_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    answers = command(capsys, "--gpu", "t4", "--check", "--backend", "cudnn,naive", "--head-dim", "64")
    assert [a["witness"] for a in answers] == ["rule", "rule"]
    cudnn = answers[0]
    assert cudnn["supported"] is False
    assert "lets it through, the rule is stricter and decides" in cudnn["headline"]
    assert cudnn["witnesses"]["check"]["says"] == "yes"
    (wide,) = command(capsys, "--gpu", "l4", "--check", "--backend", "cudnn", "--head-dim", "256")
    assert (wide["supported"], wide["witness"]) == (False, "check")
    assert "The head dim must be <= 128" in wide["witnesses"]["check"]["text"]


# --- rules


def test_an_answer_by_rule_takes_under_50_ms() -> None:
    """Of the processor's time, so that a busy machine does not count."""
    start = time.process_time()
    for _ in range(20):
        support.answer("cudnn", BF16.but(head_dim=100, dtype="float32"), H200)
    assert (time.process_time() - start) / 20 < 0.05


def test_every_rule_has_a_source_a_sentence_and_a_known_backend() -> None:
    for rule in support.RULES:
        assert rule.sources
        assert all(rule.sources), rule.name
        assert set(rule.backends) <= set(backends.BACKENDS), rule.name
        assert rule.by
        assert (rule.multiple is not None) == (rule.axis == "lengths"), rule.name


@pytest.mark.parametrize("capability", device.CAPABILITIES, ids=lambda c: f"{c[0]}.{c[1]}")
def test_plain_backends_take_everything(capability: tuple[int, int]) -> None:
    gpu = Device(platform="gpu", name="a GPU", capability=capability)
    for name in ("naive", "auto", "xla"):
        for problem in (Problem(head_dim=100), BF16.but(head_dim=512, q_len=1, backward=True), BF16.but(window=(3, 5))):
            assert support.why_not(name, problem, gpu) is None


def test_without_a_gpu() -> None:
    cpu = Device(platform="cpu", name="a CPU", missing={"transformer_engine": "it is not installed"})
    assert support.why_not("cudnn", BF16, cpu) == "cuDNN attention needs an NVIDIA GPU; this machine has none"
    assert support.why_not("cudnn_fp8", BF16, cpu) == "cuDNN attention needs an NVIDIA GPU; this machine has none"
    assert support.why_not("transformer_engine", BF16, cpu) == "it is not installed"
    no_reason = Device(platform="cpu", name="a CPU")
    assert "needs an NVIDIA GPU" in str(support.why_not("transformer_engine", BF16, no_reason))
    assert support.why_not("naive", BF16, cpu) is None


@pytest.mark.parametrize(
    ("backend", "library"),
    [("cudnn", "cudnn"), ("cudnn_fp8", "cudnn_fp8"), ("transformer_engine_fp8", "transformer_engine")],
)
def test_a_missing_library_is_the_reason(backend: str, library: str) -> None:
    gpu = Device(platform="gpu", name="a GPU", capability=(9, 0), missing={library: "it has moved"})
    assert support.why_not(backend, BF16, gpu) == "it has moved"


@pytest.mark.parametrize(
    ("window", "causal", "kv_valid", "refused"),
    [
        ((16, 0), True, None, False),
        ((16, 0), False, None, False),  # accepted, and silently wrong: a run shows it, no rule hides it
        ((16, 16), True, None, False),
        ((16, 16), False, None, True),
        ((16, 16), True, 100, True),
        (None, False, 100, False),
        (None, True, 0, False),
    ],
)
def test_windows_and_padding_in_cudnn(window: Any, causal: bool, kv_valid: Any, refused: bool) -> None:
    problem = BF16.but(window=window, causal=causal, kv_valid=kv_valid)
    assert (support.why_not("cudnn", problem, H200) is not None) == refused
    assert support.why_not("cudnn_fp8", problem, H200) is not None
    assert "full or a causal mask only" in str(support.why_not("transformer_engine", problem, H200))


@pytest.mark.parametrize(("cudnn", "accepts"), [("9.10.2", False), ("9.11.0", True), (None, True)])
def test_compute_capability_10_3_needs_cudnn_9_11(cudnn: str | None, accepts: bool) -> None:
    gpu = Device(platform="gpu", name="a GPU", capability=(10, 3), versions={"cudnn": cudnn})
    assert (support.why_not("cudnn", BF16, gpu) is None) == accepts


@pytest.mark.parametrize(("jax", "accepts"), [("0.8.1", False), ("0.8.2", True), ("0.12.0", True), (None, True)])
def test_before_jax_0_8_2_wide_heads_were_for_hopper_alone(jax: str | None, accepts: bool) -> None:
    for capability, expected in (((9, 0), True), ((10, 0), accepts)):
        gpu = Device(platform="gpu", name="a GPU", capability=capability, versions={"jax": jax})
        assert (support.why_not("cudnn", BF16.but(head_dim=192), gpu) is None) == expected


@pytest.mark.parametrize(("te", "accepts"), [("2.11.0", False), ("2.12", True), ("2.20.2.dev0+cu13", True)])
def test_transformer_engine_must_be_recent(te: str, accepts: bool) -> None:
    gpu = Device(platform="gpu", name="a GPU", capability=(9, 0), versions={"transformer_engine": te})
    assert (support.why_not("transformer_engine", BF16, gpu) is None) == accepts


def test_versions_are_read_as_numbers() -> None:
    assert parse_version("9.19.0") == (9, 19, 0)
    assert parse_version("2.20.2.dev0+cu13") == (2, 20, 2)
    assert parse_version("0.10.2") > parse_version("0.9")
    assert parse_version(None) == parse_version("unknown") == ()


# --- witnesses


def ran(**changes: Any) -> Proof:
    made: dict[str, Any] = {
        "status": "ok", "gpu": "NVIDIA H200", "kernel": "cudnn_sdpa_sm90", "max_abs_error": 1e-3, "fused": True,
        "device_ms": 0.0065, "wall_ms": 0.137, "versions": "JAX 0.11.2, cuDNN 9.19.0",
    }  # fmt: skip
    return Proof(**made | changes)


def test_a_run_is_the_strongest_witness() -> None:
    answer = support.answer("cudnn", BF16, H200, check=Check(accepted=True, by="JAX"), proof=ran())
    assert (answer.supported, answer.witness, answer.state, answer.headline) == (True, "run", "proven", None)
    assert [(w.name, w.says) for w in answer.witnesses] == [
        ("rule", "yes"), ("check", "yes"), ("compile", "yes"), ("run", "yes"),
    ]  # fmt: skip
    assert "cudnn_sdpa_sm90" in answer.witnesses[3].text
    assert "NVIDIA H200" in answer.witnesses[3].text


@pytest.mark.parametrize("gone", ["gpu", "kernel", "max_abs_error"])
def test_run_stands_only_with_kernel_error_and_gpu(gone: str) -> None:
    answer = support.answer("cudnn", BF16, H200, proof=ran(**{gone: None}))
    assert (answer.supported, answer.witness, answer.state) == (True, "compile", "rule")


def test_the_rules_said_yes_the_library_said_no() -> None:
    said = "the rules said yes, the library said no: XlaRuntimeError: no valid engine configs"
    answer = support.answer("cudnn", BF16, H200, proof=ran(status="refused", reason=said))
    assert (answer.supported, answer.witness, answer.rule) == (False, "compile", None)
    assert answer.headline == answer.reason == said
    assert (answer.witnesses[0].says, answer.witnesses[2].says, answer.state) == ("yes", "no", "refused")


def test_a_wrong_result_is_not_support() -> None:
    proof = ran(status="disagrees", reason="off by 3.06 from the exact result, 0.01 is allowed", max_abs_error=3.06)
    answer = support.answer("cudnn", BF16.but(window=(16, 0)), H200, proof=proof)
    assert (answer.supported, answer.witness, answer.state) == (False, "run", "disagrees")
    assert "off by 3.06" in str(answer.headline)


def test_a_failure_is_told() -> None:
    proof = ran(status="failed", reason="run failed: XlaRuntimeError: illegal address", kernel=None, max_abs_error=None)
    answer = support.answer("cudnn", BF16, H200, proof=proof)
    assert (answer.supported, answer.witness, answer.state) == (False, "compile", "failed")
    assert answer.witnesses[3].says == "no"


def test_a_run_against_the_rule_is_the_headline() -> None:
    answer = support.answer("cudnn", BF16.but(head_dim=100), H200, proof=ran())
    assert (answer.supported, answer.witness) == (True, "run")
    assert "the rules said no, but it ran and agreed" in str(answer.headline)


def test_an_unfused_run_is_never_shown_as_fused() -> None:
    proof = ran(fused=False, kernel="ampere_bf16_gemm")
    answer = support.answer("transformer_engine", BF16, H200, proof=proof)
    assert (answer.supported, answer.fused, answer.state) == (True, False, "unfused")
    assert "the rules said fused, the run was unfused" in str(answer.headline)
    assert "not by the fused kernel" in str(answer.reason)


def test_a_check_that_disagrees_is_the_headline() -> None:
    said = Check(accepted=False, by="JAX 0.12.0's own check", reason="NotImplementedError: not any more")
    answer = support.answer("cudnn", BF16, H200, check=said)
    assert (answer.supported, answer.witness, answer.reason) == (False, "check", "NotImplementedError: not any more")
    assert "the rules said yes, JAX 0.12.0's own check says no" in str(answer.headline)
    more = support.answer("cudnn", BF16.but(head_dim=100), H200, check=Check(accepted=True, by="JAX 0.13"))
    assert (more.supported, more.witness) == (True, "check")
    assert "the rules said no, JAX 0.13 says yes" in str(more.headline)


def test_where_nvidia_documents_less_than_jax_takes_it_is_the_headline() -> None:
    b200 = device.named("b200")
    answer = support.answer("cudnn", BF16.but(head_dim=192, backward=True), b200)
    assert answer.supported
    assert "only a run can tell" in str(answer.headline)
    for problem in (BF16.but(head_dim=128, backward=True), BF16.but(head_dim=256, backward=True), BF16):
        assert support.answer("cudnn", problem, b200).headline is None
    assert "decode step" in str(support.answer("cudnn", BF16.but(head_dim=192, q_len=1), b200).headline)
    assert support.documented("naive", BF16, b200) is None
    assert "no FP8 attention" in str(support.answer("cudnn_fp8", BF16, device.named("12.0")).headline)


# --- neighbours


def test_padding_costs_what_the_formula_says() -> None:
    wider, narrower = support.nearest("cudnn", BF16.but(head_dim=100), H200)
    assert (wider.value, narrower.value) == (104, 96)
    assert (wider.flops_ratio, wider.bytes_ratio) == (1.04, 1.04)
    assert "1/√100: the same result" in wider.how
    assert "another model" in narrower.how


def test_neighbours_are_accepted() -> None:
    for backend in ("cudnn", "cudnn_fp8"):
        for problem in (
            Problem(head_dim=100, q_len=127, kv_len=31, backward=True),
            BF16.but(head_dim=300, window=(4, 4)),
            BF16.but(head_dim=1, q_len=1, kv_len=1, backward=True, causal=True),
        ):
            near = support.nearest(backend, problem, H200)
            assert near
            for neighbour in near:
                assert neighbour.problem is not None
                assert support.why_not(backend, neighbour.problem, H200) is None, neighbour


def test_several_axes_are_mended_together() -> None:
    near = {n.axis: n for n in support.nearest("cudnn", Problem(head_dim=100, dtype="float32"), H200)}
    assert near["dtype"].together == {"head_dim": 104}
    assert near["head_dim"].together == {"dtype": "bfloat16"}
    old = support.nearest("cudnn_fp8", BF16.but(backward=True), L4)
    assert [(n.axis, n.value, n.together) for n in old] == [("capability", "9.0", {"head_dim": 128})]


def test_ratios_read_well() -> None:
    assert [more_or_less(r) for r in (1.04, 0.96, 3.0)] == ["+4 %", "-4 %", "3 ×"]


def test_an_accepted_problem_needs_no_neighbours() -> None:
    assert support.answer("cudnn", BF16, H200).nearest == ()


# --- proofs


def test_the_matrix_holds_every_cell_once() -> None:
    cells = prove.cells_of("matrix")
    assert len(cells) == len(set(cells)) == 32 * 2 * 2 * 2 * len(backends.BACKENDS)
    assert len(prove.cells_of("cudnn")) == 64
    assert {name for name, _ in prove.cells_of("edges")} == set(backends.BACKENDS)


def test_what_was_seen_to_be_wrong_is_said_beside_a_yes() -> None:
    h200 = device.named("h200")
    wrong = Problem(q_len=2048, kv_len=2048, causal=True, dtype="bfloat16")
    answer = support.answer("cudnn_fp8", wrong, h200)
    assert answer.supported
    assert "was seen to give a wrong output" in (answer.headline or "")
    assert any("recording fp8-sweep" in source for source in answer.sources)
    recipe = support.answer("transformer_engine_fp8", wrong, h200)
    assert "this is no FP8 attention" in (recipe.headline or "")
    assert support.answer("cudnn", wrong, h200).headline is None
