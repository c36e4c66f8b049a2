"""Prove: compile and run, with the result checked, cell by cell; appended as it goes, and resumed where it stopped.

A cell is one backend on one problem. Each is a measure.measure of few samples: what a proof needs is the result and the
kernel, not the last per cent of its time. Programs are compiled ahead in threads, and nothing compiles while one runs.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from explorer import backends, device, measure, record, support, sweep
from explorer.clock import Protocol
from explorer.device import Device
from explorer.problem import Problem
from explorer.record import Record
from explorer.support import Check, Proof

Cell = tuple[str, Problem]
Key = tuple[Any, ...]
SHIPPED = Path(__file__).parent / "recordings" / "support"
PROTOCOL = Protocol(warmup=1, repeats=5, trace_calls=5, limit_s=2.0)
AHEAD = 96  # programs compiled before they run; the cache of builds holds more
SAME_PLACE = ("gpu", "cpu", "jax", "cudnn", "transformer_engine")
HEAD_DIMS = tuple(range(8, 257, 8))


def slices() -> dict[str, tuple[str, Callable[[], list[Cell]]]]:
    """Name -> (what it is, its cells): what one command proves."""
    every = list(backends.BACKENDS)
    return {
        "smoke": ("a few cells of each backend", lambda: _grid((64, 72, 128), ("bfloat16",), every)),
        "cudnn": (
            "cuDNN's 32 head_dims, forward and backward, bfloat16",
            lambda: _grid(HEAD_DIMS, ("bfloat16",), ["cudnn"], causal=(False,)),
        ),
        "edges": ("refused sizes, odd lengths, grouped heads, masks known to go wrong", _edges),
        "matrix": (
            "32 head_dims, forward and backward, full and causal, bfloat16 and float16, every backend",
            lambda: _grid(HEAD_DIMS, ("bfloat16", "float16"), every),
        ),
    }


def _grid(
    head_dims: Iterable[int],
    dtypes: Iterable[str],
    names: Sequence[str],
    *,
    causal: Iterable[bool] = (False, True),
    backward: Iterable[bool] = (False, True),
) -> list[Cell]:
    """The lab's shape in each combination; a problem's backends stand together, since they share its exact result."""
    combinations = itertools.product(dtypes, causal, backward, head_dims)
    problems = [
        Problem(head_dim=h, dtype=d, causal=c, backward=b)  # pyright: ignore[reportArgumentType]
        for d, c, b, h in combinations
    ]
    return [(name, problem) for problem in problems for name in names]


def _edges() -> list[Cell]:
    p = Problem(dtype="bfloat16")
    every = list(backends.BACKENDS)
    problems = [
        *(p.but(head_dim=h, backward=b) for h in (100, 127, 264, 512) for b in (False, True)),
        *(p.but(q_len=t, kv_len=t, backward=b) for t in (1, 127, 2731) for b in (False, True)),
        *(p.but(q_len=64, kv_len=128, causal=c) for c in (False, True)),
        *(p.but(kv_heads=k, backward=b) for k in (1, 2) for b in (False, True)),
        *(p.but(head_dim=128, q_len=t, kv_len=t, backward=True) for t in (128, 192, 256)),
        *(p.but(window=w, causal=c) for w in ((16, 0), (16, 16)) for c in (False, True)),
        *(p.but(kv_valid=v) for v in (100, 0)),
    ]
    return [(name, problem) for problem in dict.fromkeys(problems) for name in every]


def cells_of(name: str) -> list[Cell]:
    """The cells of a named slice; raises ValueError."""
    known = slices()
    if name not in known:
        raise ValueError(f"slice must be one of {', '.join(known)}, got {name!r}")
    return known[name][1]()


def key(backend: str, problem: Problem) -> Key:
    """What a proof is about: not the seed, not the numbers."""
    p = problem
    return (backend, p.q_shape, p.kv_shape, p.dtype, p.causal, p.window, p.kv_valid, p.backward)


def place(environment: dict[str, Any]) -> Key:
    """Where a proof holds: the GPU and the libraries' versions."""
    return tuple(environment.get(name) for name in SAME_PLACE)


