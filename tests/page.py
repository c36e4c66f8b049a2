"""A page under AppTest: opened as from a link, what it says, and waiting until it has come far enough."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest

APP = Path(__file__).resolve().parent.parent / "streamlit_app.py"
KINDS = ("title", "subheader", "markdown", "caption", "info", "warning", "error", "success", "latex")
WAIT_S = 100


def opened(page: str, **params: Any) -> AppTest:
    """As from a link. The first run is the first page, which must not run anything."""
    test = AppTest.from_file(str(APP), default_timeout=WAIT_S)
    test.query_params.update(params)
    test.run()
    return test if page == "start.py" else test.switch_page(f"pages/{page}").run()


def texts(test: AppTest) -> list[str]:
    return [str(getattr(element, "value", "")) for kind in KINDS for element in test.get(kind)]


def said(test: AppTest, pattern: str) -> bool:
    return any(re.search(pattern, text) for text in texts(test))


def html(test: AppTest) -> str:
    bodies = [element.proto.body for element in test.get("html")]  # pyright: ignore[reportAttributeAccessIssue]
    shown = "\n".join(body for body in bodies if not body.startswith("<style"))
    return re.sub(r"(?s)<script>.*?</script>", "", shown)


def until(test: AppTest, ready: Callable[[AppTest], Any]) -> AppTest:
    """AppTest runs no timed fragment: what that would do is done here."""
    end = time.monotonic() + WAIT_S
    while not ready(test):
        assert not test.exception, test.exception
        assert time.monotonic() < end, f"the page never came that far: {texts(test)} {html(test)}"
        time.sleep(0.2)
        test.run()
    return test
