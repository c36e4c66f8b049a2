"""The pages Latency, Roofline and Memory under AppTest, on a real worker: recordings, live sweeps, refusals, cancel."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest
from page import WAIT_S, opened, said, until
from streamlit.testing.v1 import AppTest

from explorer import curves, peak, recordings
from explorer.problem import Problem
from explorer.record import Record
from explorer.ui import footprint, jobs, roofline

pytestmark = pytest.mark.usefixtures("app_engine")
SMALL = {"batch": "1", "q_len": "16", "heads": "2", "head_dim": "8", "backend": "naive"}
OWN = {**SMALL, "latency_question": "Own"}
needs_recordings = pytest.mark.skipif(not recordings.names(), reason="no recording is shipped")


def charts(test: AppTest) -> int:
    return len(test.get("vega_lite_chart"))


def id_of(test: AppTest) -> str:
    """What ?job= says: a string when the page wrote it, a list when the link did."""
    said = test.query_params["job"]
    return said if isinstance(said, str) else said[0]


def of_link(test: AppTest) -> Any:
    """The job in the page's link."""
    job = jobs.engine().job(id_of(test))
    assert job is not None
    return job


def records_of(job: Any) -> list[Record]:
    return [each for each in job.results if isinstance(each, Record)]


def run_to_end(test: AppTest, key: str) -> AppTest:
    """Presses Run, and looks at the page until the job is over."""
    test.button(key=key).click().run()
    return until(test, lambda it: it.button(key=key).label == "Run again")


@pytest.fixture(scope="module", autouse=True)
def ready(app_engine: None) -> None:
    """The worker has JAX loaded, so that each test's limit is its own."""
    jobs.engine().ask(peak.child_room, timeout_s=WAIT_S)


# --- Latency


@needs_recordings
@pytest.mark.parametrize(("question", "least"), [("Benchmark", 1), ("Causal", 4)])
def test_latency_shows_the_recordings_until_something_is_measured(question: str, least: int) -> None:
    test = opened("latency.py", latency_question=question, backend="")
    assert not test.exception
    assert charts(test) >= least
    assert said(test, "^Recorded: .*H200")
    assert said(test, r"Not measured here: recorded on .*H200")
    assert not said(test, "^Measured here")
    assert "job" not in test.query_params


def test_before_run_it_is_said_how_many_points_this_machine_refuses() -> None:
    here = jobs.device()
    if here is not None and here.is_gpu:
        pytest.skip("here cuDNN runs")
    assert said(
        opened("latency.py", latency_question="Benchmark", backend=""), "^4 points, 1 of them refused here, about"
    )
    nvidia = opened("roofline.py", backend="")
    assert said(nvidia, "^8 points, and .* can run none of them; Run says why")


@needs_recordings
def test_the_clock_is_a_switch() -> None:
    test = opened("latency.py", latency_question="Sequence", backend="", latency_clock="device")
    assert not test.exception
    assert said(test, r"\*\*Speed-up over .*\*\*, device clock")


def test_latency_says_what_can_t_be_swept() -> None:
    test = opened("latency.py", **OWN)
    for values in ("64,x", "0", "8:2"):
        test.text_input(key="latency_values_q_len").set_value(values).run()
        assert not test.exception
        assert said(test, "^This can't be swept: "), values
        assert not any(button.key == "latency_run" for button in test.button)


def test_what_a_link_asks_of_the_page_and_can_t_have_is_named() -> None:
    test = opened("latency.py", latency_question="own", latency_clock="<b>", latency_mode="burst")
    assert not test.exception
    (warning,) = test.warning
    assert warning.value.split("\n")[:2] == [
        "- latency\\_question can't be own here; it is Benchmark instead.",
        "- latency\\_clock can't be \\<b\\> here; it is wall instead.",
    ]
    assert not opened("latency.py", latency_question="Own", latency_clock="device").warning


