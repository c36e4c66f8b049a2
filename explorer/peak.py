"""Peak: the memory that one call really takes, measured in a fresh process that may die of it.

`python -m explorer.peak` is that process: it reads a task from stdin, ends when stdin does, and prints what it found.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from explorer import backends, cost, device, memory
from explorer.problem import Problem

LIMIT_S = 120.0
ANSWER = "explorer-peak:"  # libraries print to stdout too
OUTCOMES = ("fits", "out_of_memory", "died", "timed_out", "refused", "failed", "cancelled")
TOGETHER = 9  # child processes at once, where the memory has room for all: nothing is timed in them
BEAT_S = 0.5  # a progress report comes at least this often
STEP = 64  # lengths are looked for in multiples of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What the child process found. peak_bytes: inputs, outputs and working memory at their highest, if it fits.

    On a GPU by JAX's allocator, on a CPU by the process's resident memory (limit_bytes bounds it there).
    """

    problem: Problem
    backend: str
    outcome: str
    peak_bytes: int | None = None
    formula_bytes: int | None = None
    compiler_bytes: int | None = None
    limit_bytes: int | None = None
    reason: str | None = None


def formula(backend: str, p: Problem) -> int:
    """Inputs, outputs and the working memory by formula: what peak_bytes should be."""
    return cost.input_bytes(p) + cost.output_bytes(p) + cost.formula_bytes(backend, p)


def measure(
    problem: Problem,
    backend: str,
    *,
    limit_bytes: int | None = None,
    extra_bytes: int = 0,
    limit_s: float = LIMIT_S,
    stop: threading.Event | None = None,
) -> Peak:
    """Run once in a fresh process, which is killed at the limit, or when stop is set.

    extra_bytes are allocated beside it, to prove that the measurement sees them. XLA tries out candidates on the GPU
    while it compiles, and where they took more than the call, its own peak can't be told: then it is run once more, in
    a process that finds the program in JAX's cache on disk and tries nothing.
    """

    def once() -> Peak:
        return _in_child(problem, backend, limit_bytes=limit_bytes, extra_bytes=extra_bytes, limit_s=limit_s, stop=stop)

    found = once()
    return once() if found.outcome == "fits" and found.peak_bytes is None else found


def _in_child(
    problem: Problem,
    backend: str,
    *,
    limit_bytes: int | None,
    extra_bytes: int,
    limit_s: float,
    stop: threading.Event | None,
) -> Peak:
    task = {"problem": problem.to_json(), "backend": backend, "limit_bytes": limit_bytes, "extra_bytes": extra_bytes}
    environment = {
        **os.environ,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]).strip(":"),
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "explorer.peak"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    known: dict[str, Any] = {
        "problem": problem, "backend": backend, "formula_bytes": formula(backend, problem), "limit_bytes": limit_bytes
    }  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    ended, out_of_time, stop = threading.Event(), threading.Event(), stop or threading.Event()

    def watch() -> None:
        start = time.monotonic()
        while not ended.wait(0.1):
            if time.monotonic() - start > limit_s:
                out_of_time.set()
            if stop.is_set() or out_of_time.is_set():
                child.kill()
                return

    complaints: list[str] = []
    reader = threading.Thread(target=lambda: complaints.extend(child.stderr or ()), daemon=True)
    try:
        threading.Thread(target=watch, daemon=True).start()
        reader.start()
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps(task) + "\n")
            child.stdin.flush()
        answers = [line[len(ANSWER) :] for line in child.stdout if line.startswith(ANSWER)]
        code = child.wait()
    finally:
        ended.set()
        child.kill()
        child.wait()
        reader.join(timeout=1)
        for pipe in (child.stdin, child.stdout, child.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    if answers:
        return Peak(**known | json.loads(answers[-1]))
    if out_of_time.is_set():
        return Peak(**known, outcome="timed_out", reason=f"the process was not done after {limit_s:g} s and was ended")
    if stop.is_set():
        return Peak(**known, outcome="cancelled", reason="cancelled before it was done")
    last = next((line.strip() for line in reversed(complaints) if line.strip()), "it said nothing")
    return Peak(**known, outcome="died", reason=f"the process died (exit code {code}): {last[:300]}")


class Room:
    """Memory that child processes share: each waits until what it needs is free, so that none fails for another's."""

    def __init__(self, room_bytes: int) -> None:
        self.room_bytes = self.free_bytes = room_bytes
        self.changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, need_bytes: int) -> Iterator[None]:
        """More than there is at all waits for the whole room: then it is that call alone which does not fit."""
        need_bytes = min(need_bytes, self.room_bytes)
        with self.changed:
            self.changed.wait_for(lambda: self.free_bytes >= need_bytes)
            self.free_bytes -= need_bytes
        try:
            yield
        finally:
            with self.changed:
                self.free_bytes += need_bytes
                self.changed.notify_all()


