"""Steps: what the Steps page is made of: its controls, the four arrays, one query's way, the online softmax."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import streamlit as st

from explorer import charts, charts_steps, heads, steps
from explorer.problem import Problem
from explorer.steps import Block, Steps
from explorer.ui import controls, panels

FORMULA = r"\mathrm{softmax}\!\left(\frac{q\,k^{\top}}{\sqrt{H}}\right) v"
ONLINE = (
    r"m' = \max(m,\ \max_j s_j) \qquad \ell' = e^{m-m'}\,\ell + \sum_j e^{s_j-m'} \qquad "
    r"o' = e^{m-m'}\,o + \sum_j e^{s_j-m'}\,v_j"
)
ROW, BLOCK, AT = "steps_row", "steps_block", "steps_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the controls ask for, and the arrays it gives."""

    problem: Problem
    found: Steps
    kind: str
    scale: str
    row: int


def view(problem: Problem) -> View:
    """The page's own controls, over what the sidebar says of heads, head_dim, mask and seed."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        tokens = st.slider(
            "**T = S**  tokens", 1, steps.LONGEST, 16, key="steps_tokens", bind="query-params", width=165,
            help="The first tokens of the sequence; few enough to see each.",
        )  # fmt: skip
        kind = st.segmented_control(
            "Inputs here", list(steps.KINDS), default="random", key="steps_inputs", bind="query-params", required=True,
            help="\n".join(f"- **{name}**: {about}" for name, about in steps.KINDS.items()),
        )  # fmt: skip
        scale = st.segmented_control(
            "Scale of the scores", list(steps.SCALES), default="1/√H", key="steps_scale", bind="query-params",
            required=True, help="\n".join(f"- **{name}**: {about}" for name, about in steps.SCALES.items()),
        )  # fmt: skip
        batch, head = (st.session_state.get(key, 0) for key in ("steps_batch", "steps_head"))
        with st.popover(f"Batch {batch} · head {head}", icon=":material/layers:"):
            batch = _index("Batch", min(problem.batch, steps.MOST_BATCHES), "steps_batch")
            head = _index("Head", problem.heads, "steps_head")
    shown = steps.shown(problem, tokens)
    q, k, v = steps.inputs(shown, kind, batch=batch, head=head)
    found = steps.apart(q, k, v, mask=shown.mask, scale=steps.scale_of(scale, shown.head_dim))
    row = controls.held(ROW, 0, tokens - 1, _first_row(tokens))
    return View(problem=shown, found=found, kind=kind, scale=scale, row=row)


def _first_row(tokens: int) -> int:
    return min(5, tokens - 1)


def _index(label: str, count: int, key: str) -> int:
    controls.held(key, 0, count - 1, 0)
    return st.number_input(label, 0, count - 1, key=key, bind="query-params", disabled=count == 1)


def arrays(seen: View) -> None:
    """The four arrays, linked by the framed query; a click on a row follows it."""
    f, h = seen.found, seen.problem.head_dim
    t, s = f.scores.shape
    crop = f.output[:, : steps.LONGEST]
    pictures: tuple[tuple[str, str, Any, str, charts_steps.Palette], ...] = (
        ("1  Scores", f"q kᵀ  ({t}, {s})", f.scores, "key", "diverging"),
        ("2  Scaled", f"× {seen.scale}, mask  ({t}, {s})", f.scaled, "key", "diverging"),
        ("3  Weights", f"softmax  ({t}, {s})", f.weights, "key", "sequential"),
        ("4  Output", f"weights · v  ({t}, {h})", crop, "dim", "diverging"),
    )
    with st.grid(4, min_column_width=170, gap="xsmall"):
        for number, (title, subtitle, values, columns, palette) in enumerate(pictures):
            key = f"steps_array_{number}"
            panels.chart(
                charts_steps.array(
                    values,
                    title=title,
                    subtitle=subtitle,
                    columns=columns,
                    palette=palette,
                    row=seen.row,
                    is_first=number == 0,
                ),
                say=charts.say_heatmap(values, what=f"{title}: {subtitle}", rows="queries", columns=f"{columns}s"),
                key=key,
                on_select=functools.partial(_picked, key),
                selection_mode=charts_steps.PICK,
            )


def _picked(key: str) -> None:
    row = charts_steps.picked(st.session_state[key].get("selection"))
    if row is not None:
        st.session_state[ROW] = row


def _stepper(label: str, count: int, key: str, default: int, *, back: str, forward: str, help: str) -> int:
    """A slider with a button at each end, each with its own key on the keyboard. default: as controls.held has it."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.button(
            "Back", icon=":material/arrow_back:", key=f"{key}_back", shortcut=back, on_click=_step,
            args=(key, -1, count), disabled=st.session_state[key] <= 0,
        )  # fmt: skip
        st.button(
            "Next", icon=":material/arrow_forward:", key=f"{key}_next", shortcut=forward, on_click=_step,
            args=(key, 1, count), disabled=st.session_state[key] >= count - 1,
        )  # fmt: skip
        if count > 1:
            return st.slider(label, 0, count - 1, default, key=key, bind="query-params", help=help)
    return 0


