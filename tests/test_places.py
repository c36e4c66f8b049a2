"""Controls of the address keep their place on a page while results come and go.

Streamlit 1.67 forgets that a widget is bound to the address when the block around it moves: the block is made anew, and
the old one, cleared later, takes the binding along. From then on the address tells an old value, and a reload loses the
new one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Block, Widget

from explorer import peak
from explorer.ui import jobs, link

ROOT = Path(__file__).resolve().parent.parent
WAIT_S = 60
PAGES = sorted(path.name for path in (ROOT / "pages").glob("*.py"))


@pytest.fixture(scope="module", autouse=True)
def ready(app_engine: None) -> None:
    jobs.engine().ask(peak.child_room, timeout_s=WAIT_S)  # the worker has JAX loaded


def parents(block: Block, path: tuple[int, ...] = ()) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The key of each widget, and the way to the block that holds it."""
    for index, child in block.children.items():
        if isinstance(child, Block):
            yield from parents(child, (*path, index))
        elif isinstance(child, Widget) and child.key and child.type != "button" and link.is_known(child.key):
            yield child.key, path


def places(test: AppTest) -> dict[str, tuple[int, ...]]:
    assert not test.exception
    return dict(parents(test._tree))


@pytest.mark.parametrize("page", PAGES)
def test_controls_keep_their_place(page: str) -> None:
    test = AppTest.from_file(str(ROOT / "streamlit_app.py"), default_timeout=WAIT_S)
    test.query_params.update({"q_len": "16", "batch": "1", "heads": "2", "head_dim": "8"})
    test.run()
    seen: dict[str, tuple[int, ...]] = {}
    moved: dict[str, Any] = {}

    def look() -> None:
        for key, place in places(test).items():
            if seen.setdefault(key, place) != place:
                moved[key] = (seen[key], place)

    test.switch_page(f"pages/{page}").run()
    look()
    end = time.monotonic() + WAIT_S
    while any(not job.is_over for job in jobs.engine().jobs()) and time.monotonic() < end:
        time.sleep(0.2)
        test.run()
        look()
    test.run()
    look()
    test.toggle(key="exact").set_value(True).run()
    look()
    test.select_slider(key="heads").set_value(1).run()
    look()
    test.session_state["control_notices"] = {"q_len": "q_len must be good", "kv_heads": "no", "seed": "no"}
    test.run()
    look()
    for button in [each for each in test.button if each.label in ("Run", "Prove all here")][:2]:
        button.click().run()
        look()
        for job in jobs.engine().jobs():
            job.cancel()
        while any(not job.is_over for job in jobs.engine().jobs()):
            time.sleep(0.1)
        test.run()
        look()
    assert moved == {}
