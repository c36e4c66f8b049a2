"""Recordings: results recorded on real GPUs by `python -m explorer record`, for machines without one. Never live."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from explorer.record import Record, read_lines

FOLDER = Path(__file__).parent
KEPT = 32  # files, parsed


def folder() -> Path:
    """Where the recordings lie: EXPLORER_RECORDINGS names another folder, such as the one `record` writes to."""
    return Path(os.environ.get("EXPLORER_RECORDINGS") or FOLDER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One file of records. losses: a sentence for each line that could not be read."""

    name: str
    records: tuple[Record, ...]
    losses: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Where, with what, when: "recorded on NVIDIA H200 (JAX …, CUDA …, cuDNN …, driver …), 2026-12-01"."""
        if not self.records:
            return f"{self.name}: no record could be read"
        return describe(self.records)


def describe(records: Sequence[Record]) -> str:
    """One sentence on where records come from; several places are all named."""
    places: dict[str, list[str]] = {}
    for record in records:
        e = record.environment
        libraries = {"JAX": e.get("jax"), "CUDA": e.get("cuda"), "cuDNN": e.get("cudnn"), "driver": e.get("driver")}
        inside = ", ".join(f"{name} {version}" for name, version in libraries.items() if version)
        places.setdefault(f"{record.where} ({inside})", []).append((record.time or "")[:10])
    parts = []
    for place, days in places.items():
        first, last = min(days), max(days)
        parts.append(f"{place}, {first if first == last else f'{first} to {last}'}")
    return "recorded on " + "; ".join(parts)


def names() -> list[str]:
    """Every recording that is there."""
    return sorted(path.stem for path in folder().glob("*.jsonl"))


def load(name: str) -> Recording:
    """A recording by its name; raises ValueError for one that is not there."""
    if name not in names():
        raise ValueError(f"recording must be one of {', '.join(names()) or 'none'}, got {name!r}")
    return read(folder() / f"{name}.jsonl")


def several(wanted: Iterable[str]) -> list[Record]:
    """The records of several recordings; a name that is not there adds none, and of equal points the first stands."""
    there, found = set(names()), {}
    for name in wanted:
        for record in load(name).records if name in there else ():
            mode = record.timing.mode if record.timing else None
            found.setdefault((record.problem, record.backend, mode), record)
    return list(found.values())


def matching(points: Iterable[Any]) -> list[Record]:
    """What any recording holds of these (problem, backend) points, in the mode of the first that is found."""
    wanted = {(point.problem, point.backend) for point in points}
    found = [record for record in several(names()) if (record.problem, record.backend) in wanted]
    modes = [record.timing.mode for record in found if record.timing is not None]
    return [record for record in found if record.timing is None or record.timing.mode == modes[0]]


def read(path: str | Path) -> Recording:
    """Any file of records; what can't be read is said in losses. A file that has not changed is parsed once."""
    path = Path(path)
    state = path.stat()
    return _read(path, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=KEPT)
def _read(path: Path, changed_ns: int, size: int) -> Recording:
    records, losses = read_lines(path)
    return Recording(name=path.stem, records=tuple(records), losses=tuple(losses))
