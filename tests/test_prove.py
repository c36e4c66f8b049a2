"""Proofs: cells, resuming, and what a record proves and for whom. Live on whatever this machine has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from explorer import device, measure, prove, record, support
from explorer.device import Device
from explorer.problem import Problem
from explorer.prove import Proofs

TINY = Problem(batch=1, q_len=3, kv_len=5, heads=1, kv_heads=1, head_dim=2, dtype="bfloat16")
H200 = device.named("h200")


def recorded(**changes: Any) -> dict[str, Any]:
    """A record's JSON as an H200 writes it."""
    made: dict[str, Any] = {
        "schema": 1,
        "problem": Problem(dtype="bfloat16").to_json(),
        "backend": "cudnn",
        "status": "ok",
        "reason": None,
        "timing": {"wall_ms": {"median": 0.137}, "device_ms": {"median": 0.0065}},
        "accuracy": {"max_abs_error": 1e-3, "budget": 1e-2, "verdict": "agrees"},
        "evidence": {
            "custom_calls": ["__cudnn$fmhaSoftmax"],
            "kernels": [{"name": "copy"}, {"name": "cudnn_generated_fort_native_sdpa_sm90"}],
            "fused": True,
            "marker": "__cudnn$fmha",
        },
        "environment": {"gpu": "NVIDIA H200", "compute_capability": "9.0", "jax": "0.11.2", "cudnn": "9.19.0"},
        "time": "2026-12-01T12:00:00+00:00",
    }
    return made | changes


def held(**changes: Any) -> Proofs:
    proofs = Proofs()
    proofs.add(recorded(**changes), recorded=True)
    return proofs


def test_cells_are_proven_appended_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "proofs.jsonl"
    cells = [("naive", TINY), ("xla", TINY), ("cudnn", TINY.but(dtype="float32"))]
    first = list(prove.prove(cells[:2], path=path))
    assert [r.status for r in first] == ["ok", "ok"]
    assert len(path.read_text().splitlines()) == 2
    again = list(prove.prove(cells, path=path))
    assert [r.recorded for r in again] == [True, True, False]
    assert again[2].status == "refused"
    assert len(path.read_text().splitlines()) == 3, "what stood there was not written again"
    kept, losses = record.read_lines(path)
    assert not losses
    assert [(r.backend, r.problem) for r in kept] == cells


def test_a_line_cut_off_in_the_middle_is_proven_again(tmp_path: Path) -> None:
    path = tmp_path / "proofs.jsonl"
    list(prove.prove([("naive", TINY)], path=path))
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2] + "\n")
    (found,) = prove.prove([("naive", TINY)], path=path)
    assert (found.status, found.recorded) == ("ok", False)
    assert len(Proofs().read(path)) == 1


def test_what_holds_for_other_versions_is_proven_again(tmp_path: Path) -> None:
    path = tmp_path / "proofs.jsonl"
    list(prove.prove([("naive", TINY)], path=path))
    path.write_text(path.read_text().replace('"jax": "', '"jax": "0.0.'))
    (found,) = prove.prove([("naive", TINY)], path=path)
    assert not found.recorded


def test_cancel_keeps_what_is_done(tmp_path: Path) -> None:
    asked: list[str] = []

    def report(done: int, total: int, text: str) -> None:
        asked.append(text)

    path = tmp_path / "proofs.jsonl"
    cells = [("naive", TINY), ("naive", TINY.but(q_len=4))]
    stop = iter([False] * 4 + [True] * 100)
    found = list(prove.prove(cells, path=path, report=report, cancelled=lambda: "naive" in asked[-1] and next(stop)))
    assert len(found) < 2
    assert len(path.read_text().splitlines() if path.exists() else []) == len([r for r in found if r.status == "ok"])