def measure_many(
    tasks: Sequence[tuple[dict[str, Any], str]],
    *,
    limit_bytes: int | None = None,
    report: Callable[..., None] = lambda done, total, text="": None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[Peak]:
    """Several (problem, backend), a few processes at a time, in order; when this ends, so have they."""
    found = [(Problem.from_json(problem), backend) for problem, backend in tasks]
    room, stop = Room(child_room()), threading.Event()

    here = device.here()

    def one(p: Problem, backend: str) -> Peak:
        if (reason := backends.BACKENDS[backend].why_not(p, here)) is not None:
            return Peak(problem=p, backend=backend, outcome="refused", formula_bytes=formula(backend, p), reason=reason)
        # Twice the formula: compilers try out several programs, each with its own working memory
        with room.take(2 * formula(backend, p) + CONTEXT_BYTES):
            if stop.is_set():
                known = {"formula_bytes": formula(backend, p), "reason": "cancelled before it was done"}
                return Peak(problem=p, backend=backend, outcome="cancelled", **known)
            return measure(p, backend, limit_bytes=limit_bytes, stop=stop)

    with ThreadPoolExecutor(min(TOGETHER, os.cpu_count() or 1)) as pool:
        waiting = [pool.submit(one, p, backend) for p, backend in found]
        try:
            for done, (future, (p, backend)) in enumerate(zip(waiting, found, strict=True)):
                while not future.done() and not cancelled():
                    report(done, len(waiting), f"{backend} {p}, in a process of its own")
                    wait([future], timeout=BEAT_S)
                if cancelled():
                    return
                yield future.result()
            report(len(waiting), len(waiting), "done")
        finally:
            stop.set()  # also where the caller closes the generator: no process stays behind


def longest(backend: str, p: Problem, room_bytes: int) -> int:
    """The longest q_len = kv_len, a multiple of STEP, that by formula fits the room; 0 if none does."""
    low, high = 0, 1
    while _need(backend, p, high * STEP) <= room_bytes:
        low, high = high, 2 * high
        if high * STEP > 2**30:
            break
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _need(backend, p, middle * STEP) <= room_bytes else (low, middle)
    return low * STEP


def _need(backend: str, p: Problem, length: int) -> int:
    return formula(backend, p.but(q_len=length, kv_len=length))


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The first length at which a backend no longer fits: computed; and what happened at both sides of it."""

    backend: str
    problem: Problem
    room_bytes: int
    fits_q_len: int
    first_misfit_q_len: int
    proof: tuple[Peak, ...] = ()


def edge(backend: str, p: Problem, room_bytes: int) -> Edge:
    """By formula: the longest that fits MARGIN of the room, and the first that needs more than all of it."""
    return Edge(
        backend=backend,
        problem=p,
        room_bytes=room_bytes,
        fits_q_len=longest(backend, p, int(memory.MARGIN * room_bytes)),
        first_misfit_q_len=longest(backend, p, room_bytes) + STEP,
    )


def prove(
    problem: dict[str, Any],
    backend: str,
    *,
    limit_bytes: int | None = None,
    report: Callable[..., None] = lambda done, total, text="": None,
) -> Edge:
    """Run both sides of the edge, each in a process that may die. On a CPU it may not take more than the room."""
    p = Problem.from_json(problem)
    room = limit_bytes if limit_bytes is not None else child_room()
    if not device.here().is_gpu:
        limit_bytes = room
    found = edge(backend, p, room)
    proof = []
    for done, length in enumerate((found.fits_q_len, found.first_misfit_q_len)):
        report(done, 2, f"{backend} at T={length}")
        if length:
            proof.append(measure(p.but(q_len=length, kv_len=length), backend, limit_bytes=limit_bytes))
    return Edge(**{name: getattr(found, name) for name in Edge.__slots__ if name != "proof"}, proof=tuple(proof))


CPU_ROOM_BYTES = 2 * 2**30  # a proof on a CPU must not drive the machine into swap, so it has a limit of its own


def child_room() -> int:
    """What a child process may allocate here: the GPU's free memory (the child's share of it), or CPU_ROOM_BYTES."""
    import jax

    if jax.devices()[0].platform != "gpu":
        return min(CPU_ROOM_BYTES, memory.host_free_bytes() // 2)
    import pynvml

    from explorer.sensors import nvml_handle

    free = int(pynvml.nvmlDeviceGetMemoryInfo(nvml_handle()).free)
    return free - CONTEXT_BYTES


CONTEXT_BYTES = 2**30  # a CUDA context with cuDNN and cuBLAS loaded, and the fraction that JAX leaves alone


# --- in the child process


def resident_bytes(name: str) -> int:
    """VmRSS or VmHWM (its highest value) of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Compile, put the inputs on the device, call once, and read the highest memory use."""
    import jax
    import jax.numpy as jnp

    from explorer import measure

    problem, name = Problem.from_json(task["problem"]), task["backend"]
    here = device.here()
    if (reason := backends.BACKENDS[name].why_not(problem, here)) is not None:
        return {"outcome": "refused", "reason": reason}
    built = measure.compile_one(problem, name)
    sizes = memory.analysis(built.call)
    found: dict[str, Any] = {"compiler_bytes": sum(sizes.values()) if None not in sizes.values() else None}  # pyright: ignore
    shapes, extra = measure.shapes_of(problem), task["extra_bytes"]
    # Made on the device by a program compiled beforehand, so that neither copies on the host nor compiling count
    make = jax.jit(lambda: (*(jnp.full(s.shape, 0.01, s.dtype) for s in shapes), jnp.ones(extra, jnp.uint8)))
    make = make.lower().compile()
    try:
        if here.is_gpu:
            before = jax.devices()[0].memory_stats() or {}
            hold = jax.block_until_ready(make())
            jax.block_until_ready(built.call(*hold[:-1]))
            after = jax.devices()[0].memory_stats() or {}
            peak = int(after["peak_bytes_in_use"])
            if peak <= int(before.get("peak_bytes_in_use", 0)):
                return found | {
                    "outcome": "fits",
                    "reason": f"compiling took {memory.gib(peak)}, more than the call itself: its own peak is hidden",
                }
        else:
            _bound(task["limit_bytes"])
            base = resident_bytes("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
            hold = jax.block_until_ready(make())
            jax.block_until_ready(built.call(*hold[:-1]))
            peak = resident_bytes("VmHWM") - base
    except Exception as error:
        if "RESOURCE_EXHAUSTED" in str(error) or isinstance(error, MemoryError) or "ut of memory" in str(error):
            return found | {"outcome": "out_of_memory", "reason": measure.first_line(error)}
        raise
    return found | {"outcome": "fits", "peak_bytes": peak}


def _bound(limit_bytes: int | None) -> None:
    """From here on the process may take so much more address space."""
    if limit_bytes is not None:
        now = resident_bytes("VmSize")
        resource.setrlimit(resource.RLIMIT_AS, (now + limit_bytes, now + limit_bytes))


def main() -> int:
    from explorer import worker

    task = json.loads(sys.stdin.readline() or "{}")
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    worker.set_environment()
    if task["backend"].startswith("transformer_engine"):
        worker.load_libraries()  # it must come before JAX, and takes seconds
    answer = run(task)
    print(ANSWER + json.dumps(answer), flush=True)
    return 0


def _end_with_stdin() -> None:
    """The worker that started this is gone: nothing of it stays."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