def _step(key: str, by: int, count: int) -> None:
    st.session_state[key] = max(0, min(st.session_state[key] + by, count - 1))


def one_query(seen: View) -> None:
    """A query's scores, weights and weighted sum."""
    _stepper(
        "**Query to follow**", seen.problem.q_len, ROW, _first_row(seen.problem.q_len), back="P", forward="N",
        help="Or click a row in a picture above.",
    )  # fmt: skip
    f, row = seen.found, seen.row
    drawn = charts_steps.follow(f, row)
    with st.container(gap=None):
        panels.chart(drawn.scores, say=f"Scaled scores of query {row}")
        panels.chart(drawn.weights, say=charts_steps.say_steps(f, row))
        panels.chart(drawn.mixture, say=f"Weight times v for each key, and their sum, the output of query {row}")
    st.caption(charts_steps.say_steps(f, row) + ". The output is the column Σ: each v times its weight, summed.")


def spread_line(seen: View) -> str:
    """What the scale does to the weights, in one sentence."""
    attended = steps.keys_attended(seen.found.weights)
    live = seen.found.live.sum(axis=1)
    return (
        f"Over all queries the weights spread over **{attended.mean():.1f}** keys of {live.mean():.1f} that are seen, "
        f"and the largest weight is **{seen.found.weights.max():.2f}**: scale {seen.scale}, {steps.SCALES[seen.scale]}."
    )


def online(seen: View, whole: Problem) -> None:
    """The online softmax of the followed query, block by block, and the bytes that it saves."""
    p, f = seen.problem, seen.found
    longest = p.kv_len
    few = min(4, longest)
    controls.held(BLOCK, 1, longest, few)
    block = 1
    if longest > 1:
        block = st.slider("**Keys in a block**", 1, longest, few, key=BLOCK, bind="query-params", width=300)
    blocks = steps.online(f.q, f.k, f.v, mask=p.mask, scale=f.scale, block=block)
    controls.held(AT, 0, len(blocks) - 1, 0)
    shown = _stepper("**Block**", len(blocks), AT, 0, back="B", forward="F", help="How far the kernel is.")
    left, right = st.columns([3, 2], gap="large")
    with left:
        panels.chart(charts_steps.so_far(blocks, f, seen.row, shown), say=_say_block(blocks[shown], seen.row))
    with right:
        for drawing in charts_steps.running(blocks, seen.row, shown):
            panels.chart(drawing, say=_say_block(blocks[shown], seen.row))
    st.markdown(_say_block(blocks[shown], seen.row))
    off = steps.difference(blocks, f)
    st.caption(f"All blocks against the whole softmax, over every query: largest difference {off:.1e}, rounding alone.")
    moved = steps.bytes_moved(whole)
    panels.chart(charts_steps.traffic(moved), say=_say_traffic(moved))
    st.caption(f"For {panels.problem_line(whole)}: {_say_traffic(moved)}.")


def _say_block(at: Block, row: int) -> str:
    keys = f"keys {at.first} … {at.last - 1}" if at.last - at.first > 1 else f"key {at.first}"
    if at.total[row] == 0:
        return f"After {keys}: query {row} has seen no key yet, so there is no maximum and no output."
    return (
        f"After {keys}: maximum **{at.highest[row]:.3f}**, sum **{at.total[row]:.3f}**; what came before was "
        f"multiplied by **{at.correction[row]:.3f}**."
    )


def _say_traffic(moved: dict[str, int]) -> str:
    ratio = moved["naive"] / moved["fused"]
    return f"naive moves {heads.size(moved['naive'])}, fused {heads.size(moved['fused'])}: {ratio:.1f} times less"
