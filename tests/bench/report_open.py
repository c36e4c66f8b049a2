"""How fast a big report and a big recording open: python tests/bench/report_open.py. Exit 1 if a goal is missed.

report: 200 records as one HTML file, under 3 MB, drawn in a fresh Chromium within 1 s. latency: 5,000 recorded points
on the page Latency, its first chart within 1 s of the visit, on a server that has been visited before.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


def main() -> int:
    from playwright.sync_api import sync_playwright

    from explorer import record, recordings, report
    from tests import conftest

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        variants = recordings.load("lab-sequence").records[:4]
        points = [
            each.but(problem=each.problem.but(q_len=64 * (1 + n // 4), kv_len=64 * (1 + n // 4)))
            for n, each in enumerate(itertools.islice(itertools.cycle(variants), 5000))
        ]
        record.write_lines(Path(folder) / "lab-sequence.jsonl", points)
        file = Path(folder) / "report.html"
        file.write_text(report.to_html(points[:200], "200 records"), encoding="utf-8")
        size = file.stat().st_size
        browser = playwright.chromium.launch(
            executable_path=conftest.chromium_path(), args=list(conftest.CHROMIUM_FLAGS)
        )

        def seconds(address: str, ready: str) -> float:
            page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
            start = time.perf_counter()
            page.goto(address)
            page.locator(ready).first.wait_for()
            page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            took = time.perf_counter() - start
            page.context.close()
            return took

        opened = statistics.median(seconds(file.as_uri(), "svg") for _ in range(5))
        server = conftest.start_server(env={"EXPLORER_RECORDINGS": folder, **os.environ})
        try:
            address = f"{server.url}/latency?latency_question=Sequence&backend="
            visits = [seconds(address, "[data-testid=stVegaLiteChart] :is(svg, canvas)") for _ in range(6)]
        finally:
            server.stop()
        browser.close()
    first = statistics.median(visits[1:])
    print(f"report of 200 records: {size / 1e6:.2f} MB (goal 3), opens in {opened:.2f} s (goal 1)")
    print(
        f"Latency with 5,000 recorded points: first chart after {first:.2f} s (goal 1), first visit {visits[0]:.2f} s"
    )
    return int(size > 3e6 or opened > 1 or first > 1)


if __name__ == "__main__":
    sys.exit(main())
