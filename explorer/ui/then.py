"""Then: what the page Then and now is made of: a link's figures, and the same measured here and now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from explorer import charts, charts_compare, measure, plain, record, recordings, then
from explorer.backends import BACKENDS
from explorer.charts import MISSING
from explorer.compare import ENVIRONMENT, Middle
from explorer.record import Record
from explorer.then import Figure, Then
from explorer.ui import compare, exports, jobs, live, panels, share, shell
from explorer.ui.jobs import Answer

KEPT = "then_link"


def told() -> Then | None:
    """The figures of the address, or of the one that this session came with; else says what is needed or wrong."""
    text = st.query_params.get(share.PARAMETER) or st.session_state.get(KEPT)
    if not text:
        st.info("A result's own link opens here: *Share this result* on Live run, or *Export* on any page, makes one.",
                icon=":material/share:")  # fmt: skip
        st.page_link(shell.page("live.py"), label="Live run", icon=":material/play_circle:")
        return None
    st.session_state[KEPT] = st.query_params[share.PARAMETER] = text
    try:
        found = Then.read(text)
    except ValueError as error:
        st.error(plain.markdown(f"{error}."), title="This link can't be read", icon=":material/link_off:")
        return None
    _origin(found)
    return found


def _origin(found: Then) -> None:
    """Whose figures these are: a link can be written by anybody."""
    st.markdown(panels.problem_line(found.problem))
    here = {name: recordings.load(name).records for name in recordings.names()}
    known = then.sources(found, here)
    where = plain.markdown(found.environment.get("where", "a device that is not named"))
    when = plain.markdown(record.moment(found.time))
    st.markdown(f"**Then**: {where}, {when}, {found.mode}.")
    if known:
        st.caption(f":material/verified: The same figures stand in the shipped recording {', '.join(known)}.")
    else:
        st.caption(":material/info: Then's figures are as the link tells them; no recording here vouches for them.")
    if unknown := [each.backend for each in found.figures if each.backend not in BACKENDS]:
        said = plain.markdown(", ".join(dict.fromkeys(unknown)))
        st.warning(f"Not known to this version, and so not run and not replaced: {said}", icon=":material/help:")


def fresh(found: Then, status: Any) -> Answer:
    """The same problem on the same backends, measured here: at once if it is short, and once anew in each session."""
    specs = list(dict.fromkeys(each.spec for each in found.figures if each.backend in BACKENDS))
    if not specs:
        return Answer.of("", None)
    mode, _, cold = found.mode.partition(", ")
    call = {"problem": found.problem, "specs": specs, "protocol": replace(live.PROTOCOL, mode=mode, cold_l2=bool(cold))}
    plan = live.plan(found.problem, [each.backend for each in found.figures if each.backend in BACKENDS])
    button = st.container()
    # What Live run found a moment ago may be the very result that the link tells of: so once anew in each session
    key = jobs.look(measure.run, call).key
    is_first, st.session_state["then_ran"] = st.session_state.get("then_ran") != key, key
    answer = jobs.ask(
        measure.run, call, slot="then", auto=plan.is_small,
        again=panels.was_pressed("then_run") or (is_first and plan.is_small),
        limit_s=live.LIMIT_S, lost=jobs.lost_records, label="then and now", status=status,
    )  # fmt: skip
    with button:
        panels.run_button(answer, key="then_run", prediction=live.told(plan, answer))
    if answer.error:
        status.error(answer.error, icon=":material/dangerous:")
    return answer


def show(found: Then, answer: Answer) -> None:
    """Environments, ratios, both sides' figures, and now's evidence."""
    records = {(made.backend, made.problem.dtype): made for made in answer.results}
    rows = rows_of(found, records)
    timed = [row for row in rows if row["ratio"] is not None]
    if measured := [made for made in records.values() if made.environment]:
        differences = found.differences(then.environment(measured[0]))
        _missing(differences)
        compare.environments(differences, "then", "now")
    if timed:
        st.markdown("**Now over then**, ratio of medians with its interval of about 95%")
        drawing = charts_compare.ratios(timed, 1.0, "then", "now")
        panels.chart(drawing, say=charts_compare.say_ratios(timed, "then", "now"), key="then-ratios")
    panels.table(table(rows), alt_text="Each backend's figures then and now, and what became of those without")
    if records:
        st.subheader(f"Now: {next(iter(records.values())).where}", anchor=False)
        _cards(list(records.values()))
        if answer.is_over:
            exports.popover(list(records.values()), "then-and-now")


def _cards(records: Sequence[Record]) -> None:
    """A card for each that ran, its dtype above where there are several; below, those that can't."""
    ran = [made for made in records if made.status != "refused"]
    several = len({made.problem.dtype for made in records}) > 1
    if ran:
        with st.grid(min(len(ran), 4), min_column_width=250):
            for made in ran:
                with st.container():
                    if several:
                        st.caption(made.problem.dtype)
                    panels.card(made, key=f"-{made.problem.dtype}-now")
    refused = {made.backend: made for made in reversed(records) if made.status == "refused"}  # the table has them all
    panels.refusals(list(reversed(refused.values())))


