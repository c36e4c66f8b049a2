"""The Stage page under AppTest, on a real worker: from tape, live, late, killed, frozen, watched; two presenters."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from page import APP, WAIT_S, html, until
from streamlit.testing.v1 import AppTest

from explorer import measure, peak, record, scenes, tape
from explorer.engine import Priority
from explorer.problem import Problem
from explorer.ui import jobs
from explorer.ui.hall import code_of, hall

SHIPPED = "cudnn-against-naive"
MARKUP = "<img src=x onerror=alert(1)> **bold**"
SCENE = """
[[scene]]
title = "{title}"
page = "{page}"
backends = ["naive", "xla"]
deadline_s = {deadline}
{more}
problem = {{ batch = {batch}, heads = 8, q_len = {length}, head_dim = 8 }}
"""
# Seconds a backend on any CPU, also when it is compiled already, so that the worker can be killed meanwhile
LONG = {"title": "Long", "page": "live", "deadline": 50, "batch": 4, "length": 1024, "more": ""}
LATE = {"title": MARKUP, "page": "live", "deadline": 0, "batch": 4, "length": 384, "more": ""}
ALONG = 'axis = "q_len"\nvalues = [8, 16]'
NEXT = {"title": "Next", "page": "latency", "deadline": 50, "batch": 1, "length": 8, "more": ALONG}


@pytest.fixture(scope="module", autouse=True)
def ready(app_engine: None) -> None:
    jobs.engine().ask(peak.child_room, timeout_s=WAIT_S)  # the worker has JAX loaded
    hall.clear()


@pytest.fixture(autouse=True)
def own_talks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A talk of three scenes. Its tape holds no measurement: an H200's records under the names of small problems."""
    monkeypatch.setenv("EXPLORER_TALKS", str(tmp_path))
    text = 'title = "Own"\ntape = "own.jsonl"\n' + "".join(SCENE.format(**each) for each in (LATE, LONG, NEXT))
    (tmp_path / "own.toml").write_text(text)
    some = tape.read(scenes.FOLDER / f"{SHIPPED}.tape.jsonl").records[0]
    fakes = [
        some.but(problem=point.problem, backend=point.backend, environment={**some.environment, "gpu": MARKUP})
        for scene in scenes.parse(text, "own").scenes
        for point in scene.points
    ]
    record.write_lines(tmp_path / "own.jsonl", fakes)
    return tmp_path


def opened(**params: str) -> AppTest:
    test = AppTest.from_file(str(APP), default_timeout=WAIT_S)
    test.run().switch_page("pages/stage.py")
    test.query_params.update(params)
    return test.run()


def part(test: AppTest, name: str) -> str:
    """The text of the stage's sentence, tag or place; empty where there is none."""
    found = re.search(rf'class="[^"]*stage-{name}"[^>]*>(.*?)<', html(test))
    return found[1].replace("\u00a0", " ") if found else ""


def tag(test: AppTest) -> str:
    return part(test, "tape") or part(test, "live")


def slider(test: AppTest) -> Any:
    """The presenter's points, or the audience's slider."""
    widgets = [*test.segmented_control, *test.select_slider]
    (found,) = [each for each in widgets if (each.key or "").startswith(("stage_value", "watch_value"))]
    return found


def press(test: AppTest, name: str) -> AppTest:
    test.button(key=f"stage_{name}").click().run()
    assert not test.exception
    return test


def staged(test: AppTest) -> list[Any]:
    """The presenter's own jobs."""
    visitor = test.session_state.get("visitor", "nobody")
    return [job for job in jobs.engine().jobs(visitor) if job.priority == Priority.STAGE]


def kill_the_worker(job: Any) -> None:
    """While it measures the second point: the first one compiles, and between two a worker's end costs nothing."""
    while job.points[1].state != "running":
        assert not job.is_over
        job.wait_change(job.version, 0.1)
    (worker,) = jobs.engine().stats().workers
    assert worker.pid
    os.kill(worker.pid, signal.SIGKILL)


