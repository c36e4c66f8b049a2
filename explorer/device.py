"""Device: the processor that computes, what it has, and why a library is missing."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from explorer import private_fp8, te
from explorer.te import loaded_libraries as loaded_libraries

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One processor. capability is NVIDIA's compute capability; memory_bytes is the whole memory, not the free part."""

    platform: Literal["gpu", "cpu"]
    name: str
    capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    versions: dict[str, str | None] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # library -> why it is not there
    is_here: bool = True  # False: a named GPU that is only asked about

    @property
    def is_gpu(self) -> bool:
        return self.platform == "gpu"

    @property
    def capability_text(self) -> str | None:
        return None if self.capability is None else f"{self.capability[0]}.{self.capability[1]}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "capability": self.capability_text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Datasheet:
    """A GPU as its vendor describes it: dense rates, no sparsity."""

    label: str
    capability: tuple[int, int]
    memory_bytes: int
    bf16_tflops: float | None
    fp8_tflops: float | None
    bandwidth_tb_s: float
    source: str


GB = 10**9
DATASHEETS: dict[str, Datasheet] = {
    "t4": Datasheet(
        label="NVIDIA T4",
        capability=(7, 5),
        memory_bytes=16 * GB,
        bf16_tflops=None,
        fp8_tflops=None,
        bandwidth_tb_s=0.32,
        source="NVIDIA T4 datasheet (2019)",
    ),
    "a100": Datasheet(
        label="NVIDIA A100 80GB SXM",
        capability=(8, 0),
        memory_bytes=80 * GB,
        bf16_tflops=312.0,
        fp8_tflops=None,
        bandwidth_tb_s=2.039,
        source="NVIDIA A100 datasheet (2021)",
    ),
    "a10g": Datasheet(
        label="NVIDIA A10",
        capability=(8, 6),
        memory_bytes=24 * GB,
        bf16_tflops=125.0,
        fp8_tflops=None,
        bandwidth_tb_s=0.6,
        source="NVIDIA A10 datasheet (2021)",
    ),
    "l4": Datasheet(
        label="NVIDIA L4",
        capability=(8, 9),
        memory_bytes=24 * GB,
        bf16_tflops=121.0,
        fp8_tflops=242.0,
        bandwidth_tb_s=0.3,
        source="NVIDIA L4 datasheet (2023), dense",
    ),
    "h100": Datasheet(
        label="NVIDIA H100 SXM",
        capability=(9, 0),
        memory_bytes=80 * GB,
        bf16_tflops=989.0,
        fp8_tflops=1979.0,
        bandwidth_tb_s=3.35,
        source="NVIDIA H100 datasheet (2023), dense",
    ),
    "h200": Datasheet(
        label="NVIDIA H200",
        capability=(9, 0),
        memory_bytes=141 * GB,
        bf16_tflops=989.0,
        fp8_tflops=1979.0,
        bandwidth_tb_s=4.8,
        source="NVIDIA H200 datasheet (2024), dense",
    ),
    "b200": Datasheet(
        label="NVIDIA B200",
        capability=(10, 0),
        memory_bytes=180 * GB,
        bf16_tflops=2250.0,
        fp8_tflops=4500.0,
        bandwidth_tb_s=8.0,
        source="NVIDIA DGX B200 datasheet (2024), per GPU, dense",
    ),
}
CAPABILITIES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0))


def named(name: str) -> Device:
    """A GPU to ask about, by name ("l4") or compute capability ("8.9"); raises ValueError."""
    key = name.strip().lower()
    if key in DATASHEETS:
        sheet = DATASHEETS[key]
        return Device(
            platform="gpu",
            name=sheet.label,
            capability=sheet.capability,
            memory_bytes=sheet.memory_bytes,
            is_here=False,
        )
    if re.fullmatch(r"\d+\.\d", key):
        major, minor = key.split(".")
        if (capability := (int(major), int(minor))) in CAPABILITIES:
            return Device(
                platform="gpu", name=f"a GPU of compute capability {key}", capability=capability, is_here=False
            )
    known = ", ".join([*DATASHEETS, *(f"{a}.{b}" for a, b in CAPABILITIES)])
    raise ValueError(f"gpu must be this, or one of {known}, got {name!r}")


