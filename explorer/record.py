"""Record: what one measurement found, with the evidence for it. Plain data; one JSON object a line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from explorer.problem import Problem

SCHEMA = 1
PARTS: dict[str, tuple[type, ...]] = {  # of a record's line, as they must be
    "backend": (str,),
    "status": (str,),
    "reason": (str, type(None)),
    "accuracy": (dict, type(None)),
    "evidence": (dict, type(None)),
    "memory": (dict, type(None)),
    "cost": (dict, type(None)),
}
NUMBERS = {  # of these parts, or null
    "accuracy": frozenset({"max_abs_error", "mean_abs_error", "rmse", "budget", "plain_error"}),
    "memory": frozenset({"formula_bytes", "temp_bytes", "peak_bytes", "predicted_bytes", "free_bytes"}),
    "cost": frozenset({"flops", "min_bytes", "intensity", "tflops", "kernel_tflops", "bound_tflops", "bound_share",
                       "peak_tflops", "copy_tb_s"}),
}  # fmt: skip
STATUSES = ("ok", "refused", "disagrees", "out_of_memory", "failed", "timed_out", "cancelled")


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between neighbours, as numpy.quantile's default; raises ValueError without values."""
    if not values:
        raise ValueError("a quantile needs at least one sample, got none")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, slots=True)
class Samples:
    """Every measured time, in ms; the statistics follow from them and are never stored apart."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values or not all(math.isfinite(v) and v > 0 for v in self.values):
            raise ValueError(f"samples must be one or more positive times in ms, got {self.values[:5]}")

    @property
    def median(self) -> float:
        return quantile(self.values, 0.5)

    @property
    def p10(self) -> float:
        return quantile(self.values, 0.1)

    @property
    def p90(self) -> float:
        return quantile(self.values, 0.9)

    @property
    def median_interval(self) -> tuple[float, float]:
        """About 95 % interval of the median from order statistics: ranks n/2 ± 0.98·√n (Conover, 1999, section 3.2)."""
        ordered, n = sorted(self.values), len(self.values)
        half = 0.98 * math.sqrt(n)
        low, high = max(0, math.floor(n / 2 - half)), min(n - 1, math.ceil(n / 2 + half))
        return ordered[low], ordered[high]

    def to_json(self) -> dict[str, Any]:
        return {"median": self.median, "p10": self.p10, "p90": self.p90, "samples": list(self.values)}

    @classmethod
    def from_json(cls, values: dict[str, Any] | None) -> Samples | None:
        return None if values is None else cls(tuple(values["samples"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Four times apart, in ms: lower, compile (of the build used), first call, and steady state on two clocks.

    wall_ms: one call, then wait. device_ms: sum of the kernels' own times per call from a profiler trace, or None (on a
    CPU there is no device clock). kernel_ms: the attention kernel alone where the program holds others, or None.
    """

    lower_ms: float
    compile_ms: float
    cache_hit: bool
    first_call_ms: float
    wall_ms: Samples
    device_ms: Samples | None = None
    kernel_ms: Samples | None = None
    device_reason: str | None = None  # why device_ms is missing
    mode: str = "burst"
    cold_l2: bool = False
    warmup: int = 0
    stopped_by: str = "repeats"
    disk_hit: bool = False  # compile_ms is that of loading the program from JAX's cache on disk
    sm_clock_mhz: tuple[int, ...] | None = None
    power_w: tuple[float, ...] | None = None
    temperature_c: tuple[int, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "lower_ms": self.lower_ms,
            "compile_ms": self.compile_ms,
            "cache_hit": self.cache_hit,
            "disk_hit": self.disk_hit,
            "first_call_ms": self.first_call_ms,
            "wall_ms": self.wall_ms.to_json(),
            "device_ms": None if self.device_ms is None else self.device_ms.to_json(),
            "kernel_ms": None if self.kernel_ms is None else self.kernel_ms.to_json(),
            "device_reason": self.device_reason,
            "mode": self.mode,
            "cold_l2": self.cold_l2,
            "warmup": self.warmup,
            "stopped_by": self.stopped_by,
            "sm_clock_mhz": None if self.sm_clock_mhz is None else list(self.sm_clock_mhz),
            "power_w": None if self.power_w is None else list(self.power_w),
            "temperature_c": None if self.temperature_c is None else list(self.temperature_c),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Timing:
        clocks = {"wall_ms", "device_ms", "kernel_ms"}
        rest = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k not in clocks}
        for name in ("lower_ms", "compile_ms", "first_call_ms"):
            _must(name, rest[name], int, float)
        _must("mode", rest.get("mode", ""), str)
        return cls(**rest, **{k: Samples.from_json(values.get(k)) for k in clocks})  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, kw_only=True)
