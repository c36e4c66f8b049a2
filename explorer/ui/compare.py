"""Compare: what the Compare page is made of: two recordings, shipped or brought along, and each point's verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import streamlit as st

from explorer import charts, charts_compare, compare, plain, record, recordings
from explorer.backends import BACKENDS
from explorer.compare import Comparison, Point
from explorer.recordings import Recording
from explorer.ui import exports, panels

OWN = "a file of mine"
FIRST = ("te-sweep", "causal-16k")  # the same kernels on the same GPU, measured twice
MOST_MB = 20
MOST_LOSSES = 5


def choose() -> tuple[Recording | None, Recording | None]:
    """A and B side by side, each a shipped recording or a file of one's own."""
    options = [*recordings.names(), OWN]
    with st.grid(2, min_column_width=300):
        with st.container(border=True, height="stretch"):
            a = _side("A", options, FIRST[0])
        with st.container(border=True, height="stretch"):
            b = _side("B", options, FIRST[1])
    return a, b


def threshold() -> float:
    return st.number_input(
        "Slower than", 1.0, 1000.0, 1.05, 0.01, key="compare_slower", bind="query-params", width=160,
        help="B counts as slower than this ratio where its whole interval lies above it. "
        "`compare A B --slower-than` exits with 1 then.",
    )  # fmt: skip


def _side(name: str, options: list[str], first: str) -> Recording | None:
    key = f"compare_{name.lower()}"
    _complain(key, options)
    index = options.index(first) if first in options else 0
    chosen = st.selectbox(f"Recording {name}", options, index, key=key, bind="query-params")
    if chosen != OWN:
        found = recordings.load(chosen)
    else:
        brought = st.file_uploader(
            f"File {name}, JSON lines", type=["jsonl", "json", "txt"], key=f"{key}_file", max_upload_size=MOST_MB,
            help="From an Export button, `run --json`, `sweep --save` or `record`. It is read here and not kept.",
        )  # fmt: skip
        if brought is None:
            st.caption("Each line is one record.")
            return None
        found = parsed(brought.name, brought.getvalue())
    st.caption(f"{len(found.records)} records, {plain.markdown(found.label)}")
    losses(found.losses)
    return found if found.records else None


def _complain(key: str, options: list[str]) -> None:
    """A link may ask for a recording that is not here: the widget would drop it in silence."""
    if key not in st.session_state and (asked := st.query_params.get(key)) and asked not in options:
        st.session_state[f"{key}_gone"] = asked
    if asked := st.session_state.get(f"{key}_gone"):
        st.warning(f"This link's recording is not here: {plain.markdown(asked)}", icon=":material/link_off:")


@st.cache_data(max_entries=8, show_spinner=False)
def parsed(name: str, data: bytes) -> Recording:
    """A file's records; what can't be read is said in losses."""
    records, lost = record.parse_lines(data.decode("utf-8", errors="replace"), name)
    return Recording(name=name, records=tuple(records), losses=tuple(lost))


def losses(lost: Sequence[str]) -> None:
    if not lost:
        return
    more = f"\n- and {len(lost) - MOST_LOSSES} more lines" if len(lost) > MOST_LOSSES else ""
    said = "\n".join(f"- {plain.markdown(each)}" for each in lost[:MOST_LOSSES])
    st.warning(f"{said}{more}", title=f"{len(lost)} lines could not be read; the rest is here",
               icon=":material/broken_image:")  # fmt: skip


def label(backend: str) -> str:
    """A file may hold a backend that this version doesn't know."""
    return charts.label(backend) if backend in BACKENDS else backend


def show(a: Recording, b: Recording, slower_than: float) -> None:
    found = compare.compare(a.records, b.records)
    headline(found, slower_than)
    environments(found.differences)
    rows = rows_of(found)
    timed = [row for row in rows if row["ratio"] is not None]
    if timed:
        _chart(found, timed, slower_than)
        panels.table(
            table(timed), alt_text="Each compared point: ratio, interval, verdict, both medians, clock, remark"
        )
    _not_compared([row for row in rows if row["ratio"] is None])
    exports.rows_popover(rows, f"{a.name}-{b.name}", drawing=_drawing(timed, slower_than) if timed else None)


