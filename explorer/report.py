"""Report: a set of records as one HTML file that needs nothing else, and as Markdown for a pull request or an issue.

Every text goes through explorer.plain, and the page's own policy forbids scripts and any other address.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from explorer import charts, charts_time, compare, curves, export, memory, plain, record, sweep
from explorer.backends import BACKENDS
from explorer.charts import CLOCKS, MISSING
from explorer.record import Record, Samples

MOST_BARS = 40
MOST_CHARACTERS = 65_000  # of Markdown: GitHub takes 65,536 for an issue
NO_PICTURES = "No charts: they need the package vl-convert-python, which was not installed where this was made."
STYLE = """\
:root{color-scheme:light}
body{font:15px/1.5 "IBM Plex Sans",system-ui,Helvetica,Arial,sans-serif;color:#17242b;background:#fff;
max-width:1160px;margin:2rem auto;padding:0 1.2rem}
h1{font-size:1.7rem;margin:0 0 .3rem}h2{font-size:1.2rem;margin:2.2rem 0 .6rem}
p{max-width:75ch}.quiet{color:#55616a}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;width:100%}
th,td{text-align:left;vertical-align:top;padding:.35rem .6rem;border-bottom:1px solid #d9e0e1}
th{background:#eef2f2;font-weight:600;white-space:nowrap}td.n{white-space:nowrap;font-variant-numeric:tabular-nums}
td{overflow-wrap:anywhere;min-width:5rem}
.wide.short table{width:auto}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:1.5rem}
figure{margin:0}figure svg{max-width:100%;height:auto}figcaption{font-weight:600;margin-bottom:.3rem}
.doubt{border-left:4px solid #c0352b;padding:.3rem .8rem;background:#fbeeed}
pre{font:12px/1.45 "IBM Plex Mono",ui-monospace,monospace;background:#eef2f2;padding:.8rem;overflow-x:auto}
summary{cursor:pointer;padding:.2rem 0}
@page{margin:14mm}
@media print{.charts{display:block}
body{max-width:none;margin:0;padding:0;font-size:10pt}table{font-size:7.5pt}.wide{overflow:visible}
thead{display:table-header-group}tr,figure{break-inside:avoid}h2{break-after:avoid}details:not([open]){display:none}
.scripts{display:none}}
"""
PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def to_html(records: Iterable[Record], title: str) -> str:
    """Summary, doubts, environment, charts, figures, what has no time, evidence, scripts."""
    records = list(records)
    text = plain.html
    parts = [
        f"<h1>{text(title)}</h1>",
        f'<p class="quiet">{text(summary(records))} Report made {now()} by Attention Explorer.</p>',
        *(f'<p class="doubt">{text(doubt)}</p>' for doubt in doubts(records)),
        "<h2>Where it was measured</h2>",
        _table(environment(records), text, short=True),
        *_figures(records),
        "<h2>Results</h2>",
        f'<p class="quiet">{text(NOTES)}</p>',
        _table([_result(each) for each in records if each.timing is not None], text),
    ]
    if others := [each for each in records if each.timing is None]:
        parts += ["<h2>Without a time, and why</h2>", _table([_reason(each) for each in others], text)]
    parts += ["<h2>Evidence</h2>", _table([_evidence(each) for each in records], text)]
    parts += _scripts(records)
    return PAGE.format(title=text(title), style=STYLE, body="\n".join(parts))


def to_markdown(records: Iterable[Record], title: str) -> str:
    """The same without charts, for a pull request or an issue: tables, reasons, evidence and one script a backend."""
    records = list(records)
    text = plain.markdown
    timed, others = ([each for each in records if (each.timing is not None) == flag] for flag in (True, False))
    parts = [f"# {text(title)}", text(summary(records))]
    parts += [f"> **Doubt:** {text(doubt)}" for doubt in doubts(records)]
    parts += [_lines(environment(records), text), "## Results", text(NOTES)]
    parts.append(_lines([_result(each) for each in timed], text))
    if others:
        parts += ["## Without a time, and why", _lines([_reason(each) for each in others], text)]
    more = [_folded("Evidence", _lines([_evidence(each) for each in records], text))]
    first = {each.backend: each for each in reversed(timed)}
    for each in reversed(first.values()):
        if (script := _script(each)) is not None:
            more.append(_folded(f"Script: {text(_name(each))}", f"```python\n{script.replace('```', '')}\n```"))
    whole = "\n\n".join([*parts, *more]) + "\n"
    if len(whole) <= MOST_CHARACTERS:
        return whole
    left_out = f"Evidence and scripts are left out: with them it is longer than {MOST_CHARACTERS:,} characters."
    return "\n\n".join([*parts, left_out]) + "\n"


NOTES = (
    "Times are medians with p10 to p90 and the number of samples. Wall clock: one call, then wait. Device clock: the "
    "kernels' own time from a trace. Burst rests between calls until the GPU's clock is back, sustained doesn't. A "
    "time is there only where the result agreed with the exact one."
)


def summary(records: Sequence[Record]) -> str:
    """How many of what, measured where and when."""
    counts = Counter(each.status for each in records)
    said = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    days = sorted({each.time[:10] for each in records if each.time})
    when = "" if not days else f", {days[0]}" if len(days) == 1 else f", {days[0]} to {days[-1]}"
    where = "; ".join(dict.fromkeys(each.where for each in records))
    return f"{len(records)} records ({said or 'none'}), measured on {where or MISSING}{when}."


def doubts(records: Iterable[Record]) -> list[str]:
    """What can't be right is said first."""
    return [f"{_name(each)}: {suspect}" for each in records if (suspect := (each.cost or {}).get("suspect"))]


def environment(records: Sequence[Record]) -> list[dict[str, Any]]:
    return [{"part": row["name"], "value": row["a"]} for row in compare.environments(records, [])]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


# --- rows


def _name(made: Record) -> str:
    known = BACKENDS.get(made.backend)
    return f"{known.label if known else made.backend}, {made.problem}"


def _head(made: Record) -> dict[str, Any]:
    return {"backend": BACKENDS[made.backend].label if made.backend in BACKENDS else made.backend,
            "problem": str(made.problem)}  # fmt: skip


def _result(made: Record) -> dict[str, Any]:
    timing, accuracy, proof, cost = made.timing, made.accuracy or {}, made.evidence or {}, made.cost or {}
    assert timing is not None
    error = f"{accuracy.get('verdict') or 'not checked'}"
    if accuracy.get("max_abs_error") is not None:
        error += f": {charts.number(accuracy['max_abs_error'])}, allowed {charts.number(accuracy.get('budget'))}"
    rate = cost.get("tflops")
    temporary = (made.memory or {}).get("temp_bytes")
    return _head(made) | {
        "wall clock": _spread(timing.wall_ms),
        "device clock": _spread(timing.device_ms)
        if timing.device_ms
        else f"{MISSING} ({timing.device_reason or 'not measured'})",
        "TFLOP/s": MISSING if rate is None else f"{charts.number(rate)} ({cost.get('tflops_clock')})",
        "kernel": f"{proof.get('verdict') or MISSING}, {'proven' if proof.get('proven') else 'not proven'}",
        "result": error,
        "temporary": MISSING if temporary is None else memory.gib(temporary),
        "mode": compare.mode_of(made),
    }


def _spread(samples: Samples) -> str:
    return f"{charts.ms(samples.median)} ({charts.ms(samples.p10)} – {charts.ms(samples.p90)}, {len(samples.values)})"


def _reason(made: Record) -> dict[str, Any]:
    return _head(made) | {"status": made.status, "reason": made.reason}


def _evidence(made: Record) -> dict[str, Any]:
    proof, accuracy, timing = made.evidence or {}, made.accuracy or {}, made.timing
    kernels = "; ".join(f"{k['name']} × {k['count']} ({k['share']:.0%})" for k in proof.get("kernels") or ())
    calls = proof.get("custom_calls")
    built = f"compile {charts.ms(timing.compile_ms)}, first call {charts.ms(timing.first_call_ms)}" if timing else None
    return _head(made) | {
        "kernels that ran": kernels or f"{MISSING} ({proof.get('kernels_reason') or 'nothing ran'})",
        "custom calls": ", ".join(map(str, calls)) if isinstance(calls, list | tuple) and calls else MISSING,
        "precision": proof.get("note"),
        "remark": proof.get("remark"),
        "checked against": accuracy.get("reference"),
        "built": built,
        "where, when": f"{made.where}, {made.when}",
    }


# --- tables


def _table(rows: Sequence[dict[str, Any]], text: Callable[[Any], str], *, short: bool = False) -> str:
    if not rows:
        return f"<p>{MISSING} None.</p>"
    names = list(rows[0])
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in names)
    body = "\n".join("<tr>" + "".join(_cell(row.get(name), text) for name in names) + "</tr>" for row in rows)
    wide = "wide short" if short else "wide"
    return f'<div class="{wide}"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _cell(value: Any, text: Callable[[Any], str]) -> str:
    said = MISSING if value is None else text(value)
    return f'<td class="n">{said}</td>' if len(said) < 24 else f"<td>{said}</td>"


def _lines(rows: Sequence[dict[str, Any]], text: Callable[[Any], str]) -> str:
    if not rows:
        return f"{MISSING} None."
    names = list(rows[0])
    body = [" | ".join(MISSING if row.get(n) is None else text(row[n]) for n in names) for row in rows]
    return "\n".join(f"| {line} |" for line in (" | ".join(map(text, names)), " | ".join("---" for _ in names), *body))


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{inside}\n\n</details>"


# --- charts and scripts


def _figures(records: Sequence[Record]) -> list[str]:
    """A chart for each device, timing mode and clock, as SVG within the page."""
    drawn = list(_drawings(records))
    if not drawn:
        return []
    if importlib.util.find_spec("vl_convert") is None:
        return [f"<h2>Charts</h2><p>{NO_PICTURES}</p>"]
    found = ["<h2>Charts</h2>", '<div class="charts">']
    for number, (title, said, drawing) in enumerate(drawn):
        if drawing is None:
            found.append(f"<p>{plain.html(title)}: {MISSING} {plain.html(said)}</p>")
            continue
        picture = _own_ids(export.to_svg(charts_time.export(drawing())), f"c{number}-")
        found.append(
            f'<figure role="img" aria-label="{plain.html(said)}"><figcaption>{plain.html(title)}</figcaption>\n'
            f"{picture}</figure>"
        )
    return [*found, "</div>"]


def _drawings(records: Sequence[Record]) -> Iterable[tuple[str, str, Callable[[], Any] | None]]:
    """Title, words and the drawing, or why there is none."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for each in records:
        if each.timing is not None and each.backend in BACKENDS:
            groups.setdefault((each.where, compare.mode_of(each) or ""), []).append(each)
    for (where, mode), group in groups.items():
        axis = sweep.axis_of(group)
        rows = curves.labelled(record.rows(group), axis)
        for clock in CLOCKS:
            timed = [row for row in rows if row[clock] is not None]
            if not timed:
                continue
            title = f"Time of a call, {CLOCKS[clock]}, {where}, {mode}"
            places = Counter((row["series"], row[axis]) for row in timed)
            if max(places.values()) > 1:
                yield title, "the points differ in more than one size, so no one axis holds them; see the table", None
            elif len({row[axis] for row in timed}) > 1:
                said = charts_time.say_times(timed, axis, clock)
                yield title, said, lambda t=timed, a=axis, c=clock: charts_time.times(t, a, c)
            elif len(timed) <= MOST_BARS:
                yield title, charts_time.say_bars(timed, clock), lambda t=timed, c=clock: charts_time.bars(t, c)
            else:
                yield title, f"more than {MOST_BARS} bars; see the table", None


def _own_ids(svg: str, prefix: str) -> str:
    """Pictures in one page must not share names, or one's clipping cuts another."""
    svg = re.sub(r'(\bid=")', rf"\1{prefix}", svg)
    return re.sub(r"(url\(#|href=\"#)", rf"\1{prefix}", svg)


def _script(made: Record) -> str | None:
    try:
        return export.script(made)
    except ValueError:
        return None


def _scripts(records: Sequence[Record]) -> list[str]:
    """A script for each record that has one; the same text is there once."""
    found: dict[str, str] = {}
    for each in records:
        if each.timing is not None and (text := _script(each)) is not None:
            found.setdefault(text, _name(each))
    if not found:
        return []
    head = '<div class="scripts"><h2>Scripts</h2><p class="quiet">Each times the same call in the same way with JAX '
    head += "alone. They are left out in print.</p>"
    folded = [f"<details><summary>{plain.html(name)}</summary><pre>{plain.block(text)}</pre></details>"
              for text, name in found.items()]  # fmt: skip
    return [head, *folded, "</div>"]