def test_a_small_sweep_runs_to_its_end_and_is_found_again() -> None:
    test = opened("latency.py", **OWN)
    test.text_input(key="latency_values_q_len").set_value("32, 16,16").run()
    run_to_end(test, "latency_run")
    assert not test.exception
    made = records_of(of_link(test))
    assert [(r.problem.q_len, r.status) for r in made] == [(16, "ok"), (32, "ok")]
    assert said(test, "^Measured here: ")
    assert not said(test, "Incomplete")
    assert said(test, "Hollow: which kernel ran is not proven")
    assert charts(test) >= 2
    # Another session with nothing but the link, and other settings in its sidebar
    again = opened("latency.py", job=id_of(test), backend="", latency_question="Sequence")
    assert not again.exception
    assert said(again, "Shown is the sweep of this link")
    assert charts(again) >= 2


def test_a_link_to_a_forgotten_sweep_is_explained() -> None:
    test = opened("latency.py", job="nosuchjob", **OWN)
    assert not test.exception
    assert said(test, "The sweep of this link is not kept here any more")


def test_a_sweep_of_refused_points_shows_the_reasons() -> None:
    test = opened("latency.py", **{**OWN, "backend": "cudnn"})
    test.text_input(key="latency_values_q_len").set_value("16,24").run()
    run_to_end(test, "latency_run")
    assert not test.exception
    assert {r.status for r in records_of(of_link(test))} == {"refused"}
    assert said(test, "No point has a time; the reasons are below")
    assert said(test, "16, 24: .*cuDNN")
    assert charts(test) == 0


def test_cancel_keeps_what_was_measured_and_marks_the_rest() -> None:
    test = opened("latency.py", **{**OWN, "batch": "4", "heads": "8", "head_dim": "64"})
    test.text_input(key="latency_values_q_len").set_value("24,512,640,768").run()
    test.button(key="latency_run").click().run()
    job = of_link(test)
    until(test, lambda _: records_of(job))
    test.button(key="cancel_job").click().run()
    until(test, lambda it: it.button(key="latency_run").label == "Run again")
    assert not test.exception
    assert job.state == "cancelled"
    (first, *_) = records_of(job)
    assert (first.problem.q_len, first.status) == (24, "ok")
    assert said(test, r"^Incomplete: [1-3] of 4 points were measured")
    assert said(test, "cancelled")
    assert charts(test) >= 1


def test_a_worker_killed_in_mid_sweep_costs_its_point_alone() -> None:
    test = opened("latency.py", **{**OWN, "heads": "8", "head_dim": "64", "backend": ["naive", "xla"]})
    test.text_input(key="latency_values_q_len").set_value("16,1k").run()
    test.button(key="latency_run").click().run()
    job = of_link(test)
    victim = next(
        place for place, point in enumerate(job.points) if point.call.kwargs.get("problem", {}).get("q_len") == 1024
    )
    while job.points[victim].state != "running":
        assert not job.is_over
        job.wait_change(job.version, 0.1)
    (worker,) = jobs.engine().stats().workers
    assert worker.pid
    os.kill(worker.pid, signal.SIGKILL)
    until(test, lambda it: it.button(key="latency_run").label == "Run again")
    made = {(r.problem.q_len, r.backend): r for r in records_of(job)}
    assert {key: r.status for key, r in made.items()} == {
        (16, "naive"): "ok", (16, "xla"): "ok", (1024, "naive"): "failed", (1024, "xla"): "ok",
    }  # fmt: skip
    assert "worker process died" in str(made[1024, "naive"].reason)
    assert said(test, "worker process died")


def test_head_to_head_needs_two_and_has_a_verdict() -> None:
    params = {**SMALL, "latency_question": "Head to head"}
    same = opened("latency.py", **params, latency_a="naive:float32", latency_b="naive:float32")
    assert said(same, "Two different ones are needed to compare")
    test = opened("latency.py", **params, latency_a="naive:float32", latency_b="xla:float32")
    run_to_end(test, "latency_duel_run")
    assert not test.exception
    (verdict,) = [metric for metric in test.metric if metric.label == "A on the wall clock"]
    assert verdict.value in ("faster", "slower", "too close to call")
    assert said(test, r"\*\*device clock\*\*: —")


# --- Roofline


@needs_recordings
def test_roofline_shows_nvidias_points() -> None:
    test = opened("roofline.py", backend="")
    assert not test.exception
    assert charts(test) == 1
    assert said(test, "^Recorded: .*H200")
    assert said(test, "Ceilings of this device.* — not measured yet|Ceilings of this device.*TFLOP/s")


