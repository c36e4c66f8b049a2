"""Masks: what the Masks page is made of: the mask's controls, three pictures, verdicts, traps, every pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import streamlit as st

from explorer import charts, charts_masks, recordings, recover
from explorer.problem import Problem
from explorer.recover import CASES, TRAPS, Recovered
from explorer.ui import controls, jobs, panels
from explorer.ui.jobs import Answer

RECORDING = "masks"
BADGES = {  # verdict: (colour, icon)
    "as meant": ("green", "check_circle"),
    "leaks": ("red", "visibility"),
    "misses": ("red", "visibility_off"),
    "leaks and misses": ("red", "error"),
    "wrong weights": ("red", "error"),
    "undefined": ("orange", "help"),
    "refused": ("gray", "block"),
    "failed": ("red", "dangerous"),
}
WINDOW, LEFT, RIGHT, PADDING, VALID = "masks_window", "masks_left", "masks_right", "masks_padding", "masks_valid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A mask to start from: one click sets the sidebar's causal switch and lengths and the page's own controls."""

    label: str
    causal: bool = False
    lengths: tuple[int, int] = (48, 48)
    window: tuple[int, int] | None = None
    valid: int | None = None


EXAMPLES = (
    Example(label="Full"),
    Example(label="Causal", causal=True),
    Example(label="Causal window", causal=True, window=(12, 0)),
    Example(label="Window", window=(8, 8)),
    Example(label="Padding", valid=30),
    Example(label="Causal, T ≠ S", causal=True, lengths=(24, 48)),
)


def _set(example: Example) -> None:
    state = st.session_state
    state["causal"] = example.causal
    state["q_len"], state["kv_len"] = example.lengths
    state["kv_follows"] = example.lengths[0] == example.lengths[1]
    state[WINDOW], state[PADDING] = example.window is not None, example.valid is not None
    if example.window is not None:
        state[LEFT], state[RIGHT] = example.window
    if example.valid is not None:
        state[VALID] = example.valid


def examples() -> None:
    with st.container(horizontal=True, gap="small"):
        for example in EXAMPLES:
            st.button(example.label, key=f"masks_example_{example.label}", on_click=_set, args=(example,))


def view(problem: Problem) -> Problem:
    """The problem under the page's mask: one batch entry, one key/value head and the query heads that read it."""
    q_len, kv_len = min(problem.q_len, recover.LONGEST), min(problem.kv_len, recover.LONGEST)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        windowed = st.toggle("Window", key=WINDOW, bind="query-params", help="Query i sees keys i − left … i + right.")
        left = _keys("Keys to the left", LEFT, kv_len, min(12, kv_len), disabled=not windowed)
        right = _keys("Keys to the right", RIGHT, kv_len, 0, disabled=not windowed)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        padded = st.toggle("Padding", key=PADDING, bind="query-params", help="Only the first keys are real.")
        valid = _keys("Real keys", VALID, kv_len, kv_len, disabled=not padded)
    return problem.but(
        batch=1, heads=problem.heads // problem.kv_heads, kv_heads=1, q_len=q_len, kv_len=kv_len, backward=False,
        window=(left, right) if windowed else None, kv_valid=valid if padded else None, inputs="normal",
        input_scale=recover.GENTLE,
    )  # fmt: skip


def _keys(label: str, key: str, most: int, default: int, *, disabled: bool) -> int:
    controls.held(key, 0, most, default)
    # The widget's own default is what the address leaves out: it must be what held takes for nothing.
    return st.slider(label, 0, most, default, key=key, bind="query-params", disabled=disabled, width=230)


def mask_line(p: Problem, whole: Problem) -> str:
    """What is masked, in words."""
    said = f"**{p.mask.name}** mask, T={p.q_len}, S={p.kv_len}"
    if p.causal and p.q_len != p.kv_len:
        said += ", counted from the top left: query i sees keys 0 … i, whatever the lengths"
    if p.q_len < whole.q_len or p.kv_len < whole.kv_len:
        said += f" (the first {recover.LONGEST} of T={whole.q_len}, S={whole.kv_len})"
    live = p.mask.live_pairs(p.q_len, p.kv_len)
    return f"{said}. {live:,} of {p.q_len * p.kv_len:,} pairs are seen, {live / (p.q_len * p.kv_len):.0%}."


