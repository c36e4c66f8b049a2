"""Memory: predicted before a run, by the compiler's analysis, and measured in a fresh process; and what is free."""

from __future__ import annotations

from typing import Any

from explorer import cost
from explorer.problem import Problem

MARGIN = 0.95  # of what is free: fragmentation and libraries' workspaces take the rest


def predicted(backend: str, p: Problem, *, on_gpu: bool) -> int:
    """Bytes that a run needs at once, by formula: inputs, output and working memory; on a CPU also the host's copies.

    The host draws in float32 and keeps the rounded arrays for the exact result: on a CPU these share the one memory.
    """
    need = cost.input_bytes(p) + cost.output_bytes(p) + cost.formula_bytes(backend, p)
    if on_gpu:
        return need
    return need + cost.input_bytes(p) * (1 + 4 // p.item_bytes)


def free_bytes() -> int | None:
    """What this process may still allocate: the GPU's free memory as its allocator and driver see it, or the host's."""
    import jax

    device = jax.devices()[0]
    if device.platform != "gpu":
        import psutil

        return int(psutil.virtual_memory().available)
    stats = device.memory_stats() or {}
    if stats.get("bytes_limit"):
        return int(stats["bytes_limit"] - stats["bytes_in_use"])
    import pynvml  # the allocators "platform" and "cuda_async" tell no limit: what the driver has is free

    from explorer.sensors import nvml_handle

    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(nvml_handle()).free)
    except pynvml.NVMLError:
        return None


def largest_block_bytes() -> int | None:
    """The largest piece that JAX's allocator can still give, where it tells: less than what is free where earlier runs
    have left its pool in pieces, since it gives nothing back."""
    import jax

    stats = jax.devices()[0].memory_stats() or {}
    pool, limit = stats.get("pool_bytes"), stats.get("bytes_limit")
    if not pool or not limit:
        return None
    return max(int(stats["largest_free_block_bytes"]), int(limit - pool))


def host_free_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def analysis(compiled: Any) -> dict[str, int | None]:
    """The compiler's account of a compiled program, in bytes; None where it gives none."""
    found = compiled.memory_analysis()
    names = {"argument_bytes": "argument", "output_bytes": "output", "temp_bytes": "temp"}
    if found is None:
        return dict.fromkeys(names)
    return {ours: int(getattr(found, f"{theirs}_size_in_bytes")) for ours, theirs in names.items()}


def gib(size: int | float | None) -> str:
    """A size for a sentence, in binary units."""
    if size is None:
        return "an unknown size"
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} bytes"
