"""sweep: one size after another, on several backends; compiled first, then timed one by one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from explorer import backends, clock, record
from explorer.cli.run import add_backends, add_protocol, backends_of, exit_code, protocol_of, set_precision, to_stderr
from explorer.cli.shape import add_shape, length, problem_of
from explorer.problem import SIZES, parse_list
from explorer.record import Record

HELP = "measure backends along one axis and print a record for each point"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--axis", required=True, choices=SIZES, help="what changes")
    parser.add_argument("--values", required=True, metavar="LIST", help="64,128,256 or 64:256:64 or 1k,2k")
    parser.add_argument(
        "--tokens", type=length, metavar="N", help="constant work: batch = N / q_len for each value of q_len"
    )
    add_shape(parser)
    add_backends(parser)
    add_protocol(parser, clock.LAB_SWEEP)
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the records there too, as JSON lines")
    parser.add_argument("--json", action="store_true", help="one record a line")


def main(args: argparse.Namespace) -> int:
    values = parse_list(args.values)
    specs, protocol = backends_of(args), protocol_of(args)
    from explorer import sweep, worker

    # What follows the axis is decided by what was given, not by what happens to be equal
    chosen: dict[Any, None] = {}
    for value in values:
        changes: dict[str, Any] = {args.axis: value}
        point = problem_of(args, **changes)
        for one in sweep.points(point, specs, axis=args.axis, values=[value], follow=False, tokens=args.tokens):
            chosen[one] = None
    if any(backends.parse(spec)[0].startswith("transformer_engine") for spec in specs):
        worker.load_libraries()  # it must come before JAX, and takes seconds
    set_precision(args)
    records = sweep.run(list(chosen), protocol=protocol, report=to_stderr)
    return show(records, as_json=args.json, save=args.save)


def show(records: Iterator[Record], *, as_json: bool, save: Path | None) -> int:
    """Print each record as it comes, and write it; the exit code."""
    found: list[Record] = []
    with ExitStack() as stack:
        file = stack.enter_context(save.open("w", encoding="utf-8")) if save is not None else None
        for made in records:
            found.append(made)
            text = record.line(made)
            if file is not None:
                file.write(text + "\n")
                file.flush()
            print(text if as_json else sentence(made), flush=True)
    return exit_code(found)


def sentence(made: Record) -> str:
    """One point for a terminal: both clocks by name, or the reason."""
    head = f"{made.backend:22} {made.problem}"
    if made.timing is None:
        return f"{head}  {made.status}: {made.reason}"
    wall, on_device, cost = made.timing.wall_ms, made.timing.device_ms, made.cost or {}
    device_text = f"device {on_device.median:.4g} ms" if on_device else f"no device clock ({made.timing.device_reason})"
    proof = made.evidence or {}
    parts = [
        f"wall {wall.median:.4g} ms ({wall.p10:.4g} to {wall.p90:.4g})",
        device_text,
        f"{cost['tflops']:.3g} TFLOP/s ({cost['tflops_clock']})",
        f"{proof.get('verdict')}, {proof.get('note')}{'' if proof.get('proven') else ', not proven'}",
    ]
    if cost.get("suspect"):
        parts.append(f"SUSPECT: {cost['suspect']}")
    return f"{head}  {'; '.join(parts)}"
