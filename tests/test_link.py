"""Links: what they carry, and what is said of a wish that can't be met."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import explorer.ui
from explorer.backends import BACKENDS
from explorer.problem import DTYPES, INPUTS, PRESETS, Problem
from explorer.ui import link


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """The fields of a Problem: the shape checks use random numbers, which Hypothesis doesn't want in a strategy."""
    size = st.integers(1, 4096)
    heads = draw(st.integers(1, 64))
    return {
        "batch": draw(size),
        "q_len": draw(size),
        "kv_len": draw(size),
        "heads": heads,
        "kv_heads": draw(st.sampled_from([k for k in range(1, heads + 1) if heads % k == 0])),
        "head_dim": draw(size),
        "dtype": draw(st.sampled_from(DTYPES)),
        "causal": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**31 - 1)),
        "inputs": draw(st.sampled_from(list(INPUTS))),
        "input_scale": draw(st.sampled_from([1.0, 0.5, 60.0])),
    }


@settings(deadline=None)
@given(fields=problems(), names=st.lists(st.sampled_from(list(BACKENDS)), min_size=1, unique=True))
def test_what_is_written_is_read(fields: dict[str, Any], names: list[str]) -> None:
    problem = Problem(**fields)
    values, notices = link.read(parse_qs(link.write(problem, names)))
    assert not notices
    assert values.pop("backend") == names
    assert values.pop("kv_follows", True) == (problem.kv_len == problem.q_len)
    assert Problem.of(**values) == problem


@pytest.mark.parametrize(
    ("asked", "control", "sentence"),
    [
        ({"heads": ["8"], "kv_heads": ["3"]}, "kv_heads", r"must divide heads=8, got 3; one of 1, 2, 4, 8 would do"),
        ({"head_dim": ["0"]}, "head_dim", r"head_dim must be from 1 .* got 0"),
        ({"q_len": ["-1"]}, "q_len", r"q_len must be from 1 .* got -1"),
        ({"q_len": ["many"]}, "q_len", r"whole number, got many"),
        ({"q_len": [str(2**31)]}, "q_len", r"to 2147483647"),
        ({"dtype": ["float8"]}, "dtype", r"one of float32, bfloat16, float16, got float8"),
        ({"backend": ["naive", "magic"]}, "backend", r"one of naive, .*got magic"),
        ({"causal": ["yes"]}, "causal", r"true or false, got yes"),
        ({"seed": ["-5"]}, "seed", r"seed must be .* got -5"),
        ({"inputs": ["ones"]}, "inputs", r"inputs must be one of normal, .*got ones"),
        ({"input_scale": ["nan"]}, "input_scale", r"positive number, got nan"),
        ({"v": ["9"]}, "v", r"version 1, got v=9"),
        ({"preset": ["gpt9"]}, "preset", r"preset must be one of lab, .*got gpt9"),
        ({"bogus": ["1"]}, "unknown", r"the link has bogus, which this app doesn't know"),
        ({"kv_hedas": ["2"]}, "unknown", r"kv_hedas \(did you mean kv_heads\?\)"),
        ({"window": ["8,0"]}, "unknown", r"window \(did you mean masks_window, masks_left and masks_right on"),
    ],
)
def test_what_cant_be_had_is_named(asked: dict[str, list[str]], control: str, sentence: str) -> None:
    values, notices = link.read(asked)
    assert list(notices) == [control]
    assert re.search(sentence, notices[control])
    assert control not in values or control in ("kv_heads", "backend")


def test_the_rest_of_a_bad_link_holds() -> None:
    values, notices = link.read({"q_len": ["0"], "batch": ["7"], "backend": ["xla,cudnn,magic"]})
    assert set(notices) == {"q_len", "backend"}
    assert (values["batch"], values["backend"]) == (7, ["xla", "cudnn"])


def test_a_link_without_a_known_backend_keeps_the_default() -> None:
    values, notices = link.read({"backend": ["magic"]})
    assert "backend" not in values
    assert "got magic" in notices["backend"]
    assert link.read({"backend": [""]})[0]["backend"] == [], "none chosen is a choice"


def test_a_preset_gives_what_a_link_leaves_out() -> None:
    values, notices = link.read({"preset": ["llama3-8b"], "q_len": ["512"]})
    assert not notices
    assert values == {"batch": 1, "q_len": 512, "heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16",
                      "causal": True}  # fmt: skip
    assert link.read({"preset": ["llama3-8b"], "heads": ["12"]})[0]["kv_heads"] == 12


def test_every_control_in_the_address_is_known() -> None:
    """So that a page's new control is not called unknown."""
    keys = set()
    for path in Path(explorer.ui.__file__).parent.glob("*.py"):
        for found in ast.walk(ast.parse(path.read_text())):
            if not isinstance(found, ast.Call):
                continue
            given = {each.arg: each.value for each in found.keywords}
            if "bind" in given and "key" in given:
                keys |= {each.value for each in ast.walk(given["key"]) if isinstance(each, ast.Constant)}
            if isinstance(found.func, ast.Attribute) and found.func.attr == "held":
                module = importlib.import_module(f"explorer.ui.{path.stem}")
                keys |= {getattr(module, each.id, None) for each in found.args[:1] if isinstance(each, ast.Name)}
    keys -= {"cpu", "gpu", None}
    assert len(keys) > 45
    assert [key for key in keys if not link.is_known(key)] == []


def test_kv_follows_unless_given() -> None:
    assert link.read({"q_len": ["2k"], "heads": ["12"]})[0] == {"q_len": 2048, "heads": 12, "kv_heads": 12}
    assert link.read({"q_len": ["32"], "kv_len": ["96"]})[0]["kv_follows"] is False


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_a_link(name: str) -> None:
    problem = PRESETS[name].problem
    values, _ = link.read(parse_qs(link.write(problem, ["naive"])))
    values = {k: v for k, v in values.items() if k not in ("backend", "kv_follows")}
    assert Problem.of(**values) == problem