def headline(found: Comparison, slower_than: float) -> None:
    """What it comes to, in one sentence and four figures."""
    slower, lost, n = len(found.slower_than(slower_than)), len(found.lost), len(found.compared)
    counts = found.counts
    if not n:
        st.info(f"Not one point can be compared: {plain.markdown(found.why_nothing)}.", icon=":material/block:")
    elif slower or lost:
        said = [f"B is slower than {slower_than:g} × A at {slower} of {n} points"] if slower else []
        said += [f"{lost} points that were ok in A fail or disagree in B"] if lost else []
        st.warning(f"{'; '.join(said)}.", icon=":material/trending_down:")
    else:
        st.success(f"B is nowhere slower than {slower_than:g} × A, at {n} points.", icon=":material/check_circle:")
    with st.grid(4, min_column_width=130):
        for said, count in {**counts, "not compared": len(found.others)}.items():
            sign = charts_compare.SIGNS.get(said, charts.MISSING)
            st.metric(f"{sign} {said}", count, border=True)


def environments(rows: Sequence[dict[str, Any]], one: str = "A", other: str = "B") -> None:
    """What differs, in view; all of both, a click away."""
    differing = compare.different(rows)
    st.markdown("**Where they were measured**: " + ("different in" if differing else "the same environment."))
    if differing:
        panels.table(_beside(differing, one, other), alt_text=f"Where the environments of {one} and {other} differ")
    with st.expander("Both environments whole"):
        panels.table(_beside(rows, one, other), alt_text=f"The environments of {one} and {other} side by side")


def _beside(rows: Sequence[dict[str, Any]], one: str, other: str) -> list[dict[str, Any]]:
    said = {True: "same", False: "different"}
    return [{"part": row["name"], one: row["a"], other: row["b"], "the two": said[row["same"]]} for row in rows]


def rows_of(found: Comparison) -> list[dict[str, Any]]:
    """Flat rows for the chart, the table and exports; what is missing is None."""
    _, called = compare.names(found.points, label)
    return [
        {
            "name": name,
            "backend": point.backend,
            "problem": str(point.problem),
            "verdict": point.verdict,
            "ratio": point.ratio.value if point.ratio else None,
            "low": point.ratio.interval[0] if point.ratio and point.ratio.interval else None,
            "high": point.ratio.interval[1] if point.ratio and point.ratio.interval else None,
            "clock": point.clock,
            "mode": point.mode,
            "a_ms": point.middles[0].median if point.middles else None,
            "b_ms": point.middles[1].median if point.middles else None,
            "says": says(point),
            "remark": point.remark,
            "reason": ("lost: " if point.is_lost else "") + point.reason if point.reason else None,
        }
        for point, name in zip(found.points, called, strict=True)
    ]


def says(point: Point) -> str | None:
    if point.middles is None:
        return None
    a, b = point.middles
    return f"{charts.ms(a.median)} ({a.count} samples) to {charts.ms(b.median)} ({b.count}), {point.clock} clock"


def _chart(found: Comparison, rows: list[dict[str, Any]], slower_than: float) -> None:
    shared, _ = compare.names(found.points)
    clocks = " and ".join(sorted({row["clock"] for row in rows}))
    few = f" The {charts_compare.MOST} largest differences of {len(rows)}." if len(rows) > charts_compare.MOST else ""
    st.markdown(f"**Ratio of medians, {clocks} clock**, each with its interval of about 95%")
    st.caption(f"All points: {plain.markdown(shared)}. Orange: {slower_than:g}, the threshold.{few}")
    drawing = _drawing(rows, slower_than)
    panels.chart(drawing, say=charts_compare.say_ratios(rows), key="compare-ratios")
    st.caption(
        f"◀ faster and ▶ slower: the whole interval is on one side of 1, and the difference is {compare.LEAST:.0%} or "
        "more; one kernel on one GPU comes out up to 2% apart from run to run, which no run's own samples "
        "show. The sentence at the top counts by the threshold."
    )


def _drawing(rows: list[dict[str, Any]], slower_than: float) -> Any:
    kept = rows
    if len(rows) > charts_compare.MOST:
        kept = sorted(rows, key=lambda row: -abs(math.log(row["ratio"])))[: charts_compare.MOST]
    return lambda: charts_compare.ratios(kept, slower_than)


def table(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "point": row["name"],
            "B / A": charts_compare.figure(row["ratio"]),
            "about 95%": charts_compare.between(row),
            "verdict": f"{charts_compare.SIGNS[row['verdict']]} {row['verdict']}",
            "A": charts.ms(row["a_ms"]),
            "B": charts.ms(row["b_ms"]),
            "clock": row["clock"],
            "mode": row["mode"],
            "remark": row["remark"],
        }
        for row in rows
    ]


def _not_compared(rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        return
    st.markdown(f"**Not compared**: {len(rows)} points")
    shown = [{"point": row["name"], "why": row["reason"]} for row in rows]
    panels.table(shown, alt_text="Each point without a ratio, and why")
