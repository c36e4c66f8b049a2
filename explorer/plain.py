"""Plain: a text from a file or a link as text, whatever it holds, in HTML and in Markdown. Never as markup."""

from __future__ import annotations

import html as library
import re
from typing import Any

JOINER = (
    "\u2060"  # of no width: it keeps :name: from becoming an icon, @name and #1 from calling, an address from a link
)


def html(value: Any) -> str:
    """For an HTML page's text and quoted attributes; what has no glyph is left out."""
    return library.escape(line(value))


def block(text: str) -> str:
    """Several lines for an HTML page's <pre>."""
    return library.escape("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text))


def markdown(value: Any) -> str:
    """For Markdown, here and on a code host: one line in which nothing is emphasis, a link, a tag, an icon or maths."""
    text = re.sub(r":(?=[^\s:]*[:\[])|@(?=\S)|#(?=\d)|:(?=//)|www(?=\.)", rf"\g<0>{JOINER}", line(value))
    text = re.sub(r"[\\`*_\[\]<>|$~&]", r"\\\g<0>", text)
    # At the start they would open a heading, a list or a rule
    return re.sub(r"^([#+\-=]|\d+(?=[.)](?:\s|$)))", _escaped_start, text)


def _escaped_start(found: re.Match[str]) -> str:
    sign = found[0]
    return f"\\{sign}" if not sign.isdigit() else f"{sign}\\"


def line(value: Any) -> str:
    """On one line, without control characters."""
    return " ".join("".join(c if c.isprintable() or c.isspace() else "\ufffd" for c in str(value)).split())