def test_a_compiler_that_says_no_is_kept_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules let it through and tracing fails: not a crash, and not a rule of ours."""
    from explorer import backends

    def attend(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("no valid engine configs for this graph")

    broken = backends.BACKENDS["xla"]
    monkeypatch.setitem(backends.BACKENDS, "xla", type(broken)(name="xla", label="x", attend=attend, about="x"))
    (found,) = prove.prove([("xla", TINY.but(head_dim=3))])
    proof = prove.proof_of(found.to_json(), recorded=False)
    answer = support.answer("xla", found.problem, device.here(), proof=proof)
    assert (answer.supported, answer.witness, answer.state) == (False, "compile", "refused")
    assert answer.headline == (
        "the rules said yes, the library said no: NotImplementedError: no valid engine configs for this graph"
    )
    assert [w.says for w in answer.witnesses] == ["yes", "not asked", "no", "not asked"]


def test_a_record_is_read_as_a_proof() -> None:
    proof = prove.proof_of(recorded(), recorded=True)
    assert proof.stands
    assert (proof.kernel, proof.device_ms, proof.fused) == ("cudnn_generated_fort_native_sdpa_sm90", 0.0065, True)
    assert proof.where == "NVIDIA H200, JAX 0.11.2, cuDNN 9.19.0, recorded 2026-12-01"
    unmarked = recorded(evidence=recorded()["evidence"] | {"marker": None, "fused": False})
    assert prove.proof_of(unmarked, recorded=True).fused is None, "naive has no fused kernel to miss"


def test_without_a_kernel_no_run_stands() -> None:
    proof = prove.proof_of(recorded(evidence=recorded()["evidence"] | {"kernels": []}), recorded=True)
    assert not proof.stands
    wrong = recorded(status="disagrees", reason="off", evidence=recorded()["evidence"] | {"kernels": []}, timing=None)
    assert prove.proof_of(wrong, recorded=True).kernel == "__cudnn$fmhaSoftmax"


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        (H200, True),
        (device.named("9.0"), True),
        (device.named("h100"), False),
        (device.named("8.9"), False),
        (Device(platform="gpu", name="NVIDIA H200", versions={"jax": "0.11.2", "cudnn": "9.19.0"}), True),
        (Device(platform="gpu", name="NVIDIA H200", versions={"jax": "0.11.2"}), True),
        (Device(platform="gpu", name="NVIDIA H200", versions={"jax": "0.12.0", "cudnn": "9.19.0"}), False),
        (Device(platform="gpu", name="NVIDIA L4", versions={"jax": "0.11.2"}), False),
        (Device(platform="cpu", name="a CPU"), False),
    ],
)
def test_a_proof_holds_for_its_gpu_and_at_hand_for_its_versions(where: Device, holds: bool) -> None:
    assert (held().get("cudnn", Problem(dtype="bfloat16"), where) is not None) == holds


def test_a_proof_is_about_its_shape_alone() -> None:
    asked = Problem(dtype="bfloat16")
    assert held().get("cudnn", asked.but(seed=7), H200) is not None
    for other in (asked.but(head_dim=72), asked.but(causal=True), asked.but(backward=True), asked.but(dtype="float16")):
        assert held().get("cudnn", other, H200) is None
    assert held().get("xla", asked, H200) is None


def test_lines_that_are_no_records_prove_nothing(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text("\n".join(['{"schema": 2}', "not json", "[]", "null", json.dumps(recorded())]))
    assert len(Proofs().read(path)) == 1


def test_this_machine_is_checked_by_the_library_it_has() -> None:
    said = prove.check("cudnn", Problem(dtype="bfloat16", head_dim=100), H200)
    assert said is not None
    assert not said.accepted
    assert prove.check("naive", TINY, H200) is None
    assert prove.check("cudnn", TINY, Device(platform="cpu", name="a CPU")) is None


def test_a_look_runs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EXPLORER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measure, "measure", lambda *args, **kwargs: pytest.fail("a look must not run anything"))
    seen = prove.look([("cudnn", TINY.but(head_dim=8)), ("naive", TINY)], "h200")
    assert [c.accepted if c else None for c in seen.checks] == [True, None]
    assert (seen.records, seen.moved) == ((), None)


def test_a_look_says_when_jax_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    from explorer import jaxcheck

    def moved(*args: Any) -> Any:
        raise jaxcheck.JaxMoved("JAX 9.9 has moved")

    monkeypatch.setattr(jaxcheck, "ask", moved)
    seen = prove.look([("cudnn", TINY.but(head_dim=8))], "h200")
    assert (seen.checks, seen.moved) == ((None,), "JAX 9.9 has moved")


def test_what_was_proven_here_is_found_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EXPLORER_CACHE_DIR", str(tmp_path))
    (made,) = prove.prove_here([("naive", TINY)])
    assert made.status == "ok"
    assert [r.problem for r in prove.look([("naive", TINY), ("xla", TINY)], "this").records] == [TINY]


# --- the shipped recordings


def shipped_lines() -> list[dict[str, Any]]:
    paths = sorted(prove.SHIPPED.glob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def test_every_shipped_proof_stands() -> None:
    """Green needs kernel name, largest error and GPU in the same record, and an agreeing verdict within its budget."""
    for values in shipped_lines():
        proof = prove.proof_of(values, recorded=True)
        assert proof.gpu, values
        if values["status"] == "ok":
            assert proof.stands, values
            assert values["accuracy"]["verdict"] == "agrees"
            assert values["accuracy"]["max_abs_error"] <= values["accuracy"]["budget"]


def test_shipped_proofs_and_rules_agree() -> None:
    """What the rules refuse was refused, what they let through ran; a wrong result is told, whatever the rules say."""
    known_wrong = {"window 16,0", "padding 0"}
    for values in shipped_lines():
        problem = Problem.from_json(values["problem"])
        e = values["environment"]
        capability = tuple(int(part) for part in e["compute_capability"].split("."))
        versions = {name: e.get(name) for name in ("jax", "cudnn", "transformer_engine")}
        gpu = Device(platform="gpu", name=e["gpu"], capability=capability, versions=versions)  # pyright: ignore
        why_not = support.why_not(values["backend"], problem, gpu)
        assert (values["status"] == "refused") == (why_not is not None), values
        if values["status"] == "disagrees":
            assert problem.mask.name in known_wrong, values
        elif why_not is None:
            assert values["status"] == "ok", values
            if values["backend"].startswith("transformer_engine"):
                fused = values["evidence"]["fused"]
                assert fused == (support.unfused(values["backend"], problem, gpu) is None), values