def test_roofline_of_no_backend_asks_for_one() -> None:
    test = opened("roofline.py", backend="", roofline_points="Own problem")
    assert not test.exception
    assert said(test, "Choose at least one backend in the sidebar")


@needs_recordings
def test_the_recorded_shares_are_of_measured_ceilings() -> None:
    records = recordings.load("nvidia-points").records
    measured = [roof for roof in roofline.roofs_of(records, None) if roof["is_measured"]]
    assert measured
    for row in roofline.table(records):
        assert re.fullmatch(r"\d+%", row["share of the bound"])
        assert float(row["of NVIDIA's figure"]) > 0.9


# --- Memory


def test_memory_measures_in_fresh_processes() -> None:
    test = opened("memory.py", **SMALL)
    test.text_input(key="memory_lengths_cpu").set_value("512").run()
    run_to_end(test, "memory_run")
    assert not test.exception
    problem = Problem(batch=1, q_len=512, kv_len=512, heads=2, kv_heads=2, head_dim=8)
    (found,) = jobs.look(peak.measure_many, {"tasks": [(problem.to_json(), "naive")]}).results
    assert found.outcome == "fits"
    assert found.peak_bytes >= peak.formula("naive", problem) / 2
    assert said(test, "no longer at .*T = ")


def test_memory_says_which_lengths_it_can_t_use() -> None:
    test = opened("memory.py", **SMALL)
    for lengths in ("64,x", "0"):
        test.text_input(key="memory_lengths_cpu").set_value(lengths).run()
        assert not test.exception
        assert said(test, "^These lengths can't be used: "), lengths


def test_memory_has_no_formula_for_what_no_gpu_takes_and_says_why() -> None:
    """cuDNN takes float32 nowhere; its line by formula would be one of a call that can't be."""
    test = opened("memory.py", **{**SMALL, "backend": ["naive", "cudnn"]})
    assert not test.exception
    shown = next(frame.value for frame in test.dataframe if "peak" in frame.value)
    by = {row["backend"]: row for row in shown.to_dict("records")}
    assert by["SDPA cuDNN"]["outcome"] == "refused"
    assert not re.search(r"\d", by["SDPA cuDNN"]["formula"])
    assert re.search(r"\d", by["Naive JAX"]["formula"])
    assert said(test, "^SDPA cuDNN: .*float32")
    assert said(test, r"A call of B=1 N=2 K=2 H=8 float32 full\.")


@needs_recordings
def test_the_recorded_memory_grows_as_it_must() -> None:
    """Scores are O(T²), the fused kernel's memory is O(T): by what was measured, not by the formula."""
    rows = footprint.rows_of_records(recordings.load("memory").records)
    found = {
        name: curves.growth([r for r in rows if r["backend"] == name], of)[name][2]
        for name, of in (("naive", "compiler_bytes"), ("xla", "peak_bytes"), ("cudnn", "peak_bytes"))
    }
    assert 3 < found["naive"] < 5
    assert 3 < found["xla"] < 5
    assert 1.5 < found["cudnn"] < 2.5
    assert all(row["compiler_bytes"] > 0 for row in rows)
    # A peak that compiling hid is no figure, and says so
    assert all(row["peak_bytes"] or "its own peak is hidden" in row["reason"] for row in rows)


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize(("question", "count"), [("Benchmark", 4), ("Sequence", 20), ("Batch", 15), ("What next", 12)])
def test_on_a_gpu_each_question_of_the_lab_is_one_click(question: str, count: int) -> None:
    test = opened("latency.py", latency_question=question)
    run_to_end(test, "latency_run")
    assert not test.exception
    made = records_of(of_link(test))
    assert {(r.status, r.reason) for r in made} == {("ok", None)}
    assert len(made) == count
    for each in made:
        assert each.timing is not None
        assert each.timing.device_ms is not None
        assert each.evidence is not None
        assert each.evidence["proven"]
        assert each.evidence["fused"] is (each.backend == "cudnn")
        assert each.cost is not None
        assert not each.cost["suspect"]
    assert said(test, "^Measured here: .*")
    assert not said(test, "Hollow")
    assert charts(test)
