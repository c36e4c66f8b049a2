"""Rehearse: every scene run twice before the talk, and what could go wrong in it, in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from explorer import measure, stage, sweep
from explorer.charts import label
from explorer.clock import Protocol
from explorer.device import Device
from explorer.engine import Loss
from explorer.headline import Headline
from explorer.memory import gib
from explorer.record import Record
from explorer.scenes import Scene, Talk
from explorer.stage import Shown
from explorer.sweep import Point
from explorer.tape import BROKEN, Tape

NEAR = 0.7  # of the deadline, and of the free memory: from here on it is a risk


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """What the rehearsal of one scene found: both runs, and the second one's records."""

    index: int
    first_s: float | None = None
    second_s: float | None = None
    records: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the run sheet. is_tape: it plays from tape here. refused: it can't be live here, by the rules.

    fails: it would show nothing, or something wrong.
    """

    number: int
    title: str
    deadline_s: float
    says: str = ""
    first_s: float | None = None
    second_s: float | None = None
    need_bytes: int | None = None
    free_bytes: int | None = None
    is_tape: bool = False
    fails: bool = False
    refused: bool = False
    risks: tuple[str, ...] = ()

    @property
    def memory(self) -> str:
        if self.need_bytes is None:
            return ""
        return f"{gib(self.need_bytes)} of {gib(self.free_bytes)}" if self.free_bytes else gib(self.need_bytes)

    def to_json(self) -> dict[str, Any]:
        names = (
            "number", "title", "deadline_s", "says", "first_s", "second_s", "need_bytes", "free_bytes", "is_tape",
            "fails",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names} | {"risks": list(self.risks)}


def take(
    index: int,
    points: Sequence[Point],
    protocol: Protocol,
    *,
    report: Callable[..., None] = measure.silent,
    cancelled: Callable[[], bool] = measure.never,
) -> Take:
    """In the worker: the first run with all its compiling, and the second, which is what the talk will see."""
    spent, records = [], []
    for _ in range(2):
        start = time.perf_counter()
        records = list(sweep.run(points, protocol=protocol, report=report, cancelled=cancelled))
        spent.append(time.perf_counter() - start)
    return Take(index=index, first_s=spent[0], second_s=spent[1], records=tuple(records))


def lost(loss: Loss) -> list[Take]:
    """A scene whose worker died or that ran out of time."""
    points: Sequence[Point] = loss.call.kwargs["points"]
    status = loss.state if loss.state in BROKEN else "failed"
    why = loss.error or "the rehearsal ended before it was done"
    records = tuple(measure.blank(point.problem, point.backend, status, why) for point in points)
    return [Take(index=loss.call.kwargs["index"], records=records)]


def to_run(talk: Talk, tape: Tape, here: Device) -> list[int]:
    """The scenes that are run: not those of words, nor those that can't be live here and are on tape."""
    scenes = enumerate(talk.scenes)
    return [i for i, s in scenes if s.points and not (stage.refused(s, here) and tape.of(s.points))]


def sheet(talk: Talk, takes: Mapping[int, Take], tape: Tape, here: Device) -> list[Line]:
    """The run sheet. tape: as it was before this rehearsal."""
    return [_line(i, scene, takes.get(i), tape, here) for i, scene in enumerate(talk.scenes)]


