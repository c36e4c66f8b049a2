"""Clock: lower, compile, first call and steady state apart, on two clocks; every sample is kept.

Wall: one call, then wait, as a caller feels it (the lab's method). Device: the kernels' own time, in trace.py.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from explorer.record import Samples
from explorer.sensors import Pacer, Sensors

MODES = ("burst", "sustained")
STOPS = ("repeats", "interval")
READ_EVERY_S = 0.25
FORGET_EVERY = 64  # programs thrown out of the cache
_tracing = threading.RLock()
NARROW = 0.01  # of the median: an interval narrower than that ends the "interval" rule


class Cancelled(Exception):
    """The visitor no longer wants this measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How to time. The lab's: 3 warm-up calls and 50 repeats; 2 and 20 in sweeps.

    stop="interval": go on until the 95 % interval of the median is narrower than 1 % of it, repeats at least.
    burst: a pause between samples until the SM clock is back, at most pause_s; sustained: back to back.
    """

    warmup: int = 3
    repeats: int = 50
    stop: str = "repeats"
    limit_s: float = 10.0
    mode: str = "burst"
    trace_calls: int = 20
    cold_l2: bool = False
    pause_s: float = 0.3

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.repeats < 1:
            raise ValueError(f"timing needs warmup >= 0 and repeats >= 1, got {self.warmup} and {self.repeats}")
        if self.mode not in MODES:
            raise ValueError(f"mode must be burst or sustained, got {self.mode!r}")
        if self.stop not in STOPS:
            raise ValueError(f"stop must be repeats or interval, got {self.stop!r}")
        if self.limit_s <= 0:
            raise ValueError(f"limit_s must be more than 0 seconds, got {self.limit_s}")


LAB = Protocol()
LAB_SWEEP = Protocol(warmup=2, repeats=20)


@dataclass(kw_only=True)
class Build:
    """A compiled program and what it cost to get it."""

    call: Any  # jax.stages.Compiled
    program: str  # the compiled program's text
    lower_ms: float
    compile_ms: float
    disk_hit: bool = False  # JAX took the program from its cache on disk
    first_call_ms: float | None = None


@dataclass
class Cache:
    """Compiled programs, the least recently used thrown out first. Thread safe: a sweep compiles in several threads."""

    most: int = 192
    hits: int = 0
    misses: int = 0
    thrown: int = 0
    builds: OrderedDict[Hashable, Build] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable, build: Callable[[], Build]) -> tuple[Build, bool]:
        """The build under this key, and whether it was there already."""
        with self.lock:
            if key in self.builds:
                self.builds.move_to_end(key)
                self.hits += 1
                return self.builds[key], True
            self.misses += 1
        made = build()
        with self.lock:
            self.builds[key] = made
            while len(self.builds) > self.most:
                self.builds.popitem(last=False)
                self.thrown += 1
            is_time = self.thrown >= FORGET_EVERY
            self.thrown = 0 if is_time else self.thrown
        if is_time:
            forget()
        return made, False

    def info(self) -> dict[str, int]:
        return {"hits": self.hits, "misses": self.misses, "size": len(self.builds), "most": self.most}


def forget() -> None:
    """Let JAX drop what it keeps of each program beside ours: thousands of traces and programs, 2 MiB for each shape.

    The builds in a Cache stay as they are; what two programs share is traced once more.
    """
    import jax

    with _tracing:
        jax.clear_caches()


_this_thread = threading.local()


@functools.cache
def _listen() -> None:
    """JAX tells of its disk cache through events, on the compiling thread."""
    import jax

    def heard(event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            _this_thread.disk_hit = True

    jax.monitoring.register_event_listener(heard)


def build(function: Callable[..., Any], shapes: list[Any], *, is_tuned: bool = True) -> Build:
    """Lower and compile for the shapes; nothing is allocated. What the backend raises is let through.

    is_tuned: XLA tries its candidates for each product on the GPU, as it does by default. Without, it takes the first
    that fits: for what is never timed.

    Threads may build at once: they trace one after another, since TransformerEngine's FP8 recipe is global state.
    """
    import jax

    _listen()
    with _tracing:
        start = time.perf_counter()
        lowered = jax.jit(function).trace(*shapes).lower()
        lower_ms = (time.perf_counter() - start) * 1e3
    _this_thread.disk_hit = False
    start = time.perf_counter()
    compiled = lowered.compile(compiler_options=None if is_tuned else {"xla_gpu_autotune_level": "0"})
    compile_ms = (time.perf_counter() - start) * 1e3
    return Build(
        call=compiled,
        program=compiled.as_text() or "",
        lower_ms=lower_ms,
        compile_ms=compile_ms,
        disk_hit=_this_thread.disk_hit,
    )


def wait(result: Any) -> Any:
    import jax

    return jax.block_until_ready(result)


def once(call: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    """One call, then wait, in ms."""
    start = time.perf_counter()
    wait(call(*arguments))
    return (time.perf_counter() - start) * 1e3


def steady(
    call: Callable[..., Any],
    arguments: Iterator[tuple[Any, ...]],
    protocol: Protocol,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    sensors: Sensors | None = None,
) -> tuple[Samples, str]:
    """Wall-clock samples after the warm-up, and what ended them: "repeats", "interval" or "time limit".

    arguments yields the same set again and again, or several in turn for a cold L2. Raises Cancelled between samples.
    """
    sensors = sensors or Sensors()
    pacer = pacer_of(protocol, sensors)
    started = time.perf_counter()
    for _ in range(protocol.warmup):
        if cancelled():
            raise Cancelled
        once(call, next(arguments))
        if time.perf_counter() - started > protocol.limit_s:
            break
    times: list[float] = []
    sensors.read()
    last_reading = time.perf_counter()
    while True:
        if cancelled():
            raise Cancelled
        if pacer is not None and times:
            pacer.rest(times[-1])
        times.append(once(call, next(arguments)))
        now = time.perf_counter()
        if now - last_reading > READ_EVERY_S:
            sensors.read()
            last_reading = now
        if reason := ended_by(times, protocol, now - started):
            break
    sensors.read()
    return Samples(tuple(times)), reason


def pacer_of(protocol: Protocol, sensors: Sensors) -> Pacer | None:
    """Burst mode's pauses; None in sustained mode, and on a CPU."""
    import jax

    wanted = protocol.mode == "burst" and jax.default_backend() == "gpu"
    return Pacer(pause_s=protocol.pause_s, sensors=sensors) if wanted else None


def ended_by(times: list[float], protocol: Protocol, spent_s: float) -> str | None:
    """Why no further sample is needed, or None. The interval is looked at after every tenth part more samples."""
    count = len(times)
    if count >= protocol.repeats:
        if protocol.stop == "repeats":
            return "repeats"
        if (count - protocol.repeats) % max(1, protocol.repeats // 10) == 0:
            found = Samples(tuple(times))
            low, high = found.median_interval
            if high - low < NARROW * found.median:
                return "interval"
    return "time limit" if spent_s > protocol.limit_s else None
