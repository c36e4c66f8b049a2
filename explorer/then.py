"""Then: a result's figures within a link, to stand beside a fresh run. What a link says is told, not measured here."""

from __future__ import annotations

import base64
import binascii
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from explorer import compare
from explorer.compare import ENVIRONMENT, Middle, Ratio
from explorer.problem import DTYPES, Problem
from explorer.record import STATUSES, Record, Samples, finite

SCHEMA = 1  # the link's number before the dot; another layout gets another
PARTS = ("where", "compute_capability", "driver", "cuda", "cudnn", "jax", "transformer_engine", "matmul_precision")
MODES = ("burst", "sustained", "burst, cold L2", "sustained, cold L2")
LONGEST = 8_000  # characters in a link
MOST_BYTES = 100_000  # unpacked
MOST_FIGURES = 16
MOST_WORDS = 160  # characters of one text


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What one backend did then. wall is None exactly unless status is ok; kernel: what the evidence said."""

    backend: str
    dtype: str
    status: str
    reason: str | None = None
    wall: Middle | None = None
    device: Middle | None = None
    kernel: str | None = None
    result: str | None = None

    @property
    def spec(self) -> str:
        return f"{self.backend}:{self.dtype}"

    @classmethod
    def of(cls, made: Record) -> Figure:
        timing, proof = made.timing, made.evidence or {}
        said = [str(proof[name]) for name in ("verdict", "note") if proof.get(name)]
        kernel = ", ".join([*said, "proven" if proof.get("proven") else "not proven"]) if said else None
        return cls(
            backend=made.backend, dtype=made.problem.dtype, status=made.status, reason=_short(made.reason),
            wall=Middle.of(timing.wall_ms) if timing else None,
            device=Middle.of(timing.device_ms) if timing and timing.device_ms else None,
            kernel=_short(kernel), result=_short((made.accuracy or {}).get("verdict")),
        )  # fmt: skip

    def ratio(self, made: Record) -> tuple[str, Ratio] | None:
        """Now over then on the device clock where both have it, else the wall clock; None if either has no time."""
        if self.wall is None or made.timing is None:
            return None
        if self.device is not None and made.timing.device_ms is not None:
            return "device", Ratio.of(self.device, Middle.of(made.timing.device_ms))
        return "wall", Ratio.of(self.wall, Middle.of(made.timing.wall_ms))

    def to_list(self) -> list[Any]:
        middles = [m and [_rounded(m.median), m.count, _rounded(m.log_error)] for m in (self.wall, self.device)]
        return [self.backend, self.dtype, self.status, self.reason, *middles, self.kernel, self.result]

    @classmethod
    def from_list(cls, values: Any) -> Figure:
        backend, dtype, status, reason, wall, device, kernel, result = values
        if status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {status!r}")
        if (wall is None) == (status == "ok"):
            raise ValueError("a time must be there exactly if status is ok")
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
        return cls(
            backend=_text(backend) or "", dtype=dtype, status=status, reason=_text(reason), wall=_middle(wall),
            device=_middle(device), kernel=_text(kernel), result=_text(result),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Then:
    """One problem (its dtype as in each figure), where and when it was measured, and each backend's figure."""

    problem: Problem
    figures: tuple[Figure, ...]
    environment: dict[str, str]
    mode: str = "burst"
    time: str | None = None

    @classmethod
    def of(cls, records: Sequence[Record]) -> Then:
        """Raises ValueError unless they are of one problem and one timing mode."""
        if not 1 <= len(records) <= MOST_FIGURES:
            raise ValueError(f"a link holds 1 to {MOST_FIGURES} records, got {len(records)}")
        first = next((each for each in records if each.environment), records[0])
        if {each.problem.but(dtype=first.problem.dtype) for each in records} != {first.problem}:
            raise ValueError("a link holds the records of one problem, got several")
        modes = {mode for each in records if (mode := compare.mode_of(each))} or {"burst"}
        if len(modes) > 1:
            raise ValueError(f"a link holds one timing mode, got {' and '.join(sorted(modes))}")
        return cls(
            problem=first.problem, figures=tuple(map(Figure.of, records)), environment=environment(first),
            mode=modes.pop(), time=first.time,
        )  # fmt: skip

    def write(self) -> str:
        """The text of the link's parameter."""
        problem = {k: v for k, v in self.problem.to_json().items() if k != "mask"}
        values = {"p": problem, "e": self.environment, "m": self.mode, "t": self.time}
        values["f"] = [each.to_list() for each in self.figures]
        packed = zlib.compress(json.dumps(finite(values), separators=(",", ":"), ensure_ascii=False).encode(), 9)
        return f"{SCHEMA}.{base64.urlsafe_b64encode(packed).decode().rstrip('=')}"

    @classmethod
    def read(cls, text: str) -> Then:
        """Raises ValueError, in a sentence, for another schema, what is cut off, and what is out of range."""
        if len(text) > LONGEST:
            raise ValueError(f"a link's figures take up to {LONGEST} characters, got {len(text)}")
        schema, dot, packed = text.partition(".")
        if schema != str(SCHEMA) or not dot:
            said = schema if dot and schema.isascii() and schema.isalnum() and len(schema) < 9 else "none"
            raise ValueError(f"the link's figures must be of schema {SCHEMA}, got {said}; they can't be read here")
        try:
            unpacker = zlib.decompressobj()
            raw = unpacker.decompress(base64.b64decode(packed + "=" * (-len(packed) % 4), b"-_", True), MOST_BYTES)
            if not unpacker.eof:
                raise ValueError("it is cut off or too long")
            values = json.loads(raw)
            problem, figures = Problem.from_json(values["p"]), values["f"]
            hash(problem)
            mode, when, parts = values["m"], _text(values["t"]), values["e"]
            if mode not in MODES:
                raise ValueError(f"timing mode must be one of {'; '.join(MODES)}, got {mode!r:.40}")
            if not 1 <= len(figures) <= MOST_FIGURES:
                raise ValueError(f"a link holds 1 to {MOST_FIGURES} records, got {len(figures)}")
            found = {name: said for name in PARTS if (said := _text(parts.get(name)))}
            read = tuple(map(Figure.from_list, figures))
        except (binascii.Error, zlib.error, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise ValueError("the link's figures are damaged: was it cut off when it was copied?") from error
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"the link's figures lack a part or hold one of another kind ({error})") from error
        except ValueError as error:
            raise ValueError(f"the link's figures can't be used: {error}") from error
        return cls(problem=problem, figures=read, environment=found, mode=mode, time=when)

    def differences(self, now: dict[str, str]) -> list[dict[str, Any]]:
        """As compare.environments: then as a, now as b."""
        return [
            {"name": ENVIRONMENT[name], "a": self.environment.get(name), "b": now.get(name)}
            | {"same": self.environment.get(name) == now.get(name)}
            for name in PARTS
            if self.environment.get(name) or now.get(name)
        ]


