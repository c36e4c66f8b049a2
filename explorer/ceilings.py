"""Ceilings: what this very device reaches at best, measured once and kept; and what a time means under them."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from explorer import clock, cost, device, numerics, trace
from explorer.clock import Protocol
from explorer.device import Device
from explorer.problem import DTYPES, Problem
from explorer.record import Samples, Timing
from explorer.sensors import Sensors

PROTOCOL = Protocol(warmup=3, repeats=20, limit_s=6.0)
GPU_SIDE, CPU_SIDE = 8192, 1024  # of the square matrices: 1.1 TFLOP and 2 GFLOP a product
GPU_COPY_BYTES, CPU_COPY_BYTES = 2**30, 2**27
MEASURED_AS = {"bf16": "bfloat16", "fp16": "float16", "tf32": "float32", "fp32": "float32"}
FP8_FACTOR = 2  # FP8 tensor cores do twice bf16's work a cycle (NVIDIA Hopper architecture whitepaper, table 2)
# Above a ceiling by so much is a measuring error. On a CPU, other programs may have slowed the ceiling's measurement.
TOLERANCE = {"device": 1.03, "wall": 2.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The best of every sample: TFLOP/s of a square matrix product on random data, by dtype, and a copy's TB/s.

    float32 is at JAX's default precision: TF32 on a GPU. clock: "device", on a CPU "wall".
    """

    tflops: dict[str, float]
    copy_tb_s: float
    clock: str
    side: int
    copy_bytes: int
    where: str
    environment: dict[str, Any]
    time: str

    def peak_tflops(self, precision: str) -> float | None:
        """For what the evidence calls bf16, fp16, tf32 or fp32; None for fp8, which was not measured."""
        return self.tflops.get(MEASURED_AS.get(precision, ""))

    def most_tflops(self, precision: str) -> float:
        """What nothing can exceed; for fp8 by the factor between the two kinds of tensor core.

        The two 16-bit types share the cores and their rate: float16's product is slower (788 against 821 TFLOP/s on an
        H200) as its longer mantissas take more power, and another float16 kernel may take less. So the faster counts.
        """
        fastest = max(self.tflops["bfloat16"], self.tflops["float16"])
        if precision == "fp8":
            return FP8_FACTOR * fastest
        return fastest if precision in ("bf16", "fp16") else self.peak_tflops(precision) or fastest

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def verdict(p: Problem, timing: Timing, precision: str, found: Ceilings | None) -> dict[str, Any]:
    """TFLOP/s and its clock, the roofline's bound, the share of it; "suspect": why the time can't be right, or None."""
    on_device = timing.device_ms
    median_ms = (on_device or timing.wall_ms).median
    tflops = cost.flops(p) / median_ms / 1e9
    peak = None if found is None else found.peak_tflops(precision)
    bound = None if found is None or peak is None else cost.roofline_tflops(cost.intensity(p), peak, found.copy_tb_s)
    suspect = None
    if found is not None and tflops > TOLERANCE[found.clock] * found.most_tflops(precision):
        suspect = (
            f"{tflops:.3g} TFLOP/s is more than the {found.most_tflops(precision):.3g} that a matrix product reached "
            "on this device: a measuring error"
        )
    elif on_device is not None and on_device.median > 1.1 * timing.wall_ms.median:
        suspect = (
            f"the kernels took {on_device.median:.3g} ms and the whole call {timing.wall_ms.median:.3g}: "
            "a measuring error"
        )
    return {
        "tflops": tflops,
        "tflops_clock": "device" if on_device else "wall",
        "peak_tflops": peak,
        "copy_tb_s": None if found is None else found.copy_tb_s,
        "bound_tflops": bound,
        "bound_share": tflops / bound if bound else None,  # 0 where the mask leaves nothing to compute
        "suspect": suspect,
    }


def cache_file() -> Path:
    return device.cache_dir() / "ceilings.json"