def prove(
    cells: Sequence[Cell],
    *,
    path: str | os.PathLike[str] | None = None,
    report: measure.Report = measure.silent,
    cancelled: Callable[[], bool] = measure.never,
    limit_s: float | None = None,
) -> Iterator[Record]:
    """A Record for each cell, in order. With a path each is appended at once, and what stands there already (same GPU,
    same versions) is read instead of run; a cell that timed out or was cancelled is run again.
    limit_s: as of sweep.compile_ahead."""
    here = device.here()
    known = _known_here(path, here) if path is not None else {}
    done = 0
    for start in range(0, len(cells), AHEAD):
        batch = cells[start : start + AHEAD]
        todo = [cell for cell in batch if key(*cell) not in known]
        report(done, len(cells), f"compiling {len(todo)} of {len(cells)} cells")
        points = [sweep.Point(problem=p, backend=n) for n, p in todo]
        sweep.compile_ahead(points, cancelled=cancelled, limit_s=limit_s)
        for name, problem in batch:
            if cancelled():
                return
            report(done, len(cells), f"{name} {problem}")
            found = known.get(key(name, problem))
            if found is None:
                found = measure.measure(problem, name, here=here, protocol=PROTOCOL, cancelled=cancelled)
                if path is not None and found.status != "cancelled":
                    record.write_lines(path, [found], append=True)
            done += 1
            yield found
    report(len(cells), len(cells), "done")


def _known_here(path: str | os.PathLike[str], here: Device) -> dict[Key, Record]:
    if not Path(path).exists():
        return {}
    wanted = place(device.environment(here))
    records, _ = record.read_lines(path)
    again = ("timed_out", "cancelled")
    return {key(r.backend, r.problem): r for r in records if place(r.environment) == wanted and r.status not in again}


def proof_of(values: dict[str, Any], *, recorded: bool) -> Proof:
    """The proof in a record's JSON."""
    accuracy, evidence = values["accuracy"] or {}, values["evidence"] or {}
    environment, timing = values["environment"], values["timing"] or {}
    kernels = evidence.get("kernels") or []
    # Times and traces exist only where the result agrees; what disagreed is named by the call in its program
    named = [k["name"] for k in kernels] or (evidence.get("custom_calls") if values["status"] == "disagrees" else None)
    versions = {"JAX": "jax", "cuDNN": "cudnn", "TransformerEngine": "transformer_engine"}
    wanted = [label for label in versions if label != "TransformerEngine" or "transformer" in values["backend"]]
    return Proof(
        status=values["status"],
        reason=values["reason"],
        gpu=environment.get("gpu"),
        kernel=_attention_first(named or []),
        max_abs_error=accuracy.get("max_abs_error"),
        budget=accuracy.get("budget"),
        fused=evidence.get("fused") if evidence.get("marker") else None,
        wall_ms=(timing.get("wall_ms") or {}).get("median"),
        device_ms=(timing.get("device_ms") or {}).get("median"),
        versions=", ".join(
            f"{label} {environment[versions[label]]}" for label in wanted if environment.get(versions[label])
        ),
        time=values.get("time"),
        recorded=recorded,
    )


def _attention_first(names: Sequence[str]) -> str | None:
    """The attention kernel, if one is there, else the one that took most time."""
    from explorer.evidence import ATTENTION_KERNEL

    return next((name for name in names if ATTENTION_KERNEL.search(name)), names[0] if names else None)


