"""Evidence: which kernel really ran, from the compiled program and from the profiler's trace."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

CUSTOM_CALL = re.compile(r'custom_call_target="([^"]+)"')
FUSED_CALLS = ("fmha", "fused_attn")  # in the targets of every fused attention call known here
ATTENTION_KERNEL = re.compile(r"sdpa|fmha|flash|attention|attn", re.IGNORECASE)
PRODUCT_KERNEL = re.compile(r"gemm|cutlass|xmma|nvjet|cublas", re.IGNORECASE)
# cuDNN and cuBLAS write the multiply's input type in their kernels' names; f16 stands for both 16-bit types. nvjet
# (cuBLAS since CUDA 12.8) writes a letter each for inputs and output: t bf16, h fp16, s float32, q fp8.
PRECISION = (
    ("fp8", re.compile(r"(^|[_x])f8|e4m3|e5m2|nvjet_q", re.IGNORECASE)),
    ("bf16", re.compile(r"bf16|nvjet_t", re.IGNORECASE)),
    ("tf32", re.compile(r"tf32", re.IGNORECASE)),
    ("f16", re.compile(r"f16|h(884|1688|16816)|nvjet_h", re.IGNORECASE)),
)
FP8_CALL = re.compile(r"fmha\w*F8$")
TF32_STEP = 2.0**-11  # half a unit in the last of TF32's 10 bits
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


def precision(
    dtype: str, ran: list[dict[str, Any]], *, on_gpu: bool, error: float | None = None, calls: Iterable[str] = ()
) -> str:
    """bf16, fp16, tf32, fp32 or fp8: the multiply's input type, by the name of the kernels that took the most time.

    Where nothing was traced, a custom call that only takes FP8 says it. Where no name says it, the inputs' dtype
    stands; but for float32 on a GPU, where the error tells TF32 from float32: TF32's products are off by about 2^-11,
    float32's by 2^-24 (H200: 6.5e-4 against 5.5e-7 in the output). error: the largest, for outputs of size 1.
    """
    for kernel in ran:
        if ATTENTION_KERNEL.search(kernel["name"]) or PRODUCT_KERNEL.search(kernel["name"]):
            for name, pattern in PRECISION:
                if pattern.search(kernel["name"]):
                    return SIXTEEN_BITS.get(dtype, "fp16") if name == "f16" else name
    if not ran and any(FP8_CALL.search(call) for call in calls):
        return "fp8"
    if dtype in SIXTEEN_BITS:
        return SIXTEEN_BITS[dtype]
    return "tf32" if on_gpu and error is not None and error > TF32_STEP / 16 else "fp32"


PARAMETER = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = .* parameter\((\d+)\)", re.MULTILINE)


def unread_inputs(program: str, count: int) -> list[int]:
    """Which of the call's arrays the compiled program does not read: its result can't follow from them.

    JAX drops an unread argument before it compiles and the others move up; then which is not known: all are named.
    """
    entry = program[program.find("\nENTRY ") :] if "\nENTRY " in program else program
    found = PARAMETER.findall(entry)
    if len(found) != count:
        return list(range(count))
    used = [re.search(rf"[(\s,]%?{re.escape(name)}(?=[,)\s])(?! = )", entry[entry.find("{") :]) for name, _ in found]
    return [int(number) for (_, number), use in zip(found, used, strict=True) if not use]


def judge(
    *,
    marker: str | None,
    calls: list[str],
    ran: list[dict[str, Any]],
    dtype: str,
    on_gpu: bool,
    error: float | None = None,
) -> dict[str, Any]:
    """The evidence part of a record.

    verdict: "fused" (the program holds the marked call), "fell back" (a marked backend without its mark), "several
    kernels" (an unmarked backend without any fused call). proven: a trace of the kernels agrees, and nothing fell back.
    """
    attention = any(ATTENTION_KERNEL.search(kernel["name"]) for kernel in ran)
    marks = FUSED_CALLS if marker is None else (marker,)
    fused = any(mark in call for call in calls for mark in marks)
    verdict = "fused" if fused else "several kernels" if marker is None else "fell back"
    return {
        "custom_calls": calls,
        "kernels": ran,
        "fused": fused,
        "verdict": verdict,
        "proven": bool(ran) and attention == fused and verdict != "fell back",
        "marker": marker,
        "note": precision(dtype, ran, on_gpu=on_gpu, error=error, calls=calls),
        "kernels_reason": None if ran else ("the trace held no kernel" if on_gpu else "a CPU has no kernel trace"),
    }
