"""Link: the state of the controls as URL parameters. What can't be had is named, never dropped in silence."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from explorer import backends
from explorer.problem import AXIS_LETTERS, PRESETS, Problem, parse_length

VERSION = "1"  # a later change of a default or a name gets another number, so that old links can be told apart
DEFAULT = Problem()
NAMES = frozenset(
    ("v", "preset", "batch", "q_len", "kv_len", "kv_follows", "heads", "kv_heads", "head_dim", "dtype", "causal",
     "seed", "inputs", "input_scale", "backend", "exact")
)  # fmt: skip
PAGES = (  # how the names of the pages' own controls begin; "compare_": of the page Compare
    "compare_", "fp8_", "heads_", "latency_", "limits_", "live_", "masks_", "memory_", "roofline_", "steps_", "te_",
)  # fmt: skip
OTHERS = frozenset(("path", "then", "watch", "job", "talk", "scene", "key"))  # kept in the address by pages themselves
MEANT = {  # names of the command line and of habit: what the app calls them
    "window": "masks_window, masks_left and masks_right on the page Masks",
    "kv_valid": "masks_padding and masks_valid on the page Masks",
    "backends": "backend",
}
DEFAULT_BACKENDS = ("naive", "xla", "cudnn")


def read(asked: Mapping[str, Sequence[str]]) -> tuple[dict[str, Any], dict[str, str]]:
    """The controls' values that a link asks for, and a sentence for each wish that can't be met, by control.

    kv_len follows q_len and kv_heads follows heads unless given, as on the command line. Lengths may be written 2k.
    A preset gives what the link does not spell out.
    """
    values: dict[str, Any] = {}
    notices: dict[str, str] = {}
    if asked.get("preset"):
        values, notices = _preset(asked["preset"][-1])

    def take(name: str, parse: Callable[[str], Any], check: Callable[[Any], object]) -> None:
        if not asked.get(name):
            return
        try:
            value = parse(asked[name][-1])
            check(value)
        except ValueError as error:
            notices[name] = str(error)
        else:
            values[name] = value

    def alone(name: str) -> Callable[[Any], object]:
        return lambda value: Problem.of(**{name: value})

    version = list(asked.get("v", ())) or [VERSION]
    if version[-1] != VERSION:
        notices["v"] = (
            f"the link must be of version {VERSION}, got v={version[-1]}; its values may mean something else here"
        )
    for name in ("batch", "q_len", "kv_len", "heads", "head_dim"):
        take(name, _size(name), alone(name))
    heads = values.get("heads", DEFAULT.heads)
    if "heads" in asked or "kv_heads" not in values:
        values["kv_heads"] = heads
    take("kv_heads", _size("kv_heads"), lambda value: Problem.of(heads=heads, kv_heads=value))
    take("dtype", str, alone("dtype"))
    take("causal", _boolean("causal"), alone("causal"))
    take("seed", _size("seed"), alone("seed"))
    take("inputs", str, alone("inputs"))
    take("input_scale", _number("input_scale"), alone("input_scale"))
    if "kv_len" in values:
        values["kv_follows"] = False
    take("kv_follows", _boolean("kv_follows"), bool)
    if "backend" in asked:
        known, notice = _backends(asked["backend"])
        if notice:
            notices["backend"] = notice
        if known or not notice:
            values["backend"] = known
    if unknown := [name for name in asked if not is_known(name)]:
        notices["unknown"] = _no_such(unknown)
    return values, notices


def is_known(name: str) -> bool:
    """Whether a control of the sidebar or of a page, or a page itself, keeps something under that name."""
    return name in NAMES or name in OTHERS or name.startswith(PAGES)


def _no_such(names: Sequence[str]) -> str:
    said = []
    for name in names:
        near = MEANT.get(name) or next(iter(difflib.get_close_matches(name, NAMES, 1)), None)
        said.append(f"{name} (did you mean {near}?)" if near else name)
    return f"the link has {', '.join(said)}, which this app doesn't know"


def write(problem: Problem, names: Sequence[str]) -> str:
    """The query string that opens this problem with these backends; all is spelt out, so defaults may change."""
    values: dict[str, Any] = {"v": VERSION}
    for name in ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "dtype", "causal", "seed"):
        values[name] = getattr(problem, name)
    if problem.inputs != DEFAULT.inputs:
        values["inputs"] = problem.inputs
    if problem.input_scale != DEFAULT.input_scale:
        values["input_scale"] = problem.input_scale
    if problem.kv_len == problem.q_len:
        del values["kv_len"]
    values["causal"] = str(problem.causal).lower()
    return urlencode({**values, "backend": list(names)}, doseq=True)


def _preset(name: str) -> tuple[dict[str, Any], dict[str, str]]:
    if name not in PRESETS:
        return {}, {"preset": f"preset must be one of {', '.join(PRESETS)}, got {name}"}
    values = {field: getattr(PRESETS[name].problem, field) for field in (*AXIS_LETTERS, "dtype", "causal")}
    if values["kv_len"] == values["q_len"]:
        del values["kv_len"]
    return values, {}


def _backends(asked: Sequence[str]) -> tuple[list[str], str | None]:
    """Known names in order, each once, and a sentence about the others. Names may come apart or with commas."""
    specs = [part.strip() for text in asked for part in text.split(",") if part.strip()]
    known = [name for name in dict.fromkeys(specs) if name in backends.BACKENDS]
    unknown = [name for name in dict.fromkeys(specs) if name not in backends.BACKENDS]
    if not unknown:
        return known, None
    return known, f"backend must be one of {', '.join(backends.BACKENDS)}, got {', '.join(unknown)}"


def _size(name: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            return parse_length(text.strip())
        except ValueError:
            raise ValueError(f"{name} must be a whole number, got {text}") from None

    return parse


def _number(name: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{name} must be a number, got {text}") from None

    return parse


def _boolean(name: str) -> Callable[[str], bool]:
    def parse(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{name} must be true or false, got {text}")
        return text.lower() == "true"

    return parse
