"""Scenes: a talk as a small TOML file. What is wrong in it is said with its line and what would do, before the talk."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from explorer import backends, sweep
from explorer.problem import PRESETS, SIZES, Problem
from explorer.sweep import Point

FOLDER = Path(__file__).parent / "talks"
PAGES = {  # page: what the stage draws for it; each is also a page of the app, for a closer look afterwards
    "start": "words only",
    "live": "one problem, a bar for each backend",
    "latency": "times along an axis",
    "memory": "working memory along an axis",
}
CLOCKS = {"device": "device_ms", "wall": "wall_ms"}
RUNS = ("auto", "key")
FIELDS = (*SIZES, "dtype", "causal", "seed", "inputs", "input_scale")
TALK_KEYS = ("title", "about", "tape", "scene")
SCENE_KEYS = (
    "title", "text", "say", "page", "backends", "against", "clock", "run", "deadline_s", "preset", "problem", "axis",
    "values",
)  # fmt: skip
MOST_VALUES = 24
MOST_BYTES = 2**20


class TalkError(ValueError):
    """What is wrong with a talk's file: a sentence for each fault, each with its line."""

    def __init__(self, complaints: Sequence[str]) -> None:
        self.complaints = tuple(complaints)
        super().__init__("; ".join(self.complaints))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One step of a talk. title and text are for the audience, say is for the presenter.

    backends: NAME or NAME:DTYPE; the last one is what the sentence is about, compared with `against`. values: along
    axis, else one problem. deadline_s: when the tape comes in for a live run that isn't done. run: auto starts it on
    entry, key waits for the run key.
    """

    title: str
    page: str
    text: str = ""
    say: str = ""
    backends: tuple[str, ...] = ()
    against: str = ""
    clock: str = "device"
    run: str = "auto"
    deadline_s: float = 10.0
    problem: Problem = field(default_factory=Problem)
    axis: str = ""
    values: tuple[int, ...] = ()

    @property
    def is_words(self) -> bool:
        return self.page == "start"

    @property
    def subject(self) -> str:
        """The backend that the sentence is about."""
        return next((spec for spec in reversed(self.backends) if spec != self.against), "")

    @property
    def points(self) -> tuple[Point, ...]:
        """What is measured: each backend at each value."""
        if self.is_words:
            return ()
        axis = self.axis or "q_len"
        values = self.values or (getattr(self.problem, axis),)
        follow = not self.values or self.axis != "q_len" or self.problem.kv_len == self.problem.q_len
        return tuple(sweep.points(self.problem, self.backends, axis=axis, values=values, follow=follow))

    def at(self, value: int | None) -> tuple[Point, ...]:
        """The points at one value of the axis; all of them without an axis."""
        if not self.values:
            return self.points
        return tuple(point for point in self.points if getattr(point.problem, self.axis) == value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """name: of its file. tape: the file beside it that holds the taped records, or empty."""

    name: str
    title: str
    scenes: tuple[Scene, ...]
    about: str = ""
    tape: str = ""


# --- files


def folders() -> list[Path]:
    """Where talks lie: those that are shipped, and EXPLORER_TALKS."""
    own = os.environ.get("EXPLORER_TALKS")
    return [FOLDER, *([Path(own)] if own else [])]


def names() -> list[str]:
    return sorted({path.stem for folder in folders() for path in folder.glob("*.toml")})


def find(name: str) -> Path:
    """The file of a talk by its name; raises ValueError for one that isn't there."""
    found = {path.stem: path for folder in folders() for path in folder.glob("*.toml")}
    if name not in found:
        raise ValueError(f"talk must be one of {', '.join(sorted(found)) or 'none'}, got {name!r}")
    return found[name]


def load(path: Path) -> Talk:
    """Raises TalkError, or ValueError for a file that can't be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"a talk's TOML file is needed, got {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"a talk's file must be UTF-8 text, got {path.name}") from None
    return parse(text, path.stem)


def parse(text: str, name: str) -> Talk:
    """Every fault at once, as TalkError."""
    if len(text) > MOST_BYTES:
        raise TalkError([f"a talk's file may have {MOST_BYTES:,} characters, got {len(text):,}"])
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TalkError([_broken(str(error), text)]) from None
    reader = _Reader(_lines(text))
    reader.keys(values, TALK_KEYS, ())
    given = values.get("scene")
    if not isinstance(given, list) or not given or not all(isinstance(each, dict) for each in given):
        reader.complain((), "scene" if given else "", "a talk needs at least one [[scene]], got none")
        raise TalkError(reader.complaints)
    talk = {key: reader.text(values, key, ()) for key in ("title", "about", "tape")}
    if talk["tape"] and Path(talk["tape"]).name != talk["tape"]:
        reader.complain((), "tape", f"tape must be the name of a file beside the talk, got {talk['tape']!r}")
    made = [_scene(reader, each, index) for index, each in enumerate(given)]
    if reader.complaints:
        raise TalkError(reader.complaints)
    scenes = tuple(scene for scene in made if scene is not None)
    return Talk(name=name, title=talk["title"] or name, about=talk["about"], tape=talk["tape"], scenes=scenes)


def snippet(problem: Problem, names: Sequence[str], *, page: str, title: str, deadline_s: float = 10.0) -> str:
    """The state of the controls as a [[scene]], to be added to a talk's file."""
    kind = page if page in PAGES and page != "start" else "live"
    against = f'against = "{names[0]}"\n' if len(names) > 1 else ""
    clock = "" if kind == "memory" else 'clock = "device"\n'
    fields = [f"{name} = {_toml(getattr(problem, name))}" for name in FIELDS]
    return (
        f'[[scene]]\ntitle = {_toml(title)}\nsay = ""\npage = "{kind}"\nbackends = {_toml(list(names))}\n{against}'
        f"{clock}deadline_s = {deadline_s:g}\n\n[scene.problem]\n" + "\n".join(fields) + "\n"
    )