def datasheet(device_name: str) -> Datasheet | None:
    """The datasheet of exactly this card, or None: never that of another card."""
    exact = {"NVIDIA H200": "h200", "NVIDIA L4": "l4", "NVIDIA H100 80GB HBM3": "h100", "Tesla T4": "t4",
             "NVIDIA A100-SXM4-80GB": "a100", "NVIDIA A10": "a10g", "NVIDIA B200": "b200"}  # fmt: skip
    return DATASHEETS.get(exact.get(device_name, ""))


def cache_dir() -> Path:
    """Where compiled programs and ceilings are kept; EXPLORER_CACHE_DIR overrides the user's own cache directory."""
    if own := os.environ.get("EXPLORER_CACHE_DIR"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attention-explorer"


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith(("model name", "Hardware")):
                return " ".join(line.split(":", 1)[1].split())
    return platform.processor() or platform.machine()


def _dotted(version: int | None, minor: int, major: int = 0) -> str | None:
    """90900 -> 9.9.0 (cuDNN: major = 10,000 since 9), 13000 -> 13.0 (CUDA)."""
    if version is None:
        return None
    if major:
        return f"{version // major}.{version % major // minor}.{version % minor}"
    return f"{version // 1000}.{version % 1000 // minor}"


def _cuda_versions() -> dict[str, str | None]:
    """CUDA and cuDNN as JAX's plugin reports them; all None without the plugin."""
    try:
        from jax._src.lib import cuda_versions
    except ImportError:
        cuda_versions = None
    if cuda_versions is None:
        return {"cuda": None, "cudnn": None, "cudnn_built": None}
    return {
        "cuda": _dotted(cuda_versions.cuda_runtime_get_version(), 10),
        "cudnn": _dotted(cuda_versions.cudnn_get_version(), 100, 10_000),
        "cudnn_built": _dotted(cuda_versions.cudnn_build_version(), 100, 10_000),
    }


@functools.cache
def nvml_info() -> dict[str, Any]:
    """Name, driver and memory of the first GPU through NVML, without a CUDA context; only "why" where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return {
            "name": str(pynvml.nvmlDeviceGetName(handle)),
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
            "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            "capability": tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        }
    except Exception as error:  # noqa: BLE001 - NVML raises its own classes, one per cause; all mean "no GPU can be asked"
        return {"why": str(error) or type(error).__name__}


_PACKAGES = ("jax", "jaxlib", "flax", "numpy", "streamlit", "dask", "distributed")


def versions() -> dict[str, str | None]:
    """Versions of everything that matters to a result; None means not installed or not known."""
    return {
        "python": platform.python_version(),
        **{name: version_of(name) for name in _PACKAGES},
        **(_cuda_versions() if "jax" in sys.modules else {"cuda": None, "cudnn": None, "cudnn_built": None}),
        "transformer_engine": te.version(),
        "driver": nvml_info().get("driver"),
    }


@functools.cache
def here() -> Device:
    """The device JAX uses in this process. Imports JAX: call it in a worker or a command, never in the web server."""
    te_failure = te.prepare()  # before JAX opens the GPU, wherever that happens first
    import jax

    first = jax.devices()[0]
    found = versions()
    te_failure = te_failure or te.mixed_cudnn()  # JAX has loaded its own cuDNN by now
    reasons = {"transformer_engine": te_failure, "cudnn_fp8": private_fp8.moved()}
    missing = {library: why for library, why in reasons.items() if why is not None}
    if first.platform == "gpu":
        major, minor = (int(part) for part in str(first.compute_capability).split("."))
        stats = first.memory_stats() or {}
        return Device(
            platform="gpu",
            name=first.device_kind,
            capability=(major, minor),
            memory_bytes=nvml_info().get("memory_bytes") or stats.get("bytes_limit"),
            versions=found,
            missing=missing,
        )
    return Device(
        platform="cpu",
        name=cpu_name(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        versions=found,
        missing={"gpu": nvml_info().get("why", "JAX found no NVIDIA GPU"), **missing},
    )


def environment(device: Device) -> dict[str, Any]:
    """What a record keeps of the place it was made in."""
    return {
        "platform": device.platform,
        "gpu": device.name if device.is_gpu else None,
        "cpu": None if device.is_gpu else device.name,
        "compute_capability": device.capability_text,
        "memory_bytes": device.memory_bytes,
        "worker": os.environ.get("EXPLORER_WORKER"),  # which of several: two GPUs of a kind have one name
        **{
            k: device.versions.get(k)
            for k in ("python", "jax", "jaxlib", "cuda", "cudnn", "transformer_engine", "driver")
        },
    }
