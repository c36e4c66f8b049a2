"""Tape: records of a rehearsal, kept for the talk. Shown only as they are, and always with when and where."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from explorer import record
from explorer.record import Record
from explorer.sweep import Point

BROKEN = ("failed", "timed_out", "cancelled")  # no answer: the run itself went wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Tape:
    """Records by their point; losses: a sentence for each line that can't be read.

    Of equal points the last stands, but what failed never hides what was measured.
    """

    name: str = "tape"
    records: tuple[Record, ...] = ()
    losses: tuple[str, ...] = ()
    found: dict[tuple[object, str], Record] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found: dict[tuple[object, str], Record] = {}
        for each in self.records:
            key = each.problem, each.backend
            if key not in found or each.status not in BROKEN:
                found[key] = each
        object.__setattr__(self, "found", found)

    def of(self, points: Iterable[Point]) -> tuple[Record, ...]:
        """The taped record of each point, or none at all: half a scene would compare what does not belong together."""
        taped = [self.found.get((point.problem, point.backend)) for point in points]
        return tuple(each for each in taped if each is not None) if taped and None not in taped else ()

    def after(self, records: Iterable[Record]) -> Tape:
        """This tape with newer records behind it."""
        return Tape(name=self.name, records=(*self.records, *records), losses=self.losses)


def read(path: str | os.PathLike[str]) -> Tape:
    """A file that isn't there is an empty tape, and that is said."""
    file = Path(path)
    if not file.is_file():
        return Tape(name=file.name, losses=(f"the tape {file.name} is not there",))
    records, losses = record.read_lines(file)
    return Tape(name=file.name, records=tuple(records), losses=tuple(losses))


def of_text(text: str, name: str) -> Tape:
    """As read, from an upload."""
    records, losses = record.parse_lines(text, name)
    return Tape(name=name, records=tuple(records), losses=tuple(losses))


def label(records: Sequence[Record], here: str | None = None, now: datetime.datetime | None = None) -> str:
    """ "recorded 14:02 on NVIDIA H200"; with the date if that was another day, and said so if it is another GPU's.

    here: the device at hand, None while that isn't known. Times are this machine's.
    """
    now = (now or datetime.datetime.now(datetime.UTC)).astimezone()
    times = sorted(when for each in records if (when := _when(each)) is not None)
    said = "at an unknown time"
    if times:
        first = times[0].astimezone(now.tzinfo)
        said = f"{first:%H:%M}" if first.date() == now.date() else f"{first:%Y-%m-%d %H:%M %Z}"
    places = list(dict.fromkeys(each.environment.get("gpu") or each.where for each in records))
    other = f", not on this machine's {here}" if here is not None and places and places != [here] else ""
    return f"recorded {said} on {' and '.join(places) or 'an unknown device'}{other}"


def clock_time(each: Record) -> str:
    """When it was measured, by this machine's clock: "14:02:31", or a dash."""
    when = _when(each)
    return "—" if when is None else f"{when.astimezone():%H:%M:%S}"


def _when(each: Record) -> datetime.datetime | None:
    try:
        when = datetime.datetime.fromisoformat(each.time or "")
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=datetime.UTC)
