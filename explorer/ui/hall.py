"""Hall: what all sessions of the Stage page share: uploaded talks, tapes of rehearsals, and what is on stage now."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import streamlit as st

from explorer import scenes, tape
from explorer.record import Record
from explorer.scenes import Scene, Talk
from explorer.stage import Shown
from explorer.tape import Tape

KEPT_TALKS, KEPT_SHOWS = 20, 100
LETTERS = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"  # none that is taken for another when read from a wall
CODE_LENGTH = 6
OWN = "own-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """A talk, under the name that the address carries. own: its tape as it came; tape: with what was rehearsed here."""

    name: str
    talk: Talk
    own: Tape
    tape: Tape


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """What the audience sees: the scene as the presenter's page drew it last."""

    talk: str
    index: int
    count: int
    scene: Scene
    shown: Shown
    value: int | None
    label: str
    is_frozen: bool = False


@dataclass(kw_only=True)
class Hall:
    """Bounded, and behind one lock."""

    talks: OrderedDict[str, tuple[Talk, Tape]] = field(default_factory=OrderedDict)
    takes: OrderedDict[str, tuple[Record, ...]] = field(default_factory=OrderedDict)
    shows: OrderedDict[str, Show] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def bring(self, text: str, file: str, taped: Tape) -> str:
        """An uploaded talk's name in the address; raises TalkError."""
        talk = scenes.parse(text, Path(file).stem)
        name = OWN + sha256(repr((text, taped.records)).encode()).hexdigest()[:12]
        self._keep(self.talks, name, (talk, taped), KEPT_TALKS)
        return name

    def play(self, name: str) -> Play:
        """Raises ValueError for a talk that isn't here, or TalkError for a broken one."""
        with self.lock:
            brought, taken = self.talks.get(name), self.takes.get(name, ())
        if brought is None and name.startswith(OWN):
            raise ValueError("This talk was uploaded to a server that has been restarted since; upload it again.")
        talk, taped = brought or _shipped(name)
        return Play(name=name, talk=talk, own=taped, tape=taped.after(taken) if taken else taped)

    def record(self, name: str, records: tuple[Record, ...]) -> None:
        """A rehearsal's records join the talk's tape; what is refused here would hide another GPU's."""
        self._keep(self.takes, name, tuple(each for each in records if each.status != "refused"), KEPT_TALKS)

    def publish(self, code: str, show: Show) -> None:
        if self.shows.get(code) != show:
            self._keep(self.shows, code, show, KEPT_SHOWS)

    def _keep(self, kept: OrderedDict[str, Any], key: str, value: Any, most: int) -> None:
        with self.lock:
            kept[key] = value
            kept.move_to_end(key)
            while len(kept) > most:
                kept.popitem(last=False)


@st.cache_resource(show_spinner=False)
def hall() -> Hall:
    return Hall()


def code_of(key: str) -> str:
    """The audience's short code, from the presenter's secret; not the other way round."""
    number = int.from_bytes(sha256(key.encode()).digest()[:8])
    letters = []
    for _ in range(CODE_LENGTH):
        number, place = divmod(number, len(LETTERS))
        letters.append(LETTERS[place])
    return "".join(letters)


def _shipped(name: str) -> tuple[Talk, Tape]:
    path = scenes.find(name)
    beside = [path, *path.parent.glob("*.jsonl")]
    return _read(str(path), tuple(each.stat().st_mtime_ns for each in beside))


@st.cache_resource(show_spinner=False, max_entries=KEPT_TALKS)
def _read(path: str, changed: tuple[int, ...]) -> tuple[Talk, Tape]:
    """changed: when the files did, so that a changed one is read again."""
    talk = scenes.load(Path(path))
    return talk, tape.read(Path(path).parent / talk.tape) if talk.tape else Tape()
