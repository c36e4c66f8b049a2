"""Share: the address that opens a result as then and now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

import streamlit as st

from explorer.record import Record
from explorer.then import Then
from explorer.ui import link, shell

PAGE = "then.py"
PARAMETER = "then"


def popover(records: Sequence[Record]) -> None:
    """One button with the link of a whole result; why there is none, if so."""
    with st.popover("Share this result", icon=":material/share:"):
        try:
            found = address(records)
        except ValueError as error:
            st.caption(f"No link: {error}.")
            return
        st.caption(
            "Opens these figures, with where and when they were measured, beside a fresh run on the machine that opens "
            "it. The button at its right end copies it."
        )
        st.code(found, language=None, wrap_lines=True)


def address(records: Sequence[Record]) -> str:
    """Problem, backends, seed and versions as any link has them, and the figures. Raises ValueError as Then.of."""
    told = Then.of(records)
    names = list(dict.fromkeys(each.backend for each in told.figures))
    figures = urlencode({PARAMETER: told.write()})
    return f"{_root()}/{Path(PAGE).stem}?{link.write(told.problem, names)}&{figures}"


def _root() -> str:
    """The app's own address, without the page that is open."""
    url = (st.context.url or "").split("?")[0].split("#")[0].rstrip("/")
    root, _, last = url.rpartition("/")
    pages = {Path(entry.file).stem for entries in shell.MENU.values() for entry in entries}
    return root if last in pages else url
