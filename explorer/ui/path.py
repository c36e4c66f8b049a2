"""Path: what the start page is made of: the question at hand, its prediction and its score; the table of contents."""

from __future__ import annotations

from typing import Any

import streamlit as st

from explorer import charts_steps, path
from explorer.path import QUESTIONS, Done, Question, Score
from explorer.ui import controls, jobs, panels, progress, shell
from explorer.ui.jobs import Answer

FORMULA = r"\mathrm{attention}(q, k, v) = \mathrm{softmax}\!\left(\frac{q\,k^{\top}}{\sqrt{H}}\right) v"
AT, JOBS = "path_at", "path_jobs"
MARKS = {True: ":green[:material/check_circle:]", False: ":red[:material/cancel:]", None: ":orange[:material/help:]"}


def heading() -> None:
    """How far the visitor is, and how many predictions held."""
    for sentence in progress.losses():
        st.warning(sentence, icon=":material/link_off:")
    done = progress.done()
    right = sum(each.is_right is True for each in done)
    text = f"{len(done)} of {len(QUESTIONS)} predicted and measured"
    st.progress(len(done) / len(QUESTIONS), f"{text}, {right} right" if done else text)


def at_hand() -> Question:
    """The question that is open: the one chosen, else the first that is not done."""
    chosen = st.session_state.get(AT)
    if chosen not in path.BY_NAME:
        chosen = (path.first_open(progress.done()) or QUESTIONS[0]).name
        st.session_state[AT] = chosen
    return path.BY_NAME[chosen]


def _go(name: str) -> None:
    st.session_state[AT] = name


def _predict(question: Question) -> None:
    """The prediction is fixed when the measurement starts."""
    st.session_state[f"path_start_{question.name}"] = st.session_state[f"path_choice_{question.name}"]


def card(question: Question, status: Any) -> Answer | None:
    """Look, predict, measure, understand."""
    place = QUESTIONS.index(question)
    with st.container(border=True, key="path_card"):
        with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
            st.markdown(f"##### {place + 1}. {question.title}", width="content")
            st.markdown(f":gray-badge[lab, step {question.row}]", width="content")
        choice = st.radio(
            f"**{question.ask}**", list(question.choices), index=None, key=f"path_choice_{question.name}",
            format_func=question.choices.__getitem__,
        )  # fmt: skip
        buttons = st.container(horizontal=True, vertical_alignment="center")
        answer = _measure(question, status)
        with buttons:
            _buttons(question, choice, answer)
        result = st.container()
        if answer is not None and answer.is_over:
            with result:
                _result(question, answer)
        elif (before := progress.of(question.name)) is not None and answer is None:
            said = {True: "right", False: "not right", None: "not decided"}[before.is_right]
            st.caption(
                f"You predicted “{question.choices[before.choice]}”: {said}, as measured then. Measure it again?"
            )
        _look(question)
    return answer


def _buttons(question: Question, choice: str | None, answer: Answer | None) -> None:
    pending = answer is not None and answer.is_pending
    over = answer is not None and answer.is_over
    st.button(
        "Measure again" if over else "Measure", icon=":material/play_arrow:", type="secondary" if over else "primary",
        key="path_measure", disabled=choice is None or pending, on_click=_predict, args=(question,),
        shortcut="Ctrl+Enter",
    )  # fmt: skip
    following = path.after(question)
    if following is not None:
        st.button(
            "Next question", icon=":material/arrow_forward:", type="primary" if over else "secondary", key="path_next",
            on_click=_go, args=(following.name,), shortcut="N",
        )  # fmt: skip
    if choice is None:
        st.caption("Predict first: choose an answer.")
    elif not over and not pending:
        st.caption(f"About {question.seconds_on_cpu} s on a CPU, less on a GPU.")


def _measure(question: Question, status: Any) -> Answer | None:
    """This visitor's own measurement of the question: started by the button, never another's or an older one's."""
    mine: dict[str, str] = st.session_state.setdefault(JOBS, {})
    start = f"path_start_{question.name}"
    choice = st.session_state.pop(start, None)
    if choice is not None:
        answer = jobs.ask(
            question.experiment, question.kwargs, slot="path", again=True, limit_s=180, status=status,
            label=question.title,
        )  # fmt: skip
        if answer.job is not None:
            mine[question.name] = answer.job.id
            st.session_state[f"path_fixed_{question.name}"] = choice
        return answer
    return jobs.find(mine[question.name]) if question.name in mine else None


def _result(question: Question, answer: Answer) -> None:
    if answer.error or not answer.results:
        st.error(answer.error or "The measurement gave nothing.", icon=":material/dangerous:")
        return
    choice = st.session_state[f"path_fixed_{question.name}"]
    found = path.score(question, choice, answer.results)
    progress.add(Done(name=question.name, choice=choice, is_right=found.is_right))
    _verdict(question, choice, found)


def _verdict(question: Question, choice: str, found: Score) -> None:
    predicted = f"You predicted “{question.choices[choice]}”."
    right = " or ".join(f"“{label}”" for label in found.right_labels)
    if found.is_right is None:
        st.warning(
            f"{predicted} This machine can't tell. {found.answer.says}", title="Not decided", icon=":material/help:"
        )
    elif found.is_right:
        st.success(f"{predicted} {found.answer.says}", title="Right", icon=":material/check_circle:")
    else:
        st.error(f"{predicted} Measured: {right}. {found.answer.says}", title="Not this time", icon=":material/cancel:")
    if found.answer.bars:
        said = ", ".join(f"{name} {text}" for name, _, text in found.answer.bars)
        panels.chart(charts_steps.bars(found.answer.bars), say=f"As measured: {said}", key="path_bars")


def _look(question: Question) -> None:
    """The page of the row, with the lab's values set."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        _page_button(question, "Look at it", key="path_look")
        st.caption(question.look)


def _page_button(question: Question, label: str, *, key: str) -> None:
    """Goes to the row's page with its values set.

    Not a link: within a session, what the widgets hold wins over what a link asks for.
    """
    if not shell.exists(question.page):
        return
    if st.button(label, icon=":material/arrow_outward:", type="tertiary", key=key, on_click=set_up, args=(question,)):
        st.switch_page(shell.page(question.page))


def set_up(question: Question) -> None:
    """In a callback: the shape and the backends of the sidebar, and the page's own controls."""
    controls.set_to(question.problem, question.backends)
    for name, value in question.state.items():
        st.session_state[name] = value


def contents() -> None:
    """The lab's table of contents: every question with its state and what to look for; click to go there."""
    for place, question in enumerate(QUESTIONS):
        before = progress.of(question.name)
        mark = MARKS[before.is_right] if before else ":gray[:material/radio_button_unchecked:]"
        name, look, page = st.columns([5, 8, 2], vertical_alignment="center")
        name.button(
            f"{mark} {place + 1}. {question.title}", key=f"path_go_{question.name}", type="tertiary",
            on_click=_go, args=(question.name,),
        )  # fmt: skip
        look.caption(question.look)
        with page:
            _page_button(question, "Page", key=f"path_page_{question.name}")
    st.caption("Step 14 of the lab, the deployment, is in deploy/README.md: the same way for this app.")