def _missing(differences: Sequence[dict[str, Any]]) -> None:
    """A version that is not here is named, and nothing stands in for it."""
    libraries = [ENVIRONMENT[name] for name in ("driver", "cuda", "cudnn", "jax", "transformer_engine")]
    gone = [
        f"{row['name']} {row['a']}" for row in differences if row["name"] in libraries and row["a"] and not row["b"]
    ]
    if gone:
        said = plain.markdown(", ".join(gone))
        st.warning(f"There then and missing here, not replaced by anything: {said}", icon=":material/link_off:")


def rows_of(found: Then, records: dict[tuple[str, str], Record]) -> list[dict[str, Any]]:
    """A row for each figure, in the shape that the ratio chart takes."""
    rows = []
    several = len({each.dtype for each in found.figures}) > 1
    for each in found.figures:
        made = records.get((each.backend, each.dtype))
        clock, ratio = (each.ratio(made) if made is not None else None) or (None, None)
        name = compare.label(each.backend) + (f" {each.dtype}" if several else "")
        rows.append(
            {
                "name": name, "figure": each, "record": made, "clock": clock,
                "ratio": ratio.value if ratio else None, "verdict": ratio.verdict if ratio else None,
                "low": ratio.interval[0] if ratio and ratio.interval else None,
                "high": ratio.interval[1] if ratio and ratio.interval else None,
                "says": f"{clock} clock",
            }
        )  # fmt: skip
    return rows


def table(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "backend": row["name"],
            "wall, then": _time(row["figure"].wall),
            "wall, now": _time(_now(row["record"], "wall_ms")),
            "device, then": _time(row["figure"].device),
            "device, now": _time(_now(row["record"], "device_ms")),
            "now / then": MISSING
            if row["ratio"] is None
            else f"{charts_compare.figure(row['ratio'])} ({row['clock']}), {row['verdict']}",
            "kernel, then": row["figure"].kernel,
            "kernel, now": _kernel(row["record"]),
            "status, then": _status(row["figure"]),
            "status, now": "not measured here" if row["record"] is None else _status(row["record"]),
        }
        for row in rows
    ]


def _now(made: Record | None, clock: str) -> Middle | None:
    samples = getattr(made.timing, clock) if made is not None and made.timing is not None else None
    return Middle.of(samples) if samples is not None else None


def _time(middle: Middle | None) -> str:
    return MISSING if middle is None else f"{charts.ms(middle.median)} ({middle.count})"


def _kernel(made: Record | None) -> str | None:
    return None if made is None else Figure.of(made).kernel


def _status(one: Figure | Record) -> str:
    return one.status if one.status == "ok" else f"{one.status}: {one.reason}"
