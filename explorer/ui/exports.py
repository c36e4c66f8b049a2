"""Exports: records as tables and lines, a chart as a picture, a record as a script; each made only when clicked."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import altair as alt
import streamlit as st

from explorer import charts, charts_time, curves, export, report
from explorer.record import Record
from explorer.ui import share

NO_PICTURES = "Pictures need the package vl-convert-python, which is not installed here."


def popover(
    records: Sequence[Record],
    name: str,
    *,
    drawing: Callable[[], alt.TopLevelMixin | charts.Plain] | None = None,
    key: str = "",
) -> None:
    """One button that holds every way out: tables, lines, reports, pictures of the chart, and a record's script."""
    key = f"{name}{key}"
    with st.popover("Export", icon=":material/download:", key=f"export-{key}"):
        with st.container(horizontal=True):
            _button("CSV", lambda: export.to_csv(records), f"{name}.csv", "text/csv", key)
            _button("JSON lines", lambda: export.to_json_lines(records), f"{name}.jsonl", "application/jsonl", key)
            _button(
                "Report",
                lambda: report.to_html(records, _title(name)),
                f"{name}.html",
                "text/html",
                key,
                "One HTML file with charts, figures, evidence, environment and scripts; opens offline and prints.",
            )
            _button("Markdown", lambda: report.to_markdown(records, _title(name)), f"{name}.md", "text/markdown", key,
                    "The same without charts, for a pull request or an issue.")  # fmt: skip
        if drawing is not None:
            pictures(drawing, name, key)
        _script(records, key)


def rows_popover(
    rows: Sequence[dict[str, Any]], name: str, *, drawing: Callable[[], alt.TopLevelMixin | charts.Plain] | None
) -> None:
    """The same for figures that are no records with times: tables and pictures."""
    with st.popover("Export", icon=":material/download:", key=f"export-{name}"):
        with st.container(horizontal=True):
            _button("CSV", lambda: export.rows_to_csv(rows), f"{name}.csv", "text/csv", name)
            _button("JSON lines", lambda: export.rows_to_json_lines(rows), f"{name}.jsonl", "application/jsonl", name)
        if drawing is not None:
            pictures(drawing, name, name)


def pictures(drawing: Callable[[], alt.TopLevelMixin | charts.Plain], name: str, key: str) -> None:
    """PNG and SVG of a chart, in the light colours."""
    if importlib.util.find_spec("vl_convert") is None:
        st.caption(NO_PICTURES)
        return
    with st.container(horizontal=True):
        _button("PNG", lambda: export.to_png(charts_time.export(drawing())), f"{name}.png", "image/png", key)
        _button("SVG", lambda: export.to_svg(charts_time.export(drawing())), f"{name}.svg", "image/svg+xml", key)


def _title(name: str) -> str:
    return f"Attention Explorer: {name}"


def _button(label: str, made: Callable[[], Any], file: str, mime: str, key: str, about: str | None = None) -> None:
    st.download_button(
        label,
        made,
        file_name=file,
        mime=mime,
        icon=":material/download:",
        key=f"{key}-{label.split()[0].lower()}",
        on_click="ignore",
        help=about,
    )


def _script(records: Sequence[Record], key: str) -> None:
    """A record as a link to then and now, and as a Python script of its own, in view and to take along."""
    timed = [found for found in records if found.timing is not None]
    if not timed:
        st.caption("A script is there once a record has times.")
        return
    chosen = st.selectbox(
        "Link and Python script of",
        range(len(timed)),
        format_func=lambda index: _name(timed[index]),
        key=f"{key}-script-of",
        help="The link opens these figures beside a fresh run. The script times the same call in the same way with JAX "
        "alone, without this package.",
    )
    made = timed[chosen]
    st.code(share.address([made]), language=None)
    try:
        text = export.script(made)
    except ValueError as error:
        st.caption(f"No script: {error}.")
        return
    file = f"{made.backend}-{made.problem.dtype}-t{made.problem.q_len}.py"
    _button("Script", lambda: text, file, "text/x-python", key)
    with st.expander("Look at it"):
        st.code(text, language="python", height=320)


def _name(made: Record) -> str:
    p = made.problem
    return f"{made.backend} {p.dtype}, B={p.batch} T={curves.length(p.q_len)} N={p.heads} H={p.head_dim}"
