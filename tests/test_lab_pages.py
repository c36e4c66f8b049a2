"""The pages Start, Steps, Masks and Heads under AppTest, on a real worker."""

from __future__ import annotations

import re
from typing import Any

import planted
import pytest
from page import opened, said, texts, until
from streamlit.testing.v1 import AppTest

from explorer import charts_steps, path, recover
from explorer.ui import heads as heads_page
from explorer.ui import jobs

pytestmark = pytest.mark.usefixtures("app_engine")


def progress(test: AppTest) -> str:
    """The path's progress in the address; AppTest holds one value as itself or as a list of one."""
    held = test.query_params["path"]
    return held if isinstance(held, str) else "&".join(held)


def charts(test: AppTest) -> int:
    return len(test.get("vega_lite_chart"))


# --- Steps


def test_steps_shows_four_arrays_and_one_query() -> None:
    test = opened("steps.py")
    assert not test.exception
    assert charts(test) == 4 + 3 + 3 + 1
    assert said(test, r"Query 5 sees 16 keys, .* its weights sum to 1\.000")
    assert said(test, "largest difference .*e-1[5-7], rounding alone")
    assert said(test, r"naive moves 12 MiB, fused 4 MiB: 3\.0 times less")


def test_stepping_forward_and_back() -> None:
    test = opened("steps.py", causal="true")
    assert said(test, "Query 5 sees 6 keys")
    test.button(key="steps_row_next").click().run()
    assert said(test, "Query 6 sees 7 keys")
    test.button(key="steps_row_back").click().run()
    test.button(key="steps_row_back").click().run()
    assert said(test, "Query 4 sees 5 keys")
    test.slider(key="steps_row").set_value(0).run()
    assert said(test, "Query 0 sees 1 keys")
    assert test.button(key="steps_row_back").disabled
    test.slider(key="steps_row").set_value(15).run()
    assert test.button(key="steps_row_next").disabled


def test_blocks_step_too() -> None:
    test = opened("steps.py", steps_block="4")
    assert said(test, "After keys 0 … 3")
    test.button(key="steps_at_next").click().run()
    assert said(test, "After keys 4 … 7")
    test.slider(key="steps_block").set_value(16).run()  # one block: the place falls back to it
    assert said(test, "After keys 0 … 15")
    assert not test.exception


def test_a_causal_query_has_seen_nothing_after_no_block_of_its_own() -> None:
    test = opened("steps.py", causal="true", steps_block="1", steps_row="0", steps_at="3")
    assert said(test, "After key 3: maximum .* multiplied by \\*\\*1.000\\*\\*")


def test_a_forgotten_root_is_said() -> None:
    test = opened("steps.py")
    sharp = next(text for text in texts(test) if text.startswith("Over all queries"))
    test.segmented_control(key="steps_scale").set_value("1").run()
    sharper = next(text for text in texts(test) if text.startswith("Over all queries"))
    keys = [float(re.findall(r"\*\*([\d.]+)\*\*", text)[0]) for text in (sharp, sharper)]
    assert keys[1] < keys[0] / 3
    assert "√H forgotten" in sharper


def test_copy_follows_the_token_before() -> None:
    test = opened("steps.py", steps_inputs="copy", head_dim="16")
    assert said(test, r"Query 5 sees 16 keys, most of all key 4 with weight 0\.9")


@pytest.mark.parametrize("params", [
    {"head_dim": "1"},
    {"steps_tokens": "1", "steps_row": "40"},
    {"steps_tokens": "64", "steps_row": "63", "steps_block": "64"},
    {"heads": "6", "kv_heads": "3", "steps_head": "5", "batch": "2", "steps_batch": "1", "head_dim": "7"},
    {"heads": "2", "steps_head": "7"},
    {"inputs": "lab"},
    {"steps_tokens": "0"},
    {"steps_inputs": "nonsense", "steps_scale": "nonsense"},
])  # fmt: skip
def test_steps_takes_every_corner(params: dict[str, str]) -> None:
    test = opened("steps.py", **params)
    assert not test.exception
    assert charts(test) == 11


@pytest.mark.parametrize(("selection", "row"), [
    ({"pick": [{"query": 9}]}, 9), ({"pick": [{"query": 0}]}, 0), ({"pick": []}, None), ({}, None), (None, None),
])  # fmt: skip
def test_a_click_names_its_row(selection: dict | None, row: int | None) -> None:
    assert charts_steps.picked(selection) == row


# --- Masks


def verdicts_in(test: AppTest) -> bool:
    """Of the backends chosen: traps and recorded pairs further down have verdicts of their own."""
    return charts(test) >= 3 and said(test, "mask, T=") and not said(test, "hourglass_empty: waiting")


def badges(test: AppTest) -> list[str]:
    """Those of the chosen backends come first, then those of the traps and the recorded pairs."""
    return [m.value for m in test.main.markdown if re.match(r":\w+-badge\[", m.value)]