class Proofs:
    """Proofs by what they are about, from JSON lines: the shipped recordings, and this machine's own."""

    def __init__(self) -> None:
        self._found: dict[Key, list[dict[str, Any]]] = {}

    def add(self, values: dict[str, Any], *, recorded: bool) -> None:
        problem = Problem.from_json(values["problem"])
        self._found.setdefault(key(values["backend"], problem), []).append({**values, "recorded": recorded})

    def read(self, path: Path) -> Proofs:
        """Lines that are no record of this schema are left out: they prove nothing."""
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                values = json.loads(line)
                if values["schema"] == record.SCHEMA:
                    self.add(values, recorded=True)
            except (ValueError, KeyError, TypeError):
                continue
        return self

    def get(self, backend: str, problem: Problem, where: Device) -> Proof | None:
        """The newest proof that holds for this device: for one at hand only of its own library versions."""
        fitting = [v for v in self._found.get(key(backend, problem), []) if _holds_for(v["environment"], where)]
        return proof_of(fitting[-1], recorded=fitting[-1]["recorded"]) if fitting else None

    def __len__(self) -> int:
        return sum(map(len, self._found.values()))


def _holds_for(environment: dict[str, Any], where: Device) -> bool:
    if not where.is_gpu:
        return where.is_here and environment.get("gpu") is None and environment.get("cpu") == where.name
    same_gpu = environment.get("gpu") == where.name
    if where.is_here:
        names = ("jax", "cudnn")
        return same_gpu and all(environment.get(n) == where.versions.get(n) for n in names if where.versions.get(n))
    asked_by_capability = "compute capability" in where.name and environment.get("compute_capability") is not None
    return same_gpu or (asked_by_capability and environment["compute_capability"] == where.capability_text)


def shipped(*more: Path) -> Proofs:
    """The recorded proofs that come with the app, then those of the given files, where they exist."""
    proofs = Proofs()
    for path in [*sorted(SHIPPED.glob("*.jsonl")), *(p for p in more if p.exists())]:
        proofs.read(path)
    return proofs


def check(backend: str, problem: Problem, where: Device) -> Check | None:
    """JAX's own check, or TransformerEngine's for the GPU at hand; None where there is none to ask. Loads JAX.

    Raises jaxcheck.JaxMoved where JAX's internals are not as they were.
    """
    from explorer import jaxcheck

    if backend in jaxcheck.BACKENDS and where.is_gpu and where.capability is not None:
        import jax

        said = jaxcheck.ask(backend, problem, where.capability, where.versions.get("cudnn"))
        return Check(accepted=said.accepted, reason=said.reason, by=f"JAX {jax.__version__}'s own check")
    if backend.startswith("transformer_engine") and where.is_here and support.why_not(backend, problem, where) is None:
        from explorer.backends import transformer_engine

        why = transformer_engine.rejection(problem)
        by = f"TransformerEngine {where.versions.get('transformer_engine')}'s own check"
        return Check(accepted=True, by=by, fused=why is None, reason=why or (None if why is None else "not fused"))
    return None


def own_file() -> Path:
    """This machine's own proofs, kept in the user's cache: cells proven once are not run again."""
    from explorer.worker import cache_dir

    return cache_dir() / "proofs.jsonl"


def prove_here(
    cells: Sequence[Cell],
    *,
    report: measure.Report = measure.silent,
    cancelled: Callable[[], bool] = measure.never,
) -> Iterator[Record]:
    """For the worker: prove, and keep in this machine's own file."""
    path = own_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    yield from prove(cells, path=path, report=report, cancelled=cancelled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the worker knows without running anything. moved: why no check could be asked."""

    checks: tuple[Check | None, ...]
    records: tuple[Record, ...]
    moved: str | None = None


def look(cells: Sequence[Cell], gpu: str) -> Look:
    """For the worker: each cell's check, and what is in this machine's own file. gpu: "this" or a name."""
    from explorer.jaxcheck import JaxMoved

    where = device.here() if gpu == "this" else device.named(gpu)
    known = _known_here(own_file(), where) if gpu == "this" else {}
    records = tuple(known[key(*cell)] for cell in cells if key(*cell) in known)
    try:
        return Look(checks=tuple(check(*cell, where) for cell in cells), records=records)
    except JaxMoved as error:
        return Look(checks=(None,) * len(cells), records=records, moved=str(error))
