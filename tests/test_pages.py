"""The shell, the controls, and the pages Live run and This machine under AppTest, on a real worker."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import shutil
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from page import WAIT_S, said, until
from streamlit.testing.v1 import AppTest

from explorer import charts, device, measure
from explorer.backends import BACKENDS
from explorer.job import Call, Loss
from explorer.problem import PRESETS, Problem
from explorer.record import Record, Samples, Timing
from explorer.then import Then
from explorer.ui import controls, jobs, panels, shell
from explorer.ui import live as live_page

pytestmark = pytest.mark.usefixtures("app_engine")
ROOT = Path(__file__).resolve().parent.parent
SMALL = {"batch": "1", "q_len": "3", "kv_len": "5", "heads": "1", "head_dim": "1"}
END = r"^Largest error|elements of one head|No backend has a result"


def app(**params: Any) -> AppTest:
    test = AppTest.from_file(str(ROOT / "streamlit_app.py"), default_timeout=WAIT_S)
    test.query_params.update(params)
    return test


def quiet(**params: Any) -> AppTest:
    """The app without a backend, so that no page runs anything."""
    return app(**{"backend": "", **params}).run()


def opened(page: str, **params: Any) -> AppTest:
    """A page as its first visitor sees it. Where Live run is itself the first page, there is nothing to switch to."""
    test = app(**params).run()
    return test if page == "live.py" and not (ROOT / "pages" / "start.py").exists() else _switched(test, page)


def _switched(test: AppTest, page: str) -> AppTest:
    return test.switch_page(f"pages/{page}").run()


def results(test: AppTest) -> dict[str, Any]:
    """The records that the page holds as shown, by backend."""
    return {found.backend: found for found in test.session_state["live_shown"].records}


def live(**params: Any) -> AppTest:
    test = opened("live.py", **params)
    until(test, lambda it: it.exception or (_is_over(it) and said(it, END)))
    assert not test.exception, test.exception
    return test


def _is_over(test: AppTest) -> bool:
    """The job has ended: a record's card is there before the job is over."""
    return "live_shown" in test.session_state


# --- shell and controls


def test_every_page_stands_in_the_frame() -> None:
    test = quiet()
    for entry in (entry for entries in shell.MENU.values() for entry in entries if entry.path.exists()):
        _switched(test, entry.file)
        assert not test.exception, entry.file
        assert test.title, entry.file
        assert test.sidebar.select_slider(key="q_len").value == 128


def test_the_server_process_has_no_jax() -> None:
    """In a process of its own: other tests of this one load JAX themselves."""
    code = (
        "import sys; sys.path[:0] = ['.', 'tests']\n"
        "import test_pages\n"
        "assert test_pages.quiet().title\n"
        "print('jax' in sys.modules)\n"
        "test_pages.jobs.engine().close()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=100)
    assert done.stdout.split() == ["False"], done.stderr


def test_a_page_run_alone_comes_back_inside_the_shell() -> None:
    """The deep link that comes first, as far as one process can show it: the guard sends it into the shell."""
    assert not getattr(shell._running, "inside", False)
    assert quiet().sidebar.selectbox(key="preset")


def test_k_offers_the_divisors_of_n_only() -> None:
    test = quiet(heads="12")
    slider = test.sidebar.select_slider(key="kv_heads")
    assert slider.options == ["1", "2", "3", "4", "6", "12"]
    assert slider.value == 12  # multi-head unless asked otherwise


def test_k_follows_n_and_says_when_it_can_t_stay() -> None:
    test = quiet(heads="8")
    test.sidebar.select_slider(key="heads").set_value(16).run()
    assert test.sidebar.select_slider(key="kv_heads").value == 16
    test.sidebar.select_slider(key="kv_heads").set_value(8).run()
    test.sidebar.select_slider(key="heads").set_value(12).run()
    assert test.sidebar.select_slider(key="kv_heads").value == 6
    assert said(test, "K was 8, which does not divide N=12; it is 6 now")
    test.sidebar.select_slider(key="heads").set_value(24).run()
    assert not said(test, "K was")


def test_s_follows_t_until_it_is_unlocked() -> None:
    test = quiet()
    test.sidebar.select_slider(key="q_len").set_value(256).run()
    length = test.sidebar.select_slider(key="kv_len")
    assert (length.value, length.disabled) == (256, True)
    test.sidebar.toggle(key="kv_follows").set_value(False).run()
    test.sidebar.select_slider(key="kv_len").set_value(96).run()
    test.sidebar.select_slider(key="q_len").set_value(512).run()
    assert test.sidebar.select_slider(key="kv_len").value == 96
    test.sidebar.toggle(key="kv_follows").set_value(True).run()
    assert test.sidebar.select_slider(key="kv_len").value == 512


def test_odd_sizes_come_through_a_number_field() -> None:
    test = quiet()
    test.sidebar.toggle(key="exact").set_value(True).run()
    test.sidebar.number_input(key="head_dim_exact").set_value(100).run()
    slider = test.sidebar.select_slider(key="head_dim")
    assert slider.value == 100
    assert "100" in slider.options
    test.sidebar.number_input(key="heads_exact").set_value(7).run()
    assert test.sidebar.select_slider(key="kv_heads").options == ["1", "7"]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_every_control(name: str) -> None:
    test = quiet(q_len="300", seed="3")
    assert test.sidebar.selectbox(key="preset").value == controls.CUSTOM
    test.sidebar.selectbox(key="preset").set_value(name).run()
    problem = PRESETS[name].problem
    state = test.session_state
    assert Problem(**{field: state[field] for field in ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim",
                                                        "dtype", "causal", "seed")}) == problem  # fmt: skip
    assert test.sidebar.selectbox(key="preset").value == name
    assert not test.exception


