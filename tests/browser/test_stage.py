"""The shipped talk in Chromium, from its tape, by keys alone; and a phone in the audience."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from explorer import scenes, worker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

READY = "[data-testid='stApp'][data-test-script-state='notRunning']"
TALK = "cudnn-against-naive"
WAIT_MS = 60_000

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def phone(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    yield context.new_page()
    context.close()


def at(page: Page, number: int) -> None:
    page.locator(f".stage-place:has-text('{number} / 8')").wait_for()
    page.wait_for_selector(READY)


def inner(page: Page, name: str) -> str:
    return page.locator(f".stage-{name}").inner_text().replace("\u00a0", " ")


@pytest.mark.skipif(bool(worker.gpus()), reason="with a GPU the talk is live")
def test_the_shipped_talk_by_keys_and_a_phone_that_follows(server: Any, page: Page, phone: Page) -> None:
    page.set_default_timeout(WAIT_MS)
    phone.set_default_timeout(WAIT_MS)
    page.set_viewport_size({"width": 1280, "height": 720})
    page.goto(f"{server.url}/stage?talk={TALK}")
    at(page, 1)
    page.wait_for_timeout(1000)  # a presenter has looked before the first key
    assert not page.get_by_test_id("stSidebar").is_visible()
    told = []
    for number, scene in enumerate(scenes.load(scenes.find(TALK)).scenes, start=1):
        at(page, number)
        if scene.points:
            page.get_by_text("on NVIDIA H200").first.wait_for()
            assert inner(page, "tape").startswith("recorded ")
            told.append(inner(page, "sentence"))
            chart = page.locator(".st-key-stage_chart [data-testid=stVegaLiteChart]")
            chart.wait_for()
            box, bar = chart.bounding_box(), page.locator(".st-key-stage_bar").bounding_box()
            assert box
            assert bar
            assert box["y"] + box["height"] <= bar["y"] + 1, f"scene {number} reaches under the bar"
            assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
        if number < 8:
            page.keyboard.press("PageDown")
    assert re.match(
        r"cuDNN 4\.\d × faster than naive on NVIDIA H200: 7\d\.\d µs against 0\.3\d\d ms in the kernels", told[2]
    )
    page.keyboard.press("PageUp")
    at(page, 7)
    page.evaluate("() => document.body.append(Object.assign(document.createElement('input'), {id: 'probe'}))")
    page.locator("#probe").press("PageUp")  # keys do nothing while a text field has the focus
    page.locator("#probe").blur()
    for _ in range(3):  # in quick succession: none is lost
        page.keyboard.press("PageUp")
    at(page, 4)
    for _ in range(3):
        page.keyboard.press("PageDown")
    at(page, 7)
    page.get_by_text("on NVIDIA H200").first.wait_for()
    page.keyboard.press("ArrowLeft")
    page.locator(".stage-sentence:has-text('T=4096')").wait_for()
    at(page, 7)
    page.keyboard.press("ArrowRight")
    page.locator(".stage-sentence:has-text('T=8192')").wait_for()
    page.keyboard.press("f")
    page.get_by_role("button", name="Go on").wait_for()
    page.keyboard.press("q")
    address = page.locator(".stage-address")
    address.wait_for()
    page.locator("img[alt^='QR code of']").wait_for()
    phone.goto(address.inner_text())
    at(phone, 7)
    assert (inner(phone, "sentence"), inner(phone, "tape")) == (told[-1], inner(page, "tape"))
    moved = phone.locator("[class*='st-key-watch_value'] input[type=range]")
    moved.focus()
    moved.press("ArrowLeft")
    phone.locator(".stage-sentence:has-text('T=4096')").wait_for()
    assert "T=8192" in inner(page, "sentence")
    page.keyboard.press("PageUp")
    at(phone, 6)
    assert phone.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
