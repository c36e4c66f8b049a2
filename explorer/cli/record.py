"""record: measure one of the sets that the shipped recordings hold, and write it as JSON lines."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from explorer import record
from explorer.cli.run import exit_code, to_stderr
from explorer.cli.sweep import sentence
from explorer.record import Record
from explorer.sweep import Point

HELP = "measure a recording's set on this machine and write it as JSON lines"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sets", nargs="*", metavar="SET", help="names of sets, or all; --list shows them")
    parser.add_argument("--list", action="store_true", help="only print the sets and what they hold")
    parser.add_argument(
        "--folder", type=Path, default=Path("recordings"), help="where SET.jsonl is written (default recordings/)"
    )


def main(args: argparse.Namespace) -> int:
    from explorer.recordings.sets import SETS

    if args.list:
        for name, each in SETS.items():
            about = f"{each.about}. {each.left_out}" if each.left_out else each.about
            print(f"{name:16} {len(each.points):3} points  {each.label}: {about}")
        return 0
    wanted = list(SETS) if args.sets == ["all"] else list(dict.fromkeys(args.sets))
    if unknown := [name for name in wanted if name not in SETS]:
        raise ValueError(f"set must be all, or one of {', '.join(SETS)}, got {', '.join(unknown)}")
    from explorer import ceilings, worker

    if any(point.backend.startswith("transformer_engine") for name in wanted for point in SETS[name].points):
        worker.load_libraries()  # it must come before JAX, and takes seconds
    args.folder.mkdir(parents=True, exist_ok=True)
    found = ceilings.here(report=to_stderr)
    rates = ", ".join(f"{dtype} {tflops:.4g} TFLOP/s" for dtype, tflops in found.tflops.items())
    print(f"ceilings of {found.where} ({found.clock} clock): {rates}, copy {found.copy_tb_s:.3g} TB/s", file=sys.stderr)
    codes = []
    for name in wanted:
        start = time.perf_counter()
        records = []
        path = args.folder / f"{name}.jsonl"
        path.unlink(missing_ok=True)
        for made in made_of(name):
            print(sentence(made), file=sys.stderr, flush=True)
            record.write_lines(path, [made], append=True)  # an interrupted set keeps what it has
            records.append(made)
        places = {point: place for place, point in enumerate(SETS[name].points)}
        records.sort(key=lambda made: places.get(Point(problem=made.problem, backend=made.backend), len(places)))
        record.write_lines(path, records)
        codes.append(exit_code(records))
        print(f"{path}: {len(records)} records in {time.perf_counter() - start:.0f} s", flush=True)
    return max(codes)


def made_of(name: str) -> Iterator[Record]:
    """The set's records; with peaks where the set wants them (they are measured first: nothing else runs meanwhile)."""
    from explorer import memory, peak, recipes, recover, sweep
    from explorer.recordings.sets import SETS

    each = SETS[name]
    if each.with_mask:
        sweep.compile_ahead(each.points, report=to_stderr, limit_s=sweep.COMPILE_LIMIT_S)
        yield from recover.records([(point.problem, point.backend) for point in each.points], protocol=each.protocol)
        return
    peaks = {}
    if each.with_peak:
        tasks = [(point.problem.to_json(), point.backend) for point in each.points]
        peaks = {(p.problem, p.backend): p for p in peak.measure_many(tasks, report=to_stderr)}
    # JAX's allocator gives nothing back: what needs most comes first, before smaller runs have split the memory
    largest_first = sorted(
        each.points, key=lambda point: memory.predicted(point.backend, point.problem, on_gpu=True), reverse=True
    )
    for made in sweep.run(largest_first, protocol=each.protocol, report=to_stderr):
        found = peaks.get((made.problem, made.backend))
        if found is not None and made.memory is not None:
            made = made.but(memory=made.memory | {"peak_bytes": found.peak_bytes, "peak_reason": found.reason})
        if each.with_recipes and made.backend == "transformer_engine_fp8" and made.evidence is not None:
            rows = list(recipes.compare(made.problem, report=to_stderr))
            made = made.but(evidence=made.evidence | {"recipes": rows})
        yield made