@pytest.mark.parametrize(
    ("params", "control", "sentence"),
    [
        (
            {"heads": "8", "kv_heads": "3"},
            "kv_heads",
            "kv_heads must divide heads=8, got 3; one of 1, 2, 4, 8 would do",
        ),
        ({"head_dim": "0"}, "head_dim", "head_dim must be from 1 .* got 0"),
        ({"q_len": "-1"}, "q_len", "q_len must be from 1 .* got -1"),
        ({"dtype": "float8"}, "dtype", "dtype must be one of .* got float8"),
        ({"backend": ["naive", "magic"]}, "backend", "backend must be one of .* got magic"),
    ],
)
def test_a_bad_wish_is_named_at_the_control_and_on_the_page(
    params: dict[str, Any], control: str, sentence: str
) -> None:
    test = opened("live.py", **{"batch": "1", "backend": "", **params})
    assert not test.exception
    assert any(re.search(sentence, text.value.replace("\\", "")) for text in test.sidebar.markdown)
    assert any(re.search(sentence, text.value.replace("\\", "")) for text in test.warning)
    widget = {"dtype": test.segmented_control, "backend": test.pills}.get(control, test.select_slider)(key=control)
    widget.set_value({"dtype": "float16", "backend": ["xla"]}.get(control, widget.value)).run()
    if control in ("dtype", "backend"):  # touched: nothing to complain about any more
        assert not any(re.search(sentence, text.value) for text in [*test.sidebar.markdown, *test.warning])


def test_no_backend_is_a_polite_stop() -> None:
    test = opened("live.py", backend="")
    assert said(test, "Choose at least one backend")
    assert not test.exception


def test_the_link_carries_what_is_shown() -> None:
    test = app(batch="1", head_dim="1", heads="1", q_len="100", backend=["xla"]).run()
    link = next(getattr(block, "value", "") for block in test.sidebar.get("code"))
    assert "q_len=100" in link
    assert "backend=xla" in link
    assert "v=1" in link


# --- Live run


def test_live_run_at_the_lab_s_defaults() -> None:
    test = live()
    found = results(test)
    assert {name: record.status for name, record in found.items()} == {
        "naive": "ok",
        "xla": "ok",
        "cudnn": "refused",
    } or (found["cudnn"].environment.get("gpu"))
    assert not test.exception
    assert len(test.metric) == sum(record.status == "ok" for record in found.values())
    for metric in test.metric:
        assert re.match(r"Wall clock, median of \d+ calls", metric.label)  # never a bare number
    assert said(test, "Largest error: .* allowed .*: \\*\\*agrees\\*\\*")
    assert said(test, r"Lab's allclose \(0.001\): passes")
    table = test.dataframe[0].value
    assert table["name"].tolist() == ["q", "k", "v", "output"]
    assert table["bytes"].tolist() == [f"{4 * 128 * 8 * 64 * 4:,}"] * 4


