"""What is shared opens elsewhere: a report from its file with no network at all, a link in a profile of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

READY = "[data-testid='stApp'][data-test-script-state='notRunning']"
SMALL = "batch=1&heads=1&q_len=16&head_dim=8&backend=naive&backend=cudnn&seed=7"
WAIT_MS = 60_000
NOT_CUDNN = "cuDNN attention needs an NVIDIA GPU"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def stranger(chromium: Browser) -> Iterator[Page]:
    """A fresh profile that has lost its network; it notes what it asks for and what goes wrong."""
    context = chromium.new_context(offline=True, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    yield page
    context.close()


def open_live(server: Any, page: Page) -> None:
    page.set_default_timeout(WAIT_MS)
    page.goto(f"{server.url}/live?{SMALL}")
    page.get_by_text("Share this result").wait_for()
    page.get_by_text("elements of one head").wait_for()
    page.wait_for_selector(READY)


@pytest.mark.skipif(find_spec("vl_convert") is None, reason="pictures need vl-convert-python")
def test_a_report_opens_offline_with_nothing_missing(server: Any, page: Page, stranger: Page, tmp_path: Path) -> None:
    open_live(server, page)
    page.get_by_role("button", name="Export").first.click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Report").click()
    file = tmp_path / "report.html"
    download.value.save_as(file)
    asked, wrong = [], []
    stranger.on("request", lambda request: asked.append(request.url))
    stranger.on("pageerror", lambda error: wrong.append(str(error)))
    stranger.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    stranger.goto(file.as_uri())
    assert {url.split(":")[0] for url in asked} <= {"file", "data"}
    assert not wrong
    text = stranger.locator("body").inner_text()
    for needed in ("T=16", NOT_CUDNN, "JAX", "agrees: ", "exact float64", "matmul precision", "Scripts"):
        assert needed in text, needed
    assert "np.random.default_rng((7, index))" in stranger.content()
    assert stranger.locator("svg").count() >= 1
    assert all(box and box["width"] > 100 and box["height"] > 50 for box in (
        each.bounding_box() for each in stranger.locator("svg").all()
    ))  # fmt: skip
    assert stranger.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    assert stranger.pdf()[:5] == b"%PDF-"


def test_a_link_opens_in_a_fresh_profile_without_another_host(server: Any, page: Page, other_page: Page) -> None:
    open_live(server, page)
    page.get_by_role("button", name="Share this result").click()
    code = page.locator("[data-testid=stPopoverBody] code").first
    code.wait_for()
    address = code.inner_text().strip()
    assert address.startswith(f"{server.url}/then?")
    other_page.set_default_timeout(WAIT_MS)
    others = []
    other_page.on("request", lambda request: None if request.url.startswith(server.url) else others.append(request.url))
    other_page.goto(address)
    other_page.get_by_text("Now over then").wait_for()  # only a fresh run has this
    other_page.get_by_role("heading", name=re.compile("^Now: ")).wait_for()
    other_page.wait_for_selector(READY)
    text = other_page.locator("[data-testid=stMain]").inner_text()
    assert re.search(r"Then: .*, burst\.", text)
    assert NOT_CUDNN in text
    assert "seed" in address
    assert not [url for url in others if not url.startswith(("data:", "blob:"))]
