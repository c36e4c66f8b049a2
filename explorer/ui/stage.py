"""Stage: one scene at a time in large type, moved by keys; the live run, or the tape in its place."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import streamlit as st

from explorer import charts, charts_time, curves, export, plain, record, rehearse, scenes, stage, sweep, tape
from explorer.device import Device
from explorer.engine import Call, Priority
from explorer.headline import Headline
from explorer.record import Record
from explorer.scenes import Scene, TalkError
from explorer.stage import Shown
from explorer.ui import jobs, panels, sweeps
from explorer.ui.hall import Play, Show, code_of, hall
from explorer.ui.jobs import Answer

AT, RUNS, START, LAST, FROZEN = "stage_at", "stage_runs", "stage_start", "stage_last", "stage_frozen"
SETTLE_S = 0.15  # a scene's first picture does not wait for its run
WATCH_S = 0.4
LEAST_LIMIT_S, REHEARSAL_LIMIT_S = 60.0, 300.0
STARTING = "the worker is starting"
TEXT, HEIGHT = 17, 310  # px in charts, on a stage of 1280 × 720
UNIT = re.compile(r"(?<=\d) (?=×|[µmn]?s\b|[KMGT]iB|bytes)")  # a number and its unit stay on one line
# Large type, and nothing but the stage: Streamlit has no settings for either.
STYLE = """<style>
[data-testid="stSidebar"], [data-testid="stHeader"], [data-testid="stExpandSidebarButton"] { display: none }
[data-testid="stMainBlockContainer"] { padding: 1.2rem clamp(1rem, 3vw, 4rem) 4.4rem }
.stage-place { font-size: clamp(0.85rem, 1.1vw, 1.3rem); margin: 0 }
h1.stage-title { font-size: clamp(1.35rem, 2.3vw, 2.9rem); font-weight: 500; line-height: 1.15; margin: 0; padding: 0 }
.stage-sentence { font-size: clamp(1.5rem, 2.9vw, 3.7rem); font-weight: 600; line-height: 1.18; margin: 0 0 0.2em }
.stage-address { font-size: clamp(1.35rem, 2.3vw, 2.9rem); font-weight: 600; overflow-wrap: anywhere }
.stage-words { font-size: clamp(1.4rem, 2.6vw, 3.2rem); line-height: 1.35; margin-top: 1em; max-width: 32em }
.stage-small { font-size: clamp(0.85rem, 1.15vw, 1.4rem); line-height: 1.4; margin: 0 }
.stage-tag { font-weight: 600; border: 2px solid; border-radius: 0.3em; padding: 0.05em 0.5em }
.stage-frozen { color: light-dark(#1F5FA8, #9CC8F5) }
.stage-live { color: light-dark(#25672A, #9BD8A0) } .stage-tape { color: light-dark(#94430A, #F5B980) }
.st-key-stage_bar { position: fixed; inset: auto 0 0 0; z-index: 99; padding: 0.5rem clamp(1rem, 3vw, 4rem);
  background: light-dark(#EEF2F2, #1A2429); border-top: 1px solid light-dark(#CBD5D6, #34434A) }
@media (min-width: 1700px) and (min-height: 900px) {
  .st-key-stage_chart { zoom: 1.5; width: calc(100% / 1.5) }
  .st-key-stage_bar > *, .st-key-stage_points { zoom: 1.3 }
}
@media (max-width: 800px) { .st-key-stage_bar { position: static } }
</style>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What stands on stage: to be frozen, and to be told to the audience."""

    index: int
    shown: Shown
    value: int | None
    label: str


# --- before the talk


def asked() -> Play | None:
    """The talk of the address; None before one has begun. What is wrong with it is said."""
    name = st.query_params.get("talk")
    if not name:
        return None
    try:
        return hall().play(name)
    except ValueError as error:
        _complain(error)
        return None


def _complain(error: ValueError) -> None:
    for sentence in error.complaints if isinstance(error, TalkError) else (str(error),):
        st.error(plain.markdown(sentence), icon=":material/error:")


def prepare() -> None:
    """Choose or bring a talk, see its scenes and its tape, rehearse it, begin."""
    st.title("Stage")
    st.caption(
        "A talk, scene by scene, in large type: live on this machine, or from tape where a run is late or fails."
    )
    play = _chosen()
    if play is None:
        return
    st.subheader(plain.markdown(play.talk.title))
    st.markdown(plain.markdown(play.talk.about))
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Begin", icon=":material/co_present:", type="primary", key="stage_begin", on_click=begin, args=(play.name,)
        )
        st.button(
            "Rehearse", icon=":material/checklist:", key="stage_rehearse", on_click=panels.press,
            args=("stage_rehearse",),
        )  # fmt: skip
        st.caption("Rehearsing runs every scene twice here and keeps the records as the talk's tape.")
    status = st.container()
    here = jobs.device()
    on_tape = st.container()
    answer = _rehearsal(play, here, status)
    with on_tape:
        _tape_state(hall().play(play.name), here)  # with what has just been rehearsed
    if answer is not None:
        panels.watch(answer, into=status)


def _chosen() -> Play | None:
    name = st.selectbox("Talk", scenes.names(), key="stage_talk", width=420)
    with st.expander("Bring your own talk", icon=":material/upload_file:"):
        st.caption(
            "A TOML file of scenes, and its tape if there is one. **Copy link** in the sidebar gives any page's "
            "settings as a scene. Talks in the folder that `EXPLORER_TALKS` names stand in the list above."
        )
        file = st.file_uploader("Talk (TOML)", type=["toml"], key="stage_upload")
        taped = st.file_uploader("Tape (JSON lines)", type=["jsonl"], key="stage_tape")
    try:
        if file is not None:
            own = tape.Tape() if taped is None else tape.of_text(_text(taped), taped.name)
            name = hall().bring(_text(file), file.name, own)
        return hall().play(name) if name else None
    except ValueError as error:
        _complain(error)
        return None


def _text(file: Any) -> str:
    return file.getvalue().decode("utf-8", errors="replace")


def _tape_state(play: Play, here: Device | None) -> None:
    for loss in play.tape.losses:
        st.warning(plain.markdown(loss), icon=":material/healing:")
    measured = [scene for scene in play.talk.scenes if scene.points]
    on_tape = [scene for scene in measured if play.tape.of(scene.points)]
    said = tape.label(play.tape.records, _gpu(here)) if play.tape.records else "no record"
    count = f"{len(on_tape)} of {len(measured)} measured scenes are on tape"
    st.markdown(f":material/album: {count}: {plain.markdown(said)}.")


def _rehearsal(play: Play, here: Device | None, status: Any) -> Answer | None:
    """The run sheet: of the rehearsal that ran here, else what is known without one."""
    if here is None:
        st.caption(":material/hourglass_empty: The worker is starting; then this says what can be live here.")
        _watch(None)
        return None
    pressed = panels.was_pressed("stage_rehearse")
    calls = [
        Call(rehearse.take, {"index": i, "points": play.talk.scenes[i].points, "protocol": stage.protocol(here)})
        for i in rehearse.to_run(play.talk, play.own, here)
    ]
    answer = None
    takes: dict[int, rehearse.Take] = {}
    if calls:
        answer = jobs.ask_many(
            calls, slot="rehearsal", auto=False, again=pressed, limit_s=REHEARSAL_LIMIT_S, lost=rehearse.lost,
            label="rehearsal", status=status,
        )  # fmt: skip
        takes = {take.index: take for take in answer.results}
        if answer.is_over:
            hall().record(play.name, tuple(each for take in takes.values() for each in take.records))
    lines = rehearse.sheet(play.talk, takes, play.own, here)
    panels.table([_row(line) for line in lines], alt_text="Run sheet: each scene with its times, memory and state")
    _risks([line for line in lines if line.is_tape or line.first_s is not None or takes or line.refused])
    if takes:
        st.download_button(
            "Tape (JSON lines)", lambda: export.to_json_lines(each for take in takes.values() for each in take.records),
            file_name=f"{play.talk.name}.tape.jsonl", mime="application/jsonl", icon=":material/download:",
            key="stage_save_tape", on_click="ignore",
        )  # fmt: skip
    return answer


def _row(line: rehearse.Line) -> dict[str, Any]:
    """Words only: a dash for what is missing goes with no number."""
    is_measured = bool(line.says) or line.fails
    known = line.is_tape or line.first_s is not None
    state = "words" if not is_measured else "fails" if line.fails and known else "from tape" if line.is_tape else "live"
    return {
        "scene": f"{line.number}. {line.title}",
        "plays": state if known or not is_measured else "not rehearsed",
        "first run": rehearse.seconds(line.first_s) or None,
        "second run": rehearse.seconds(line.second_s) or None,
        "deadline": f"{line.deadline_s:g} s" if is_measured else None,
        "memory of free": line.memory or None,
    }


def _risks(lines: Sequence[rehearse.Line]) -> None:
    """Each risk once, with the scenes it stands for; those of scenes that fail are errors."""
    found: dict[tuple[str, bool], list[str]] = {}
    for line in lines:
        for risk in line.risks:
            found.setdefault((risk, line.fails), []).append(str(line.number))
    for (risk, fails), numbers in found.items():
        which = f"Scene{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
        (st.error if fails else st.warning)(
            plain.markdown(f"{which}: {risk}"), icon=":material/error:" if fails else ":material/warning:"
        )


def begin(name: str) -> None:
    """In a callback: the first scene of a talk, with a secret of its own."""
    st.query_params["talk"] = name
    st.query_params["scene"] = "1"
    st.query_params["key"] = secrets.token_urlsafe(12)
    for key in (AT, RUNS, START, LAST, FROZEN):
        st.session_state.pop(key, None)


def leave() -> None:
    for name in ("talk", "scene", "key"):
        st.query_params.pop(name, None)


# --- on stage


def perform(play: Play) -> None:
    """The scene at hand, its controls, and one watcher."""
    st.html(STYLE)
    count = len(play.talk.scenes)
    index = _index(count)
    scene = play.talk.scenes[index]
    here = jobs.device()
    refusal = "" if here is None else stage.refused(scene, here)
    frozen: Now | None = st.session_state.get(FROZEN)
    status = _bar(play, index, can_run=bool(scene.points) and not (refusal and play.tape.of(scene.points)))
    words, points, picture = st.container(), st.container(), st.container()
    answer = None if frozen else _run(play, index, here, refusal, status)
    now = frozen
    if now is None:
        with points:
            now = _now(play, index, answer, here, refusal)
    st.session_state[LAST] = now
    waiting = _waiting(scene, answer, refusal)
    said = draw(words, play.talk.title, scene, index, count, now, waiting, is_frozen=frozen is not None)
    with picture:
        if st.session_state.get("stage_notes"):
            st.html(f'<p class="stage-small"><strong>Notes.</strong> {plain.html(scene.say or "none")}</p>')
        if st.session_state.get("stage_audience"):
            _invite(code_of(st.query_params["key"]))
        else:
            chart(scene, now, said)
    show = Show(
        talk=play.talk.title, index=index, count=count, scene=scene, shown=now.shown, value=now.value, label=now.label,
        is_frozen=frozen is not None,
    )  # fmt: skip
    hall().publish(code_of(st.query_params["key"]), show)
    if not frozen and scene.points:
        _watch_for(scene, answer, here, status)


def _index(count: int) -> int:
    """The scene at hand, from the session, or from the address after a reload."""
    if "key" not in st.query_params:
        st.query_params["key"] = secrets.token_urlsafe(12)
    if AT not in st.session_state:
        text = st.query_params.get("scene", "1")
        st.session_state[AT] = int(text) - 1 if text.isdecimal() else 0
        if not text.isdecimal() or not 1 <= int(text) <= count:
            st.toast(plain.markdown(f"scene must be from 1 to {count}, got {text}"), icon=":material/link_off:")
    st.session_state[AT] = max(0, min(st.session_state[AT], count - 1))
    st.query_params["scene"] = str(st.session_state[AT] + 1)
    return st.session_state[AT]


def _move(step: int) -> None:
    st.session_state[AT] = st.session_state.get(AT, 0) + step
    st.session_state[FROZEN] = None


def _start() -> None:
    st.session_state[START] = True
    st.session_state[FROZEN] = None


def _freeze() -> None:
    st.session_state[FROZEN] = None if st.session_state.get(FROZEN) else st.session_state.get(LAST)


def _toggle(name: str) -> None:
    st.session_state[name] = not st.session_state.get(name, False)


def _bar(play: Play, index: int, *, can_run: bool) -> Any:
    """Every control with its key (a presenter's remote sends Page Up and Page Down); gives the progress's place."""
    scene, last = play.talk.scenes[index], len(play.talk.scenes) - 1
    frozen = bool(st.session_state.get(FROZEN))
    bar = st.container(key="stage_bar", gap="small")
    status = bar.container()
    with bar.container(horizontal=True, vertical_alignment="center", gap="small"):
        buttons: list[tuple[str, str, str, Any, tuple[Any, ...], bool]] = [
            ("Back", "arrow_back", "PageUp", _move, (-1,), index == 0),
            ("Next", "arrow_forward", "PageDown", _move, (1,), index == last),
            ("Run live", "play_arrow", "L", _start, (), not can_run),
            (
                "Go on" if frozen else "Freeze",
                "play_circle" if frozen else "ac_unit",
                "F",
                _freeze,
                (),
                not scene.points,
            ),
            ("Notes", "notes", "N", _toggle, ("stage_notes",), False),
            ("Audience", "qr_code_2", "Q", _toggle, ("stage_audience",), False),
        ]
        for name, icon, keys, action, arguments, is_off in buttons:
            key = "stage_freeze" if keys == "F" else f"stage_{name.split()[0].lower()}_button"
            st.button(
                name, icon=f":material/{icon}:", shortcut=keys, key=key, on_click=action, args=arguments,
                disabled=is_off, type="primary" if name == "Next" else "secondary",
            )  # fmt: skip
        st.space("stretch")
        st.button("Leave", icon=":material/logout:", key="stage_leave", type="tertiary", on_click=leave)
    return status


def _run(play: Play, index: int, here: Device | None, refusal: str, status: Any) -> Answer | None:
    """This presenter's own run of the scene: started on entry or by the key, first in the queue."""
    scene = play.talk.scenes[index]
    pressed = st.session_state.pop(START, False)
    if not scene.points or here is None or (refusal and play.tape.of(scene.points)):
        return None
    runs: dict[tuple[str, int], str] = st.session_state.setdefault(RUNS, {})
    found = jobs.find(runs[play.name, index]) if (play.name, index) in runs else None
    if found is not None and found.state in ("cancelled", "replaced"):
        found = None  # the presenter had moved on before it was done
    if found is None and not pressed and scene.run == "auto":
        found = _measured_before(play, scene, runs)
        if found is not None:
            runs[play.name, index] = found.key
    if not pressed and (found is not None or scene.run == "key"):
        return found
    answer = jobs.ask_many(
        calls(scene, here), slot="stage", again=True, priority=Priority.STAGE,
        limit_s=max(LEAST_LIMIT_S, 3 * scene.deadline_s), lost=sweeps.lost, label="a presentation", settle_s=SETTLE_S,
        status=status,
    )  # fmt: skip
    if answer.job is not None:
        runs[play.name, index] = answer.job.id
    return answer


def _measured_before(play: Play, scene: Scene, runs: dict[tuple[str, int], str]) -> Answer | None:
    """The same points as an earlier scene of this presenter measured them live, whole: another view needs no other run,
    and the label tells when it was."""
    for (talk, index), id in runs.items():
        if talk == play.name and play.talk.scenes[index].points == scene.points:
            found = jobs.find(id)
            if found is not None and found.state == "done":
                return found
    return None


def calls(scene: Scene, here: Device) -> list[Call]:
    """Compile what is not compiled yet, then a turn of the queue for each point."""
    first = [Call(sweep.compile_ahead, {"points": scene.points})] if len(scene.points) > 1 else []
    each = {"protocol": stage.protocol(here)}
    return [
        *first,
        *(
            Call(sweep.measure_point, {"problem": point.problem.to_json(), "backend": point.backend, **each})
            for point in scene.points
        ),
    ]


def _deadline(scene: Scene, answer: Answer | None) -> float | None:
    return None if answer is None or answer.job is None else answer.job.created + scene.deadline_s


def _trouble(answer: Answer | None) -> str:
    """What went wrong with one of the run's points; the others go on, on a worker that starts again."""
    return (answer.job.error or "") if answer is not None and answer.job is not None else ""


def _now(play: Play, index: int, answer: Answer | None, here: Device | None, refusal: str) -> Now:
    """What is to be seen, and at which of the measured values."""
    scene = play.talk.scenes[index]
    deadline = _deadline(scene, answer)
    shown = stage.choose(
        scene,
        () if answer is None else [each for each in answer.results if isinstance(each, Record)],
        play.tape,
        is_over=answer is not None and answer.is_over,
        is_late=deadline is not None and time.time() >= deadline,
        refusal=STARTING if here is None else refusal,
        trouble=_trouble(answer),
    )
    label = label_of(scene, shown, here)
    return Now(index=index, shown=shown, value=_points(scene, shown, f"stage_value_{play.name}_{index}"), label=label)


def _gpu(here: Device | None) -> str | None:
    return here.name if here is not None and here.is_gpu else None


def label_of(scene: Scene, shown: Shown, here: Device | None) -> str:
    """Never without one: recorded when and where, or live, and how much of it is there."""
    if shown.source == "tape":
        return tape.label(shown.records, _gpu(here))
    measured = [each for each in shown.records if each.environment]  # not one that says only that its worker died
    if shown.source == "nothing" or not measured:
        return ""
    last = measured[-1]
    part = "" if len(shown.records) >= len(scene.points) else f", {len(shown.records)} of {len(scene.points)} measured"
    return f"live on {last.environment.get('gpu') or last.where}, {tape.clock_time(last)}{part}"


def _points(scene: Scene, shown: Shown, key: str) -> int | None:
    """The measured values, and one of them chosen, by mouse or arrow keys.

    No range slider: once it had the focus, it would take a remote's Page Up and Page Down for itself.
    """
    options = stage.values(scene, shown)
    if not options:
        return None
    wanted = st.session_state.get(f"{key}_wanted")
    value = st.session_state[key] = wanted if wanted in options else options[-1]
    if len(options) == 1:
        return value
    place, words = options.index(value), charts_time.WORDS[scene.axis]
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="stage_points"):
        st.html(f'<p class="stage-small">{plain.html(words)}</p>', width="content")
        st.button(
            "Less", icon=":material/chevron_left:", shortcut="Left", key="stage_less", disabled=place == 0,
            on_click=_to, args=(key, options[max(place - 1, 0)]),
        )  # fmt: skip
        st.segmented_control(
            words, options, key=key, required=True, on_change=_chosen_point, args=(key,), label_visibility="collapsed",
            format_func=curves.length,
        )  # fmt: skip
        st.button(
            "More", icon=":material/chevron_right:", shortcut="Right", key="stage_more",
            disabled=place == len(options) - 1, on_click=_to, args=(key, options[min(place + 1, len(options) - 1)]),
        )  # fmt: skip
    return value


def _chosen_point(key: str) -> None:
    _to(key, st.session_state[key])


def _to(key: str, value: int) -> None:
    """Kept apart from the widget: another scene drops the widget's own value."""
    st.session_state[f"{key}_wanted"] = value


def _waiting(scene: Scene, answer: Answer | None, refusal: str) -> str:
    """What is said in the sentence's place while there is none."""
    if not scene.points:
        return ""
    if answer is None and not refusal:
        return "Press L to run it live."
    return (
        "Measuring, live." if answer is not None and answer.is_pending else "There is nothing to show for this scene."
    )


def _watch_for(scene: Scene, answer: Answer | None, here: Device | None, status: Any) -> None:
    is_pending = answer is not None and answer.is_pending
    if not is_pending and here is not None:
        return
    deadline = _deadline(scene, answer)
    late_at = deadline if deadline is not None and time.time() < deadline else None
    with status:
        if answer is None:
            _watch(None)
        else:
            _watch(answer.job, len(answer.results), late_at, _trouble(answer))


@st.fragment(run_every=WATCH_S)
def _watch(job: Any, count: int = 0, late_at: float | None = None, trouble: str = "") -> None:
    """Runs the page again when there is something else to be seen."""
    if job is None:
        if jobs.device() is not None:
            st.rerun(scope="app")
        return
    jobs.desk().looks(jobs.visitor())
    is_late = late_at is not None and time.time() >= late_at
    if job.is_over or is_late or len(job.results) > count or (job.error or "") != trouble:
        st.rerun(scope="app")
    st.progress(*jobs.progress(job))


# --- the picture; for the presenter and for the audience


def draw(
    into: Any, talk: str, scene: Scene, index: int, count: int, now: Now, waiting: str = "", *, is_frozen: bool = False
) -> Headline:
    """Place, title, and the sentence with where it comes from and what stands behind it."""
    parts = [
        f'<p class="stage-place">{index + 1} / {count} · {plain.html(talk)}</p>',
        f'<h1 class="stage-title">{plain.html(scene.title)}</h1>',
    ]
    if scene.text:
        parts.append(f'<p class="stage-words">{plain.html(scene.text)}</p>')
    records = now.shown.at(scene.at(now.value))
    said = stage.say(scene, now.shown, now.value) if records else Headline(text=waiting)
    into.html("".join(parts))
    if scene.points:
        text = UNIT.sub("\u00a0", plain.html(said.text))
        into.html(
            f'<p class="stage-sentence" role="status">{text}</p>{_source(now, is_frozen=is_frozen)}{_small(said, now)}'
        )
    return said


def _source(now: Now, *, is_frozen: bool) -> str:
    if not now.label:
        return ""
    kind = "tape" if now.shown.source == "tape" else "live"
    frozen = ' <span class="stage-tag stage-frozen">❄ frozen</span>' if is_frozen else ""
    return f'<p class="stage-small"><span class="stage-tag stage-{kind}">{plain.html(now.label)}</span>{frozen}</p>'


def _small(said: Headline, now: Now) -> str:
    parts = [said.evidence, said.note, now.shown.why]
    return "".join(f'<p class="stage-small">{plain.html(part)}</p>' for part in parts if part)


def chart(scene: Scene, now: Now, said: Headline) -> None:
    """Bars, or curves along the axis, in large type."""
    if now.shown.records:
        with st.container(key="stage_chart"):
            _chart(scene, now.shown.records, said)


def _chart(scene: Scene, records: Sequence[Record], said: Headline) -> None:
    rows = record.rows(records)
    clock: charts.Clock = "device_ms" if said.clock == "device_ms" else "wall_ms"
    try:
        if scene.page == "live":
            timed = [row for row in rows if row[clock] is not None]
            if timed:
                panels.chart(
                    _large(charts_time.bars(curves.labelled(timed), clock)),
                    say=charts_time.say_bars(curves.labelled(timed), clock),
                )
            return
        lined = curves.labelled(rows, scene.axis)
        if scene.page == "memory":
            drawing, words = charts_time.memory_curve(lined, scene.axis), "working memory by the compiler's analysis"
            say = charts_time.say_values(lined, scene.axis, "temp_bytes", words)
        else:
            drawing, say = charts_time.times(lined, scene.axis, clock), charts_time.say_times(lined, scene.axis, clock)
        panels.chart(_large(drawing), say=say)
    except ValueError as error:  # records of two timing modes have no common chart
        st.warning(plain.markdown(error))


def _large(drawing: Any) -> alt.TopLevelMixin:
    """For the last row: large, in the text's own colour, and as high as the smallest stage allows."""
    colours = {"labelColor": "currentColor", "titleColor": "currentColor"}
    return (
        drawing.properties(height=HEIGHT)
        .configure_axis(labelFontSize=TEXT, titleFontSize=TEXT - 3, labelLimit=400, **colours)
        .configure_axisQuantitative(tickCount=7)
        .configure_legend(labelFontSize=TEXT, symbolSize=160, **colours)
        .configure_text(fontSize=TEXT)
    )


# --- the audience


def _invite(code: str) -> None:
    address = f"{(st.context.url or '').split('?')[0]}?watch={code}"
    import segno

    with st.container(key="stage_invite", horizontal=True, vertical_alignment="center"):
        picture = segno.make(address, error="m").svg_inline(scale=8, border=2, light="#FFFFFF", dark="#000000")
        st.image(picture, width=300, alt=f"QR code of {address}")
        st.html(f'<p class="stage-address">{plain.html(address)}</p>')
    if any(f"//{name}" in address for name in ("localhost", "127.", "[::1]", "0.0.0.0")):
        st.caption(
            "This address works on this machine only: open the app by its network address for a link for others."
        )
