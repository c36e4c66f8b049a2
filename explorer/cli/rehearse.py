"""rehearse: run every scene of a talk on this machine, record a tape, and say what could go wrong."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from explorer import record
from explorer.cli.run import to_stderr

HELP = "run every scene of a talk here, record a tape and print a run sheet"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("talk", metavar="TALK.toml", help="a talk's file, or the name of a shipped one")
    parser.add_argument("--tape", type=Path, metavar="OUT.jsonl", help="write every record there, as JSON lines")
    parser.add_argument("--json", action="store_true", help="one scene a line")


def main(args: argparse.Namespace) -> int:
    from explorer import scenes

    path = Path(args.talk)
    if not path.exists() and args.talk in scenes.names():
        path = scenes.find(args.talk)
    talk = scenes.load(path)
    from explorer import device, rehearse, stage, tape, worker

    shipped = tape.read(path.parent / talk.tape) if talk.tape else tape.Tape()
    for loss in shipped.losses:
        print(loss, file=sys.stderr)
    if any(point.backend.startswith("transformer_engine") for scene in talk.scenes for point in scene.points):
        worker.load_libraries()  # it must come before JAX, and takes seconds
    here = device.here()
    started = time.perf_counter()
    takes = {}
    if args.tape is not None:
        record.write_lines(args.tape, [])
    for index in rehearse.to_run(talk, shipped, here):
        if sys.stderr.isatty():
            print(f"\nscene {index + 1}: {talk.scenes[index].title}", file=sys.stderr)
        takes[index] = rehearse.take(index, talk.scenes[index].points, stage.protocol(here), report=to_stderr)
        if args.tape is not None:  # scene by scene: an interrupted rehearsal keeps what it has
            record.write_lines(args.tape, takes[index].records, append=True)
    lines = rehearse.sheet(talk, takes, shipped, here)
    if args.json:
        for line in lines:
            print(json.dumps(record.finite(line.to_json()), ensure_ascii=False))
    else:
        print(f"{talk.title}, rehearsed on {here.name} in {time.perf_counter() - started:.0f} s")
        print("\n".join(rehearse.table(lines)))
    return int(any(line.fails for line in lines))
