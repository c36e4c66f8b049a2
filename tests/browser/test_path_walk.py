"""A newcomer walks the whole path in a real Chromium, without a GPU: predict, measure, understand, next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from explorer.path import QUESTIONS

if TYPE_CHECKING:
    from playwright.sync_api import Page

READY = "[data-testid='stApp'][data-test-script-state='notRunning']"
WAIT_MS = 60_000

pytestmark = pytest.mark.timeout(400)


def opened(page: Page, url: str) -> Page:
    page.set_default_timeout(WAIT_MS)
    page.goto(url)
    page.wait_for_selector(READY)
    return page


def scored(page: Page) -> None:
    page.locator(".st-key-path_card [data-testid='stAlert']").first.wait_for()
    page.wait_for_selector(READY)


def test_the_whole_path_with_the_mouse(server: Any, page: Page) -> None:
    opened(page, server.url)
    for place, question in enumerate(QUESTIONS, start=1):
        page.get_by_text(f"{place}. {question.title}").first.wait_for()
        first = next(iter(question.choices.values()))
        page.locator(f".st-key-path_choice_{question.name}").get_by_text(first, exact=True).click()
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
    page.keyboard.press("Tab")
    assert page.locator(".st-key-path_measure button:focus").count() == 1
    page.keyboard.press("Enter")
    scored(page)
    page.locator(".st-key-path_next button").focus()
    page.keyboard.press("Enter")
    page.locator(".st-key-path_choice_auto").wait_for()


def test_shortcuts_work_beside_a_focused_radio(server: Any, page: Page) -> None:
    opened(page, server.url)
    page.locator(".st-key-path_go_root button").click()
    radio = page.locator(".st-key-path_choice_root input[type=radio]")
    radio.first.focus()
    page.keyboard.press("Space")
    page.locator(".st-key-path_measure button:enabled").wait_for()
    assert radio.first.evaluate("each => each === document.activeElement")
    page.keyboard.press("Control+Enter")
    scored(page)
    radio.first.focus()
    page.keyboard.press("n")
    page.locator(".st-key-path_choice_auto").wait_for()


def test_a_field_keeps_its_letters(server: Any, page: Page) -> None:
    opened(page, f"{server.url}/steps?causal=true&exact=true")
    page.get_by_text("Query 5 sees 6 keys").first.wait_for()
    page.locator("[data-testid='stNumberInput'] input").first.focus()
    page.keyboard.press("n")
    page.wait_for_timeout(1500)
    assert page.get_by_text("Query 5 sees 6 keys").count()


def test_progress_comes_back_with_the_link(server: Any, page: Page) -> None:
    opened(page, f"{server.url}/?path=ready.0.r~bytes.1.r")
    page.get_by_text(f"2 of {len(QUESTIONS)} predicted and measured, 2 right").wait_for()


def test_steps_by_key(server: Any, page: Page) -> None:
    opened(page, f"{server.url}/steps?causal=true")
    page.get_by_text("Query 5 sees 6 keys").first.wait_for()
    page.wait_for_selector(READY)
    page.get_by_role("heading", name="Steps", level=1).click()  # no widget has the focus
    row = page.locator(".st-key-steps_row input[type=range]")
    for _ in range(30):  # keys do nothing until the page's listeners are there; one that does takes READY away at once
        page.keyboard.press("n")
        page.wait_for_timeout(500)
        page.wait_for_selector(READY)
        if row.get_attribute("aria-valuetext") != "5":
            break
    assert row.get_attribute("aria-valuetext") == "6"
    # One at a time: of two presses of a button before its run has begun, Streamlit keeps one
    for key, words in (("n", "Query 7 sees 8 keys"), ("p", "Query 6 sees 7 keys"), ("p", "Query 5 sees 6 keys")):
        page.keyboard.press(key)
        page.get_by_text(words).first.wait_for()
        page.wait_for_selector(READY)
    row.focus()
    page.keyboard.press("p")
    page.get_by_text("Query 4 sees 5 keys").first.wait_for()
