"""Progress: what of the path is done, in the session and in the address of every page."""

from __future__ import annotations

import streamlit as st

from explorer import path
from explorer.path import Done

PARAMETER = "path"
STATE, LOSSES = "path_done", "path_losses"


def keep() -> None:
    """Once a run, by the shell: takes the progress over from a link, and writes it into the address of each page."""
    if STATE not in st.session_state:
        done, losses = path.read_progress(st.query_params.get(PARAMETER, ""))
        st.session_state[STATE] = {each.name: each for each in done}
        st.session_state[LOSSES] = losses
    _write()


def _write() -> None:
    text = path.write_progress(done())
    if text:
        st.query_params[PARAMETER] = text
    elif PARAMETER in st.query_params:
        del st.query_params[PARAMETER]


def done() -> list[Done]:
    return list(st.session_state.get(STATE, {}).values())


def of(name: str) -> Done | None:
    return st.session_state.get(STATE, {}).get(name)


def add(found: Done) -> None:
    """The newest try counts."""
    st.session_state.setdefault(STATE, {})[found.name] = found
    _write()


def clear() -> None:
    st.session_state[STATE] = {}
    _write()


def losses() -> list[str]:
    """A sentence for each part of the link's progress that meant nothing here."""
    return st.session_state.get(LOSSES, [])
