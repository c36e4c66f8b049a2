"""The TransformerEngine and FP8 pages under AppTest, with recordings made here, and what they are made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page import opened, said

from explorer import casts, charts_fp8, fp8, recipes, record, recordings, rounding
from explorer.problem import Problem
from explorer.record import Record, Samples, Timing
from explorer.ui import fp8 as fp8_page
from explorer.ui import transformer_engine as te_page

pytestmark = pytest.mark.usefixtures("app_engine")
CAUSAL = Problem(dtype="bfloat16", causal=True, q_len=2048, kv_len=2048)
KERNEL = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_{}_knob_32_64x256x64"


def made(
    p: Problem, backend: str, ms: float, *, kernel_ms: float | None = None, bits: str = "f16", **evidence: Any
) -> Record:
    """A record as an H200 gives it."""
    note = "fp8" if bits == "f8" else "bf16"
    timing = Timing(
        lower_ms=1.0, compile_ms=2.0, cache_hit=False, first_call_ms=1.0, wall_ms=Samples((ms + 0.1,)),
        device_ms=Samples((ms,)), kernel_ms=None if kernel_ms is None else Samples((kernel_ms,)),
    )  # fmt: skip
    return Record(
        problem=p,
        backend=backend,
        status="ok",
        timing=timing,
        accuracy={"max_abs_error": 0.01, "rmse": 0.002, "budget": 0.1, "verdict": "agrees"},
        evidence={"verdict": "fused", "proven": True, "note": note, "custom_calls": [], "fused": True}
        | {"kernels": [{"name": KERNEL.format(bits), "count": 10, "share": 1.0}]}
        | evidence,
        cost={
            "flops": 4 * p.batch * p.heads * p.q_len * p.kv_len * p.head_dim,
            "tflops": 1.0,
            "tflops_clock": "device",
        },
        environment={"gpu": "NVIDIA H200", "jax": "0.11.2"},
        time="2026-12-01T12:00:00+00:00",
    )


def row(name: str, **changes: Any) -> dict[str, Any]:
    way = next(w for w in recipes.WAYS if w.name == name)
    base = {
        "way": name, "label": way.label, "layer": way.layer, "recipe": way.recipe, "gpu": "NVIDIA H200", "status": "ok",
        "input_dtype": "bfloat16", "output_dtype": "bfloat16", "shape": [4, 2048, 8, 64], "reason": None,
        "attention_kernels": [{"name": KERNEL.format("f16"), "count": 8, "share": 1.0}], "attention_precision": "bf16",
        "product_precision": None, "bitwise_equal": None, "max_abs_difference": None, "problem": CAUSAL.to_json(),
    }  # fmt: skip
    return base | changes


ROWS = [
    row("te"),
    row("te DelayedScaling", bitwise_equal=True, max_abs_difference=0.0),
    row("te MXFP8BlockScaling", status="refused", reason="compute capability 9.9 or higher required"),
    row("te layer"),
    row("te layer DelayedScaling", product_precision="fp8", bitwise_equal=False, max_abs_difference=0.1),
    row("cudnn"),
    row("cudnn_fp8", attention_precision="fp8", bitwise_equal=False, max_abs_difference=0.2),
]
WIDE = fp8_page.WIDE


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of recordings in the place of the shipped ones."""
    lengths = [CAUSAL.but(q_len=t, kv_len=t) for t in (1024, 2048)]
    names = ("transformer_engine", "cudnn", "xla")
    sweep = [made(p, name, 0.05 * p.q_len / 1024) for p in lengths for name in names]
    short, long = WIDE.but(q_len=1024, kv_len=1024), WIDE
    speed = [
        made(short, "cudnn", 0.030, kernel_ms=0.028), made(short, "cudnn_fp8", 0.050, kernel_ms=0.020, bits="f8"),
        made(long, "cudnn", 3.2, kernel_ms=3.1), made(long, "cudnn_fp8", 2.4, kernel_ms=2.1, bits="f8"),
        Record(problem=CAUSAL, backend="cudnn_fp8", status="disagrees", reason="off by 3.78", environment={}),
    ]  # fmt: skip
    outliers = made(Problem(dtype="float16", inputs="outliers"), "cudnn_fp8", 0.03, bits="f8")
    outliers = outliers.but(accuracy=(outliers.accuracy or {}) | {"unrounded": {"rmse": 0.0159}})
    sets = {
        "te-sweep": sweep,
        "fp8-table": [made(CAUSAL, "transformer_engine_fp8", 0.05, recipes=ROWS)],
        "fp8-sweep": speed,
        "fa3-outliers": [outliers],
    }
    for name, records in sets.items():
        record.write_lines(tmp_path / f"{name}.jsonl", records)
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    forget()
    return tmp_path


