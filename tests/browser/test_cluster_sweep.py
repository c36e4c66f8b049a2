"""A sweep from a click to its last point: Chromium, nginx, app, scheduler and two workers, as in the manifests."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deploy.local import running

if TYPE_CHECKING:
    from playwright.sync_api import Page

READY = "[data-testid='stApp'][data-test-script-state='notRunning']"
WAIT_MS = 120_000
PROBLEM = "batch=1&heads=1&head_dim=8&q_len=16&kv_len=16&backend=naive"
SWEEP = "latency_question=Own&latency_axis=q_len&latency_values_q_len=8,16,24"

pytestmark = pytest.mark.timeout(400)  # a loaded machine starts five processes slowly


def test_a_sweep_in_the_browser_stays_on_one_of_two_workers(page: Page, tmp_path: Path) -> None:
    """Both workers are free all the time; with its compiling the sweep takes four turns of the queue."""
    page.set_default_timeout(WAIT_MS)
    with running(tmp_path, workers=2, has_front=shutil.which("nginx") is not None) as local:
        assert local.scheduler.startswith("tls://")
        page.goto(f"{local.url}/latency?{PROBLEM}&{SWEEP}&token={local.token}")
        assert local.token not in page.url
        page.locator(".st-key-latency_run button:enabled").click()
        page.get_by_role("button", name="Run again").wait_for()
        page.wait_for_selector(READY)
        heading = page.get_by_role("heading", name=re.compile("^Measured here"))
        named = re.search(r"\(worker ([01])\)", heading.inner_text())
        page.locator("[data-testid='stVegaLiteChart'][aria-label*='24']").first.wait_for()
        page.get_by_role("button", name="Export").click()
        with page.expect_download() as download:
            page.get_by_role("button", name="JSON lines").click()
        found = [json.loads(line) for line in Path(download.value.path()).read_text().splitlines()]
        assert [(r["problem"]["q_len"], r["backend"], r["status"]) for r in found] == [
            (length, "naive", "ok") for length in (8, 16, 24)
        ]
        assert named is not None
        assert {r["environment"]["worker"] for r in found} == {f"worker-{named[1]}"}
        assert local.metric("explorer_records_total", backend="naive", status="ok") == 3
        assert local.metric("explorer_workers") == 2
        assert page.locator("[data-testid='stAlert'], [data-testid='stException']").count() == 0
