"""Sensors: SM clock, power and temperature of the GPU, read around the samples; the pause in which it recovers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SHORT_MS = 2.0  # below this a call is launch and wait in good part; a pause before it would time the waking up
BUSY_MS = 10.0  # so much of short calls in a row counts as load after all
REST = 10  # a pause is so many times the load before it: the chip works a tenth of the time at most
BACK = 0.98  # of the highest clock seen counts as back


def nvml_handle() -> Any:
    """The first GPU that this process may use, as CUDA_VISIBLE_DEVICES names it; raises NVML's own errors."""
    import pynvml

    pynvml.nvmlInit()
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if first.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(first))
    return pynvml.nvmlDeviceGetHandleByUUID(first)


class Sensors:
    """What NVML tells about the GPU; silent where there is none. readings: (SM clock in MHz, power in W, °C)."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.highest_mhz = 0
        self.readings: list[tuple[int, float, int]] = []
        try:
            self.handle = nvml_handle()
            self.sm_clock()
        except Exception:  # noqa: BLE001 - NVML has a class for each cause: no driver, no permission, not supported
            self.handle = None

    def sm_clock(self) -> int | None:
        """In MHz; None where there is no GPU to ask."""
        if self.handle is None:
            return None
        import pynvml

        clock = int(pynvml.nvmlDeviceGetClockInfo(self.handle, pynvml.NVML_CLOCK_SM))
        self.highest_mhz = max(self.highest_mhz, clock)
        return clock

    def read(self) -> None:
        if self.handle is None:
            return
        import pynvml

        power_w = pynvml.nvmlDeviceGetPowerUsage(self.handle) / 1e3
        heat_c = pynvml.nvmlDeviceGetTemperature(self.handle, pynvml.NVML_TEMPERATURE_GPU)
        self.readings.append((self.sm_clock() or 0, power_w, int(heat_c)))


@dataclass
class Pacer:
    """Burst mode's pause before the next call. A call of SHORT_MS or more gets one each; shorter ones share one.

    It lasts REST times the load, goes on until the SM clock is back where that can be read, and ends after pause_s at
    the latest. The exported script has the same rule without the clock (explorer/export.py).
    """

    pause_s: float
    sensors: Sensors
    sleep: Callable[[float], None] = time.sleep
    load_ms: float = 0.0

    def rest(self, last_ms: float) -> None:
        self.load_ms += last_ms
        if last_ms < SHORT_MS and self.load_ms < BUSY_MS:
            return
        load_s, self.load_ms = self.load_ms / 1e3, 0.0
        start = time.perf_counter()
        self.sleep(min(self.pause_s, REST * load_s))
        while time.perf_counter() - start < self.pause_s:
            clock = self.sensors.sm_clock()
            if clock is None or clock >= BACK * self.sensors.highest_mhz:
                return
            self.sleep(0.005)