@pytest.mark.parametrize("refused", ["cudnn", "transformer_engine"])
def test_what_can_t_run_gives_its_sentence_and_the_others_run(refused: str) -> None:
    test = live(**SMALL, backend=["naive", refused])
    found = results(test)
    assert found["naive"].status == "ok"
    assert found[refused].status == "refused"
    assert said(test, re.escape(found[refused].reason))


def test_head_dim_100_is_refused_by_cudnn_only() -> None:
    test = live(head_dim="100", dtype="bfloat16", q_len="16", batch="1", backend=["naive", "xla", "cudnn"])
    assert [results(test)[name].status for name in ("naive", "xla", "cudnn")] == ["ok", "ok", "refused"]


def test_the_smallest_problem() -> None:
    test = live(**SMALL, backend=["naive", "xla"])
    assert {record.status for record in results(test).values()} == {"ok"}


@pytest.mark.parametrize(("q_len", "kv_len"), [("32", "96"), ("96", "32")])
def test_causal_with_unequal_lengths(q_len: str, kv_len: str) -> None:
    test = live(batch="1", q_len=q_len, kv_len=kv_len, causal="true", backend=["naive", "xla"])
    assert {record.status for record in results(test).values()} == {"ok"}


def test_an_overflow_disagrees_and_has_no_time() -> None:
    test = live(q_len="32", batch="1", dtype="float16", input_scale="60", backend=["naive"])
    naive = results(test)["naive"]
    assert (naive.status, naive.timing) == ("disagrees", None)
    assert said(test, "float16 holds nothing above 65,504")
    assert not test.metric  # its time is nowhere


def test_too_large_is_refused_before_anything_is_allocated() -> None:
    test = opened("live.py", batch="64", q_len="16384", heads="32", backend=["naive"])
    until(test, lambda it: it.exception or said(it, "too large"))
    assert results(test)["naive"].status == "out_of_memory"
    assert said(test, r"needs .* by formula, but only .* are free")


def test_what_does_not_fit_is_told_before_a_run() -> None:
    nothing = live_page.Plan(seconds=0, where="a GPU", too_large=("naive",)).sentence
    assert nothing.startswith("More memory than there is")
    some = live_page.Plan(seconds=9, where="a GPU", too_large=("naive",)).sentence
    assert re.search(
        r"about 9\.0 s predicted on a GPU, .*; Naive JAX will not run, for want of memory; more than", some
    )


def test_a_long_run_waits_for_the_button() -> None:
    before = len(jobs.engine().jobs())
    test = opened("live.py", batch="1", q_len="8192", backend=["naive"])
    assert said(test, r"about [0-9.]+ s predicted on .*; more than 5 s, so only on request")
    assert len([job for job in jobs.engine().jobs()[before:] if job.label == "live run"]) == 0
    assert said(test, "not run yet")
    assert not said(test, "hourglass")


@pytest.mark.parametrize("page", ["live.py", "heads.py", "steps.py", "start.py"])
def test_a_name_that_no_control_has_is_named_on_every_page(page: str) -> None:
    test = opened(page, **SMALL, bogus="1", kv_hedas="2")
    assert any("the link has bogus, kv\\_hedas (did you mean kv\\_heads?)" in each.value for each in test.warning)


def test_an_unknown_backend_alone_leaves_the_default_ones() -> None:
    test = live(**SMALL, backend="magic")
    assert sorted(results(test)) == ["cudnn", "naive", "xla"]


def test_a_reload_finds_the_result() -> None:
    live(**SMALL, backend=["xla"])
    submitted = len(jobs.engine().jobs())
    test = opened("live.py", **SMALL, backend=["xla"])
    assert said(test, "Largest error")
    assert len([job for job in jobs.engine().jobs() if job.label == "live run"]) <= submitted


def test_run_again_measures_again() -> None:
    test = live(**SMALL, backend=["xla"])
    before = results(test)["xla"].timing.wall_ms.values
    test.button(key="live_run").click().run()
    until(test, lambda it: results(it)["xla"].timing.wall_ms.values != before)


