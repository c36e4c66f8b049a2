"""Curves: rows of measured points become series along an axis, and what follows from two of their times. No drawing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from explorer.backends import BACKENDS
from explorer.problem import AXIS_LETTERS

Row = Mapping[str, Any]
STYLES = ("dtype", "mask", "sharing")  # what besides the backend tells two series apart, if it varies


def labelled(rows: Iterable[Row], axis: str | None = None) -> list[dict[str, Any]]:
    """The same rows, each with its series (backend and whatever else varies) and style (the else alone).

    Raises ValueError for rows of two timing modes: burst and sustained are two measurements, never one chart.
    """
    found = [dict(row) for row in rows]
    modes = sorted({row["mode"] for row in found if row.get("mode")})
    if len(modes) > 1:
        raise ValueError(f"a chart takes points of one timing mode, got {' and '.join(modes)}")
    for row in found:
        row["sharing"] = f"K={row['kv_heads']}" if axis not in ("heads", "kv_heads") else ""
    varying = [name for name in STYLES if len({row[name] for row in found}) > 1]
    for row in found:
        row["style"] = " ".join(str(row[name]) for name in varying)
        row["series"] = f"{BACKENDS[row['backend']].label} {row['style']}".strip()
    order = list(BACKENDS)
    key = axis or "q_len"
    return sorted(found, key=lambda row: (order.index(row["backend"]), row["style"], row[key]))


MOST = 200  # places along an axis that a chart draws: more stand closer than its points are wide


def thin(rows: Sequence[Row], axis: str, *, log: bool) -> Sequence[Row]:
    """Labelled rows at MOST places at the most, evenly along the axis as it is drawn, with the first and the last.

    A place keeps all of its series, so that ratios stay whole. Nothing is averaged: what is left out is not drawn.
    """
    places = sorted({row[axis] for row in rows})
    if len(places) <= MOST:
        return rows
    drawn = [math.log(place) if log else float(place) for place in places]
    step = (drawn[-1] - drawn[0]) / (MOST - 1)
    first_of = {int((at - drawn[0]) / step): place for at, place in reversed(list(zip(drawn, places, strict=True)))}
    kept = {*first_of.values(), places[-1]}
    return [row for row in rows if row[axis] in kept]


def series(rows: Iterable[Row]) -> list[str]:
    """The names of the series of labelled rows, in order."""
    return list(dict.fromkeys(row["series"] for row in rows))


def gaps(rows: Iterable[Row], axis: str, of: str = "wall_ms") -> list[dict[str, Any]]:
    """Labelled rows without a value, each with the reason."""
    return [
        {"series": r["series"], "backend": r["backend"], "style": r["style"], axis: r[axis], "status": r["status"]}
        | {"reason": r["reason"] or "not measured"}
        for r in rows
        if r[of] is None and r["status"] != "ok"
    ]


def reasons(rows: Iterable[Row], axis: str) -> list[dict[str, Any]]:
    """The gaps, those of one series with one reason together: {series, backend, status, where, reason}."""
    found: dict[tuple[str, str, str, str], list[int]] = {}
    for gap in gaps(rows, axis):
        found.setdefault((gap["series"], gap["backend"], gap["status"], gap["reason"]), []).append(gap[axis])
    letter = AXIS_LETTERS[axis]
    return [
        {"series": name, "backend": backend, "status": status, "reason": reason}
        | {"where": f"{letter} = {', '.join(length(x) for x in xs)}"}
        for (name, backend, status, reason), xs in found.items()
    ]


def length(value: int) -> str:
    """1024 as 1k, as one may write it; anything else as it is."""
    return f"{value // 1024}k" if value >= 1024 and value % 1024 == 0 else str(value)


def speed_ups(rows: Sequence[Row], axis: str, clock: str, baseline: str) -> list[dict[str, Any]]:
    """Labelled rows with speed_up: the baseline's time over this one's at the same place; None if either is missing."""
    base = {row[axis]: row[clock] for row in rows if row["series"] == baseline}
    return [{**row, "speed_up": _ratio(base.get(row[axis]), row[clock])} for row in rows]


def hidden(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Labelled rows with hidden: the share of the wall time in which no kernel of the call ran; None if unknown."""
    found = []
    for row in rows:
        share = _ratio(row["device_ms"], row["wall_ms"])
        found.append({**row, "hidden": None if share is None or share > 1 else 1 - share})
    return found


SKIPS, DOES_ALL = 0.7, 0.9  # causal over full: below, the masked half is skipped; above, it is computed all the same


def causal_shares(rows: Iterable[Row], clock: str) -> list[dict[str, Any]]:
    """For each causal row whose unmasked twin is there: its time over the twin's, and what that says.

    0.5: the masked half is skipped. 1: it is computed and thrown away. Short calls say little: launches cost the same.
    Neither is said where the times' own spread, p10 to p90 of either, leaves room for the other.
    """
    rows = list(rows)
    ends = (clock.replace("_ms", "_p10_ms"), clock.replace("_ms", "_p90_ms"))
    twins = {_without_mask(row): row for row in rows if row["mask"] == "full"}
    found = []
    for row in rows:
        twin = twins.get(_without_mask(row)) if row["mask"] == "causal" else None
        if twin is None or (share := _ratio(row[clock], twin[clock])) is None:
            continue
        low, high = (_ratio(row[one], twin[other]) or share for one, other in (ends, ends[::-1]))
        found.append({**row, "causal_share": share, "says": _says_of_half(share, low, high)})
    return found


def _says_of_half(share: float, low: float, high: float) -> str:
    unsure = ": its times spread too far to say"
    if share < SKIPS:
        return "skips the masked half" if high < DOES_ALL else f"may skip the masked half{unsure}"
    if share > DOES_ALL:
        return "does the full work" if low > SKIPS else f"may do the full work{unsure}"
    return "between"


def _without_mask(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in (*AXIS_LETTERS, "dtype", "backend", "where"))


def _ratio(over: float | int | None, under: float | int | None) -> float | None:
    return None if over is None or not under else over / under


def growth(rows: Iterable[Row], of: str) -> dict[str, tuple[int, int, float]]:
    """For each backend, from the longest q_len that is twice another: (from, to, how many times the value)."""
    found: dict[str, tuple[int, int, float]] = {}
    values = {(row["backend"], row["q_len"]): row[of] for row in rows if row[of]}
    for (backend, q_len), value in sorted(values.items(), key=lambda item: item[0][1]):
        half = values.get((backend, q_len // 2)) if q_len % 2 == 0 else None
        if half:
            found[backend] = (q_len // 2, q_len, value / half)
    return found