def forget() -> None:
    for cached in (te_page.recorded, fp8_page.recorded_table):
        cached.clear()


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """What a test read from a folder of its own is not another one's."""
    yield
    forget()


def test_transformer_engine_page_shows_the_recording(shipped: Path) -> None:
    test = opened("transformer_engine.py", backend="", te_lengths="128,wide")
    assert not test.exception
    assert said(test, "got 'wide'.*is used instead")
    assert said(test, "Not measured here: recorded on NVIDIA H200")
    assert said(test, "within 5% of cuDNN's: it calls the same kernel")
    assert list(test.dataframe[0].value["TransformerEngine / cuDNN"]) == ["1.00 ×", "1.00 ×"]


def test_fp8_page_shows_the_recordings_and_reacts(shipped: Path) -> None:
    test = opened("fp8.py", backend="")
    assert not test.exception
    assert said(test, "With its casts FP8 pays at T = 16384: up to 1.33 ×")
    assert said(test, "the casts, up to 60% of the time, eat the gain")
    frames = [list(d.value.columns) for d in test.dataframe]
    assert any("attention ran in" in columns for columns in frames)
    test.slider(key="fp8_shift").set_value(2).run()
    assert not test.exception
    assert said(test, "clipped to ±")


def test_pages_without_a_recording_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    te_page.recorded.clear()
    fp8_page.recorded_table.clear()
    for page, words in (("transformer_engine.py", "Not measured yet"), ("fp8.py", "Not recorded yet")):
        test = opened(page, backend="")
        assert not test.exception
        assert said(test, words)


# --- what they are made of


def test_a_recipe_without_effect_is_never_called_fp8() -> None:
    lines = {line["way"]: line for line in recipes.table(ROWS)}
    lab = lines["TE DotProductAttention, DelayedScaling"]
    assert lab["attention ran in"] == "bf16"
    assert "without effect: every bit as without it, attention in bf16" in lab["what came of it"]
    assert lines["TE MultiHeadAttention, DelayedScaling"]["what came of it"] == (
        "the projections in FP8, attention in bf16"
    )
    assert lines["cuDNN FP8"]["what came of it"] == "attention in FP8"
    assert lines["TE DotProductAttention, MXFP8BlockScaling"]["what came of it"].startswith("refused: compute")
    assert "no kernel's name says FP8" in recipes.came_of(row("cudnn_fp8", bitwise_equal=False))


def test_the_code_that_would_run_is_python() -> None:
    compile(recipes.code(CAUSAL), "shown", "exec")
    assert 'attn_mask_type="causal"' in recipes.code(CAUSAL)


def test_gains_by_hand() -> None:
    """bf16 4 ms, 3 in its kernel; FP8 5 ms with casts, 2 in its kernel: 1.5 times as fast alone, slower with casts."""
    p = WIDE.but(q_len=512, kv_len=512)
    points = casts.points([made(p, "cudnn", 4.0, kernel_ms=3.0), made(p, "cudnn_fp8", 5.0, kernel_ms=2.0)])
    assert casts.gains(points) == [{"q_len": 512, "kernel": 1.5, "casts": 0.8, "casts_share": pytest.approx(0.6)}]
    assert "eat the gain" in casts.sentence(casts.gains(points))
    assert casts.sentence([]) == "No length has both times on the device clock."
    assert {row["what"]: round(row["tflops"], 6) for row in points}["kernel"] == round(
        4 * 16 * 512 * 512 * 128 / 2.0 / 1e9, 6
    )


def test_other_kernels_explain_another_time() -> None:
    p = CAUSAL
    ours = made(p, "transformer_engine", 0.08, bits="bf16")
    words = te_page.comparison([ours, made(p, "cudnn", 0.05)])
    assert re.search(r"at T = 2048 it is \+60% off cuDNN's device time, `.*bf16.*` against `.*f16", words)
    assert "no length" in te_page.comparison([ours])


def test_histogram_shares_add_up_and_zero_stands_apart() -> None:
    seen = rounding.view(Problem(), "q", shift=-6, outliers=0.001, size=1000.0)
    rows = rounding.histogram(seen)
    for when in ("before", "after"):
        assert sum(r["share"] for r in rows if r["when"] == when) == pytest.approx(1.0)
    zero = {r["when"]: r["share"] for r in rows if r["said"] == "0"}
    assert zero["after"] == pytest.approx(seen.loss.flushed)
    assert zero["after"] > 0.1 > zero["before"] == 0
    assert rounding.view(Problem(), "v", shift=1).loss.clipped > 0
    low, high = rounding.limits(rounding.view(Problem(), "k"))
    assert 2**high == pytest.approx(np.abs(rounding.view(Problem(), "k").before).max())
    assert low == pytest.approx(high - np.log2(448 * 2**9))