def _toml(value: Any) -> str:
    """JSON's strings, numbers, booleans and lists of these are TOML's too (but for DEL, which JSON leaves bare)."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


# --- checking


def _scene(reader: _Reader, given: Mapping[str, Any], index: int) -> Scene | None:
    """A scene, or None with the complaints at the reader."""
    before, at = len(reader.complaints), (index,)
    reader.keys(given, SCENE_KEYS, at)
    texts: dict[str, Any] = {key: reader.text(given, key, at) for key in ("title", "text", "say")}
    if not texts["title"]:
        reader.complain(at, "title", "a scene needs a title, got none")
    page = reader.choice(given, "page", at, tuple(PAGES), "")
    clock = reader.choice(given, "clock", at, tuple(CLOCKS), "device")
    run = reader.choice(given, "run", at, RUNS, "auto")
    deadline = given.get("deadline_s", 10.0)
    if isinstance(deadline, bool) or not isinstance(deadline, int | float) or not 0 <= deadline <= 3600:
        reader.complain(at, "deadline_s", f"deadline_s must be a number of seconds from 0 to 3600, got {deadline!r}")
    if page == "start":
        if needless := [key for key in ("backends", "axis", "values", "against") if key in given]:
            reader.complain(
                at, needless[0], f"a scene of words runs nothing, got {needless[0]}; page live would run it"
            )
        return None if len(reader.complaints) > before else Scene(page=page, **texts)
    specs, against = _backends(reader, given, at)
    problem = _problem(reader, given, at)
    axis, values = _axis(reader, given, at, page)
    if len(reader.complaints) > before:
        return None
    try:
        scene = Scene(
            page=page, backends=specs, against=against, clock=clock, run=run, deadline_s=float(deadline),
            problem=problem, axis=axis, values=values, **texts,
        )  # fmt: skip
        assert scene.points
    except ValueError as error:
        reader.complain(at, "values", str(error))
        return None
    return scene


def _backends(reader: _Reader, given: Mapping[str, Any], at: tuple[Any, ...]) -> tuple[tuple[str, ...], str]:
    specs = given.get("backends")
    if specs is None and any(difflib.get_close_matches(key, ["backends"]) for key in given if key not in SCENE_KEYS):
        return (), ""  # misspelt, which is said
    if not isinstance(specs, list) or not specs or not all(isinstance(spec, str) for spec in specs):
        wanted = 'a list of names is needed, such as ["naive", "cudnn"]'
        reader.complain(at, "backends", f"backends: {wanted}, got {specs if specs else 'none'}")
        return (), ""
    for spec in specs:
        try:
            backends.parse(spec)
        except ValueError as error:
            name = spec.partition(":")[0]
            near = "" if name in backends.BACKENDS else _meant(name, backends.BACKENDS)
            reader.complain(at, "backends", f"{error}{near}")
    against = given.get("against", specs[0] if len(specs) > 1 else "")
    if against and against not in specs:
        wanted = ", ".join(specs)
        reader.complain(at, "against", f"against must be one of the scene's backends {wanted}, got {against!r}")
    return tuple(dict.fromkeys(specs)), against if isinstance(against, str) else ""


def _problem(reader: _Reader, given: Mapping[str, Any], at: tuple[Any, ...]) -> Problem:
    base = Problem()
    if "preset" in given:
        name = reader.choice(given, "preset", at, tuple(PRESETS), "lab")
        base = PRESETS[name].problem if name in PRESETS else base
    fields = given.get("problem", {})
    if not isinstance(fields, dict):
        reader.complain(at, "problem", f"problem must be a table such as {{ q_len = 2048 }}, got {fields!r}")
        return base
    inside = (*at, "problem")
    reader.keys(fields, FIELDS, inside)
    known = {name: value for name, value in fields.items() if name in FIELDS}
    for name, value in known.items():
        try:
            if name == "causal" and not isinstance(value, bool):
                raise ValueError(f"causal must be true or false, got {value!r}")
            if name == "input_scale" and not isinstance(value, int | float):
                raise ValueError(f"input_scale must be a number, got {value!r}")
            Problem.of(**{name: value, **({"heads": value} if name == "kv_heads" else {})})
        except ValueError as error:
            reader.complain(inside, name, str(error))
            return base
    if "q_len" in known and base.kv_len == base.q_len:
        known.setdefault("kv_len", known["q_len"])
    if "heads" in known and base.kv_heads == base.heads:
        known.setdefault("kv_heads", known["heads"])
    try:
        return base.but(**known)
    except ValueError as error:
        reader.complain(inside, "kv_heads" if "kv_heads" in fields else "", str(error))
        return base


def _axis(reader: _Reader, given: Mapping[str, Any], at: tuple[Any, ...], page: str) -> tuple[str, tuple[int, ...]]:
    if "axis" not in given and "values" not in given:
        if page in ("latency", "memory"):
            reader.complain(at, "page", f"page {page} needs axis and values, got neither; page live takes one problem")
        return "", ()
    if page == "live":
        key = "axis" if "axis" in given else "values"
        reader.complain(at, key, f"page live shows one problem, got {key}; page latency takes an axis with values")
        return "", ()
    axis = reader.choice(given, "axis", at, SIZES, "")
    values = given.get("values")
    if not isinstance(values, list) or not values or not all(type(value) is int and value > 0 for value in values):
        reader.complain(at, "values", f"values must be a list of whole numbers such as [256, 512], got {values!r}")
        return axis, ()
    if len(values) > MOST_VALUES:
        reader.complain(at, "values", f"values may have {MOST_VALUES} entries, got {len(values)}")
    return axis, tuple(sorted(set(values)))


class _Reader:
    """Collects complaints, each with the line of what it is about."""

    def __init__(self, lines: Mapping[tuple[Any, ...], int]) -> None:
        self._lines, self._found = lines, list[tuple[int, str]]()

    @property
    def complaints(self) -> list[str]:
        """In the order of the file."""
        return [f"line {line}: {sentence}" for line, sentence in sorted(self._found, key=lambda each: each[0])]

    def complain(self, at: tuple[Any, ...], key: str, sentence: str) -> None:
        line = self._lines.get((*at, key)) or self._lines.get(at) or self._lines.get(at[:1]) or 1
        self._found.append((line, sentence))

    def keys(self, given: Mapping[str, Any], known: Sequence[str], at: tuple[Any, ...]) -> None:
        for key in given:
            if key not in known:
                self.complain(at, key, f"{key!r} is no key here; one of {', '.join(known)} is{_meant(key, known)}")

    def text(self, given: Mapping[str, Any], key: str, at: tuple[Any, ...]) -> str:
        value = given.get(key, "")
        if isinstance(value, str):
            return value.strip()
        self.complain(at, key, f'{key} must be text in quotes, such as "{value}", got {value!r}')
        return ""

    def choice(
        self, given: Mapping[str, Any], key: str, at: tuple[Any, ...], known: Sequence[str], default: str
    ) -> str:
        value = given.get(key, default)
        if isinstance(value, str) and value in known:
            return value
        got = f"got {value!r}{_meant(str(value), known)}" if key in given else "got none"
        self.complain(at, key, f"{key} must be one of {', '.join(known)}, {got}")
        return default


def _meant(given: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""


def _broken(message: str, text: str) -> str:
    """TOML's own complaint, with the line before it and the line itself behind it."""
    found = re.search(r"\(at line (\d+), column \d+\)", message)
    if not found:
        return f"line {max(1, text.count(chr(10)))}: {message}; the file must be TOML"
    number = int(found[1])
    line = (text.splitlines() or [""])[min(number, text.count("\n") + 1) - 1].strip()[:80]
    return (
        f"line {number}: {message[: found.start()].strip()}: {line}; text stands in quotes, lists in [ ], true is true"
    )


HEADER = re.compile(r"\s*(\[\[?)\s*([\w.\s\"'-]+?)\s*\]\]?\s*(#.*)?$")
KEY = re.compile(r"\s*[\"']?([\w-]+)[\"']?\s*[=.]")


def _lines(text: str) -> dict[tuple[Any, ...], int]:
    """The line of each table and key: () and (key,) of the talk; (0,), (0, key), (0, "problem", key) of a scene."""
    found: dict[tuple[Any, ...], int] = {(): 1}
    at: tuple[Any, ...] = ()
    scene, quotes = -1, ""
    for number, line in enumerate(text.splitlines(), start=1):
        if quotes:
            quotes = "" if line.count(quotes) % 2 else quotes
            continue
        if header := HEADER.match(line):
            path = [part.strip().strip("\"'") for part in header[2].split(".")]
            scene += header[1] == "[[" and path == ["scene"]
            at = (scene, *path[1:]) if path[0] == "scene" and scene >= 0 else tuple(path)
            found.setdefault(at, number)
        elif key := KEY.match(line):
            found.setdefault((*at, key[1]), number)
        quotes = next((each for each in ('"""', "'''") if line.count(each) % 2), "")
    return found