def _line(index: int, scene: Scene, made: Take | None, tape: Tape, here: Device) -> Line:
    base = {"number": index + 1, "title": scene.title, "deadline_s": scene.deadline_s}
    if not scene.points:
        return Line(**base)
    refusal = stage.refused(scene, here)
    records = made.records if made is not None else ()
    live = [each for each in records if each.status not in BROKEN]
    # What this rehearsal recorded is on tape too, when the talk begins
    shown = stage.choose(scene, records, tape.after(live), is_over=True, is_late=False, refusal=refusal)
    values = stage.values(scene, shown)
    said = [stage.say(scene, shown, value) for value in (values or (None,))]
    risks = _risks(scene, made, shown, said, refusal, tape, here)
    broken = [each for each in records if each.status in (*BROKEN, "disagrees")]
    is_short = shown.source == "nothing" or len(shown.at(scene.points)) < len(scene.points)
    fails = bool(broken) or is_short or not any(each.has_number for each in said)
    if is_short and not broken:
        risks = (*risks, "nothing complete to show: neither a live run nor the tape has every point")
    needs = [
        (need, (each.memory or {}).get("free_bytes"))
        for each in records
        if (need := (each.memory or {}).get("predicted_bytes")) is not None
    ]
    need, free = max(needs, key=lambda pair: pair[0], default=(None, None))
    return Line(
        **base,
        says=said[-1].text if said else "",
        first_s=made.first_s if made else None,
        second_s=made.second_s if made else None,
        need_bytes=need,
        free_bytes=free,
        is_tape=shown.source == "tape",
        fails=fails,
        refused=bool(refusal),
        risks=risks,
    )


def _risks(
    scene: Scene, made: Take | None, shown: Shown, said: Sequence[Headline], refusal: str, tape: Tape, here: Device
) -> tuple[str, ...]:
    from explorer import tape as tapes

    found: list[str] = []
    if refusal:
        found.append(f"refused here: {refusal}")
        taped = tape.of(scene.points)
        if shown.source == "tape" and taped:
            found.append(f"plays from tape, {tapes.label(taped, here.name if here.is_gpu else None)}")
    elif shown.source == "tape":
        found.append(f"plays from tape: {shown.why}")
    if made is not None and made.second_s is not None:
        if made.second_s > scene.deadline_s:
            found.append(
                f"misses its deadline: {made.second_s:.1f} s of {scene.deadline_s:g} s, so the tape comes first"
            )
        elif made.second_s > NEAR * scene.deadline_s:
            found.append(f"near its deadline: {made.second_s:.1f} s of {scene.deadline_s:g} s")
    for each in made.records if made is not None else ():
        what = f"{label(each.backend)} at {each.problem}"
        need, free = ((each.memory or {}).get(name) for name in ("predicted_bytes", "free_bytes"))
        if each.status == "out_of_memory":
            found.append(f"out of memory: {what}: {each.reason}")
        elif need and free and need > NEAR * free:
            found.append(f"near out of memory: {what} needs {gib(need)} of {gib(free)} free")
        if each.status in (*BROKEN, "disagrees"):
            found.append(f"{each.status}: {what}: {each.reason}")
        elif each.status == "refused" and not refusal:
            found.append(f"refused here: {what}: {each.reason}")
    close = [value for value, each in zip(stage.values(scene, shown) or (None,), said, strict=True) if each.is_close]
    if close:
        where = f" at {scene.axis} = {', '.join(map(str, close))}" if scene.values else ""
        found.append(f"too close to call{where}")
    return tuple(dict.fromkeys(found))


def table(lines: Sequence[Line]) -> list[str]:
    """The run sheet as text: a line a scene, its risks below it."""
    head = ("", "scene", "first", "second", "deadline", "memory", "")
    cells: list[tuple[str, ...]] = [head]
    for each in lines:
        state = "FAILS" if each.fails else "from tape" if each.is_tape else "ok" if each.says else "words"
        deadline = f"{each.deadline_s:g} s" if each.says else ""
        cells.append(
            (
                str(each.number),
                each.title,
                seconds(each.first_s),
                seconds(each.second_s),
                deadline,
                each.memory,
                state,
            )
        )
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    out = []
    for place, row in enumerate(cells):
        out.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if place:
            each = lines[place - 1]
            out += [f"   {text}" for text in (each.says, *(f"risk: {risk}" for risk in each.risks)) if text]
    return out


def seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s" if value >= 0.1 else f"{value:.2f} s"
