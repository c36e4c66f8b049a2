"""A talk's file, its tape, what a scene shows, its sentence and its rehearsal, all without JAX and without a queue."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from explorer import __main__, headline, recordings, rehearse, scenes, stage, tape
from explorer.device import Device, named
from explorer.problem import Problem
from explorer.record import Record, Samples
from explorer.scenes import Scene, Talk, TalkError
from explorer.stage import Shown
from explorer.sweep import Point
from explorer.tape import Tape

SHIPPED = "cudnn-against-naive"
GOOD = """
title = "Two"
[[scene]]
title = "One problem"
say = '''
page = "nowhere" is not a key here
'''
page = "live"
backends = ["naive", "xla:float32"]
deadline_s = 5

[scene.problem]
q_len = 64
heads = 4

[[scene]]
title = "Along an axis"
page = "latency"
backends = ["naive", "cudnn"]
axis = "q_len"
values = [512, 256]
problem = { dtype = "bfloat16", causal = true }
"""
H200 = named("h200")


@functools.cache
def talk() -> Talk:
    return scenes.load(scenes.find(SHIPPED))


@functools.cache
def shipped_tape() -> Tape:
    return tape.read(scenes.FOLDER / talk().tape)


def four() -> Scene:
    """cuDNN and XLA against naive at T=2048, bfloat16."""
    return talk().scenes[3]


def taped(scene: Scene) -> tuple[Record, ...]:
    return shipped_tape().of(scene.points)


def live(scene: Scene, **changes: Any) -> list[Record]:
    """The taped records as if they had been measured now, the last one changed."""
    found = [each.but(recorded=False) for each in taped(scene)]
    return [*found[:-1], found[-1].but(**changes)]


BROKEN: dict[str, Any] = {"status": "failed", "reason": "The worker process died.", "timing": None}


# --- the file


def test_a_talk_is_read_as_written() -> None:
    read = scenes.parse(GOOD, "two")
    one, other = read.scenes
    assert one.problem == Problem.of(q_len=64, heads=4)
    assert (one.against, one.subject, one.deadline_s) == ("naive", "xla:float32", 5.0)
    assert [point.problem.q_len for point in other.points] == [256, 256, 512, 512]
    assert all(point.problem.kv_len == point.problem.q_len and point.problem.causal for point in other.points)


@pytest.mark.parametrize(
    ("wrong", "right", "sentence"),
    [
        (
            'page = "live"',
            'page = "lives"',
            r"^line 8: page must be one of start, .*, got 'lives'; did you mean live\?$",
        ),
        ("deadline_s = 5", "dead_line = 5", r"^line 10: 'dead_line' is no key here; .* did you mean deadline_s\?$"),
        ("deadline_s = 5", "deadline_s = -5", r"^line 10: deadline_s must be a number of seconds .* got -5$"),
        ('"cudnn"]', '"cudn"]', r"^line 19: backend must be one of naive, .* got 'cudn'; did you mean cudnn\?$"),
        ('"cudnn"]', '"xla:float8"]', r"^line 19: dtype must be one of float32, bfloat16, float16, got float8$"),
        (
            'backends = ["naive", "cudnn"]',
            'backend = ["naive"]',
            r"^line 19: 'backend' is no key here; .* mean backends\?$",
        ),
        ("q_len = 64", "q_len = 0", r"^line 13: q_len must be from 1 to .* got 0$"),
        ("heads = 4", "kv_heads = 3", r"^line 14: kv_heads must divide heads=8, got 3; one of 1, 2, 4, 8 would do$"),
        ("q_len = 64", "qlen = 64", r"^line 13: 'qlen' is no key here; .* did you mean q_len\?$"),
        ("causal = true", 'causal = "no"', r"^line 22: causal must be true or false, got 'no'$"),
        ("[512, 256]", '["512"]', r"^line 21: values must be a list of whole numbers"),
        ("[512, 256]", "[512, 256", r"^line \d+: .*text stands in quotes"),
        ('axis = "q_len"', 'axis = "length"', r"^line 20: axis must be one of batch, q_len"),
        ('page = "latency"', 'page = "live"', r"^line 20: page live shows one problem, got axis; page latency takes"),
        ('title = "One problem"', "title = 1", r"^line 4: title must be text in quotes, such as \"1\", got 1; line 4"),
        ('"Two"', '"Two"\ntapes = "x"', r"^line 3: 'tapes' is no key here; .* did you mean tape\?$"),
        ('"Two"', '"Two"\ntape = "../x"', r"^line 3: tape must be the name of a file beside the talk"),
    ],
)
def test_a_fault_is_said_with_its_line_and_what_would_do(wrong: str, right: str, sentence: str) -> None:
    assert wrong in GOOD
    with pytest.raises(TalkError) as caught:
        scenes.parse(GOOD.replace(wrong, right, 1), "two")
    assert re.search(sentence, str(caught.value)), str(caught.value)


def test_all_faults_are_said_at_once() -> None:
    with pytest.raises(TalkError) as caught:
        scenes.parse(GOOD.replace('"live"', '"lives"').replace('"cudnn"', '"cudn"').replace("= 64", "= -1"), "two")
    assert [text.split(":")[0] for text in caught.value.complaints] == ["line 8", "line 13", "line 19"]


def test_a_talk_without_scenes_is_none() -> None:
    with pytest.raises(TalkError, match="at least one"):
        scenes.parse('title = "Nothing"', "nothing")


def test_the_state_of_the_controls_is_a_scene() -> None:
    problem = Problem(batch=2, q_len=96, kv_len=48, dtype="float16", causal=True, seed=7)
    text = scenes.snippet(problem, ["naive", "xla"], page="live", title='Say "hi" \\ \x7f')
    (scene,) = scenes.parse(text, "saved").scenes
    assert (scene.problem, scene.backends, scene.against) == (problem, ("naive", "xla"), "naive")
    assert scene.title == 'Say "hi" \\ \x7f'


# --- the shipped talk and its tape


def test_every_shipped_scene_is_on_tape_and_every_taped_line_in_a_recording() -> None:
    for scene in talk().scenes:
        assert scene.is_words or taped(scene), scene.title
    known = {line for path in recordings.FOLDER.glob("*.jsonl") for line in path.read_text().splitlines()}
    lines = (scenes.FOLDER / talk().tape).read_text().splitlines()
    assert lines
    assert set(lines) <= known
    assert {each.environment["gpu"] for each in shipped_tape().records} == {"NVIDIA H200"}


def test_a_broken_last_line_costs_that_line_only(tmp_path: Path) -> None:
    whole = (scenes.FOLDER / talk().tape).read_text()
    (tmp_path / "cut.jsonl").write_text(whole[:-200])
    for cut in (tape.read(tmp_path / "cut.jsonl"), tape.of_text(whole[:-200], "cut.jsonl")):
        assert len(cut.records) == len(shipped_tape().records) - 1
        assert len(cut.losses) == 1
        assert re.match(r"line 40 of cut.jsonl was left out", cut.losses[0])


def test_a_tape_that_is_not_there_is_said(tmp_path: Path) -> None:
    assert tape.read(tmp_path / "none.jsonl").losses == ("the tape none.jsonl is not there",)


def test_a_failed_take_hides_no_result() -> None:
    after = shipped_tape().after(live(four(), **BROKEN))
    assert {each.status for each in after.of(four().points)} == {"ok"}


def test_half_a_scene_is_not_taken_from_a_tape() -> None:
    half = Tape(records=taped(four())[:2])
    assert half.of(four().points[:2])
    assert half.of(four().points) == ()


def test_a_tape_says_when_and_where() -> None:
    (one, *_) = taped(four())
    when = datetime.datetime.fromisoformat(one.time or "")
    at = when.astimezone()
    assert tape.label([one], now=when + datetime.timedelta(seconds=1)) == f"recorded {at:%H:%M} on NVIDIA H200"
    later = tape.label([one], "NVIDIA L4", when + datetime.timedelta(days=2))
    assert later.startswith(f"recorded {at:%Y-%m-%d %H:%M}")
    assert later.endswith("on NVIDIA H200, not on this machine's NVIDIA L4")
    assert tape.label([one.but(time=None)], "NVIDIA H200") == "recorded at an unknown time on NVIDIA H200"


# --- live or tape


def chosen(records: list[Record], *, is_over: bool = False, is_late: bool = False, refusal: str = "") -> Shown:
    return stage.choose(four(), records, shipped_tape(), is_over=is_over, is_late=is_late, refusal=refusal)


def test_a_live_run_in_time_is_shown_and_takes_over_later() -> None:
    assert chosen([]).source == "live"
    assert chosen(live(four())[:2]).source == "live"
    late = chosen(live(four())[:2], is_late=True)
    assert (late.source, late.records) == ("tape", taped(four()))
    assert "longer than 8 s" in late.why
    assert chosen(live(four()), is_late=True).source == "live"


@pytest.mark.parametrize(
    "changes",
    [
        BROKEN,
        {**BROKEN, "status": "timed_out"},
        {**BROKEN, "status": "out_of_memory"},
        {**BROKEN, "status": "disagrees"},
    ],
)
def test_what_fails_is_replaced_by_the_tape_and_that_is_said(changes: dict[str, Any]) -> None:
    shown = chosen(live(four(), **changes), is_over=True)
    assert shown.source == "tape"
    assert "The worker process died." in shown.why
    assert not any(each in shown.records for each in live(four()))


def test_what_broke_is_replaced_even_by_a_taped_refusal() -> None:
    *rest, last = taped(four())
    refused = Tape(records=(*rest, last.but(status="refused", reason="not there either", timing=None)))
    for status, source in (("failed", "tape"), ("out_of_memory", "live")):
        found = live(four(), status=status, reason="x", timing=None)
        assert stage.choose(four(), found, refused, is_over=True, is_late=False).source == source


def test_a_run_that_ended_early_and_a_device_that_refuses_play_from_tape() -> None:
    assert chosen(live(four())[:1], is_over=True).source == "tape"
    cpu = Device(platform="cpu", name="a CPU", capability=None, memory_bytes=None, versions={}, missing={})
    why = stage.refused(four(), cpu)
    assert "cuDNN can't run here" in why
    assert stage.refused(four(), H200) == ""
    assert (chosen([], refusal=why).source, chosen([], refusal=why).why) == ("tape", why)


def test_a_run_in_trouble_gives_way_at_once_and_may_still_come() -> None:
    found = stage.choose(four(), [], shipped_tape(), is_over=False, is_late=False, trouble="The worker process died.")
    assert (found.source, found.why[:31]) == ("tape", "live: The worker process died. ")
    whole = live(four())
    there = stage.choose(four(), whole, shipped_tape(), is_over=True, is_late=True, trouble="The worker process died.")
    assert list(there.records) == whole


def test_without_a_tape_the_live_run_stands_as_it_is() -> None:
    broken = live(four(), **BROKEN)
    shown = stage.choose(four(), broken, Tape(), is_over=True, is_late=True)
    assert (shown.source, list(shown.records)) == ("live", broken)
    assert "nothing is on tape" in shown.why


def test_a_slider_has_measured_points_only() -> None:
    growing = talk().scenes[4]
    whole = stage.choose(growing, [], shipped_tape(), is_over=False, is_late=True)
    assert stage.values(growing, whole) == growing.values
    part = Shown(source="live", records=taped(growing)[:7])  # two lengths whole, of the third one backend
    assert stage.values(growing, part) == growing.values[:2]


# --- the sentence


def test_the_sentence_has_number_place_size_and_evidence() -> None:
    said = stage.say(four(), Shown(source="live", records=tuple(live(four()))), None)
    fast, slow = (headline.find(taped(four()), name).timing.device_ms.median for name in ("cudnn", "naive"))  # pyright: ignore[reportOptionalMemberAccess]
    ratio = re.match(r"cuDNN (.*) × faster than naive here: ([\d.]+) µs against ([\d.]+) ms in the kernels", said.text)
    assert ratio
    assert float(ratio[2]) == pytest.approx(1e3 * fast, rel=1e-2)
    assert float(ratio[3]) == pytest.approx(slow, rel=1e-2)
    assert float(ratio[1]) == pytest.approx(slow / fast, abs=0.05)
    assert said.text.endswith("T=2048, proven fused")
    assert "agrees" in said.evidence
    from_tape = stage.say(four(), Shown(source="tape", records=taped(four())), None)
    assert "than naive on NVIDIA H200:" in from_tape.text


def test_a_cpu_names_the_wall_clock() -> None:
    no_device: Any = {"device_ms": None, "device_reason": "a CPU has none"}
    on_wall = [each.but(timing=dataclasses.replace(each.timing, **no_device)) for each in taped(four()) if each.timing]
    said = headline.of_time(on_wall, "cudnn", "naive", "device_ms")
    assert said.clock == "wall_ms"
    assert "on the wall clock" in said.text
    assert "a CPU has none" in said.note


def test_too_few_calls_and_one_program_are_never_called_faster() -> None:
    fast, slow = (headline.find(taped(four()), name) for name in ("cudnn", "naive"))
    assert fast is not None
    assert fast.timing is not None
    assert slow is not None
    two = Samples(fast.timing.device_ms.values[:2])  # pyright: ignore[reportOptionalMemberAccess]
    rare = fast.but(timing=dataclasses.replace(fast.timing, device_ms=two))
    said = headline.of_time([rare, slow], "cudnn", "naive", "device_ms")
    assert said.text.startswith("cuDNN and naive can't be told apart here, by 2 calls only: ")
    own = slow.but(backend="auto", evidence={**(slow.evidence or {}), "chose": "cudnn"})
    other = headline.of_time([fast, own], "cudnn", "auto", "device_ms")
    assert other.text.startswith("cuDNN and JAX's own choice are the same program here: ")
    assert said.is_close
    assert other.is_close
    assert "faster" not in said.text + other.text


def test_equal_times_are_too_close_to_call() -> None:
    (one, *_) = taped(four())
    said = headline.of_time([one, one.but(backend="xla")], "xla", "naive", "device_ms")
    assert said.is_close
    assert "too close to call" in said.text
    assert "faster" not in said.text


def test_what_has_no_time_says_so_without_a_number() -> None:
    gone = headline.of_time(live(four(), **{**BROKEN, "status": "refused"}), "cudnn", "naive", "device_ms")
    assert (gone.text, gone.has_number) == ("cuDNN can't run here.", False)
    naive, *rest = taped(four())
    too_large = naive.but(status="out_of_memory", timing=None, reason="x")
    said = headline.of_time([too_large, *rest], "cudnn", "naive", "device_ms")
    assert said.text.startswith("Naive runs out of memory here; cuDNN takes")


def test_memory_is_the_compilers_and_an_unknown_is_no_zero() -> None:
    scene = talk().scenes[6]
    records = taped(scene)[-3:]
    assert headline.of_memory(records, "cudnn", "naive").text == (
        "Naive needs 8 GiB of working memory here, cuDNN 512 bytes; T=8192"
    )
    unknown = [each.but(memory=None) if each.backend == "cudnn" else each for each in records]
    assert not headline.of_memory(unknown, "cudnn", "naive").has_number


# --- rehearsal


def line(records: list[Record], *, second_s: float = 1.0, on: Tape | None = None) -> rehearse.Line:
    take = rehearse.Take(index=0, first_s=3.0, second_s=second_s, records=tuple(records))
    one = Talk(name="one", title="One", scenes=(four(),))
    return rehearse.sheet(one, {0: take}, on or Tape(), H200)[0]


def risky(found: rehearse.Line, pattern: str) -> bool:
    return any(re.search(pattern, risk) for risk in found.risks)


def test_a_good_scene_has_no_risk() -> None:
    found = line(live(four()))
    assert (found.fails, found.risks, found.is_tape) == (False, (), False)
    assert found.says.startswith("cuDNN 4.5 × faster than naive here")
    assert found.memory


def test_the_risks_are_said_in_words() -> None:
    assert risky(line(live(four()), second_s=7), r"near its deadline: 7.0 s of 8 s")
    assert risky(line(live(four()), second_s=9), r"misses its deadline")
    tight = live(four(), memory={"predicted_bytes": 90, "free_bytes": 100, "temp_bytes": 1})
    assert risky(line(tight), r"near out of memory: SDPA cuDNN .* needs 90 bytes of 100 bytes free")
    refused = line(live(four(), **{**BROKEN, "status": "refused"}))
    assert risky(refused, "refused here")
    assert refused.fails
    (one, *_) = taped(four())
    close = [one, one.but(backend="xla"), one.but(backend="cudnn")]
    assert risky(line(close), "too close to call")


def test_a_scene_that_fails_here_fails_though_the_tape_would_play() -> None:
    found = line(live(four(), **BROKEN), on=shipped_tape())
    assert found.fails
    assert found.is_tape
    assert risky(found, r"failed: SDPA cuDNN .*The worker process died")


def test_what_is_refused_here_is_not_run_if_it_is_on_tape() -> None:
    cpu = Device(platform="cpu", name="a CPU", capability=None, memory_bytes=None, versions={}, missing={})
    assert rehearse.to_run(talk(), shipped_tape(), cpu) == []
    assert rehearse.to_run(talk(), Tape(), cpu) == [1, 2, 3, 4, 5, 6]
    assert rehearse.to_run(talk(), shipped_tape(), H200) == [1, 2, 3, 4, 5, 6]


def test_the_command_rehearses_records_and_fails_as_promised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On whatever device is here: XLA against naive in float32, twice, small."""
    monkeypatch.setenv("EXPLORER_CACHE_DIR", str(tmp_path))
    file, out = tmp_path / "own.toml", tmp_path / "own.jsonl"
    small = "[scene.problem]\nbatch = 1\nheads = 2\nhead_dim = 8\nq_len = 32\n"
    scene = '[[scene]]\ntitle = "Own"\npage = "live"\nbackends = ["naive", "{}"]\n' + small
    file.write_text(scene.format("xla"))
    assert __main__.main(["rehearse", str(file), "--tape", str(out), "--json"]) == 0
    (answer,) = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert answer["first_s"] > answer["second_s"] > 0
    taped = tape.read(out)
    assert not taped.losses
    assert taped.of(
        [Point(problem=Problem.of(batch=1, heads=2, head_dim=8, q_len=32), backend=b) for b in ("naive", "xla")]
    )
    file.write_text(scene.format("cudnn"))  # float32: refused on every device, and nothing is on tape
    assert __main__.main(["rehearse", str(file)]) == 1
    assert "FAILS" in capsys.readouterr().out
    file.write_text(scene.format("cudn"))
    assert __main__.main(["rehearse", str(file)]) == 2
    assert "line 4: backend must be one of" in capsys.readouterr().err
