"""Stage: what a scene shows at this moment: the live run, or the tape in its place. No drawing, no queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from explorer import headline
from explorer.backends import BACKENDS
from explorer.charts import label
from explorer.clock import Protocol
from explorer.device import Device
from explorer.headline import Headline
from explorer.record import Record
from explorer.scenes import CLOCKS, Scene
from explorer.sweep import Point
from explorer.tape import BROKEN, Tape

# Half the samples of a sweep: most of a scene are the pauses before long calls, and an audience waits
PROTOCOL = Protocol(warmup=2, repeats=10, trace_calls=3, limit_s=2.0)
ON_CPU = {"warmup": 1, "repeats": 5, "limit_s": 1.0}  # a CPU is slow, and an audience waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """All records of one source: live and taped ones are never compared. why: what keeps the live run away."""

    source: Literal["live", "tape", "nothing"]
    records: tuple[Record, ...] = ()
    why: str = ""

    def at(self, points: Sequence[Point]) -> tuple[Record, ...]:
        """The records of these points."""
        found = {(each.problem, each.backend): each for each in self.records}
        return tuple(found[point.problem, point.backend] for point in points if (point.problem, point.backend) in found)


def protocol(here: Device | None) -> Protocol:
    return PROTOCOL if here is None or here.is_gpu else replace(PROTOCOL, **ON_CPU)


def refused(scene: Scene, here: Device) -> str:
    """Why the scene can't be live on this device, by the rules; empty if it can."""
    for point in scene.points:
        if why := BACKENDS[point.backend].why_not(point.problem, here):
            return f"{label(point.backend)} can't run here: {why}"
    return ""


def choose(
    scene: Scene,
    live: Sequence[Record],
    tape: Tape,
    *,
    is_over: bool,
    is_late: bool,
    refusal: str = "",
    trouble: str = "",
) -> Shown:
    """The live run while it is in time and good; else the tape, if it holds the whole scene.

    The live one takes over when it is complete. live: its records so far. refusal: see `refused`. trouble: what went
    wrong with a run that goes on, such as the end of its worker.
    """
    points = scene.points
    if not points:
        return Shown(source="nothing")
    ran = Shown(source="live", records=tuple(live))
    taped = tape.of(points)
    if not taped:
        missing = "" if not (is_late or refusal or trouble) else "nothing is on tape for this scene"
        return replace(ran, why="; ".join(filter(None, (refusal, trouble, missing))))
    if refusal:
        return Shown(source="tape", records=taped, why=refusal)
    on_tape = {(each.problem, each.backend): each for each in taped}
    for each in live:
        known = on_tape.get((each.problem, each.backend))
        if each.status in BROKEN or (each.status != "ok" and known is not None and known.status == "ok"):
            return Shown(source="tape", records=taped, why=f"live, {label(each.backend)} {_gone(each)}")
    complete = len(ran.at(points)) == len(points)
    if is_over and not complete:
        return Shown(source="tape", records=taped, why="the live run ended before it was complete")
    if trouble and not complete:
        return Shown(source="tape", records=taped, why=f"live: {trouble} It goes on, and comes when it is there")
    if is_late and not complete:
        why = f"the live run takes longer than {scene.deadline_s:g} s, and comes when it is there"
        return Shown(source="tape", records=taped, why=why)
    return ran


def _gone(each: Record) -> str:
    words = headline.WITHOUT.get(each.status, "has no time").removesuffix(", so no time,")
    return f"{words}: {each.reason}" if each.reason else words


def values(scene: Scene, shown: Shown) -> tuple[int, ...]:
    """The values of the axis that were measured, for every backend: a slider has no others."""
    return tuple(value for value in scene.values if len(shown.at(scene.at(value))) == len(scene.backends))


def say(scene: Scene, shown: Shown, value: int | None) -> Headline:
    """The scene's sentence at a value of its axis. Names the place if it isn't this one."""
    records = shown.at(scene.at(value))
    place = "here"
    if shown.source == "tape":
        place = "on " + " and ".join(dict.fromkeys(each.environment.get("gpu") or each.where for each in records))
    if scene.page == "memory":
        return headline.of_memory(records, scene.subject, scene.against, place=place)
    return headline.of_time(records, scene.subject, scene.against, CLOCKS[scene.clock], place=place)
