"""Report: one file that needs nothing else, in which every text stays text; and Markdown that a code host takes."""

from __future__ import annotations

import html.parser
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from explorer import export, recordings, report
from explorer.problem import Problem
from explorer.record import Record, Samples, Timing

NASTY = "<img src=x onerror=alert(1)>\"'|**b** [a](http://b.c) `x` @all </style><script>alert(2)</script>"
pictures = pytest.mark.skipif(find_spec("vl_convert") is None, reason="pictures need vl-convert-python")


def made(q_len: int = 128, **changes: Any) -> Record:
    timing = Timing(
        lower_ms=1.0, compile_ms=2.0, cache_hit=False, first_call_ms=3.0, wall_ms=Samples((1.0, 2.0, 4.0)),
        device_ms=Samples((0.5, 0.5, 0.6)),
    )  # fmt: skip
    values: dict[str, Any] = {"problem": Problem.of(q_len=q_len), "backend": "naive", "status": "ok", "timing": timing}
    proof = {"verdict": "several kernels", "proven": True, "note": "tf32", "custom_calls": ["a_call"],
             "kernels": [{"name": "gemm_1", "count": 3, "share": 0.75}]}  # fmt: skip
    return Record(**{**values, "evidence": proof, "cost": {"tflops": 7.5, "tflops_clock": "device"},
                     "accuracy": {"verdict": "agrees", "max_abs_error": 1e-3, "budget": 2e-3},
                     "environment": {"gpu": "NVIDIA H200", "jax": "0.11.2"}, "time": "2026-12-02T14:02:00+00:00",
                     **changes})  # fmt: skip


def refused(reason: str = "takes no float32") -> Record:
    return made(backend="cudnn").but(status="refused", reason=reason, timing=None)


class Page(html.parser.HTMLParser):
    """Every tag with its attributes, and the text outside of style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.said: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "img", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.said.append(data)


@pytest.fixture(scope="module")
def text() -> str:
    """A sweep, a refusal and a doubt."""
    doubted = made(512, cost={"tflops": 9e9, "tflops_clock": "device", "suspect": "faster than the peak"})
    return report.to_html([made(), made(256), doubted, refused()], "A title")


def test_it_holds_figures_evidence_reasons_environment_and_scripts(text: str) -> None:
    page = Page(text)
    assert not page.open  # every tag that opens closes
    said = " ".join(page.said)
    for part in ("A title", "4 records (3 ok, 1 refused)", "NVIDIA H200", "0.11.2", "2.00 ms", "0.500 ms", "gemm_1",
                 "a_call", "tf32", "agrees: 0.001, allowed 0.002", "takes no float32", "faster than the peak",
                 "2 Dec 2026, 14:02 UTC", "jax.jit(attend)"):  # fmt: skip
        assert part in said, part


def test_it_needs_nothing_else(text: str) -> None:
    page = Page(text)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    addresses = {value for _, attrs in page.tags for name, value in attrs.items() if name in ("src", "href")}
    assert not addresses
    assert re.search(r"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"", text)
    assert not re.search(r"@import|url\((?!#)", text)


@pictures
def test_charts_are_within_and_share_no_names(text: str) -> None:
    page = Page(text)
    assert sum(tag == "svg" for tag, _ in page.tags) == 2  # one for each clock
    names = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(names) == len(set(names))
    for name in re.findall(r"url\(#([^)]+)\)", text):
        assert name in names
    figures = [attrs for tag, attrs in page.tags if tag == "figure"]
    assert all((attrs["aria-label"] or "").startswith("Time of a call") for attrs in figures)


def test_two_pictures_keep_their_own_names() -> None:
    drawn = '<clipPath id="clip0"/><g clip-path="url(#clip0)"/><use href="#clip0"/>'
    kept = '<clipPath id="c1-clip0"/><g clip-path="url(#c1-clip0)"/><use href="#c1-clip0"/>'
    assert report._own_ids(drawn, "c1-") == kept


def test_texts_are_no_markup() -> None:
    proof = {"verdict": NASTY, "note": NASTY, "custom_calls": [NASTY], "kernels_reason": NASTY, "remark": NASTY,
             "kernels": [{"name": NASTY, "count": 1, "share": 1.0}]}  # fmt: skip
    strange = made(evidence=proof, environment={"gpu": NASTY, "jax": NASTY}, time=NASTY,
                   accuracy={"verdict": NASTY, "reference": NASTY}, cost={"suspect": NASTY})  # fmt: skip
    records = [strange, strange.but(backend=NASTY), strange.but(status="failed", reason=NASTY, timing=None)]
    page = Page(report.to_html(records, NASTY))
    assert not page.open
    assert not {tag for tag, _ in page.tags} & {"script", "img", "a", "b"}
    assert NASTY in page.said
    found = report.to_markdown(records, NASTY)
    prose = re.sub(r"```python\n.*?\n```", "", found, flags=re.S)
    assert not re.search(r"(?<!\\)(<img|<script|\*\*b|\[a\]|`x`)|@all|://", prose)
    rows = [line for line in prose.splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3, 4 + 1, 9 + 1}


def test_a_file_s_words_are_no_code_in_its_script() -> None:
    script = export.script(made(environment={"gpu": '"""\nimport os; os.abort()\n"""\\'}))
    compile(script, "exported", "exec")
    assert "\nimport os; os.abort()" not in script
    assert script.count('"""') == 2


def test_markdown_is_tables_reasons_and_a_script() -> None:
    found = report.to_markdown([made(), refused("takes no float32, 1 | 2")], "A title")
    assert found.startswith("# A title\n\n2 records (1 ok, 1 refused), measured on NVIDIA H200, 2026-12-02.")
    assert "| Naive JAX | B=4 T=128 S=128 N=8 K=8 H=64 float32 full | 2.00 ms (1.20 ms – 3.60 ms, 3) |" in found
    assert "| refused | takes no float32, 1 \\| 2 |" in found
    assert found.count("```python") == found.count("<details>") - 1 == 1
    assert "jax.jit(attend)" in found


def test_markdown_stays_within_what_an_issue_takes() -> None:
    found = report.to_markdown([made(16 * n) for n in range(1, 301)], "Many")
    assert len(found) < 65_536
    assert "Evidence and scripts are left out" in found


@pictures
def test_200_records_are_less_than_3_mb() -> None:
    sizes = [
        made(16 * (1 + n // 4), backend=name) for n in range(0, 200, 4) for name in ("naive", "auto", "xla", "cudnn")
    ]
    assert len(sizes) == 200
    found = report.to_html(sizes, "Many")
    assert found.count("<svg") == 2
    assert len(found.encode()) < 3e6


def test_what_no_axis_holds_is_said() -> None:
    heads = made(problem=Problem(heads=4, kv_heads=4, batch=2))
    found = report.to_html([made(), made(256), heads, heads.but(problem=heads.problem.but(batch=8))], "x")
    assert "<svg" not in found
    assert "no one axis holds them" in found


def test_nothing_is_a_report_too() -> None:
    assert "0 records (none)" in report.to_html([], "Empty")
    assert "0 records (none)" in report.to_markdown([], "Empty")


@pytest.mark.parametrize("name", recordings.names())
def test_every_shipped_recording_has_a_markdown_report(name: str) -> None:
    records = recordings.load(name).records
    found = report.to_markdown(records, name)
    assert found.count(" ok") >= 1
    assert len(found) < 65_536


def test_the_picture_library_is_loaded_only_when_a_report_is_made() -> None:
    code = "import sys, json, explorer.report; print(json.dumps('vl_convert' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout.splitlines()[-1]) is False