def test_the_chosen_baseline_is_compared_with() -> None:
    test = live(**SMALL, backend=["naive", "xla"])
    test.selectbox(key="live_baseline").set_value("xla").run()
    deltas = [metric.delta for metric in test.metric]
    assert deltas[1] == "baseline"
    assert re.fullmatch(r"\d+\.\d\d × (faster|slower) than SDPA XLA|\d+\.\d\d × · too close to call", deltas[0])


def timed(backend: str, *values: float) -> Record:
    made = measure.blank(Problem(), backend, "failed", "until it has a time")
    timing = Timing(lower_ms=0, compile_ms=0, cache_hit=False, first_call_ms=1, wall_ms=Samples(values))
    return dataclasses.replace(made, status="ok", reason=None, timing=timing)


@pytest.mark.parametrize(
    ("ours", "said_of", "arrow"),
    [
        ([2.0] * 9, "2.00 × faster than Naive JAX", "up"),
        ([8.0] * 9, "2.00 × slower than Naive JAX", "down"),
        ([3.9, 4.1] * 9, "1.00 × · too close to call", "off"),
        ([1.0, 3.5, 9.0, 3.0, 8.0], "1.14 × · too close to call", "off"),
        ([2.0], "2.00 × · by 1 call only", "off"),
    ],
)
def test_faster_is_said_only_beyond_the_noise(ours: list[float], said_of: str, arrow: str) -> None:
    baseline = timed("naive", *([4.0] * 9))
    assert panels.speed_line(timed("xla", *ours), baseline, "wall_ms") == (said_of, arrow)


def test_jax_s_own_choice_is_not_faster_than_what_it_chose() -> None:
    auto, xla = timed("auto", *([2.0] * 9)), timed("xla", *([4.0] * 9))
    assert panels.speed_line(auto, xla, "wall_ms")[1] == "up"
    auto = dataclasses.replace(auto, evidence={"chose": "xla"})
    same = "2.00 × · the same program"
    assert panels.speed_line(auto, xla, "wall_ms") == (same, "off")
    assert panels.speed_line(xla, auto, "wall_ms")[1] == "off"
    assert panels.speed_line(timed("naive", *([1.0] * 9)), auto, "wall_ms")[1] == "up"


def test_one_call_has_no_spread() -> None:
    alone = timed("xla", 2.0)
    assert panels.time_lines(alone)[0] == "p10 – p90: — (one call)"
    assert alone.timing is not None
    assert panels.median_of(alone.timing.wall_ms) == "one call"


def test_the_last_result_keeps_its_baseline() -> None:
    test = live(batch="1", q_len="16", backend=["naive", "xla"], live_baseline="xla")
    test.sidebar.select_slider(key="q_len").set_value(8192).run()
    assert said(test, "Last result")
    compared = [metric.delta for metric in test.metric]
    assert compared[1] == "baseline"
    assert re.match(r"\d+\.\d\d × ", compared[0])


def test_exact_sizes_of_a_link_are_there_at_once() -> None:
    test = quiet(exact="true", head_dim="37", heads="4")
    assert test.sidebar.number_input(key="head_dim_exact").value == 37
    assert test.sidebar.toggle(key="exact").value


def test_ten_quick_moves_run_one_at_a_time_and_end_at_the_last() -> None:
    """Each move asks for something new; the older question is ended, never run beside the newer one."""
    engine, most, over = jobs.engine(), 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not over.wait(0.002):
            most = max(most, engine.stats().running)

    watcher = threading.Thread(target=look)
    watcher.start()
    test = opened("live.py", batch="1", heads="1", q_len="16", head_dim="8", backend=["naive", "xla"])
    for length in (32, 48, 64, 96, 128, 192, 256, 192, 128, 96):
        test.sidebar.select_slider(key="q_len").set_value(length).run()
    until(test, lambda it: said(it, "elements of one head"))
    over.set()
    watcher.join()
    assert most == 1
    assert {found.problem.q_len for found in results(test).values()} == {96}
    assert said(test, "T=96 ")


def test_an_older_question_is_cancelled_not_computed() -> None:
    slow = {"q_len": "1536", "heads": "8", "batch": "1", "dtype": "float32", "backend": ["naive", "xla"]}
    test = opened("live.py", **slow)
    if not said(test, "by itself"):
        test.button(key="live_run").click().run()
    older = jobs.engine().jobs(test.session_state["visitor"])[-1]
    test.sidebar.select_slider(key="q_len").set_value(16).run()
    until(test, lambda it: said(it, "elements of one head"))
    assert older.state in ("replaced", "cancelled") or older.is_stopping
    assert {found.problem.q_len for found in results(test).values()} == {16}


