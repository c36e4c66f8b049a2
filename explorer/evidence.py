"""Evidence: which kernel really ran, from the compiled program and from the profiler's trace."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

CUSTOM_CALL = re.compile(r'custom_call_target="([^"]+)"')
ATTENTION_KERNEL = re.compile(r"sdpa|fmha|flash|attention|attn", re.IGNORECASE)
COPIES = re.compile(r"^(Memcpy|Memset|MemcpyD2D|MemcpyH2D|MemcpyD2H)", re.IGNORECASE)
# cuDNN and cuBLAS write the multiply's input type in their kernels' names; f16 stands for both 16-bit types
PRECISION = (
    ("fp8", re.compile(r"f8|e4m3|e5m2", re.IGNORECASE)),
    ("bf16", re.compile(r"bf16", re.IGNORECASE)),
    ("tf32", re.compile(r"tf32", re.IGNORECASE)),
    ("f16", re.compile(r"f16|h(884|1688|16816)", re.IGNORECASE)),
)
SIXTEEN_BITS = {"bfloat16": "bf16", "float16": "fp16"}


def custom_calls(program: str) -> list[str]:
    """Custom-call targets of a compiled program's text, each once, in order; sharding marks left out."""
    seen = dict.fromkeys(CUSTOM_CALL.findall(program))
    return [name for name in seen if name not in ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape")]


def kernels(events: Iterable[tuple[str, float]]) -> list[dict[str, Any]]:
    """[{name, count, share}] by falling share of the time, from (kernel name, duration) pairs."""
    spent: defaultdict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    for name, duration in events:
        spent[name] += duration
        count[name] += 1
    whole = sum(spent.values())
    if not whole:
        return []
    ordered = sorted(spent, key=lambda name: -spent[name])
    return [{"name": name, "count": count[name], "share": spent[name] / whole} for name in ordered]


def precision(dtype: str, ran: list[dict[str, Any]], *, on_gpu: bool, highest: bool) -> str:
    """bf16, fp16, tf32, fp32 or fp8: the multiply's input type, by the name of the kernels that took the most time.

    A kernel's name that says nothing leaves the inputs' dtype; float32 on a GPU is then not called tf32.
    """
    for kernel in ran:
        if not ATTENTION_KERNEL.search(kernel["name"]) and not re.search(r"gemm|cutlass|xmma|nvjet", kernel["name"]):
            continue
        for name, pattern in PRECISION:
            if pattern.search(kernel["name"]):
                return SIXTEEN_BITS.get(dtype, "fp16") if name == "f16" else name
    return SIXTEEN_BITS.get(dtype, "fp32")


def judge(
    *,
    marker: str | None,
    calls: list[str],
    ran: list[dict[str, Any]],
    dtype: str,
    on_gpu: bool,
    highest: bool = False,
) -> dict[str, Any]:
    """The evidence part of a record.

    verdict: "fused" (the marked call is in the program, and a trace, where there is one, shows an attention kernel),
    "fell back" (a marked backend without its mark), "several kernels" (an unmarked backend), and proven says whether a
    trace or a marked call stands behind it. fused is None where nothing proves either.
    """
    attention = [k for k in ran if ATTENTION_KERNEL.search(k["name"])]
    fused_call = [c for c in calls if "fmha" in c or "fused_attn" in c]
    marked = marker is not None and any(marker in call for call in calls)
    if marker is not None:
        fused = marked and (not ran or bool(attention))
        verdict = "fused" if fused else "fell back"
        proven = marked and bool(attention)
    else:
        fused = bool(fused_call)
        verdict = "fused" if fused else "several kernels"
        proven = bool(ran)
    return {
        "custom_calls": calls,
        "kernels": ran,
        "fused": fused,
        "verdict": verdict,
        "proven": proven,
        "marker": marker,
        "note": precision(dtype, ran, on_gpu=on_gpu, highest=highest),
        "kernels_reason": None if ran else ("the trace held no kernel" if on_gpu else "a CPU has no kernel trace"),
    }