def ask(p: Problem, names: Sequence[str], status: Any) -> Answer:
    """The weights of each backend, recovered here and now."""
    question = {"problem": p, "names": list(names)}
    return jobs.ask(recover.each, question, slot="masks", status=status, label="mask as executed")


def badge(verdict: str) -> str:
    colour, icon = BADGES[verdict]
    return f":{colour}-badge[:material/{icon}: {verdict}]"


def verdicts(found: Sequence[Recovered], names: Sequence[str]) -> None:
    """One line a backend: its verdict and the sentence behind it."""
    by_name = {r.backend: r for r in found}
    with st.container(gap="medium"):
        for name in names:
            with st.container(horizontal=True, vertical_alignment="center", gap="xsmall", key=f"mask-verdict-{name}"):
                st.html(panels.tag(name), width=190)
                if name not in by_name:
                    st.markdown(":gray-badge[:material/hourglass_empty: waiting]")
                    continue
                st.markdown(badge(by_name[name].verdict), width="content")
                st.caption(_evidence(by_name[name]), width="stretch")


def _evidence(r: Recovered) -> str:
    """Short where all is well, the sentence where not."""
    said = "" if r.is_as_meant and not r.no_key else f"{r.sentence}. "
    if r.error is None or r.budget is None or r.verdict == "undefined":
        return said
    calls = f"{r.calls} {'call' if r.calls == 1 else 'calls'}"
    return f"{said}Weights off by {r.error:.1e} of a row's largest, {r.budget:.1e} allowed; {calls}."


def chosen(found: Sequence[Recovered]) -> Recovered | None:
    """Which backend's weights are drawn; a wrong one first."""
    ran = {r.backend: r for r in found if r.weights is not None}
    if not ran:
        return None
    names = list(ran)
    worst = next((r.backend for r in ran.values() if r.is_wrong), names[0])
    if st.session_state.get("masks_shown") not in names:
        st.session_state["masks_shown"] = worst
    name = st.segmented_control("As executed by", names, key="masks_shown", required=True, format_func=charts.label)
    return ran[name or worst]


def pictures(p: Problem, shown: Recovered | None) -> None:
    """As intended, as executed, and where they differ."""
    meant = charts_masks.intended(p.mask.dense(p.q_len, p.kv_len))
    with st.grid(3, min_column_width=230, gap="small"):
        drawing = charts_masks.cells(meant, title="As intended")
        panels.chart(drawing, say=charts_masks.say_cells(meant, "The mask as intended"), key="masks_intended")
        if shown is None or shown.weights is None or shown.cells is None:
            st.skeleton(height=charts_masks.HEIGHT + 110)
            st.skeleton(height=charts_masks.HEIGHT + 110)
            return
        label = charts.label(shown.backend)
        words = {"rows": "queries", "columns": "keys"}
        panels.chart(
            charts_masks.weights(shown.weights.astype(np.float32), title=f"As executed by {label}"),
            say=charts.say_heatmap(shown.weights, what=f"Weights recovered from {label}", **words),
            key="masks_executed",
        )
        panels.chart(
            charts_masks.difference(shown.cells),
            say=charts_masks.say_cells(shown.cells, f"{label} against the mask"),
            key="masks_difference",
        )


