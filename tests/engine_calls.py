"""What the engine's tests run in a worker: functions that a worker can import, and that tests can hold and let go."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

_number = 0


def pid() -> int:
    return os.getpid()


def number() -> int:
    """1, 2, 3, ... in each worker: the order in which calls ran."""
    global _number
    _number += 1
    return _number


def add(a: int, b: int) -> int:
    return a + b


def echo(value: Any) -> Any:
    return value


def hold(gate: str) -> Iterator[int]:
    """Yields its process id; then waits, deaf to cancel, until the test opens the gate (a FIFO)."""
    yield os.getpid()
    Path(gate).read_bytes()
    yield os.getpid()


def hold_once(gate: str, seen: str, report: Callable[..., None]) -> int:
    """Waits at the gate the first time, and leaves a mark; the second time it just returns."""
    if not Path(seen).exists():
        Path(seen).touch()
        report(0, 1, "at the gate")
        Path(gate).read_bytes()
    return os.getpid()


def report_then_hold(gate: str, report: Callable[..., None]) -> Iterator[str]:
    yield "first"
    report(1, 3, "the second", item={"backend": "second"})
    Path(gate).read_bytes()


def until_cancelled(cancelled: Callable[[], bool]) -> Iterator[str]:
    """Yields a sample, then works on until it is cancelled."""
    yield "sample"
    while not cancelled():
        time.sleep(0.001)
    yield "incomplete"


def endless() -> Iterator[int]:
    """Never asks whether it is cancelled, but yields."""
    count = 0
    while True:
        yield count
        count += 1


def report_many(times: int, report: Callable[..., None]) -> None:
    for done in range(times + 1):
        report(done, times, f"sample {done}")


def segfault(report: Callable[..., None]) -> None:
    report(0, 1, "a null pointer", item="null")
    ctypes.string_at(0)


def leave() -> NoReturn:
    os._exit(3)


def exit_politely() -> NoReturn:
    sys.exit(3)


def hold_the_interpreter() -> None:
    """Like a library that hangs and never lets another Python thread run."""
    ctypes.PyDLL(None).sleep(600)


def wrong_request(heads: int) -> NoReturn:
    raise ValueError(f"heads must be positive, got {heads}")


def broken() -> NoReturn:
    raise ZeroDivisionError("first line\nsecond line")


def unsendable() -> Any:
    return threading.Lock()


def of_jax() -> Iterator[Any]:
    """An object of a library that the server must not import; a stand-in, as JAX takes long to import."""
    module = types.ModuleType("jax")
    sys.modules["jax"] = module
    exec("class Array: pass", module.__dict__)
    try:
        yield module.Array()
    finally:
        del sys.modules["jax"]


def large(mib: int) -> bytes:
    return bytes(mib * 2**20)


def say(text: str) -> None:
    print(text, flush=True)


def process() -> dict[str, Any]:
    """What a worker is like."""
    from distributed import get_worker

    return {
        "modules": sorted(name for name in sys.modules if "." not in name),
        "environment": dict(os.environ),
        "callbacks": sorted(get_worker().periodic_callbacks),
    }
