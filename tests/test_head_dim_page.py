"""The HEAD_DIM page under AppTest on a real worker, and its charts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from page import opened, said, until
from streamlit.testing.v1 import AppTest

from explorer import device, matrix, support
from explorer.backends import BACKENDS
from explorer.problem import Problem
from explorer.support import Proof
from explorer.ui import limits

BF16 = Problem(dtype="bfloat16")
H200 = device.named("h200")
TINY = {"batch": "1", "q_len": "4", "heads": "1", "backend": ""}


@pytest.fixture(scope="module", autouse=True)
def own_cache(app_engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One worker for all tests, with a cache of its own: nothing is proven at the start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXPLORER_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        limits.shipped.clear()
        yield


def limits_page(**params: str) -> AppTest:
    return opened("head_dim.py", **TINY, **params)


def pick(test: AppTest, head_dim: int, backend: str) -> AppTest:
    """Through the selectors, as the keyboard does."""
    test.selectbox(key="limits_cell_dim").set_value(head_dim)
    test.selectbox(key="limits_cell_backend").set_value(backend)
    return test.run()


def test_a_named_gpu_is_answered_by_rule_and_check() -> None:
    test = limits_page(limits_gpu="h200", limits_dims="64,100")
    assert not test.exception
    assert said(test, r"14 cells")
    until(test, lambda it: said(it, r"JAX \d+\.\d+\.\d+'s own check: accepted"))
    pick(test, 100, "cudnn")
    assert said(test, r"N refused")
    assert said(test, r"cudnn-head-dim\*\*: cuDNN takes a head\\_dim of 8, 16, … 256")
    assert said(test, r"head\\_dim 104: pad q, k and v with 4 zeros")
    assert said(test, r"The head dim must be")
    assert said(test, r"^Sources: jax/")
    assert said(test, r"that GPU is not at hand")
    assert test.button(key="limits_prove").disabled


def test_a_click_on_a_cell_moves_the_selectors() -> None:
    test = limits_page(limits_gpu="h200", limits_dims="64,72")
    test.session_state["limits_matrix"] = {"selection": {"cell": [{"backend": "transformer_engine", "head_dim": 72}]}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits.st, "session_state", test.session_state)
        limits._picked()
    assert test.session_state["limits_cell_dim"] == 72
    assert test.session_state["limits_cell_backend"] == "transformer_engine"


def test_transformer_engine_is_said_to_run_unfused() -> None:
    test = pick(limits_page(limits_gpu="h200", limits_dims="64,72"), 72, "transformer_engine")
    assert said(test, r"u runs, but not fused|U runs, but not fused")
    assert said(test, r"accepted, but not by the fused kernel")


def test_a_wrong_list_is_said_and_the_usual_one_shown() -> None:
    test = limits_page(limits_gpu="h200", limits_dims="64,wide")
    assert said(test, r"a length is a whole number.*got 'wide'; 8:256:8 is shown instead")
    assert said(test, rf"{32 * len(BACKENDS)} cells")
    assert limits._head_dims("8:2000:8")[1].startswith("at most 64 head_dims fit here")  # pyright: ignore
    assert limits._head_dims("0")[1].startswith("head_dim must be from 1")  # pyright: ignore


def test_without_a_gpu_this_machine_says_so_and_the_h200_is_a_click_away() -> None:
    if device.nvml_info().get("capability"):
        pytest.skip("this machine has a GPU")
    test = until(limits_page(limits_dims="8,16"), lambda it: said(it, r"14 cells"))
    assert said(test, r"No NVIDIA GPU here")
    pick(test, 8, "cudnn")
    assert said(test, r"cuDNN attention needs an NVIDIA GPU; this machine has none")
    test.button(key="limits_show_h200").click().run()
    assert test.selectbox(key="limits_gpu").value == "h200"


def test_prove_all_here_runs_in_the_queue_and_is_kept() -> None:
    test = until(limits_page(limits_dims="4"), lambda it: said(it, r"7 cells"))
    assert said(test, r"cells are not refused: each is compiled, run and checked")
    test.button(key="limits_prove").click().run()
    until(test, lambda it: said(pick(it, 4, "xla"), r"Compile\*\*: a CPU|Compile\*\*: .*live"))
    assert said(test, r"Run, result checked\*\*: .*largest error")
    assert said(test, r"Time by head_dim, one call of this shape:\*\* \*\*4: ")
    if not device.nvml_info().get("capability"):
        assert not said(test, r"P proven"), "green needs a kernel name and a GPU"


def test_latency_runs_on_request_and_names_who_has_no_time() -> None:
    test = until(limits_page(limits_dims="8", limits_latency_dims="2,4"), lambda it: said(it, r"7 cells"))
    test.multiselect(key="limits_latency_backends").set_value(["xla", "cudnn"]).run()
    assert said(test, r"Not measured|recorded on")
    test.button(key="limits_latency_run").click().run()
    until(test, lambda it: said(it, r"cuDNN has no time at 2"))
    assert not test.exception


# --- charts


def proof(**changes: Any) -> Proof:
    made = {"status": "ok", "gpu": "NVIDIA H200", "kernel": "cudnn_sdpa", "max_abs_error": 1e-3, "fused": True}
    return Proof(**made | changes)


def rows() -> list[dict[str, Any]]:
    answers = [
        support.answer("cudnn", BF16, H200, proof=proof()),
        support.answer("cudnn", BF16.but(head_dim=72), H200),
        support.answer("cudnn", BF16.but(head_dim=100), H200),
        support.answer("transformer_engine", BF16, H200, proof=proof(fused=False)),
        support.answer("transformer_engine", BF16.but(head_dim=72), H200),
        support.answer(
            "transformer_engine", BF16.but(head_dim=100), H200, proof=proof(status="disagrees", reason="off")
        ),
    ]
    return [matrix.row(each) for each in answers]


def test_every_state_has_its_own_letter() -> None:
    assert [r["letter"] for r in rows()] == ["P", "R", "N", "U", "u", "D"]
    letters = [look[0] for look in matrix.STATES.values()]
    assert len(set(letters)) == len(letters)


def test_green_is_for_proven_alone() -> None:
    drawn = matrix.chart(rows(), ("cudnn", 64)).to_dict()
    fill = drawn["layer"][0]["encoding"]["color"]["scale"]
    greens = [state for state, colour in zip(fill["domain"], fill["range"], strict=True) if colour == "#2F7D32"]
    assert greens == ["proven"]
    by_rule = [r for r in rows() if r["state"] == "proven" and r["witness"] != "run"]
    assert by_rule == []


def test_the_chart_holds_every_cell_its_letter_and_the_mark() -> None:
    drawn = matrix.chart(rows(), ("cudnn", 72)).to_dict()
    values = drawn["data"]["values"]
    assert [v["head_dim"] for v in values if v["marked"]] == [72]
    assert drawn["layer"][1]["encoding"]["text"]["field"] == "letter"
    assert any(p["name"] == matrix.SELECTION for p in drawn["params"])


def test_the_matrix_in_words() -> None:
    words = matrix.say(rows())
    assert words == (
        "head_dim by backend (64 … 100). SDPA cuDNN: proven 64, rule 72, refused 100; "
        "TransformerEngine: unfused 64, 72, disagrees 100"
    )
    assert matrix.ranges([8, 16, 24, 40, 64], [8, 16, 24, 32, 40, 48, 64]) == "8 … 24, 40, 64"
    assert matrix.count(rows()) == {"proven": 1, "unfused": 2, "rule": 1, "refused": 1, "disagrees": 1}


def test_latency_leaves_no_hole_where_there_is_no_time() -> None:
    base = {"p10": 1.0, "verdict": "fused", "fused": True, "reason": None}
    timed = [
        base | {"backend": "cudnn", "head_dim": h, "wall_ms": t, "wall_p10_ms": t, "wall_p90_ms": t}
        for h, t in ((64, 0.5), (128, 0.25), (100, None))
    ]
    timed[2] |= {"reason": "cuDNN takes a head_dim of 8, 16"}
    unfused = base | {"backend": "transformer_engine", "head_dim": 72, "wall_ms": 1.0, "wall_p10_ms": 1.0}
    timed.append(unfused | {"wall_p90_ms": 1.0, "fused": False, "verdict": "unfused"})
    drawn = matrix.latency(timed, "wall_ms").to_dict()
    assert len(drawn["layer"]) == 3
    held = [v for layer in drawn["layer"] for v in layer.get("data", drawn.get("data", {})).get("values", [])]
    assert {v["head_dim"]: v["filled"] for v in held if v["ms"]} == {64: True, 128: True, 72: False}
    assert [v["why"] for v in held if v["head_dim"] == 100] == ["cuDNN takes a head_dim of 8, 16"]
    words = matrix.say_latency(timed, "wall_ms")
    assert "SDPA cuDNN 64: 500 µs, 128: 250 µs" in words or "SDPA cuDNN 64: 0.500 ms, 128: 0.250 ms" in words