class Record:
    """One Problem on one Backend. timing is None unless status is ok; the other parts are None until they are known."""

    problem: Problem
    backend: str
    status: str
    reason: str | None = None
    timing: Timing | None = None
    accuracy: dict[str, Any] | None = None
    evidence: dict[str, Any] | None = None
    memory: dict[str, Any] | None = None
    cost: dict[str, Any] | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    time: str | None = None  # when it was measured: ISO 8601, UTC
    recorded: bool = False  # True: read from a recording, not measured now

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {self.status!r}")
        if (self.timing is None) == (self.status == "ok"):
            raise ValueError(f"timing must be there exactly if status is ok, got status {self.status!r}")
        if self.status != "ok" and not self.reason:
            raise ValueError(f"status {self.status!r} needs a reason, got none")

    def but(self, **changes: Any) -> Record:
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "problem": self.problem.to_json(),
            "backend": self.backend,
            "status": self.status,
            "reason": self.reason,
            "timing": None if self.timing is None else self.timing.to_json(),
            "accuracy": self.accuracy,
            "evidence": self.evidence,
            "memory": self.memory,
            "cost": self.cost,
            "environment": self.environment,
            "time": self.time,
        }

    @classmethod
    def from_json(cls, values: Any, *, recorded: bool = True) -> Record:
        """Raises ValueError on another schema, a missing part or one of another kind: files come from anywhere."""
        if not isinstance(values, dict):
            raise ValueError(f"a record is an object, got {type(values).__name__}")
        if values.get("schema") != SCHEMA:
            raise ValueError(f"a record of schema {SCHEMA} is needed, got schema {values.get('schema')!r}")
        try:
            rest = {k: values[k] for k in PARTS}
            for name, kinds in PARTS.items():
                _must(name, rest[name], *kinds)
            timing = _must("timing", values["timing"], dict, type(None))
            problem = Problem.from_json(_must("problem", values["problem"], dict))
            _must("causal", problem.causal, bool)
            _must("backward", problem.backward, bool)
            _must("environment", values["environment"], dict)
            _must("time", values.get("time"), str, type(None))
            for name in ("gpu", "cpu", "worker"):
                _must(name, values["environment"].get(name), str, type(None))
            for name, known in NUMBERS.items():
                for key in known & (rest[name] or {}).keys():
                    float(_must(f"{name}.{key}", rest[name][key], int, float, type(None)) or 0)
            for kernel in (rest["evidence"] or {}).get("kernels") or ():
                _must("a kernel's share", kernel["share"], int, float)
                _must("a kernel's name", kernel["name"], str)
                _must("a kernel's count", kernel["count"], int)
            hash(problem)  # a list where a number belongs would be found out much later
            return cls(
                problem=problem,
                timing=None if timing is None else Timing.from_json(timing),
                environment=values["environment"],
                time=values.get("time"),
                recorded=recorded,
                **rest,
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"a record needs all its parts, got one without {error}") from error

    @property
    def where(self) -> str:
        """The GPU or CPU it was measured on, and of several workers the one."""
        name = self.environment.get("gpu") or self.environment.get("cpu") or "an unknown device"
        worker = self.environment.get("worker")
        return f"{name} (worker {worker.removeprefix('worker-')})" if worker else name

    @property
    def when(self) -> str:
        return moment(self.time)


def moment(time: str | None) -> str:
    """The time of measuring for a reader: 2 Dec 2026, 14:02 UTC."""
    try:
        found = datetime.fromisoformat(time or "").astimezone(UTC)
    except (ValueError, OverflowError):
        return time or "at a time that was not kept"
    return f"{found.day} {found:%b %Y, %H:%M} UTC"