def test_a_page_is_told_only_when_it_has_drawn_its_job_s_end() -> None:
    """What a server that stops waits for."""
    test = opened("live.py", q_len="1536", heads="8", batch="1", dtype="float32", backend=["naive", "xla"], seed="5")
    if not said(test, "by itself"):
        test.button(key="live_run").click().run()
    me = test.session_state["visitor"]
    assert me in jobs.desk().watching
    job = jobs.engine().jobs(me)[-1]
    job.cancel()
    assert job.wait(WAIT_S)
    assert me in jobs.desk().watching
    test.run()
    assert me not in jobs.desk().watching


def test_a_page_that_looks_no_longer_is_not_waited_for() -> None:
    desk = jobs.Desk(engine=jobs.engine())
    assert desk.wait_told(0)
    before = time.monotonic()
    desk.looks("a")
    assert not desk.wait_told(0)
    desk.drawn("a", before)  # it looked in that run: its job was not over
    assert not desk.wait_told(0)
    desk.drawn("a", time.monotonic())
    assert desk.wait_told(0)
    desk.watching["b"] = time.monotonic() - jobs.ASLEEP_S
    assert desk.wait_told(0)
    desk.looks("c")
    assert set(desk.watching) == {"c"}


def test_what_is_refused_here_stays_refused_when_the_worker_dies() -> None:
    call = Call(measure.run, {"problem": Problem(), "specs": ["naive", "cudnn", "xla"]})
    lost = Loss(call=call, state="failed", error="the worker died", error_type="", item=None, results=())
    here = device.Device(platform="cpu", name="a CPU", capability=None, memory_bytes=1, versions={}, missing={})
    naive, cudnn, xla = jobs.lost_records(lost, here=here)
    assert (naive.status, naive.reason) == ("failed", "the worker died")
    assert (cudnn.status, cudnn.reason) == ("refused", BACKENDS["cudnn"].why_not(Problem(), here))
    assert (xla.status, xla.reason) == ("cancelled", "not run: naive took the worker down")
    assert [made.status for made in jobs.lost_records(lost)] == ["failed", "cancelled", "cancelled"]


def test_two_visitors_see_their_own() -> None:
    one, other = live(**SMALL, backend=["naive"]), live(**{**SMALL, "q_len": "7"}, backend=["naive"])
    assert results(one)["naive"].problem.q_len == 3
    assert results(other)["naive"].problem.q_len == 7
    assert said(one.run(), r"T=3 ")
    assert said(other.run(), r"T=7 ")


def test_output_and_difference_of_a_head() -> None:
    test = live(batch="2", q_len="8", heads="2", head_dim="8", backend=["naive", "xla"])
    test.number_input(key="live_head").set_value(1).run()
    until(test, lambda it: said(it, "8 × 8 elements of one head"))
    test.sidebar.select_slider(key="heads").set_value(1).run()
    until(test, lambda it: said(it, "elements of one head"))
    assert test.number_input(key="live_head").value == 0  # there is no second head any more


# --- This machine


def test_this_machine() -> None:
    test = until(opened("machine.py"), lambda it: it.exception or len(it.metric) > 3)
    assert not test.exception
    assert [metric.label for metric in test.metric][:1] in (["CPU"], ["GPU"])
    for backend in BACKENDS.values():
        assert any(backend.label in getattr(element, "value", "") for element in test.get("html")) or said(
            test, "ready"
        )
    if test.metric[0].label == "CPU":
        assert any("No NVIDIA GPU here" in str(info.proto) for info in test.info)  # a notice
        assert not test.error
        assert said(test, "cuDNN attention needs an NVIDIA GPU")


# --- on a GPU


@pytest.mark.gpu
def test_on_a_gpu_live_run_shows_each_backend_with_its_kernels() -> None:
    test = live(dtype="bfloat16", q_len="2048", kv_len="2048", backend=["naive", "xla", "cudnn"])
    assert not test.exception
    found = results(test)
    assert {name: made.status for name, made in found.items()} == {"naive": "ok", "xla": "ok", "cudnn": "ok"}
    assert found["cudnn"].evidence["verdict"] == "fused"
    assert all(made.evidence["proven"] and made.timing.device_ms for made in found.values())


