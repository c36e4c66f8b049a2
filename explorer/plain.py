"""Plain: a text from a file or a link as text, whatever it holds, in HTML and in Markdown. Never as markup."""

from __future__ import annotations

import html as library
import re
from typing import Any

JOINER = "\u2060"  # of no width: it keeps :name: from becoming an icon, and @name from calling somebody


def html(value: Any) -> str:
    """For an HTML page's text and quoted attributes; what has no glyph is left out."""
    return library.escape(line(value))


def markdown(value: Any) -> str:
    """For Markdown, here and on a code host: one line in which nothing is emphasis, a link, a tag, an icon or maths."""
    text = re.sub(r"([\\`*_{}\[\]()<>#+\-!|$~^&=])", r"\\\1", line(value))
    # A number or word at the start may open a list or a rule; the signs above are escaped already
    text = re.sub(r"^(\d+)\.", r"\1\\.", text)
    return re.sub(r"([:@])(?=\S)", rf"\1{JOINER}", text)


def line(value: Any) -> str:
    """On one line, without control characters."""
    return " ".join("".join(c if c.isprintable() or c.isspace() else "\ufffd" for c in str(value)).split())