def test_the_shipped_talk_plays_from_tape_without_a_gpu() -> None:
    here = jobs.device()
    if here is not None and here.is_gpu:
        pytest.skip("here the talk is live")
    test = opened(talk=SHIPPED)
    assert not test.exception
    seen = []
    for scene in scenes.load(scenes.find(SHIPPED)).scenes:
        assert part(test, "place").startswith(f"{len(seen) + 1} / 8")
        if scene.points:
            assert re.match(r"recorded .* on NVIDIA H200$", tag(test))
            assert "on NVIDIA H200" in part(test, "sentence")
            assert len(test.get("vega_lite_chart")) == 1
        seen.append(part(test, "sentence"))
        if scene.page == "memory":
            assert slider(test).options == ["256", "512", "1k", "2k", "4k", "8k"]
            slider(test).set_value(512).run()
            assert "T=512" in part(test, "sentence")
            assert "T=256" in part(press(test, "less"), "sentence")
        if len(seen) < 8:
            press(test, "next_button")
    assert len(set(seen)) == 7  # six sentences, and none where there are words
    assert not staged(test)
    press(test, "back_button")
    assert "T=256" in part(test, "sentence")  # the choice stayed where it was


def test_late_is_taped_then_live_then_frozen_and_text_stays_text() -> None:
    test = opened(talk="own")
    assert "stage-tape" in html(test)
    assert "&lt;img" in tag(test)
    assert "<img" not in html(test)
    assert "**bold**" in part(test, "title")
    until(test, lambda it: part(it, "live"))
    sentence, shown = part(test, "sentence"), tag(test)
    assert " here: " in sentence or " here:" in sentence
    assert "on the wall clock" in sentence or "in the kernels" in sentence
    assert shown.startswith("live on ")
    press(test, "freeze")
    assert part(test, "frozen").startswith("❄")
    (before,) = staged(test)
    for _ in range(2):
        test.run()
        assert (part(test, "sentence"), tag(test)) == (sentence, shown)
    press(test, "run_button")  # running again ends the freeze, and takes a turn of its own
    until(test, lambda it: any(job.is_over for job in staged(it) if job is not before) and part(it, "live"))
    assert not part(test, "frozen")


def test_a_killed_worker_gives_way_to_the_tape_and_the_next_scene_is_live() -> None:
    test = opened(talk="own", scene="2")
    started = time.monotonic()
    (job,) = staged(test)
    kill_the_worker(job)
    until(test, lambda it: part(it, "tape"))
    assert time.monotonic() - started < LONG["deadline"]
    assert "worker process died" in html(test)
    press(test, "next_button")
    until(test, lambda it: part(it, "live") and "measured" not in tag(it))
    assert "T=16" in part(test, "sentence")
    assert slider(test).options == ["8", "16"]


def test_another_view_of_the_same_points_needs_no_other_run(own_talks: Path) -> None:
    views = [{**NEXT, "title": "Time"}, {**NEXT, "title": "Memory", "page": "memory"}]
    (own_talks / "views.toml").write_text('title = "Views"\n' + "".join(SCENE.format(**each) for each in views))
    test = until(opened(talk="views"), lambda it: part(it, "live") and "measured" not in tag(it))
    measured = tag(test)
    press(test, "next_button")
    assert part(test, "place").startswith("2 / 2")
    assert tag(test) == measured, "at once, with the time at which it was measured"
    assert len(staged(test)) == 1
    press(test, "run_button")
    until(test, lambda it: part(it, "live") and "measured" not in tag(it))
    assert len(staged(test)) == 2


def test_two_presenters_and_an_audience_do_not_disturb_each_other() -> None:
    one, other = opened(talk="own"), opened(talk="own", scene="3")
    for test in (one, other):
        until(test, lambda it: part(it, "live") and "measured" not in tag(it))
    assert {job.state for test in (one, other) for job in staged(test)} == {"done"}
    code = code_of(other.query_params["key"])  # pyright: ignore[reportArgumentType]
    phone = opened(watch=code.lower())
    assert not phone.exception
    assert (part(phone, "sentence"), tag(phone)) == (part(other, "sentence"), tag(other))
    slider(phone).set_value(8).run()
    assert "T=8" in part(phone, "sentence")
    assert "T=16" in part(other.run(), "sentence")
    assert not any(button.key and button.key.startswith("stage_") for button in phone.button)
    assert not jobs.engine().jobs(phone.session_state.get("visitor", "nobody"))
    press(other, "back_button")
    until(phone, lambda it: part(it, "place").startswith("2 / 3"))
    press(other, "leave")
    assert other.title[0].value == "Stage"
    assert any("No talk is on stage" in info.value for info in opened(watch="NOTHIN").info)