def test_masks_as_meant_here() -> None:
    test = until(opened("masks.py", q_len="24", head_dim="16", causal="true"), verdicts_in)
    assert not test.exception
    assert said(test, r"\*\*causal\*\* mask, T=24, S=24. 300 of 576 pairs are seen, 52%")
    assert said(test, "Weights off by .* allowed; 2 calls")
    assert said(test, "cuDNN attention needs an NVIDIA GPU") or said(test, "float16 or bfloat16")
    assert [re.sub(r".*: |\]", "", badge) for badge in badges(test)[:3]] == ["as meant", "as meant", "refused"]


def test_a_planted_off_by_one_is_seen_by_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "each", planted.each)
    test = until(opened("masks.py", q_len="17", head_dim="16", causal="true", backend="xla"), verdicts_in)
    assert re.match(":red-badge.*leaks", badges(test)[0])
    assert said(test, "query 0 sees hidden key 1")


def test_the_lengths_may_differ_and_the_rule_is_named() -> None:
    test = until(opened("masks.py", q_len="10", kv_len="24", head_dim="16", causal="true"), verdicts_in)
    assert said(test, "counted from the top left: query i sees keys 0 … i")


def test_examples_set_the_mask() -> None:
    test = opened("masks.py", head_dim="16", backend="xla")
    test.button(key="masks_example_Causal window").click().run()
    assert said(test, r"\*\*causal\+window 12,0\*\* mask, T=48, S=48")
    test.button(key="masks_example_Padding").click().run()
    assert said(test, r"\*\*padding 30\*\* mask")
    test.button(key="masks_example_Causal, T ≠ S").click().run()
    assert said(test, r"\*\*causal\*\* mask, T=24, S=48")
    test.button(key="masks_example_Full").click().run()
    assert said(test, r"\*\*full\*\* mask, T=48, S=48")
    assert not test.exception


@pytest.mark.parametrize("params", [
    {"masks_padding": "true", "masks_valid": "0"},
    {"masks_window": "true", "masks_left": "99", "masks_right": "99"},
    {"q_len": "1"},
    {"head_dim": "1", "q_len": "3"},
    {"heads": "6", "kv_heads": "3", "head_dim": "7", "q_len": "4"},
])  # fmt: skip
def test_masks_takes_every_corner(params: dict[str, str]) -> None:
    test = until(opened("masks.py", **({"q_len": "12", "head_dim": "16", "backend": "xla"} | params)), verdicts_in)
    assert not test.exception


def test_a_key_length_of_0_has_no_right_answer() -> None:
    test = opened("masks.py", q_len="12", head_dim="16", backend="xla", masks_padding="true", masks_valid="0")
    until(test, verdicts_in)
    assert said(test, r"\*\*padding 0\*\* mask")
    assert said(test, "no right answer exists; it gives the mean of all v")


def test_k_must_divide_n_and_the_divisors_are_named() -> None:
    test = opened("masks.py", heads="6", kv_heads="4")
    assert any("must divide heads=6, got 4; one of 1, 2, 3, 6 would do" in each.value for each in test.warning)


# --- Heads


def test_heads_draws_proves_and_counts() -> None:
    test = until(opened("heads.py", kv_heads="2"), lambda it: said(it, "equals MHA with repeated heads"))
    assert not test.exception
    assert said(test, "8 query heads read 2 key/value heads: 4 neighbouring query heads share each")
    metrics = {metric.label: metric.value for metric in test.metric}
    assert metrics["KV cache"] == "1 GiB"  # Llama-3 8B, 8,192 tokens, bf16, batch 1
    assert metrics["The same in GB"] == "1.074 GB"
    assert said(test, r"= 1\{,\}073\{,\}741\{,\}824")
    assert said(test, "NVIDIA T4: the weights alone take more than its 16 GB")


def test_another_model_brings_its_own_layers() -> None:
    test = opened("heads.py")
    test.selectbox(key="heads_model").set_value("llama2-7b").run()
    test.select_slider(key="heads_context").set_value(4096).run()
    assert {m.label: m.value for m in test.metric}["KV cache"] == "2 GiB"
    test.selectbox(key="heads_model").set_value("llama3-70b").run()
    assert test.number_input(key="heads_layers").value == 80
    assert not test.exception


def test_decode_runs_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from explorer.problem import Problem
    from explorer.ui import heads as heads_page

    small = Problem.of(batch=1, q_len=1, kv_len=64, heads=4, head_dim=8)
    monkeypatch.setattr(heads_page, "DECODE_ON_CPU", small)
    test = until(opened("heads.py"), lambda it: any(b.key == "heads_decode_run" for b in it.button))
    assert said(test, "recorded on NVIDIA H200")  # the recording stands beside, named as what it is
    assert said(test, r"Naive JAX at K=1 is left out: XLA was still compiling it")
    assert not said(test, "Measured here and now")
    test.button(key="heads_decode_run").click().run()
    until(test, lambda it: said(it, ", the fastest at K=4, takes .* there and .* at K=1"))
    assert said(test, "Measured here and now")
    assert said(test, r"SDPA cuDNN, the fastest at K=32, takes .* there and .* at K=1: 9.1 times as fast")


