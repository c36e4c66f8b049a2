"""The real app in a real Chromium: what only a browser, a server process and a worker process together can show."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from explorer.ui import shell

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

ROOT = Path(__file__).resolve().parents[2]
LIVE = "/live" if (ROOT / "pages" / "start.py").exists() else "/"
SMALL = "batch=1&heads=1&head_dim=8&backend=naive&backend=xla"
# Takes seconds on any CPU, so that there is time to reload or to kill the worker meanwhile.
LONG = "batch=4&q_len=1024&heads=8&head_dim=64&backend=naive&backend=xla"
WAIT_MS = 100_000
READY = "[data-testid='stApp'][data-test-script-state='notRunning']"
CHART = "[data-testid='stVegaLiteChart'][aria-label*='Time of one call'], [aria-label*='Time of one call']"

pytestmark = pytest.mark.timeout(240)


def visit(page: Page, url: str) -> Page:
    page.set_default_timeout(WAIT_MS)
    page.goto(url)
    page.wait_for_selector(READY)
    return page


def value(page: Page, control: str) -> str:
    """What a slider shows."""
    return slider(page, control).get_attribute("aria-valuetext") or ""


def slider(page: Page, control: str) -> Locator:
    return page.locator(f".st-key-{control} input[type=range]")


def result(page: Page, length: str) -> str:
    """Waits for the finished result at that query length and gives its chart's words."""
    found = page.locator(f"[aria-label*='T={length} ']").first
    found.wait_for()
    page.get_by_text("elements of one head").wait_for()
    page.wait_for_selector(READY)
    return found.get_attribute("aria-label") or ""


def mapped(pid: int, library: str) -> bool:
    return library in Path(f"/proc/{pid}/maps").read_text()


