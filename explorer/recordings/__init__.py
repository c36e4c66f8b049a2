"""Recordings: results recorded on real GPUs by `python -m explorer record`, for machines without one. Never live."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from explorer.record import Record, read_lines

FOLDER = Path(__file__).parent


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


def describe(records: tuple[Record, ...] | list[Record]) -> str:
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
    """Every shipped recording."""
    return sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def load(name: str) -> Recording:
    """A shipped recording by its name; raises ValueError for one that is not there."""
    if name not in names():
        raise ValueError(f"recording must be one of {', '.join(names()) or 'none'}, got {name!r}")
    return read(FOLDER / f"{name}.jsonl")


def read(path: str | Path) -> Recording:
    """Any file of records; what can't be read is said in losses."""
    records, losses = read_lines(path)
    return Recording(name=Path(path).stem, records=tuple(records), losses=tuple(losses))
