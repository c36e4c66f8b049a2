"""The HEAD_DIM page by the keyboard alone, in a real Chromium: another GPU, another pass, a cell and its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

READY = "[data-testid='stApp'][data-test-script-state='notRunning']"
WAIT_MS = 60_000
MOST_TABS = 80

pytestmark = pytest.mark.timeout(240)


def tab_to(page: Page, key: str) -> None:
    """Tab, and nothing else, until the focus is in the widget of that key."""
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        if page.locator(f".st-key-{key} :is(input, [role=combobox], [role=radio]):focus").count():
            return
    raise AssertionError(f"{MOST_TABS} times Tab did not lead to {key}")


def choose(page: Page, key: str, text: str) -> None:
    """In a select box that has the focus: type, Enter."""
    tab_to(page, key)
    page.keyboard.type(text)
    page.wait_for_timeout(300)
    page.keyboard.press("Enter")
    page.wait_for_selector(READY)


def test_a_cell_and_its_reason_by_keys(server: Any, page: Page) -> None:
    page.set_default_timeout(WAIT_MS)
    page.goto(f"{server.url}/head_dim")
    page.get_by_role("heading", name="HEAD_DIM", level=1).wait_for()
    page.locator(".st-key-limits-cell").wait_for()
    page.wait_for_selector(READY)
    page.get_by_role("heading", name="HEAD_DIM", level=1).click()  # the sidebar's controls lie before
    choose(page, "limits_gpu", "l4")
    tab_to(page, "limits_pass")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    page.get_by_text("backward").first.wait_for()
    page.wait_for_selector(READY)
    choose(page, "limits_cell_dim", "136")
    cell = page.locator(".st-key-limits-cell")
    cell.get_by_text("H=136").wait_for()
    cell.get_by_text("refused", exact=False).first.wait_for()
    cell.get_by_text("takes a head_dim of 8, 16, … 128").first.wait_for()
    words = "head_dim by backend (8 … 256)"
    assert page.locator(f"[data-testid='stVegaLiteChart'][aria-label*='{words}']").count(), "the matrix in words"
    choose(page, "limits_cell_dim", "144")  # the address goes along with every choice, not only with the first
    cell.get_by_text("H=144").wait_for()
    page.wait_for_function("location.search.includes('limits_cell_dim=144')")
    page.reload()
    cell.get_by_text("H=144").wait_for()
    assert "limits_gpu=l4" in page.url
    assert "limits_pass=backward" in page.url