def test_charts_hold_every_number_and_name_their_series() -> None:
    drawn = charts_fp8.number_line().to_dict()
    strokes = [v for layer in drawn["layer"] for v in layer.get("data", {}).get("values", []) if "at" in v]
    count = sum(int((fp8.values(name) > 0).sum()) for name in (fp8.E4M3, fp8.E5M2))
    assert len(strokes) == count == 126 + 123
    points = casts.points([made(WIDE, "cudnn", 3.2, kernel_ms=3.1), made(WIDE, "cudnn_fp8", 2.4, kernel_ms=2.1)])
    ends = charts_fp8.speeds(points).to_dict()["layer"][2:]
    names = {v["text"] for layer in ends for v in layer["data"]["values"]}
    assert {n.split(":")[0] for n in names} == set(charts_fp8.SPEEDS.values())
    assert "cuDNN FP8, kernel alone" in charts_fp8.say_speeds(points)
    seen = rounding.view(Problem(), "q")
    assert charts_fp8.histogram(rounding.histogram(seen), rounding.limits(seen)).to_dict()["layer"]


# --- on a GPU


@pytest.mark.gpu
def test_real_fp8_is_right_and_faster_on_a_long_full_problem() -> None:
    from explorer import clock, measure

    protocol = clock.Protocol(warmup=2, repeats=5, limit_s=3.0, trace_calls=5)
    p = WIDE.but(q_len=8192, kv_len=8192)
    found = {r.backend: r for r in measure.run(p, ["cudnn", "cudnn_fp8"], protocol=protocol)}
    if found["cudnn_fp8"].status == "refused":
        pytest.skip(str(found["cudnn_fp8"].reason))
    ours, theirs = found["cudnn_fp8"], found["cudnn"]
    assert ours.status == theirs.status == "ok", ours.reason
    assert (ours.evidence or {})["note"] == "fp8"
    assert ours.timing is not None
    assert ours.timing.kernel_ms is not None
    assert (ours.cost or {})["kernel_tflops"] > 1.4 * (theirs.cost or {})["tflops"]


@pytest.mark.gpu
def test_fp8_gradients_are_right() -> None:
    from explorer import clock, measure

    p = Problem.of(batch=2, q_len=512, heads=4, head_dim=128, dtype="bfloat16", causal=True, backward=True)
    protocol = clock.Protocol(warmup=1, repeats=3, limit_s=2.0, trace_calls=3)
    (found,) = measure.run(p, ["cudnn_fp8"], protocol=protocol)
    if found.status == "refused":
        pytest.skip(str(found.reason))
    assert found.status == "ok", found.reason


@pytest.mark.gpu
def test_a_recipe_leaves_transformer_engine_s_attention_in_bf16() -> None:
    from explorer import clock, measure

    p = CAUSAL.but(q_len=1024, kv_len=1024)
    protocol = clock.Protocol(warmup=1, repeats=3, limit_s=2.0, trace_calls=3)
    (found,) = measure.run(p, ["transformer_engine_fp8"], protocol=protocol)
    if found.status == "refused":
        pytest.skip(str(found.reason))
    assert (found.evidence or {})["bitwise_equal"]
    assert (found.evidence or {})["note"] == "bf16"


def test_a_wrong_output_is_not_called_attention_in_fp8_alone() -> None:
    rows, _ = fp8_page.recorded_table()
    came = {row["way"]: row["what came of it"] for row in recipes.table(fp8_page.doubted(rows))}
    assert re.search(r"attention in FP8; checked on NVIDIA H200.*, wrong: .* is allowed", came["cuDNN FP8"])
    elsewhere = CAUSAL.but(q_len=1024, kv_len=1024, batch=4)
    (other,) = fp8_page.doubted([{**rows[-1], "problem": elsewhere.to_json(), "way": "cudnn_fp8"}])
    assert "was seen to give a wrong output" in other["doubt"]


def test_two_calls_that_differ_are_told_beside_the_speed() -> None:
    test = opened("fp8.py", backend="")
    assert said(test, r"cuDNN FP8, T = 8192: two calls on the same arrays gave different outputs")


def test_a_label_in_the_address_is_a_value() -> None:
    test = opened("fp8.py", backend="", fp8_format="E5M2", fp8_outliers="1 in 1,000")
    assert not [each for each in test.warning if "asked for" in str(each.value)]
    assert test.session_state["fp8_format"] == fp8.E5M2


@pytest.mark.parametrize("lengths", ["0", "999999999999", "1k,abc"])
def test_lengths_out_of_range_are_said(lengths: str) -> None:
    test = opened("transformer_engine.py", backend="", te_lengths=lengths)
    assert not test.exception
    assert said(test, "is used instead")
