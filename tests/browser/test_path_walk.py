"""A newcomer walks the whole path in a real Chromium, without a GPU: predict, measure, understand, next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from explorer.path import QUESTIONS

if TYPE_CHECKING:
    from playwright.sync_api import Page

READY = "[data-testid='stApp'][data-test-script-state='notRunning']"
WAIT_MS = 100_000

pytestmark = pytest.mark.timeout(900)


def opened(page: Page, url: str) -> Page:
    page.set_default_timeout(WAIT_MS)
    page.goto(url)
    page.wait_for_selector(READY)
    return page


def scored(page: Page) -> None:
    page.locator("[data-testid='stAlert']").first.wait_for()
    page.wait_for_selector(READY)


def test_the_whole_path_with_the_mouse(server: Any, page: Page) -> None:
    opened(page, server.url)
    for place, question in enumerate(QUESTIONS, start=1):
        page.get_by_text(f"{place}. {question.title}").first.wait_for()
        page.locator(f".st-key-path_choice_{question.name} label[data-baseweb='radio']").first.click()
        page.locator(".st-key-path_measure button:enabled").click()
        scored(page)
        page.get_by_text(f"{place} of {len(QUESTIONS)} predicted and measured").wait_for()
        assert f"{question.name}.0." in page.url
        if place < len(QUESTIONS):
            page.locator(".st-key-path_next button").click()
    assert not page.locator("[data-testid='stException']").count()


def test_a_question_with_the_keyboard_alone(server: Any, page: Page) -> None:
    opened(page, server.url)
    page.locator(".st-key-path_go_root button").focus()
    page.keyboard.press("Enter")
    radio = page.locator(".st-key-path_choice_root input[type=radio]")
    radio.first.focus()
    page.keyboard.press("Space")
    page.locator(".st-key-path_measure button:enabled").wait_for()
    page.keyboard.press("Control+Enter")
    scored(page)
    page.locator(".st-key-path_next button").focus()
    page.keyboard.press("Enter")
    page.locator(".st-key-path_choice_auto").wait_for()


def test_the_row_s_page_opens_with_its_values(server: Any, page: Page) -> None:
    opened(page, f"{server.url}/?q_len=300&causal=true")
    page.locator(".st-key-path_go_window button").click()
    page.get_by_role("heading", name="7. A mask that is not obeyed").wait_for()
    page.locator(".st-key-path_look button").click()
    page.get_by_role("heading", name="Masks", level=1).wait_for()
    page.get_by_text("window 16,0 mask, T=48, S=48").first.wait_for()


def test_progress_comes_back_with_the_link(server: Any, page: Page) -> None:
    opened(page, f"{server.url}/?path=ready.0.r~bytes.1.r")
    page.get_by_text(f"2 of {len(QUESTIONS)} predicted and measured, 2 right").wait_for()


def test_steps_by_key(server: Any, page: Page) -> None:
    opened(page, f"{server.url}/steps?causal=true")
    page.get_by_text("Query 5 sees 6 keys").first.wait_for()
    page.get_by_role("heading", name="Steps", level=1).click()  # no widget has the focus
    page.keyboard.press("n")
    page.get_by_text("Query 6 sees 7 keys").first.wait_for()
    page.keyboard.press("p")
    page.keyboard.press("p")
    page.get_by_text("Query 4 sees 5 keys").first.wait_for()
