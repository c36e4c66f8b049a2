"""support: what each backend accepts, why not, and what would do instead; by rule at once, or proven live."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from explorer import backends, device, prove, support, sweep, te
from explorer.cli.run import add_backends, backends_of, to_stderr
from explorer.cli.shape import add_shape, problem_of
from explorer.device import Device
from explorer.problem import parse_list
from explorer.prove import Cell, Proofs
from explorer.support import Answer, Check

HELP = "what each backend accepts on a GPU, why not, and the nearest values that would do"
MOST = 10_000  # questions in one go


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shape(parser, dtype="bfloat16", without=("head-dim",))
    parser.add_argument(
        "--head-dim",
        dest="head_dims",
        metavar="LIST",
        help="by commas or start:stop:step, such as 32,64,100 or 8:256:8",
    )
    add_backends(parser)
    parser.add_argument(
        "--gpu", default="this", metavar="GPU",
        help=f"this, {', '.join(device.DATASHEETS)}, or a compute capability such as 8.9 (default this)",
    )  # fmt: skip
    parser.add_argument(
        "--check",
        action="store_true",
        help="ask JAX's own check as well (loads JAX); with --prove the default, but for --proofs",
    )
    parser.add_argument("--prove", action="store_true", help="compile and run each on the GPU at hand, and check it")
    parser.add_argument(
        "--slice", metavar="NAME",
        help=f"a named set of questions instead of SHAPE, one of {', '.join(prove.slices())}",
    )  # fmt: skip
    parser.add_argument(
        "--proofs", type=Path, metavar="FILE",
        help="with --prove: append each proof to this file of JSON lines, and go on where it stopped",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one answer a line")


def main(args: argparse.Namespace) -> int:
    cells = questions(args)
    if args.prove:
        if args.gpu != "this":
            raise ValueError(f"prove runs on the GPU at hand, so that gpu must be this, got {args.gpu!r}")
        answers = proven(cells, args.proofs, with_check=args.check or args.proofs is None)
    else:
        if args.proofs is not None:
            raise ValueError(f"proofs goes with --prove, which writes them, got {args.proofs} without")
        where = at_hand() if args.gpu == "this" else device.named(args.gpu)
        answers = answered(cells, where, with_check=args.check)
    shown: list[Answer] = []
    for answer in answers:
        shown.append(answer)
        if args.json:
            print(json.dumps(answer.to_json(), ensure_ascii=False, allow_nan=False), flush=True)
    if not args.json:
        print_answers(shown)
    return 0


def questions(args: argparse.Namespace) -> list[Cell]:
    """Every backend on every head_dim; raises ValueError for a wrong request."""
    if args.slice is not None:
        cells = prove.cells_of(args.slice)
        if args.backend is not None:
            names = {backends.parse(spec)[0] for spec in backends_of(args)}
            cells = [cell for cell in cells if cell[0] in names]
        return cells
    base = problem_of(args, dtype="bfloat16")
    head_dims = (base.head_dim,) if args.head_dims is None else parse_list(args.head_dims)
    chosen = [backends.parse(spec) for spec in dict.fromkeys(backends_of(args))]
    if len(head_dims) * len(chosen) > MOST:
        raise ValueError(f"one command takes at most {MOST} questions, got {len(head_dims) * len(chosen)}")
    problems = [base.but(head_dim=head_dim) for head_dim in head_dims]
    return [(name, p if dtype is None else p.but(dtype=dtype)) for p in problems for name, dtype in chosen]


def at_hand() -> Device:
    """This machine's GPU as the driver and the package list tell it, without JAX; a CPU where JAX could not use one."""
    found = device.nvml_info()
    versions = device.versions()
    missing = {}
    if versions["transformer_engine"] is None:
        missing["transformer_engine"] = f"TransformerEngine is not installed ({te.INSTALL})"
    plugin = next((p for p in ("jax-cuda12-plugin", "jax-cuda13-plugin") if device.version_of(p)), None)
    if "capability" in found and plugin is not None:
        return Device(
            platform="gpu",
            name=found["name"],
            capability=found["capability"],
            memory_bytes=found["memory_bytes"],
            versions={k: v for k, v in versions.items() if v is not None},
            missing=missing,
        )
    why = found.get("why", "JAX is installed without CUDA (jax[cuda12] has it)")
    return Device(platform="cpu", name=device.cpu_name(), versions=versions, missing={"gpu": why, **missing})


def answered(cells: Iterable[Cell], where: Device, *, with_check: bool) -> Iterator[Answer]:
    proofs = prove.shipped()
    for name, problem in cells:
        check = prove.check(name, problem, where) if with_check else None
        yield support.answer(name, problem, where, check=check, proof=proofs.get(name, problem, where))


def proven(cells: list[Cell], path: Path | None, *, with_check: bool) -> Iterator[Answer]:
    """Run the cells, and the nearest accepted neighbours of those refused, so that their times stand beside."""
    here = device.here()
    checks: dict[Cell, Check | None] = {cell: prove.check(*cell, here) for cell in cells} if with_check else {}
    proofs = Proofs()
    beside: list[Cell] = []
    if path is None:
        for name, problem in cells:
            near = support.nearest(name, problem, here) if support.why_not(name, problem, here) else ()
            beside += [(name, n.problem) for n in near if n.problem is not None]
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    wanted = [*cells, *(cell for cell in dict.fromkeys(beside) if cell not in cells)]
    for found in prove.prove(wanted, path=path, report=to_stderr, limit_s=sweep.COMPILE_LIMIT_S):
        proofs.add(found.to_json(), recorded=found.recorded)
    for cell in cells:
        yield support.answer(*cell, here, check=checks.get(cell), proof=proofs.get(*cell, here), others=proofs.get)


def print_answers(answers: list[Answer]) -> None:
    if not answers:
        print("nothing was asked")
        return
    first = answers[0]
    print(f"on {first.device.name}" + ("" if first.device.is_gpu else " (no NVIDIA GPU)"))
    widths = [max(len(a.backend) for a in answers), max(len(str(a.problem)) for a in answers)]
    for a in answers:
        word = {"unfused": "yes, unfused"}.get(a.state, "yes" if a.supported else "no")
        print(f"{a.backend:{widths[0]}}  {a.problem!s:{widths[1]}}  {word}, by {a.witness}")
        if a.proof is not None and a.witness == "run":
            print(f"    {a.witnesses[-1].text}")
        if a.reason:
            print(f"    {a.rule + ': ' if a.rule else ''}{a.reason}")
        if a.headline:
            print(f"    ! {a.headline}")
        for neighbour in a.nearest:
            print(f"    instead, {neighbour}")
        if a.sources and (not a.supported or a.reason):
            print(f"    source: {'; '.join(a.sources)}")
    if any(a.witness == "rule" for a in answers):
        print("by rule: nothing was run for it; --check asks JAX's own check, --prove runs it here", file=sys.stderr)