def curve(p: Problem, shown: Recovered | None, status: Any) -> Answer | None:
    """The lab's row 6: how much the causal mask changes at each position."""
    if shown is None:
        return None
    plain = p.but(causal=True, window=None, kv_valid=None, input_scale=1.0)
    question = {"problem": plain, "name": shown.backend}
    answer = jobs.ask(
        recover.causal_difference, question, slot="masks-curve", status=status, label="causal against full"
    )
    if not answer.results:
        st.caption(answer.error or "On its way.")
    elif isinstance(answer.results[0], str):
        st.caption(answer.results[0])
    else:
        off = answer.results[0]
        sees = f"alone, it sees itself instead of all {p.kv_len} keys" if p.kv_len > 1 else "both see the one key"
        said = f"Position 0 changes by {off[0]:.2g}: {sees}. The last changes by {off[-1]:.1g}" + (
            ": both see every key." if p.q_len >= p.kv_len else "."
        )
        panels.chart(charts_masks.per_position(off), say=said, key="masks_curve")
        st.caption(f"{charts.label(shown.backend)}, N(0, 1). {said}")
    return answer


# --- traps and every pair, here or as recorded


@st.cache_resource(show_spinner=False, max_entries=4)  # not cache_data, which copies all of it at each call
def recorded() -> tuple[str, list[Recovered]]:
    """The label of the shipped recording and its verdicts; both empty where none ships."""
    if RECORDING not in recordings.names():
        return "", []
    shipped = recordings.load(RECORDING)
    return shipped.label, [found for record in shipped.records if (found := recover.of_record(record)) is not None]


def traps(status: Any) -> list[Answer]:
    """The known traps, each as every backend executes it here; where one can't run here, as recorded."""
    label, kept = recorded()
    asked = []
    for name, trap in TRAPS.items():
        answer = jobs.ask(
            recover.trap, {"name": name}, slot=f"masks-trap-{name}", status=status, settle_s=0, label=f"trap {name}"
        )
        asked.append(answer)
        with st.container(border=True):
            st.markdown(f"**{trap.title}**  \n{trap.lesson}")
            here = {r.backend: r for r in answer.results}
            then = {r.backend: r for r in kept if r.problem == trap.problem}
            with st.grid(len(trap.backends), min_column_width=200, gap="small"):
                for backend in trap.backends:
                    with st.container(gap="xsmall"):
                        _trap_picture(backend, here.get(backend), then.get(backend), label, key=f"{name}-{backend}")
    return asked


def _trap_picture(backend: str, here: Recovered | None, then: Recovered | None, label: str, *, key: str) -> None:
    use_recorded = then is not None and then.cells is not None and (here is None or here.cells is None)
    found = then if use_recorded else here
    if found is None:
        st.skeleton(height=200)
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.html(panels.tag(backend), width="content")
        st.markdown(badge(found.verdict), width="content")
    if found.cells is not None:
        drawing = charts_masks.cells(found.cells, title="", height=150)
        panels.chart(drawing, say=charts_masks.say_cells(found.cells, charts.label(backend)), key=f"trap-{key}")
    st.caption(f"{found.sentence}{f' ({label})' if use_recorded else ''}")


def every_pair(names: Sequence[str], answer: Answer) -> None:
    """The grid of verdicts: here, or as recorded."""
    label, kept = recorded()
    problems = {case.problem() for case in CASES.values()}
    kept = [r for r in kept if r.problem in problems]
    sources = {"here": list(answer.results), label: kept}
    offered = [source for source, found in sources.items() if found]
    if not offered:
        st.caption("Not checked yet.")
        return
    source = offered[0]
    if len(offered) > 1:
        source = st.segmented_control("Where", offered, default=offered[0], required=True, key="masks_where")
    if source == label:
        st.caption(f":material/history: Not measured here: {label}.")
    found = sources[source]
    wrong = [r for r in found if r.is_wrong]
    said = f"{len(found)} verdicts of {len({r.backend for r in found})} backends, {len(wrong)} wrong"
    panels.chart(charts_masks.verdict_grid(found), say=said, key="masks_grid")
    st.caption(f"{said}. Point at a cell to read its sentence. ∅: no query sees a key.")
    for r in wrong:
        st.markdown(f"- **{charts.label(r.backend)}**, {r.problem.mask.name} mask: {r.sentence}")