def name_of(here: Device) -> str:
    """What the ceilings depend on; another driver or JAX measures again."""
    parts = (here.name, *(f"{n} {here.versions.get(n)}" for n in ("driver", "jax", "cuda")))
    return ", ".join(parts)


_read: dict[str, tuple[float, dict[str, Any]]] = {}


def kept(here: Device) -> Ceilings | None:
    """Those measured here before, or None. Reads the file again only after a change."""
    path = cache_file()
    try:
        changed = path.stat().st_mtime
        if _read.get(str(path), (None,))[0] != changed:
            _read[str(path)] = changed, json.loads(path.read_text(encoding="utf-8"))
        return Ceilings(**_read[str(path)][1][name_of(here)])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(here: Device, found: Ceilings) -> None:
    """Beside those of other devices. A full or read-only disk costs a repetition, no more."""
    path = cache_file()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            all_of_them = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            all_of_them = {}
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(all_of_them | {name_of(here): found.to_json()}, indent=1), encoding="utf-8")
        fresh.replace(path)


def kept_here() -> Ceilings | None:
    """Those of this worker's device, if they were measured before."""
    return kept(device.here())


def here(
    *,
    again: bool = False,
    report: Callable[[int, int, str], None] = lambda done, total, text: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Ceilings:
    """The kept ceilings of this device, or measured now."""
    found = None if again else kept(device.here())
    return found or measure(report=report, cancelled=cancelled)


def measure(
    *,
    report: Callable[[int, int, str], None] = lambda done, total, text: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Ceilings:
    """A product in each dtype and a copy, on random numbers, in burst mode; kept on disk. Raises clock.Cancelled."""
    import jax
    import jax.numpy as jnp

    place = device.here()
    side, copy_bytes = (GPU_SIDE, GPU_COPY_BYTES) if place.is_gpu else (CPU_SIDE, CPU_COPY_BYTES)
    numbers = np.random.default_rng(0).standard_normal((side, side), np.float32)
    tflops: dict[str, float] = {}
    for done, dtype in enumerate(DTYPES):
        report(done, len(DTYPES) + 1, f"matrix product in {dtype}")
        a = jax.device_put(numbers.astype(numerics.numpy_dtype(dtype)))
        best_ms = min(_samples(jnp.matmul, (a, a), place, cancelled).values)
        tflops[dtype] = 2 * side**3 / best_ms / 1e9
    report(len(DTYPES), len(DTYPES) + 1, "copy")
    a = jax.device_put(np.resize(numbers, copy_bytes // 4))
    copy_ms = min(_samples(jnp.negative, (a,), place, cancelled).values)  # a plain copy would be left out
    report(len(DTYPES) + 1, len(DTYPES) + 1, "done")
    found = Ceilings(
        tflops=tflops,
        copy_tb_s=2 * copy_bytes / copy_ms / 1e9,
        clock="device" if place.is_gpu else "wall",
        side=side,
        copy_bytes=copy_bytes,
        where=place.name,
        environment=device.environment(place),
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    keep(place, found)
    return found


def _samples(
    function: Callable[..., Any], arguments: tuple[Any, ...], place: Device, cancelled: Callable[[], bool]
) -> Samples:
    """On the device clock where there is one, else on the wall clock."""
    import jax

    built = clock.build(function, [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arguments])
    sensors, sets = Sensors(), itertools.repeat(arguments)
    protocol = replace(PROTOCOL, repeats=3) if place.is_gpu else PROTOCOL
    wall, _ = clock.steady(built.call, sets, protocol, cancelled=cancelled, sensors=sensors)
    if not place.is_gpu:
        return wall
    pacer = clock.pacer_of(PROTOCOL, sensors)
    taken = trace.take(built.call, sets, calls=PROTOCOL.repeats, pacer=pacer, cancelled=cancelled).samples()
    if taken is None:
        raise RuntimeError("the profiler's trace held no kernel, so there is no device clock to measure ceilings with")
    return taken