def line(record: Record) -> str:
    """One JSON object without NaN: those become null before they get here, so allow_nan=False is a check."""
    return json.dumps(finite(record.to_json()), allow_nan=False, ensure_ascii=False)


def finite(value: Any) -> Any:
    """The same plain data with every NaN and infinity as None: JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value


def write_lines(path: str | os.PathLike[str], records: Iterable[Record], *, append: bool = False) -> None:
    with Path(path).open("a" if append else "w", encoding="utf-8") as file:
        for record in records:
            file.write(line(record) + "\n")


def read_lines(path: str | os.PathLike[str]) -> tuple[list[Record], list[str]]:
    """The records of a JSON-lines file, and a sentence for each line that could not be read (the rest loads)."""
    return parse_lines(Path(path).read_text(encoding="utf-8", errors="replace"), Path(path).name)


def parse_lines(text: str, name: str) -> tuple[list[Record], list[str]]:
    """As read_lines, of a file's text; name: what the sentences call it."""
    records, losses = [], []
    # Not splitlines: a text inside a record may hold other line ends, such as U+2028
    for number, each in enumerate(text.split("\n"), start=1):
        if not each.strip():
            continue
        try:
            records.append(Record.from_json(json.loads(each)))
        except (ValueError, RecursionError) as error:
            losses.append(f"line {number} of {name} was left out: {error}")
    return records, losses


def _must(name: str, value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        said = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ValueError(f"{name} must be of type {said}, got {value!r:.60}")
    return value


def row(record: Record) -> dict[str, Any]:
    """A flat row for tables, charts and CSV; what is missing is None."""
    timing, accuracy, evidence = record.timing, record.accuracy or {}, record.evidence or {}
    memory, cost, p = record.memory or {}, record.cost or {}, record.problem
    flat: dict[str, Any] = {k: v for k, v in p.to_json().items() if k != "window"}
    flat |= {
        "backend": record.backend,
        "variant": f"{record.backend} {p.dtype}",
        "status": record.status,
        "reason": record.reason,
        "where": record.where,
        "recorded": record.recorded,
        "time": record.time,
        "fused": evidence.get("fused"),
        "verdict": evidence.get("verdict"),
        "proven": evidence.get("proven"),
        "precision": evidence.get("note"),
        "remark": evidence.get("remark"),
        **{k: accuracy.get(k) for k in ("max_abs_error", "mean_abs_error", "rmse", "budget")},
        "accuracy": accuracy.get("verdict"),
        **{k: memory.get(k) for k in ("formula_bytes", "temp_bytes", "peak_bytes", "predicted_bytes")},
        **{
            k: cost.get(k)
            for k in (
                "flops",
                "min_bytes",
                "intensity",
                "tflops",
                "tflops_clock",
                "kernel_tflops",
                "bound_tflops",
                "bound_share",
                "suspect",
            )
        },
    }
    for clock in ("wall_ms", "device_ms", "kernel_ms"):
        samples: Samples | None = getattr(timing, clock, None)
        flat[clock] = samples.median if samples else None
        flat[clock.replace("_ms", "_p10_ms")] = samples.p10 if samples else None
        flat[clock.replace("_ms", "_p90_ms")] = samples.p90 if samples else None
        flat[clock.replace("_ms", "_samples")] = len(samples.values) if samples else None
    for name in ("lower_ms", "compile_ms", "cache_hit", "disk_hit", "first_call_ms", "mode", "cold_l2", "stopped_by"):
        flat[name] = getattr(timing, name, None)
    clocks = timing.sm_clock_mhz if timing else None
    flat["sm_clock_mhz"] = f"{min(clocks)} to {max(clocks)}" if clocks else None
    kernels = "; ".join(
        f"{kernel['name']} × {kernel['count']} ({kernel['share']:.0%})" for kernel in evidence.get("kernels") or ()
    )
    flat["kernels"] = kernels or None
    names = {"jax": "JAX", "cuda": "CUDA", "cudnn": "cuDNN", "driver": "driver"}
    found = {said: record.environment.get(name) for name, said in names.items()}
    flat["versions"] = ", ".join(f"{said} {version}" for said, version in found.items() if version)
    return flat


def rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    return [row(record) for record in records]