def test_a_broken_talk_is_told_line_by_line_before_it_begins(own_talks: Path) -> None:
    text = (own_talks / "own.toml").read_text()
    (own_talks / "typo.toml").write_text(text.replace('"xla"', '"xlaa"').replace("deadline_s = 50", "deadline = 50"))
    test = opened(talk="typo")
    assert not test.exception
    said = [error.value.replace("\\", "") for error in test.error]
    assert len(said) == 5
    assert said[0].startswith("line 7: backend must be one of naive")
    assert any(re.match(r"line \d+: 'deadline' is no key here; .*did you mean deadline_s\?", each) for each in said)
    assert any("got 'nowhere'" in error.value for error in opened(talk="nowhere").error)


def test_a_scene_that_can_not_be_live_is_told_before_the_talk(own_talks: Path) -> None:
    here = jobs.device()
    if here is not None and here.is_gpu:
        pytest.skip("here cuDNN runs")
    scene = SCENE.replace('"xla"', '"cudnn:bfloat16"').format(**NEXT)
    (own_talks / "refused.toml").write_text(f'title = "Refused"\n{scene}')
    test = opened()
    test.selectbox(key="stage_talk").set_value("refused").run()
    assert any("Scene 1: refused here: SDPA cuDNN can't run here" in each.value for each in test.error)
    assert not any("unknown device" in each.value for each in [*test.error, *test.warning])


def test_without_a_tape_a_killed_worker_is_said_and_nothing_is_called_live(own_talks: Path) -> None:
    (own_talks / "bare.toml").write_text('title = "Bare"\n' + SCENE.format(**LONG))
    test = opened(talk="bare")
    (job,) = staged(test)
    kill_the_worker(job)
    until(test, lambda it: "worker process died" in html(it))
    assert "unknown device" not in html(test)
    assert "nothing is on tape for this scene" in html(test)


def test_the_set_up_shows_the_tape_the_sheet_and_a_lost_line(own_talks: Path) -> None:
    whole = (own_talks / "own.jsonl").read_text()
    (own_talks / "own.jsonl").write_text(whole[:-50])
    test = opened()
    test.selectbox(key="stage_talk").set_value("own").run()
    assert not test.exception
    assert any("own" in warning.value and "was left out" in warning.value for warning in test.warning)
    assert any("2 of 3 measured scenes are on tape" in text.value for text in test.markdown)
    assert len(test.dataframe[0].value) == 3
    press(test, "begin")
    assert part(test, "place").startswith("1 / 3")


def test_those_who_wait_are_told_that_a_presentation_goes_first() -> None:
    queue = jobs.engine()
    work = {"problem": Problem(), "specs": ["naive", "xla"]}
    first = queue.submit(measure.run, work, visitor="presenter", priority=Priority.STAGE)
    second = queue.submit(peak.child_room, visitor="visitor")
    assert "a presentation goes first" in jobs.progress(second)[1]
    assert "presentation" not in jobs.progress(first)[1]
    assert second.wait(WAIT_S)


def _after_a_fragment() -> None:
    """The app as it runs in a thread in which a fragment has just run, and left its place behind."""
    import streamlit as st
    from streamlit.delta_generator_singletons import context_dg_stack

    from explorer.ui import shell

    left = st.sidebar.container(key="left")
    context_dg_stack.set((*context_dg_stack.get(), left))
    shell.run()


def test_a_run_after_a_fragments_draws_in_the_page() -> None:
    test = AppTest.from_function(_after_a_fragment, default_timeout=WAIT_S).run()
    assert not test.exception
    assert test.main.title
    assert not test.sidebar.title


# --- on a GPU


@pytest.mark.gpu
def test_on_a_gpu_the_shipped_talk_is_live_in_every_scene() -> None:
    """The talk as its presenter gives it: each scene from its deadline's tape or live, and live in the end."""
    test = opened(talk=SHIPPED)
    for place, scene in enumerate(scenes.load(scenes.find(SHIPPED)).scenes):
        started = time.monotonic()
        if place:
            press(test, "next_button")
            print(f"scene {place + 1}: first picture after {time.monotonic() - started:.2f} s")
        assert part(test, "place").startswith(f"{place + 1} / 8")
        if not scene.points:
            continue
        until(test, lambda it: part(it, "live") and "measured" not in tag(it))
        print(
            f"scene {place + 1}: live after {time.monotonic() - started:.2f} s: {part(test, 'sentence')} [{tag(test)}]"
        )
        assert part(test, "live").startswith("live on NVIDIA")
        assert part(test, "sentence")
        assert len(test.get("vega_lite_chart")) == 1
    assert {job.state for job in staged(test)} == {"done"}
    found = [each for job in staged(test) for each in job.results if isinstance(each, record.Record)]
    assert {(each.status, (each.evidence or {}).get("proven")) for each in found} == {("ok", True)}