def worker_of(server_pid: int) -> int:
    """The process that has JAX loaded, among the server's children."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for child in psutil.Process(server_pid).children(recursive=True):
            try:
                if mapped(child.pid, "jaxlib"):
                    return child.pid
            except (psutil.Error, OSError):
                continue
        time.sleep(0.2)
    pytest.fail("no process below the server has jaxlib mapped")


@pytest.mark.parametrize("path", [f"{LIVE}?{SMALL}", "/machine"])
def test_a_deep_link_first_on_a_fresh_server(path: str, fresh_server: Callable[..., Any], page: Page) -> None:
    visit(page, fresh_server().url + path)
    title = "This machine" if path == "/machine" else "Live run"
    page.get_by_role("heading", name=title, level=1).wait_for()
    page.get_by_test_id("stSidebar").get_by_text("Preset").wait_for()
    page.get_by_test_id("stTopNavLink").nth(1).wait_for()


def test_the_server_has_no_jax_and_the_worker_has(server: Any, page: Page) -> None:
    visit(page, f"{server.url}{LIVE}?{SMALL}&q_len=16")
    result(page, "16")
    assert worker_of(server.pid)
    assert not mapped(server.pid, "jaxlib")


def test_ten_quick_arrow_keys_end_at_the_shown_sliders(server: Any, page: Page) -> None:
    visit(page, f"{server.url}{LIVE}?{SMALL}&q_len=32")
    result(page, "32")
    moved = slider(page, "q_len")
    moved.focus()
    for _ in range(10):
        moved.press("ArrowRight")
    # A key that meets a redrawn slider can be lost; what counts is that the address, the slider and the result agree
    page.wait_for_function(
        "() => { const moved = document.querySelector('.st-key-q_len input[type=range]');"
        " const shown = moved.getAttribute('aria-valuetext');"
        " const same = new URL(location).searchParams.get('q_len') === shown && window.lastShown === shown;"
        " window.lastShown = shown; return same && Number(shown) > 128; }",
        polling=2000,
    )
    shown = value(page, "q_len")
    said = result(page, shown)
    assert f"S={shown}" in said
    assert value(page, "q_len") == value(page, "kv_len") == shown
    drawn = page.locator("[aria-label*='Time of one call']")
    labels = [drawn.nth(i).get_attribute("aria-label") or "" for i in range(drawn.count())]
    assert labels
    assert {length for label in labels for length in re.findall(r"T=(\d+)", label)} == {
        shown
    }  # no older result beside it


def test_a_moved_control_is_in_the_url_and_opens_elsewhere(server: Any, page: Page, other_page: Page) -> None:
    visit(page, f"{server.url}{LIVE}?{SMALL}&q_len=16")
    moved = slider(page, "heads")
    moved.focus()
    moved.press("ArrowRight")
    page.locator(".st-key-causal label").click()
    page.locator(".st-key-dtype").get_by_text("bfloat16").click()
    page.wait_for_function(
        "() => location.search.includes('dtype=bfloat16') && location.search.includes('causal=true')"
    )
    page.wait_for_function("() => location.search.includes('heads=2')")
    visit(other_page, page.url)
    assert value(other_page, "heads") == "2"
    other_page.get_by_text("bfloat16 · causal mask").first.wait_for()


def test_a_bad_link_names_what_does_not_exist(server: Any, page: Page) -> None:
    visit(page, f"{server.url}{LIVE}?kv_heads=3&q_len=-1&dtype=float8&backend=magic&backend=naive&batch=1")
    notice = page.get_by_test_id("stMain").get_by_test_id("stAlert").first
    notice.wait_for()
    for sentence in ("kv_heads must divide heads=8, got 3", "got -1", "got float8", "got magic"):
        assert sentence in notice.inner_text()
        assert page.get_by_test_id("stSidebar").get_by_text(re.compile(re.escape(sentence))).is_visible()


def test_a_reload_finds_the_run(server: Any, page: Page) -> None:
    visit(page, f"{server.url}{LIVE}?{LONG}&seed=11")
    start(page)
    page.reload()
    page.wait_for_selector(READY)
    result(page, "1024")


def start(page: Page) -> None:
    """Presses Run where it does not start by itself, and returns while it runs."""
    page.locator(".st-key-cancel_job, .st-key-live_run button:enabled").first.wait_for()
    if not page.locator(".st-key-cancel_job").count():
        page.locator(".st-key-live_run button:enabled").click()
    page.locator(".st-key-cancel_job").wait_for()


def test_a_killed_worker_is_said_and_the_next_run_works(server: Any, page: Page) -> None:
    visit(page, f"{server.url}{LIVE}?{LONG}&seed=12")
    start(page)
    page.get_by_text("Running naive").wait_for()
    os.kill(worker_of(server.pid), signal.SIGKILL)
    page.get_by_text("worker process died").first.wait_for()
    assert page.locator("[aria-label*='Time of one call']").count() == 0  # nothing is shown as if it had been measured
    visit(page, f"{server.url}{LIVE}?{SMALL}&q_len=16&seed=12")
    result(page, "16")


def test_two_browsers_see_their_own(server: Any, page: Page, other_page: Page) -> None:
    visit(page, f"{server.url}{LIVE}?{SMALL}&q_len=48")
    visit(other_page, f"{server.url}{LIVE}?{SMALL}&q_len=96")
    assert "T=48 S=48" in result(page, "48")
    assert "T=96 S=96" in result(other_page, "96")


def test_a_run_can_be_cancelled_by_key(server: Any, page: Page) -> None:
    visit(page, f"{server.url}{LIVE}?{LONG}&seed=13")
    start(page)
    cancel = page.locator(".st-key-cancel_job button")
    cancel.focus()
    cancel.press("Enter")
    page.locator(".st-key-cancel_job").wait_for(state="detached")
    page.get_by_role("button", name="Run again").wait_for()


def test_no_page_asks_another_host(server: Any, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    paths = [path for entries in shell.MENU.values() for path in (e.path for e in entries) if path.exists()]
    for path in paths:
        visit(page, f"{server.url}/{path.stem}?{SMALL}&q_len=16")
        page.wait_for_timeout(500)
    outside = {url for url in asked if not url.startswith((server.url, "data:", "blob:"))}
    assert not outside
    assert len(asked) > 20


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_page(width: int, server: Any, page: Page) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    visit(page, f"{server.url}{LIVE}?{SMALL}&q_len=16")
    result(page, "16")
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    unnamed = page.evaluate(
        "() => [...document.querySelectorAll('[data-testid=stVegaLiteChart]')]"
        ".filter(e => !(e.getAttribute('aria-label') || e.querySelector('[aria-label]'))).length"
    )
    assert unnamed == 0
