"""SHAPE: the arguments every command shares, and the Problem they make."""

from __future__ import annotations

import argparse
from typing import Any

from explorer.problem import DTYPES, INPUTS, PRESETS, Problem, parse_length


def length(text: str) -> int:
    """argparse shows an ArgumentTypeError's own words, but not a ValueError's."""
    try:
        return parse_length(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def window(text: str) -> tuple[int, int]:
    try:
        left, right = (int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"a window is LEFT,RIGHT in keys, such as 16,0, got {text!r}") from None
    return left, right


def add_shape(parser: argparse.ArgumentParser, *, dtype: str = "float32", without: tuple[str, ...] = ()) -> None:
    """--preset and one option per field; what is not given comes from the preset (lab by default).

    without: sizes for which the command has an option of its own.
    """
    group = parser.add_argument_group("shape", "lengths take k for 1,024; kv_len follows q_len, kv_heads follows heads")
    group.add_argument("--preset", default="lab", metavar="NAME", help=f"one of {', '.join(PRESETS)}")
    for name in ("batch", "q-len", "kv-len", "heads", "kv-heads", "head-dim"):
        if name not in without:
            group.add_argument(f"--{name}", type=length, metavar="N")
    group.add_argument("--dtype", metavar="DTYPE", help=f"{', '.join(DTYPES)} (default {dtype})")
    group.add_argument("--causal", action="store_true", default=None)
    group.add_argument("--backward", action="store_true", default=None, help="the gradients of q, k and v as well")
    group.add_argument("--window", type=window, metavar="LEFT,RIGHT", help="a sliding window, in keys")
    group.add_argument(
        "--kv-valid", type=length, metavar="N", help="only the first N keys are real, the rest is padding"
    )
    group.add_argument("--seed", type=int, metavar="N")
    group.add_argument("--inputs", metavar="KIND", help=f"{', '.join(INPUTS)} (default normal)")
    group.add_argument("--input-scale", type=float, metavar="X", help="q and k times this")


FIELDS = (
    "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "dtype", "causal", "backward", "window", "kv_valid",
    "seed", "inputs", "input_scale",
)  # fmt: skip


def problem_of(args: argparse.Namespace, *, dtype: str | None = None, **changes: Any) -> Problem:
    """The Problem that SHAPE asks for; raises ValueError. dtype: the command's own default."""
    if args.preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {args.preset!r}")
    base = PRESETS[args.preset].problem
    given = {name: getattr(args, name) for name in FIELDS if getattr(args, name, None) is not None} | changes
    if dtype is not None and args.preset == "lab":
        given.setdefault("dtype", dtype)
    if "q_len" in given and "kv_len" not in given and base.kv_len == base.q_len:
        given["kv_len"] = given["q_len"]
    if "heads" in given and "kv_heads" not in given and base.kv_heads == base.heads:
        given["kv_heads"] = given["heads"]
    return base.but(**given)
