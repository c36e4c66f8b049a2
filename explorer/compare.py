"""Compare: two sets of records point by point: the ratio of their times with its interval, and what has none and why.

B is held against A: a ratio above 1 means that B took longer. Points match on problem and backend. The device clock
is used where both sides have it, else the wall clock; burst, sustained and cold L2 are never compared with each other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

from explorer.problem import AXIS_LETTERS, Problem
from explorer.record import Record, Samples

Verdict = Literal["faster", "slower", "too close to call"]
FASTER, SLOWER, CLOSE = VERDICTS = ("faster", "slower", "too close to call")
# A smaller difference is called too close, however narrow its interval: samples of one run don't see what changes from
# run to run. The shipped recordings time the same kernel of 8 to 17 µs on the same H200 twice, up to 2.2 % apart.
LEAST = 0.03
Z = NormalDist().inv_cdf(0.975)
FEWEST = 3  # samples a side for an interval
RANKED = 5  # samples from which order statistics give one
LOST = ("failed", "timed_out", "disagrees")  # in B, of a point that was ok in A: worse than slower
ENVIRONMENT = {  # what may tell two recordings apart, and how it is called
    "where": "device",
    "compute_capability": "compute capability",
    "driver": "driver",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "jax": "JAX",
    "jaxlib": "jaxlib",
    "transformer_engine": "TransformerEngine",
    "python": "Python",
    "matmul_precision": "matmul precision",
    "mode": "timing mode",
    "day": "measured",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Middle:
    """A median in ms, and the standard error of its logarithm (None: too few samples to know)."""

    median: float
    count: int
    log_error: float | None

    @classmethod
    def of(cls, samples: Samples) -> Middle:
        """From order statistics of the logarithms (Price and Bonett, 2001, J. Stat. Comput. Simul. 68, 295-305).

        With three or four samples: their whole range counts as the interval.
        """
        ordered, n = sorted(map(math.log, samples.values)), len(samples.values)
        if n < FEWEST:
            error = None
        elif n < RANKED:
            error = (ordered[-1] - ordered[0]) / Z
        else:
            c = max(1, round((n + 1) / 2 - math.sqrt(n)))
            tail = sum(math.comb(n, i) for i in range(c)) / 2**n
            error = (ordered[n - c] - ordered[c - 1]) / (2 * NormalDist().inv_cdf(1 - tail))
        return cls(median=samples.median, count=n, log_error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """B's median over A's; interval: about 95 %, or None where a side has too few samples."""

    value: float
    interval: tuple[float, float] | None

    @classmethod
    def of(cls, a: Middle, b: Middle) -> Ratio:
        """The interval of a ratio of medians (Price and Bonett, 2002, J. Stat. Comput. Simul. 72, 119-124)."""
        value = b.median / a.median
        if a.log_error is None or b.log_error is None:
            return cls(value=value, interval=None)
        half = Z * math.hypot(a.log_error, b.log_error)
        return cls(value=value, interval=(value * math.exp(-half), value * math.exp(half)))

    @property
    def verdict(self) -> Verdict:
        """Of B. A call needs the whole interval on one side of 1, and a difference of LEAST or more."""
        return verdict(self.value, self.interval)

    def is_slower_than(self, threshold: float) -> bool:
        """Whether the whole interval lies above the threshold: a median above it may be chance."""
        return self.interval is not None and self.verdict == SLOWER and self.interval[0] > threshold


def verdict(ratio: float, interval: tuple[float, float] | None) -> Verdict:
    if interval is None or interval[0] <= 1 <= interval[1] or abs(ratio - 1) < LEAST:
        return CLOSE
    return FASTER if interval[1] < 1 else SLOWER


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A problem on a backend in A and in B. ratio is None exactly if reason says why there is none."""

    problem: Problem
    backend: str
    a: Record | None
    b: Record | None
    clock: str | None = None  # "device" or "wall"
    mode: str | None = None
    middles: tuple[Middle, Middle] | None = None
    ratio: Ratio | None = None
    reason: str | None = None
    remark: str | None = None

    @property
    def verdict(self) -> Verdict | None:
        return self.ratio.verdict if self.ratio else None

    @property
    def is_lost(self) -> bool:
        """It was ok in A, and in B it failed, timed out or disagreed."""
        return self.a is not None and self.b is not None and self.a.status == "ok" and self.b.status in LOST

    def to_json(self) -> dict[str, Any]:
        """verdict is "faster", "slower", "too close", or null with a reason."""
        ratio = self.ratio
        return {
            "problem": self.problem.to_json(),
            "backend": self.backend,
            "verdict": None if ratio is None else ratio.verdict.removesuffix(" to call"),
            "ratio": None if ratio is None else ratio.value,
            "interval": None if ratio is None or ratio.interval is None else list(ratio.interval),
            "clock": self.clock,
            "mode": self.mode,
            "a": self._side(0),
            "b": self._side(1),
            "reason": self.reason,
            "remark": self.remark,
        }

    def _side(self, index: int) -> dict[str, Any] | None:
        record = (self.a, self.b)[index]
        if record is None:
            return None
        middle = self.middles[index] if self.middles else None
        return {
            "status": record.status,
            "median_ms": middle.median if middle else None,
            "samples": middle.count if middle else None,
            "where": record.where,
            "time": record.time,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Every point of either side, those of A first, in its order."""

    points: tuple[Point, ...]
    differences: tuple[dict[str, Any], ...]

    @property
    def compared(self) -> list[Point]:
        return [point for point in self.points if point.ratio is not None]

    @property
    def others(self) -> list[Point]:
        return [point for point in self.points if point.ratio is None]

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(point.verdict for point in self.compared)
        return {each: found[each] for each in VERDICTS}

    def slower_than(self, threshold: float) -> list[Point]:
        return [point for point in self.compared if point.ratio and point.ratio.is_slower_than(threshold)]

    @property
    def lost(self) -> list[Point]:
        return [point for point in self.points if point.is_lost]

    @property
    def why_nothing(self) -> str | None:
        """One sentence where not one point has a ratio."""
        if self.compared:
            return None
        reasons = Counter(_without_detail(point.reason or "") for point in self.points)
        return "; ".join(f"{count} × {reason}" for reason, count in reasons.most_common(4)) or "there is no record"


def compare(a: Iterable[Record], b: Iterable[Record]) -> Comparison:
    """B held against A."""
    a, b = list(a), list(b)
    sides = _grouped(a), _grouped(b)
    points = [
        point for key in {**sides[0], **sides[1]} for point in _points(*key, *(side.get(key, []) for side in sides))
    ]
    return Comparison(points=tuple(points), differences=tuple(environments(a, b)))


def _grouped(records: Iterable[Record]) -> dict[tuple[Problem, str], list[Record]]:
    found: dict[tuple[Problem, str], list[Record]] = {}
    for record in records:
        found.setdefault((record.problem, record.backend), []).append(record)
    return found


def _points(problem: Problem, backend: str, a: list[Record], b: list[Record]) -> list[Point]:
    """One point for each timing mode that both sides have; else one that says why there is none."""
    in_a, in_b = _by_mode(a), _by_mode(b)
    remark = "; ".join(filter(None, (_repeats("A", a), _repeats("B", b)))) or None
    both = [mode for mode in in_a if mode in in_b]
    found = [_compared(in_a[mode], in_b[mode], mode, remark) for mode in both]
    for name, mine, theirs in (("A", in_a, in_b), ("B", in_b, in_a)):
        if found:
            found += [
                Point(
                    problem=problem, backend=backend, a=each if name == "A" else None,
                    b=each if name == "B" else None, mode=mode, reason=f"{mode} only in {name}",
                )
                for mode, each in mine.items() if mode not in theirs
            ]  # fmt: skip
    if not found:
        found = [
            Point(
                problem=problem, backend=backend, a=a[-1] if a else None, b=b[-1] if b else None,
                reason=_why_not(a, b, in_a, in_b), remark=remark,
            )
        ]  # fmt: skip
    return found


def _compared(a: Record, b: Record, mode: str, remark: str | None) -> Point:
    assert a.timing is not None
    assert b.timing is not None
    on_device = a.timing.device_ms is not None and b.timing.device_ms is not None
    times = [each.device_ms if on_device else each.wall_ms for each in (a.timing, b.timing)]
    middles = Middle.of(times[0] or a.timing.wall_ms), Middle.of(times[1] or b.timing.wall_ms)
    if min(m.count for m in middles) < FEWEST:
        few = f"an interval needs {FEWEST} samples a side, got {middles[0].count} and {middles[1].count}"
        remark = "; ".join(filter(None, (remark, few)))
    remark = "; ".join(filter(None, (remark, _other_program(a, b)))) or None
    return Point(
        problem=a.problem, backend=a.backend, a=a, b=b, clock="device" if on_device else "wall", mode=mode,
        middles=middles, ratio=Ratio.of(*middles), remark=remark,
    )  # fmt: skip


def _other_program(a: Record, b: Record) -> str | None:
    """That the evidence differs: another precision or other kernels, so not the same program."""
    said = []
    notes = [(each.evidence or {}).get("note") for each in (a, b)]
    if all(notes) and notes[0] != notes[1]:
        said.append(f"{notes[0]} in A, {notes[1]} in B")
    ran = [_kernels(each) for each in (a, b)]
    if all(ran) and set(ran[0]) != set(ran[1]):
        largest = [max(set(mine) - set(other), key=mine.__getitem__, default=None)
                   for mine, other in ((ran[0], ran[1]), (ran[1], ran[0]))]  # fmt: skip
        only = [f"{name} only in {side}" for name, side in zip(largest, "AB", strict=True) if name]
        said.append(f"other kernels ran: {', '.join(only)}")
    return "; ".join(said) or None


def _kernels(record: Record) -> dict[str, float]:
    """The share of each kernel by name; nothing if there was no trace."""
    found = (record.evidence or {}).get("kernels")
    try:
        return {str(kernel["name"]): float(kernel["share"]) for kernel in found or ()}
    except (KeyError, TypeError, ValueError):  # a file from elsewhere: its evidence is not of our making
        return {}


def _by_mode(records: list[Record]) -> dict[str, Record]:
    """The last with times of each timing mode."""
    return {mode: each for each in records if (mode := mode_of(each)) is not None}


def mode_of(record: Record) -> str | None:
    if record.timing is None:
        return None
    return record.timing.mode + (", cold L2" if record.timing.cold_l2 else "")


def _repeats(name: str, records: list[Record]) -> str | None:
    """That of several records of one mode only the last counts."""
    times = Counter(mode_of(each) or each.status for each in records)
    said = [f"{mode} {count} times" for mode, count in times.items() if count > 1]
    odd = [f"also {each.status}: {each.reason}" for each in records if each.timing is None] if len(times) > 1 else []
    parts = [*([f"{', '.join(said)}, the last counts"] if said else []), *odd]
    return f"in {name} {'; '.join(parts)}" if parts else None


def _why_not(a: list[Record], b: list[Record], in_a: dict[str, Record], in_b: dict[str, Record]) -> str:
    if not a or not b:
        name, only = ("A", a) if a else ("B", b)
        last = only[-1]
        return f"only in {name}" + ("" if last.status == "ok" else f" ({last.status}: {last.reason})")
    if in_a and in_b:
        return f"{' and '.join(in_a)} in A, {' and '.join(in_b)} in B: the two are never compared"
    parts = [f"{each[-1].status} in {name}: {each[-1].reason}" for name, each, timed in (("A", a, in_a), ("B", b, in_b))
             if not timed]  # fmt: skip
    if len(parts) == 2 and a[-1].status == b[-1].status and a[-1].reason == b[-1].reason:
        return f"{a[-1].status} in both: {a[-1].reason}"
    return "; ".join(parts)


def _without_detail(reason: str) -> str:
    """The part before the backend's own sentence, so that like ones count together."""
    return reason if "never compared" in reason else reason.split(":")[0].split(" (")[0]


# --- where the two were measured


def environments(a: Iterable[Record], b: Iterable[Record]) -> list[dict[str, Any]]:
    """Rows {name, a, b, same}: every part of the environment that either side names; several values are all there."""
    sides = [_environment(records) for records in (a, b)]
    found = []
    for key, name in ENVIRONMENT.items():
        values = [", ".join(side[key]) for side in sides]
        if any(values):
            found.append({"name": name, "a": values[0] or None, "b": values[1] or None, "same": values[0] == values[1]})
    return found


def _environment(records: Iterable[Record]) -> dict[str, list[str]]:
    found: dict[str, dict[str, None]] = {key: {} for key in ENVIRONMENT}
    for record in records:
        own = {"where": record.where, "mode": mode_of(record), "day": (record.time or "")[:10] or None}
        for key in ENVIRONMENT:
            value = own[key] if key in own else record.environment.get(key)
            if value is not None:
                found[key][str(value)] = None
    return {key: sorted(values) for key, values in found.items()}


def different(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of rows of environments those in which the sides differ; when it was measured is no difference."""
    return [row for row in rows if not row["same"] and row["name"] != ENVIRONMENT["day"]]


# --- names of points


def names(points: Sequence[Point], called: Callable[[str], str] = str) -> tuple[str, list[str]]:
    """What all points share, and each point's backend with the rest: ("B=4 N=8 …", ["cudnn T=512 bfloat16", …]).

    called: what a backend is to be called.
    """
    parts = [_parts(point) for point in points]
    keys = list(dict.fromkeys(key for each in parts for key in each))
    varying = [key for key in keys if len({each[key] for each in parts if key != "mode" or each[key]}) > 1]
    for name, follows in (("q_len", "kv_len"), ("heads", "kv_heads")):
        same = all(getattr(point.problem, name) == getattr(point.problem, follows) for point in points)
        if same and name in varying and follows in keys:
            keys.remove(follows)
    fixed = [next((each[key] for each in parts if each[key]), "") for key in keys if key not in varying]
    shared = " ".join(filter(None, fixed))
    said = [" ".join([called(point.backend), *(each[key] for key in varying if key in keys and each[key])])
            for point, each in zip(points, parts, strict=True)]  # fmt: skip
    return shared, said


def _parts(point: Point) -> dict[str, str]:
    p = point.problem
    sizes = {name: f"{letter}={getattr(p, name)}" for name, letter in AXIS_LETTERS.items()}
    inputs = "" if p.inputs == "normal" and p.input_scale == 1 else f"inputs {p.inputs} × {p.input_scale:g}"
    rest = {"dtype": p.dtype, "mask": p.mask.name, "backward": "backward" if p.backward else "", "inputs": inputs}
    return {**sizes, **rest, "seed": f"seed={p.seed}", "mode": point.mode or ""}
