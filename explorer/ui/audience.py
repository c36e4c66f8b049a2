"""Audience: what is on stage, on somebody's phone: read-only, and with a slider of its own over measured points."""

from __future__ import annotations

import streamlit as st

from explorer import charts_time, plain, stage
from explorer.ui.hall import Show, hall
from explorer.ui.stage import STYLE, Now, chart, draw

FOLLOW_S = 2.0
TOUCHED = "watch_touched"


def watched() -> str | None:
    """The code of a link for the audience."""
    return st.query_params.get("watch")


def watch(code: str) -> None:
    """The scene as the presenter has it. Nothing here asks the worker for anything."""
    st.html(STYLE)
    show = hall().shows.get(code.strip().upper())
    if show is None:
        st.info(f"No talk is on stage under the code {plain.markdown(code)}. It appears here once it begins.")
    else:
        words = st.container()
        value = _slider(show, code)
        now = Now(index=show.index, shown=show.shown, value=value, label=show.label)
        place = (words, show.talk, show.scene, show.index, show.count)
        said = draw(*place, now, "It is being measured.", is_frozen=show.is_frozen)
        chart(show.scene, now, said)
        frozen = "The presenter has frozen this picture. " if show.is_frozen else ""
        moves = "The slider is yours: it moves among measured points, and runs nothing." if value is not None else ""
        st.caption(f"{frozen}This page follows the stage. {moves}")
    _follow(code, show)


def _slider(show: Show, code: str) -> int | None:
    """Follows the presenter's until it is touched."""
    options = stage.values(show.scene, show.shown)
    if not options:
        return None
    key = f"watch_value_{code}_{show.index}"
    touched: dict[str, int] = st.session_state.setdefault(TOUCHED, {})
    wanted = touched.get(key, show.value)
    st.session_state[key] = wanted if wanted in options else options[-1]
    if len(options) == 1:
        return options[0]
    return st.select_slider(charts_time.WORDS[show.scene.axis], options, key=key, on_change=_slid, args=(key,))


def _slid(key: str) -> None:
    st.session_state[TOUCHED][key] = st.session_state[key]


@st.fragment(run_every=FOLLOW_S)
def _follow(code: str, seen: Show | None) -> None:
    if hall().shows.get(code.strip().upper()) is not seen:
        st.rerun(scope="app")
