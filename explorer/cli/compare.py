"""compare: two recordings, point by point; made for a person and for CI."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence

from explorer import compare, recordings
from explorer.compare import Comparison
from explorer.recordings import Recording

HELP = "compare two recordings: B against A, exit 1 where B is slower than the threshold"
MOST_LOSSES = 5  # said one by one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a file of records (JSON lines), or the name of a shipped recording")
    parser.add_argument("b", metavar="B", help="the one that is held against it")
    parser.add_argument(
        "--slower-than",
        type=float,
        default=1.05,
        metavar="RATIO",
        help="exit 1 where the whole interval of B's time over A's lies above it (default 1.05; a difference under "
        f"{compare.LEAST:.0%} is never called), or where what was ok in A failed, timed out or disagrees in B".replace(
            "%", "%%"
        ),
    )
    parser.add_argument("--json", action="store_true", help="one point a line")


def main(args: argparse.Namespace) -> int:
    if not (math.isfinite(args.slower_than) and args.slower_than >= 1):
        raise ValueError(f"slower-than must be a ratio of 1 or more, such as 1.05, got {args.slower_than:g}")
    sides = [opened(args.a), opened(args.b)]
    found = compare.compare(*(side.records for side in sides))
    for side in sides:
        for loss in [*side.losses[:MOST_LOSSES], *_more(side.losses)]:
            print(loss, file=sys.stderr)
    if not any(point.a and point.b for point in found.points):
        raise ValueError(f"the two have no record in common (same problem and backend): {found.why_nothing}")
    slower, lost = found.slower_than(args.slower_than), found.lost
    if found.why_nothing and not lost:
        raise ValueError(f"not one point can be compared: {found.why_nothing}")
    if args.json:
        for point in found.points:
            print(json.dumps({**point.to_json(), "slower_than": args.slower_than, "exceeds": point in slower}))
    else:
        show(found, sides, args.slower_than)
    return int(bool(slower or lost))


def opened(name: str) -> Recording:
    """A file, or else a shipped recording of that name; raises ValueError."""
    try:
        found = recordings.load(name) if name in recordings.names() else recordings.read(name)
    except OSError as error:
        shipped = ", ".join(recordings.names()) or "none"
        raise ValueError(f"{name} can't be read ({error.strerror}); a file, or one of {shipped} is needed") from None
    if not found.records:
        why = found.losses[0] if found.losses else "the file is empty"
        raise ValueError(f"{name} holds no record that can be read: {why}")
    return found


def _more(losses: Sequence[str]) -> list[str]:
    return [f"and {len(losses) - MOST_LOSSES} more lines"] if len(losses) > MOST_LOSSES else []


def show(found: Comparison, sides: Sequence[Recording], threshold: float) -> None:
    for name, side in zip("AB", sides, strict=True):
        lost = f", {len(side.losses)} lines left out" if side.losses else ""
        print(f"{name}: {side.name}, {len(side.records)} records{lost}, {side.label}")
    for row in compare.different(found.differences):
        print(f"   {row['name']}: {row['a'] or 'none'} in A, {row['b'] or 'none'} in B")
    shared, labels = compare.names(found.points)
    print(f"B's time over A's, median, about 95 % interval. All points: {shared}" if found.compared else shared)
    width = max(map(len, labels))
    for point, label in zip(found.points, labels, strict=True):
        if point.ratio is None or point.middles is None:
            continue
        a, b = point.middles
        interval = point.ratio.interval
        between = f"{interval[0]:.3f} to {interval[1]:.3f}" if interval else "no interval"
        mark = f"  ABOVE {threshold:g}" if point.ratio.is_slower_than(threshold) else ""
        print(
            f"  {label:{width}}  {point.ratio.value:6.3f}  ({between})  {point.verdict:17}  {point.clock} clock, "
            f"{point.mode}: {a.median:.4g} to {b.median:.4g} ms{f'; {point.remark}' if point.remark else ''}{mark}"
        )
    for point, label in zip(found.points, labels, strict=True):
        if point.ratio is None:
            print(f"  {label:{width}}  not compared{', LOST' if point.is_lost else ''}: {point.reason}")
    counts = ", ".join(f"{count} {said}" for said, count in found.counts.items())
    print(f"{counts}, {len(found.others)} not compared; {len(found.slower_than(threshold))} slower than {threshold:g}")