def environment(made: Record) -> dict[str, str]:
    values = made.environment | {"where": made.where}
    return {name: str(values[name])[:MOST_WORDS] for name in PARTS if values.get(name) is not None}


def sources(then: Then, recordings: Mapping[str, Sequence[Record]]) -> list[str]:
    """The recordings, by name, that hold every one of these figures that has a time."""
    timed = [each for each in then.figures if each.wall is not None]
    return [
        name for name, records in recordings.items() if timed and all(_is_in(each, then, records) for each in timed)
    ]


def _is_in(figure: Figure, then: Then, records: Sequence[Record]) -> bool:
    wanted = then.problem.but(dtype=figure.dtype)
    return any(
        each.timing is not None and figure.wall is not None and _same(figure.wall, each.timing.wall_ms)
        for each in records
        if each.problem == wanted and each.backend == figure.backend and each.time == then.time
    )


def _same(middle: Middle, samples: Samples) -> bool:
    return len(samples.values) == middle.count and math.isclose(samples.median, middle.median, rel_tol=1e-4)


def _middle(values: Any) -> Middle | None:
    if values is None:
        return None
    median, count, error = values
    good = all(
        isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in (median, error or 0)
    )
    if not good or not 0 < median < 1e9 or not isinstance(count, int) or count < 1 or (error is not None and error < 0):
        raise ValueError(f"a time is a positive median in ms, a count and an error, got {values!r:.60}")
    return Middle(median=float(median), count=count, log_error=None if error is None else float(error))


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"a text is needed, got {value!r:.40}")
    return value if value is None else value[:MOST_WORDS]


def _short(text: Any) -> str | None:
    return None if text is None else str(text) if len(str(text)) <= MOST_WORDS else f"{str(text)[: MOST_WORDS - 1]}…"


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
