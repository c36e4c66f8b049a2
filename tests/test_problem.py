"""Problem: what is refused, in which words, and how lengths and lists are read."""

import json
import re

import pytest

from explorer.problem import PRESETS, Problem, divisors, parse_length, parse_list


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"kv_heads": 3}, r"kv_heads must divide heads=8, got 3; one of 1, 2, 4, 8 would do"),
        ({"head_dim": 0}, r"head_dim must be from 1 to 2147483647, got 0"),
        ({"q_len": -1}, r"q_len must be from 1 to 2147483647, got -1"),
        ({"q_len": 2**31}, r"q_len must be from 1 to 2147483647, got 2147483648"),
        ({"batch": 1.5}, r"batch must be a whole number, got 1.5"),
        ({"batch": True}, r"batch must be a whole number, got True"),
        ({"dtype": "float8"}, r"dtype must be one of float32, bfloat16, float16, got float8"),
        ({"seed": -1}, r"seed must be a whole number from 0"),
        ({"inputs": "ones"}, r"inputs must be one of normal, lab, .*, got ones"),
        ({"window": (-1, 0)}, r"window needs two numbers of keys"),
        ({"kv_valid": 129}, r"kv_valid must be from 0 to kv_len=128, got 129"),
        ({"input_scale": float("nan")}, r"input_scale must be a positive number"),
    ],
)
def test_a_wrong_request_gets_one_sentence(wrong: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        Problem(**wrong)
    assert "\n" not in str(caught.value)


def test_lengths_and_heads_follow_unless_given() -> None:
    p = Problem.of(q_len=7, heads=6)
    assert (p.kv_len, p.kv_heads) == (7, 6)
    p = Problem.of(q_len=7, kv_len=5, heads=6, kv_heads=2)
    assert (p.kv_len, p.kv_heads) == (5, 2)


def test_json_and_back() -> None:
    p = Problem(batch=2, q_len=3, kv_len=5, heads=6, kv_heads=2, head_dim=7, causal=True, window=(2, 0), kv_valid=4)
    values = json.loads(json.dumps(p.to_json()))
    assert values["mask"] == "causal+window 2,0+padding 4"
    assert Problem.from_json(values) == p


def test_shapes_and_names_of_head_sharing() -> None:
    p = Problem(batch=2, q_len=3, kv_len=5, heads=6, kv_heads=2, head_dim=7)
    assert p.q_shape == (2, 3, 6, 7)
    assert p.kv_shape == (2, 5, 2, 7)
    assert (p.sharing, p.but(kv_heads=6).sharing, p.but(kv_heads=1).sharing) == ("GQA", "MHA", "MQA")


@pytest.mark.parametrize(("text", "value"), [("128", 128), ("2k", 2048), ("16K", 16384), ("0", 0), ("-1", -1)])
def test_lengths(text: str, value: int) -> None:
    assert parse_length(text) == value


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("64,128", (64, 128)),
        ("1k,64,64", (64, 1024)),
        ("8:32:8", (8, 16, 24, 32)),
        ("1:3", (1, 2, 3)),
        ("1k:2k:512,8", (8, 1024, 1536, 2048)),
    ],
)
def test_lists_are_sorted_and_each_once(text: str, values: tuple[int, ...]) -> None:
    assert parse_list(text) == values


@pytest.mark.parametrize("text", ["", ",", "x", "8:4:2", "1:2:0", "1:2:3:4", "1.5", "1:1000000"])
def test_wrong_lists_say_what_would_work(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as|needs|at most"):
        parse_list(text)


def test_divisors() -> None:
    assert divisors(28) == [1, 2, 4, 7, 14, 28]
    assert divisors(1) == [1]


def test_presets_have_sources_and_the_published_shapes() -> None:
    assert all(re.search(r"\w", preset.source) for preset in PRESETS.values())
    shapes = {name: (p.problem.heads, p.problem.kv_heads, p.problem.head_dim, p.layers) for name, p in PRESETS.items()}
    assert shapes["gpt2"] == (12, 12, 64, 12)
    assert shapes["llama3-8b"] == (32, 8, 128, 32)
    assert shapes["llama3-70b"] == (64, 8, 128, 80)
    assert shapes["gemma2-9b"] == (16, 8, 256, 42)
    assert shapes["qwen2.5-7b"] == (28, 4, 128, 28)
    assert PRESETS["decode"].problem.q_len == 1
    assert not PRESETS["decode"].problem.causal  # top-left causal would show the new token the first key alone
    lab = PRESETS["lab"].problem
    assert (lab.batch, lab.q_len, lab.kv_len, lab.heads, lab.head_dim, lab.dtype) == (4, 128, 128, 8, 64, "float32")
