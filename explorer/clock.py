"""Clock: lower, compile, first call and steady state apart, on two clocks; every sample is kept.

Wall: one call, then wait, as a caller feels it (the lab's method). Device: the kernels' own time from a profiler trace.
"""

from __future__ import annotations

import glob
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal

from explorer.record import Samples

Mode = Literal["burst", "sustained"]
Stop = Literal["repeats", "interval"]


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
    stop: Stop = "repeats"
    limit_s: float = 10.0
    mode: Mode = "burst"
    trace_calls: int = 20
    cold_l2: bool = False
    pause_s: float = 0.3

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.repeats < 1:
            raise ValueError(f"timing needs warmup >= 0 and repeats >= 1, got {self.warmup} and {self.repeats}")
        if self.mode not in ("burst", "sustained"):
            raise ValueError(f"mode must be burst or sustained, got {self.mode!r}")
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
    first_call_ms: float | None = None


@dataclass
class Cache:
    """Compiled programs, the least recently used thrown out first. Thread safe: a sweep compiles in several threads."""

    most: int = 256
    hits: int = 0
    misses: int = 0
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
        return made, False

    def info(self) -> dict[str, int]:
        return {"hits": self.hits, "misses": self.misses, "size": len(self.builds), "most": self.most}


def build(function: Callable[..., Any], shapes: list[Any]) -> Build:
    """Lower and compile for the shapes; nothing is allocated. What the backend raises is let through."""
    import jax

    start = time.perf_counter()
    lowered = jax.jit(function).trace(*shapes).lower()
    lower_ms = (time.perf_counter() - start) * 1e3
    start = time.perf_counter()
    compiled = lowered.compile()
    compile_ms = (time.perf_counter() - start) * 1e3
    return Build(call=compiled, program=compiled.as_text() or "", lower_ms=lower_ms, compile_ms=compile_ms)


def wait(result: Any) -> Any:
    import jax

    return jax.block_until_ready(result)