def test_a_decode_point_without_a_time_stands_with_its_reason_and_costs_no_other() -> None:
    def page() -> None:
        from explorer import heads, measure
        from explorer.problem import Problem
        from explorer.ui import heads as heads_page

        small = Problem.of(batch=1, q_len=1, kv_len=64, heads=4, head_dim=8)
        first, *others = heads.decode_points(small, ["naive", "xla"], [4, 1])
        lost = measure.blank(first.problem, first.backend, "timed_out", "Stopped at its time limit of 60 s.")
        made = [measure.measure(each.problem, each.backend, protocol=heads.DECODE) for each in others]
        heads_page.decode([lost, *made], "Measured here and now")

    test = AppTest.from_function(page, default_timeout=60).run()
    assert not test.exception
    assert said(test, r"Naive JAX at K=4 has no time: Stopped at its time limit of 60 s\.")
    assert said(test, ", the fastest at K=4, takes .* there and .* at K=1")


def decode_row(backend: str, k: int, ms: float) -> dict[str, Any]:
    return {"backend": backend, "kv_heads": k, "wall_ms": ms}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        # Naive gains nothing; that XLA is quick at K=1 is another question
        ([("naive", 32, 77.6), ("naive", 1, 75.0), ("xla", 32, 90.0), ("xla", 1, 1.46)], "Naive JAX, .* nothing saved"),
        (
            [("naive", 32, 80.0), ("naive", 1, 8.0), ("xla", 1, 1.0)],
            r"10\.0 times as fast for .* reading the cache",
        ),
        (
            [("naive", 32, 80.0), ("naive", 1, 2.0)],
            r"40\.0 times as fast, more than 1/32 .* it may be chance",
        ),
        ([("naive", 32, 80.0), ("xla", 1, 2.0)], "Nothing to compare yet"),
        ([("naive", 32, 80.0)], "Nothing to compare yet"),
    ],
)
def test_what_sharing_saves_is_said_of_one_backend(rows: list[tuple[str, int, float]], said: str) -> None:
    assert re.search(said, heads_page._decode_words([decode_row(*row) for row in rows], "wall_ms"))


# --- Start


def test_the_first_question_waits_for_a_prediction() -> None:
    test = opened("start.py")
    assert not test.exception
    assert said(test, "Predict first")
    assert test.button(key="path_measure").disabled
    assert len([b for b in test.button if (b.key or "").startswith("path_go_")]) == len(path.QUESTIONS)


def answered(test: AppTest, name: str, choice: str) -> AppTest:
    test.button(key=f"path_go_{name}").click().run()
    test.radio(key=f"path_choice_{name}").set_value(choice).run()
    test.button(key="path_measure").click().run()
    return until(test, lambda it: bool(it.success or it.error))


def test_predict_measure_score() -> None:
    test = answered(opened("start.py"), "bytes", "3")
    assert "3,145,728 bytes" in test.success[0].value
    assert progress(test) == "bytes.1.r"
    test = answered(test, "root", "flatter")
    assert "Measured: “sharper" in test.error[0].value
    assert progress(test) == "bytes.1.r~root.0.w"
    test.button(key="path_next").click().run()
    assert test.radio(key="path_choice_auto").value is None


def test_a_changed_prediction_does_not_change_the_score() -> None:
    test = answered(opened("start.py"), "root", "flatter")
    test.radio(key="path_choice_root").set_value("sharper").run()
    assert test.error
    assert "You predicted “flatter" in test.error[0].value
    test.button(key="path_measure").click().run()
    until(test, lambda it: bool(it.success))
    assert progress(test) == "root.2.r"


def test_another_visitor_sees_no_answer_before_predicting() -> None:
    """The queue shares answers; a prediction is scored against a measurement of its own."""
    answered(opened("start.py"), "bytes", "3")
    test = opened("start.py")
    test.button(key="path_go_bytes").click().run()
    assert not test.success
    before = {job.id for job in jobs.engine().jobs()}
    answered(test, "bytes", "12")
    assert {job.id for job in jobs.engine().jobs()} - before  # measured anew
    assert "Measured: “3 MiB”" in test.error[0].value


def test_progress_comes_from_the_link_and_stays_on_other_pages() -> None:
    test = opened("start.py", path="ready.0.r~bytes.0.w~magic.1.r")
    assert any("magic.1.r" in warning.value for warning in test.warning)
    assert test.radio(key="path_choice_root")  # the first that is open
    test.button(key="path_go_bytes").click().run()
    assert said(test, "You predicted “1 MiB”: not right, as measured then")
    test.switch_page("pages/steps.py").run()
    assert progress(test) == "ready.0.r~bytes.0.w"
    test.switch_page("pages/start.py").run()
    test.button(key="path_clear").click().run()
    assert "path" not in test.query_params


def test_the_row_s_page_opens_with_the_lab_s_values() -> None:
    test = opened("start.py", q_len="300", causal="true")
    test.button(key="path_go_window").click().run()
    test.button(key="path_look").click().run()
    test.switch_page("pages/masks.py").run()  # AppTest does not follow st.switch_page; the walk in Chromium does
    assert not test.exception
    assert said(test, r"\*\*window 16,0\*\* mask, T=48, S=48")