# --- share: then and now


def test_a_result_s_link_opens_it_beside_a_fresh_run() -> None:
    test = live(**SMALL, seed="5", backend=["naive", "cudnn"])
    (address,) = [code.value for code in test.code if "/then?" in code.value and "backend=cudnn" in code.value]
    asked = parse_qs(urlsplit(address).query)
    assert (asked["v"], asked["seed"], asked["backend"]) == (["1"], ["5"], ["naive", "cudnn"])
    told = Then.read(asked["then"][0])
    assert told.problem == results(test)["naive"].problem
    assert [(each.backend, each.status) for each in told.figures] == [("naive", "ok"), ("cudnn", "refused")]
    other = until(opened("then.py", **asked), lambda it: it.exception or said(it, "Largest error"))
    assert not other.exception
    assert said(other, "Then's figures are as the link tells them; no recording here vouches")
    (row, lost) = table_with(other, "now / then").to_dict("records")
    then = told.figures[0].wall
    assert then is not None
    assert row["wall, then"].startswith(charts.ms(then.median))
    assert re.search(r"\((wall|device)\), (faster|slower|too close to call)", row["now / then"])
    assert lost["status, now"] == lost["status, then"]
    assert lost["now / then"] == "—"
    # Run again in this session, as the first run's figures may be those of the link itself
    (found,) = [job for job in jobs.engine().jobs() if job.label == "then and now"]
    assert found.state == "done"


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="what is missing is a CPU's")
def test_a_link_from_elsewhere_names_what_is_missing_here() -> None:
    strange = "<b>:red[H900]**"
    told = then_of({"gpu": strange, "cudnn": "99.1", "jax": "9.9"}, "flash9", "naive", "cudnn", "cudnn:bfloat16")
    test = until(opened("then.py", then=told.write()), lambda it: it.exception or said(it, "Largest error"))
    assert not test.exception
    assert said(test, "Not known to this version, and so not run and not replaced: flash9")
    assert said(test, r"There then and missing here, not replaced by anything: .*cuDNN 99\.1")
    assert not said(test, r"(?<!\\)<b>|:red\[")
    row, _, *cudnn = table_with(test, "now / then").to_dict("records")
    assert (row["backend"], row["status, now"], row["now / then"]) == ("flash9 float32", "not measured here", "—")
    assert [each["status, now"].split(":")[0] for each in cudnn] == ["refused"] * 2
    assert "9.9" in table_with(test, "the two").to_csv()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0.abc", "must be of schema 1, got 0"),
        ("1.abc", "cut off"),
        ("big", r"q\\?_len must be from 1 to 2147483647, got 99999999999"),
    ],
)
def test_a_link_that_can_t_be_read_says_why(text: str, sentence: str) -> None:
    if text == "big":
        values = json.loads(zlib.decompress(base64.urlsafe_b64decode(then_of({}, "naive").write()[2:] + "===")))
        values["p"]["q_len"] = 99999999999
        text = "1." + base64.urlsafe_b64encode(zlib.compress(json.dumps(values).encode())).decode()
    test = opened("then.py", then=text, v="0")
    assert not test.exception
    assert said(test, sentence)
    assert said(test, "the link must be of version 1, got v=0")


def test_without_a_link_it_says_where_one_comes_from() -> None:
    test = opened("then.py", backend="")
    assert not test.exception
    assert said(test, "makes one")


def then_of(environment: dict[str, str], *backends: str) -> Then:
    timing = Timing(lower_ms=1.0, compile_ms=2.0, cache_hit=False, first_call_ms=3.0, wall_ms=Samples((1.0, 1.1, 1.2)))
    problem = Problem.of(batch=1, q_len=16, heads=1, head_dim=8)
    made = [
        Record(problem=problem.but(dtype=dtype or "float32"), backend=name, status="ok", timing=timing,
               environment=environment)
        for name, _, dtype in (spec.partition(":") for spec in backends)
    ]  # fmt: skip
    return Then.of(made)


def table_with(test: AppTest, column: str) -> Any:
    found = next(frame.value for frame in test.dataframe if column in frame.value.columns)
    return found