def once(call: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    """One call, then wait, in ms."""
    start = time.perf_counter()
    wait(call(*arguments))
    return (time.perf_counter() - start) * 1e3


class Sensors:
    """SM clock, power and temperature of the GPU through NVML; silent where there is none."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.readings: list[tuple[int, float, int]] = []
        try:
            import pynvml

            pynvml.nvmlInit()
            self.handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            self.sm_clock()
        except Exception:  # noqa: BLE001 - NVML's own classes: no driver, no permission, not supported
            self.handle = None

    def sm_clock(self) -> int | None:
        if self.handle is None:
            return None
        import pynvml

        return int(pynvml.nvmlDeviceGetClockInfo(self.handle, pynvml.NVML_CLOCK_SM))

    def read(self) -> None:
        if self.handle is None:
            return
        import pynvml

        power = pynvml.nvmlDeviceGetPowerUsage(self.handle) / 1e3
        heat = pynvml.nvmlDeviceGetTemperature(self.handle, pynvml.NVML_TEMPERATURE_GPU)
        self.readings.append((self.sm_clock() or 0, power, int(heat)))


class Pacer:
    """The pause of burst mode: until the SM clock is back, at least 20 times the call, at most pause_s."""

    def __init__(self, protocol: Protocol, sensors: Sensors) -> None:
        self.protocol, self.sensors, self.highest = protocol, sensors, 0

    def rest(self, last_ms: float) -> None:
        if self.protocol.mode != "burst" or self.sensors.handle is None:
            return
        until = time.perf_counter() + min(self.protocol.pause_s, 20 * last_ms / 1e3)
        deadline = time.perf_counter() + self.protocol.pause_s
        while (now := time.perf_counter()) < deadline:
            if now >= until and last_ms < 0.5:
                return  # too short to heat the chip; reading the clock would take longer than the call
            if now >= until:
                clock = self.sensors.sm_clock() or 0
                self.highest = max(self.highest, clock)
                if clock >= 0.98 * self.highest:
                    return
            time.sleep(min(0.005, max(0.0, until - now)) or 0.002)


def steady(
    call: Callable[..., Any],
    argument_sets: list[tuple[Any, ...]],
    protocol: Protocol,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    sensors: Sensors | None = None,
) -> tuple[Samples, str]:
    """Wall-clock samples after the warm-up, and what ended them: "repeats", "interval" or "time limit".

    argument_sets has one set, or several to rotate through for a cold L2. Raises Cancelled between samples.
    """
    sensors = sensors or Sensors()
    pacer = Pacer(protocol, sensors)
    started = time.perf_counter()
    for i in range(protocol.warmup):
        if cancelled():
            raise Cancelled
        once(call, argument_sets[i % len(argument_sets)])
        if time.perf_counter() - started > protocol.limit_s:
            break
    times: list[float] = []
    last_reading = 0.0
    sensors.read()
    while True:
        if cancelled():
            raise Cancelled
        if times:
            pacer.rest(times[-1])
        times.append(once(call, argument_sets[len(times) % len(argument_sets)]))
        now = time.perf_counter()
        if now - last_reading > 0.25:
            sensors.read()
            last_reading = now
        if protocol.stop == "repeats" and len(times) >= protocol.repeats:
            reason = "repeats"
            break
        if protocol.stop == "interval" and len(times) >= protocol.repeats:
            low, high = Samples(tuple(times)).median_interval
            if high - low < 0.01 * Samples(tuple(times)).median:
                reason = "interval"
                break
        if now - started > protocol.limit_s:
            reason = "time limit"
            break
    sensors.read()
    return Samples(tuple(times)), reason


Event = tuple[str, float]  # kernel name, duration in ms


def trace(
    call: Callable[..., Any],
    argument_sets: list[tuple[Any, ...]],
    protocol: Protocol,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    sensors: Sensors | None = None,
    wall_ms: float = 1.0,
) -> list[list[Event]]:
    """The kernels of each call, in order, from one profiler trace; an empty list where the trace holds no GPU."""
    import jax

    pacer = Pacer(protocol, sensors or Sensors())
    calls = max(3, min(protocol.trace_calls, int(protocol.limit_s * 1e3 / max(wall_ms, 1e-3))))
    with tempfile.TemporaryDirectory(prefix="explorer-trace-") as folder:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # its events would fill the trace and slow the calls
        options.host_tracer_level = 0
        with jax.profiler.trace(folder, profiler_options=options):
            for i in range(calls):
                if cancelled():
                    break
                took = once(call, argument_sets[i % len(argument_sets)])
                pacer.rest(took)
        if cancelled():
            raise Cancelled
        files = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        return split(read_trace(files[0]), calls) if files else []


def read_trace(path: str) -> list[Event]:
    """(kernel name, ms) of every event on the GPU's streams, in order of their start."""
    import jax

    data = jax.profiler.ProfileData.from_file(path)
    found: list[tuple[float, str, float]] = []
    for plane in data.planes:
        if not plane.name.startswith("/device:GPU:"):
            continue
        for line in plane.lines:
            if line.name.startswith("Stream"):
                found += [(e.start_ns, e.name, e.duration_ns / 1e6) for e in line.events]
    return [(name, ms) for _, name, ms in sorted(found)]


def split(events: list[Event], calls: int) -> list[list[Event]]:
    """The events of each call: equal runs of the same kernels; where they are not equal, one list of all."""
    if not events or len(events) % calls:
        return [events] if events else []
    size = len(events) // calls
    runs = [events[i * size : (i + 1) * size] for i in range(calls)]
    first = [name for name, _ in runs[0]]
    return runs if all([name for name, _ in run] == first for run in runs) else [events]


def device_samples(
    runs: list[list[Event]], calls: int, keep: Callable[[str], bool] = lambda name: True
) -> Samples | None:
    """Sum of the kernels' times for each call; one mean where the trace could not be split; None without kernels."""
    sums = [sum(ms for name, ms in run if keep(name)) for run in runs]
    if not sums or min(sums) <= 0:
        return None
    return Samples(tuple(sums)) if len(sums) == calls else Samples((sums[0] / calls,))
