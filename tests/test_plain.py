"""Plain: whatever a text holds, it stays text."""

from __future__ import annotations

import re

import pytest

from explorer import plain

NASTY = "<img src=x onerror=alert(1)> :red[x] **b** [a](http://b) `c` $x$ | @all :smile: #1 & \"q\" 'p' \\\n# h\x00"


def test_html_has_no_tag_and_no_open_quote() -> None:
    found = plain.html(NASTY)
    assert not set("<>\"'") & set(found)
    assert "&lt;img" in found
    assert "\x00" not in found


def test_markdown_leaves_no_sign_unescaped() -> None:
    found = plain.markdown(NASTY)
    assert not re.search(r"(?<!\\)[`*_\[\]<>|$&~]", found.replace("\\\\", ""))
    assert "\n" not in found
    for sign in (":red", ":smile", "@all", "http://", "#1"):
        assert sign not in found


@pytest.mark.parametrize(
    "text", ["1. item", "- item", "+ item", "# head", "> quote", "=== rule", "1) item", "~~no~~", "#"]
)
def test_a_line_s_first_sign_opens_nothing(text: str) -> None:
    assert re.match(r"\d*\\", plain.markdown(text)), plain.markdown(text)


def test_ordinary_words_stay() -> None:
    for text in ("NVIDIA H200 (JAX 0.11.2), 2026-12-02", "12 µs × 3 at T=128", "2 Dec 2026, 14:02 UTC", "a: b"):
        assert plain.markdown(text) == text
    assert plain.html("0.5 ms") == "0.5 ms"


def test_escaped_markdown_reads_back_as_the_text() -> None:
    """By a Markdown parser: one paragraph, of text alone."""
    parser = pytest.importorskip("markdown_it", reason="needs markdown-it-py").MarkdownIt(
        "gfm-like", {"linkify": False}
    )
    for text in (NASTY, "1. item", "- [ ] a", "| a | b |", "---", "    code"):
        opened, inline, closed = parser.parse(plain.markdown(text))
        assert (opened.type, closed.type) == ("paragraph_open", "paragraph_close"), text
        assert {child.type for child in inline.children} <= {"text", "text_special"}, text
        said = "".join(child.content for child in inline.children).replace(plain.JOINER, "")
        assert said == plain.line(text)
