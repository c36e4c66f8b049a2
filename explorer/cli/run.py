"""run: the chosen backends on one shape, live."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from explorer import backends, clock, record
from explorer.cli.shape import add_shape, problem_of
from explorer.clock import Protocol
from explorer.record import Record

HELP = "run backends on one shape and print a record for each"
BAD = ("failed", "timed_out", "disagrees")


def add_backends(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        action="append",
        metavar="NAME[:DTYPE]",
        help=f"again or by commas; default all: {', '.join(backends.BACKENDS)}",
    )


def backends_of(args: argparse.Namespace) -> list[str]:
    """The chosen NAME or NAME:DTYPE; raises ValueError."""
    if args.backend is None:
        return list(backends.BACKENDS)
    specs = [part.strip() for given in args.backend for part in given.split(",") if part.strip()]
    if not specs:
        raise ValueError(f"backend needs at least one of {', '.join(backends.BACKENDS)}, got nothing")
    for spec in specs:
        backends.parse(spec)
    return specs


def add_protocol(parser: argparse.ArgumentParser, default: Protocol) -> None:
    group = parser.add_argument_group("timing")
    group.add_argument("--warmup", type=int, default=default.warmup, metavar="N", help=f"default {default.warmup}")
    group.add_argument("--repeats", type=int, default=default.repeats, metavar="N", help=f"default {default.repeats}")
    group.add_argument(
        "--stop", choices=("repeats", "interval"), default=default.stop,
        help="interval: until the median's 95 %% interval is narrower than 1 %%",
    )  # fmt: skip
    group.add_argument("--limit", type=float, default=default.limit_s, metavar="S", help="at most so long per backend")
    group.add_argument(
        "--mode", choices=("burst", "sustained"), default=default.mode,
        help="burst: pauses until the SM clock is back; sustained: back to back",
    )  # fmt: skip
    group.add_argument("--cold-l2", action="store_true", help="rotate inputs larger than the L2 cache")
    group.add_argument("--matmul-precision", choices=("default", "highest"), default="default")


def protocol_of(args: argparse.Namespace) -> Protocol:
    return Protocol(
        warmup=args.warmup,
        repeats=args.repeats,
        stop=args.stop,
        limit_s=args.limit,
        mode=args.mode,
        cold_l2=args.cold_l2,
    )


def set_precision(args: argparse.Namespace) -> None:
    if args.matmul_precision != "default":
        import jax

        jax.config.update("jax_default_matmul_precision", args.matmul_precision)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shape(parser)
    add_backends(parser)
    add_protocol(parser, clock.LAB)
    parser.add_argument("--json", action="store_true", help="one record a line")


def main(args: argparse.Namespace) -> int:
    problem, specs, protocol = problem_of(args), backends_of(args), protocol_of(args)
    from explorer import measure

    set_precision(args)
    found = []
    for made in measure.run(problem, specs, protocol=protocol, report=to_stderr):
        found.append(made)
        if args.json:
            print(record.line(made), flush=True)
    if not args.json:
        print_table(problem, found)
    return exit_code(found)


def exit_code(records: Iterable[Record]) -> int:
    """1 if a backend failed, timed out or disagreed; a refusal and a predicted out_of_memory are answers."""
    return int(any(made.status in BAD for made in records))


def to_stderr(done: int, total: int, text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K[{done}/{total}] {text}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def print_table(problem: Any, records: Sequence[Record]) -> None:
    print(problem)
    if records:
        environment = records[0].environment
        print(f"on {records[0].where}, JAX {environment.get('jax')}")
    lines = [("backend", "status", "wall ms", "device ms", "max error", "kernel evidence")]
    notes = []
    for made in records:
        timing, accuracy, proof = made.timing, made.accuracy or {}, made.evidence or {}
        error = accuracy.get("max_abs_error")
        lines.append(
            (
                made.backend + ("" if made.problem.dtype == problem.dtype else f":{made.problem.dtype}"),
                made.status,
                f"{timing.wall_ms.median:.4g}" if timing else "-",
                f"{timing.device_ms.median:.4g}" if timing and timing.device_ms else "-",
                "-" if error is None else f"{error:.2g} ({accuracy['verdict']})",
                f"{proof['verdict']}, {proof['note']}, {'proven' if proof['proven'] else 'not proven'}"
                if proof
                else "-",
            )
        )
        if made.reason:
            notes.append(f"{made.backend}: {made.reason}")
        if remark := proof.get("remark"):
            notes.append(f"{made.backend}: {remark}")
    widths = [max(len(row[i]) for row in lines) for i in range(len(lines[0]))]
    for row in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for note in notes:
        print(note)
