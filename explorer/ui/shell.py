"""Shell: the frame around every page: the menu, the sidebar, and the guard for a deep link that comes first."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st
from streamlit.delta_generator_singletons import context_dg_stack, get_default_dg_stack_value
from streamlit.runtime.scriptrunner import StopException

from explorer import plain, scenes
from explorer.ui import controls, jobs, keys, link, progress

if TYPE_CHECKING:
    from streamlit.navigation.page import Page as StreamlitPage

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Entry:
    """A page in the menu. It is shown once pages/<file> exists."""

    file: str
    title: str
    icon: str
    about: str

    @property
    def path(self) -> Path:
        return ROOT / "pages" / self.file


MENU = {
    "": (
        Entry("start.py", "Start", "signpost", "The lab as a path: look, predict, run, understand."),
        Entry("live.py", "Live run", "play_circle", "Move a slider, see each backend run."),
        Entry("machine.py", "This machine", "dns", "GPU, versions, and what is ready."),
    ),
    "Understand": (
        Entry("steps.py", "Steps", "stairs", "Attention taken apart, array by array."),
        Entry("masks.py", "Masks", "grid_on", "Which query sees which key, as meant and as run."),
        Entry("heads.py", "Heads", "account_tree", "MHA, GQA, MQA and the KV cache."),
    ),
    "Measure": (
        Entry("latency.py", "Latency", "timer", "Time against length and batch, on two clocks."),
        Entry("roofline.py", "Roofline", "show_chart", "Measured points under measured ceilings."),
        Entry("memory.py", "Memory", "memory", "O(T²) against O(T): formula, compiler, peak."),
    ),
    "Limits": (
        Entry("head_dim.py", "HEAD_DIM", "straighten", "What each backend accepts, and why."),
        Entry("transformer_engine.py", "TransformerEngine", "bolt", "The lab's step 12, and what really ran."),
        Entry("fp8.py", "FP8", "compress", "Real FP8 attention, and what only looks like it."),
    ),
    "Share": (
        Entry("stage.py", "Stage", "co_present", "Present a talk, scene by scene."),
        Entry("compare.py", "Compare", "compare_arrows", "Two recordings, point by point."),
        Entry("then.py", "Then and now", "history", "A result from a link beside a fresh run here."),
    ),
}

LINK = "link_of_visit"  # what it asks of pages not drawn yet; what could not be had: name -> (page, sentence)
SIDEBAR_PIXELS = 330  # the three dtypes fit side by side

_running = threading.local()


def run() -> None:
    """One run of the app: frame, controls, page."""
    # A fragment's run leaves its place behind in its thread (1.67); when a key or a slider comes meanwhile, the same
    # thread goes on with the whole app, and would draw all of it in there.
    context_dg_stack.set(get_default_dg_stack_value())
    page = _frame()
    with st.sidebar:
        st.markdown("#### Attention Explorer")
        controls.draw()
        _link_button(page)
        keys.draw()
    progress.keep()
    asked = _asked()
    place = st.empty()
    _complain(place, controls.notices())  # before the page, which may stop the run: after that nothing is drawn
    began = time.monotonic()
    _running.inside = True
    try:
        page.run()
    except StopException:  # a page that ends early is drawn whole too; one that begins anew is not
        jobs.desk().drawn(jobs.visitor(), began)
        raise
    finally:
        _running.inside = False
        _refused(page, asked, place)
    jobs.desk().drawn(jobs.visitor(), began)


def _asked() -> dict[str, list[str]]:
    """What the link of this visit asks for and no page has been drawn with yet."""
    if LINK not in st.session_state:
        st.session_state[LINK] = {n: st.query_params.get_all(n) for n in st.query_params if n not in link.NAMES}, {}
    pending, _ = st.session_state[LINK]
    return {name: values for name, values in pending.items() if st.query_params.get_all(name) == values}


def _refused(page: StreamlitPage, asked: dict[str, list[str]], place: Any) -> None:
    """Names what the link asks for and doesn't exist here. Of a page's own widgets Streamlit drops it without a word;
    of the sidebar's it is known before (explorer/ui/link.py)."""
    pending, refused = st.session_state[LINK]
    for name, values in asked.items():
        if name in st.session_state:
            del pending[name]
            shown = st.session_state[name]
            if st.query_params.get_all(name) == values:  # taken as it is, which may be a label; else Streamlit drops it
                continue
            if len(values) == 1 and not isinstance(shown, list | tuple) and not _same(values[0], shown):
                refused[name] = page.url_path, f"{name} can't be {values[0]} here; it is {shown} instead."
    if said := [sentence for path, sentence in refused.values() if path == page.url_path]:
        _complain(place, [*controls.notices(), *said])


def _complain(place: Any, sentences: Sequence[str]) -> None:
    if sentences:
        lines = [*(f"- {plain.markdown(each)}" for each in sentences), "", "What the controls show counts instead."]
        place.warning(
            "\n".join(lines), title="Something that was asked for doesn't exist here", icon=":material/link_off:"
        )


def _same(text: str, value: Any) -> bool:
    try:
        return float(text) == float(value)
    except (TypeError, ValueError):
        return text.lower() == str(value).lower()


def guard() -> None:
    """The first line of every page.

    On a fresh server whose first visitor opens a deep link, Streamlit runs that page alone, in its old mode
    (streamlit#9624, #9992): then this declares the pages and starts the run again, inside the shell.

    The mark is of this thread, not of the session: a session's state outlives the run.
    """
    if not getattr(_running, "inside", False):
        _frame()
        st.rerun()


def page(file: str) -> str:
    """The path that st.switch_page and st.page_link take, for pages/<file>."""
    return str(ROOT / "pages" / file)


def exists(file: str) -> bool:
    """Whether pages/<file> is there, and so in the menu."""
    return (ROOT / "pages" / file).exists()


def _frame() -> StreamlitPage:
    """Page icon and menu. Without an icon set before, the browser fetches the menu entry's from a font host."""
    st.set_page_config(page_icon=str(ROOT / "static" / "mark.png"), layout="wide", initial_sidebar_state=SIDEBAR_PIXELS)
    return st.navigation(_pages(), position="top")


def _pages() -> dict[str, list]:
    return {
        section: [
            st.Page(entry.path, title=entry.title, icon=f":material/{entry.icon}:", help=entry.about)
            for entry in entries
            if entry.path.exists()
        ]
        for section, entries in MENU.items()
        if any(entry.path.exists() for entry in entries)
    }


def _link_button(page: StreamlitPage) -> None:
    """The settings as a link, and as a scene of a talk."""
    with st.popover("Copy link", icon=":material/link:", width="stretch"):
        st.caption("Opens this page with these settings in another browser. The button at its right end copies it.")
        st.code(controls.share_link(), language=None, wrap_lines=True)
        problem, names = controls.peek()
        if names:
            scene = scenes.snippet(problem, names, page=page.url_path, title=page.title)
            st.caption("The same as a scene, to be added to a talk's file for the Stage page.")
            st.download_button(
                "Scene (TOML)", scene, file_name="scene.toml", mime="application/toml", icon=":material/co_present:",
                key="save_scene", on_click="ignore",
            )  # fmt: skip
