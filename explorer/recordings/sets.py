"""Sets: what the shipped recordings hold, as data. `python -m explorer record NAME` makes one here and now."""

from __future__ import annotations

from dataclasses import dataclass, field

from explorer import backends, clock, recover, sweep
from explorer.clock import Protocol
from explorer.problem import Problem
from explorer.sweep import Point

LAB = Problem()
CAUSAL_LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
TE_LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
FP8_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
NVIDIA_LENGTHS = (2048, 4096, 8192, 16384)
HEAD_DIMS = (8, 16, 32, 48, 64, 72, 80, 96, 100, 112, 120, 127, 128, 136, 160, 192, 224, 256)
MEMORY_LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
# cuDNN 9.19 on one H200, bfloat16, B=1 N=64 K=8 H=128, forward TFLOP/s (full, causal), as NVIDIA publishes them
NVIDIA_TFLOPS = {2048: (633, 484), 4096: (671, 591), 8192: (691, 644), 16384: (702, 673)}


# A pause before each sample of a long call: half the samples, half the minutes
SHORT = Protocol(warmup=2, repeats=10, limit_s=2.0, trace_calls=10)
LONG_CALLS = Protocol(warmup=2, repeats=10, trace_calls=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    """Points to measure with one protocol. with_peak: also each point's peak memory, in processes of their own.

    with_mask: each record also holds the mask as executed, recovered from the backend. with_recipes: the record of
    transformer_engine_fp8 also holds, under evidence["recipes"], the rows of recipes.compare for its problem. left_out:
    what is missing among the points, and why.
    """

    label: str
    about: str
    points: tuple[Point, ...]
    protocol: Protocol = clock.LAB_SWEEP
    with_peak: bool = False
    with_mask: bool = False
    with_recipes: bool = False
    page: str = "latency"
    axis: str = field(default="q_len")
    left_out: str = ""


def _nvidia() -> tuple[Point, ...]:
    base = Problem(batch=1, heads=64, kv_heads=8, head_dim=128, dtype="bfloat16")
    found = []
    for causal in (False, True):
        found += sweep.points(base.but(causal=causal), ["cudnn"], axis="q_len", values=NVIDIA_LENGTHS)
    return tuple(found)


def _masks() -> tuple[Point, ...]:
    """Every backend on every mask, and the traps."""
    cases = [
        Point(problem=case.problem(), backend=name) for case in recover.CASES.values() for name in backends.BACKENDS
    ]
    traps = [Point(problem=trap.problem, backend=name) for trap in recover.TRAPS.values() for name in trap.backends]
    return (*cases, *traps)


def _te() -> tuple[Point, ...]:
    base = LAB.but(dtype="bfloat16", causal=True)
    both = sweep.points(base, ["transformer_engine", "cudnn"], axis="q_len", values=TE_LENGTHS)
    return (*both, *sweep.points(base, ["xla"], axis="q_len", values=TE_LENGTHS[:-1]))


def _fp8() -> tuple[Point, ...]:
    """Long and wide, where FP8 pays; the lab's shape, full and causal; and the backward pass."""
    specs = ["cudnn", "cudnn_fp8"]
    wide = Problem(batch=1, heads=16, kv_heads=16, head_dim=128, dtype="bfloat16")
    lab, back = LAB.but(dtype="bfloat16"), wide.but(batch=2, heads=4, kv_heads=4, backward=True)
    return (
        *sweep.points(wide, specs, axis="q_len", values=FP8_LENGTHS),
        *sweep.points(lab.but(causal=True), specs, axis="q_len", values=(512, 1024, 2048)),
        *sweep.points(lab, specs, axis="q_len", values=(2048,)),
        *sweep.points(back, specs, axis="q_len", values=(512,)),
        *sweep.points(back.but(causal=True), specs, axis="q_len", values=(512,)),
    )


DECODE = Problem(batch=8, q_len=1, kv_len=4096, heads=32, kv_heads=32, head_dim=128, dtype="bfloat16")

# The peaks come before the largest points: afterwards this process holds memory that the child processes would need
SETS: dict[str, Set] = {
    "lab-benchmark": Set(
        label="The lab's benchmark",
        about="step 7: B=4 T=128 N=8 H=64, four variants; warm-up 3, 50 repeats",
        points=tuple(sweep.points(LAB, sweep.LAB_VARIANTS, axis="q_len", values=[128])),
        protocol=clock.LAB,
    ),
    "lab-sequence": Set(
        label="The lab's sequence sweep",
        about="step 8: T = 64 … 1024, four variants; warm-up 2, 20 repeats",
        points=tuple(sweep.points(LAB, sweep.LAB_VARIANTS, axis="q_len", values=sweep.LAB_LENGTHS)),
    ),
    "lab-batch": Set(
        label="The lab's batch sweep",
        about="step 9: B = 1 … 16 at T=256, without naive; warm-up 2, 20 repeats",
        points=tuple(
            sweep.points(LAB.but(q_len=256, kv_len=256), sweep.LAB_VARIANTS[1:], axis="batch", values=sweep.LAB_BATCHES)
        ),
        axis="batch",
    ),
    "head-dim": Set(
        label="HEAD_DIM 8 … 256, bfloat16",
        about="step 15: B=4 T=S=2048 N=8, head_dims that cuDNN takes and some that it refuses; warm-up 2, 20 repeats",
        points=tuple(
            sweep.points(
                LAB.but(dtype="bfloat16", q_len=2048, kv_len=2048),
                ["naive", "xla", "cudnn", "transformer_engine"],
                axis="head_dim",
                values=HEAD_DIMS,
            )
        ),
        page="head_dim",
        axis="head_dim",
    ),
    "memory": Set(
        label="Time and memory to 8k, bfloat16",
        about="step 15 and beyond: naive, XLA and cuDNN, T = 256 … 8192, each with its peak in a fresh process",
        points=tuple(
            sweep.points(LAB.but(dtype="bfloat16"), ["naive", "xla", "cudnn"], axis="q_len", values=MEMORY_LENGTHS)
        ),
        with_peak=True,
        page="memory",
    ),
    "nvidia-points": Set(
        label="NVIDIA's own points",
        about="B=1 N=64 K=8 H=128 bfloat16, full and causal, T = 2k … 16k, beside NVIDIA's published TFLOP/s",
        points=_nvidia(),
        protocol=LONG_CALLS,
        page="roofline",
    ),
    "nvidia-points-sustained": Set(
        label="NVIDIA's points, back to back",
        about="the same without pauses: the clock falls under load, and this is another measurement",
        points=_nvidia(),
        protocol=Protocol(warmup=2, repeats=60, mode="sustained", trace_calls=60),
        page="roofline",
    ),
    "causal-16k": Set(
        label="Causal to 16k, bfloat16",
        about="T = 256 … 16384 with naive, XLA and cuDNN; beside the unmasked times of “memory”: who skips the half",
        points=tuple(
            sweep.points(
                LAB.but(dtype="bfloat16", causal=True), ["naive", "xla", "cudnn"], axis="q_len", values=CAUSAL_LENGTHS
            )
        ),
        protocol=LONG_CALLS,
    ),
    "masks": Set(
        label="Masks as executed",
        about="every backend on every mask: weights recovered by v = identity, with a verdict; and the known traps",
        points=_masks(),
        protocol=recover.QUICK,
        with_mask=True,
        page="masks",
        axis="kv_len",
    ),
    "decode": Set(
        label="A decode step against K",
        about="one query, B=8 S=4096 N=32 H=128 bfloat16, K = 1 … 32: what sharing heads saves in time",
        left_out="Naive JAX at K=1 is left out: XLA was still compiling it after 125 s (H200, JAX 0.11.2).",
        points=tuple(
            point
            for point in sweep.points(DECODE, ["naive", "xla", "cudnn"], axis="kv_heads", values=(1, 2, 4, 8, 16, 32))
            if not (point.backend == "naive" and point.problem.kv_heads == 1)
        ),
        page="heads",
        axis="kv_heads",
    ),
    "te-sweep": Set(
        label="TransformerEngine's causal sweep",
        about="step 12 and on to 16k: TransformerEngine and cuDNN, T = 128 … 16384, and XLA to 8192; causal bfloat16",
        points=_te(),
        protocol=SHORT,
        page="transformer_engine",
    ),
    "fp8-table": Set(
        label="The lab's FP8 table",
        about="step 13: T=2048 causal bfloat16 under every recipe, TransformerEngine's whole layer and cuDNN's FP8",
        points=tuple(
            sweep.points(
                LAB.but(dtype="bfloat16", causal=True),
                ["transformer_engine", "transformer_engine_fp8", "cudnn", "cudnn_fp8"],
                axis="q_len",
                values=(2048,),
            )
        ),
        protocol=SHORT,
        with_recipes=True,
        page="fp8",
    ),
    "fp8-sweep": Set(
        label="cuDNN in FP8 and in bfloat16",
        about="B=1 N=16 H=128 full, T = 512 … 16384; the lab's shape, full and causal; the backward pass",
        points=_fp8(),
        protocol=SHORT,
        page="fp8",
    ),
    "fa3-outliers": Set(
        label="FlashAttention-3's outliers",
        about="N(0,1) + 10·N(0,1) for one number in 1000, float16, T=1024 N=4 H=128: what FP8 loses",
        points=tuple(
            sweep.points(
                Problem(batch=1, heads=4, kv_heads=4, head_dim=128, dtype="float16", inputs="outliers"),
                ["naive", "xla", "cudnn", "cudnn_fp8"],
                axis="q_len",
                values=(1024,),
            )
        ),
        protocol=SHORT,
        page="fp8",
    ),
}


def nvidia_ratio(p: Problem, tflops: float) -> float | None:
    """TFLOP/s as a share of NVIDIA's published figure for exactly this problem on an H200; None if it has none."""
    base = SETS["nvidia-points"].points
    if not any(point.problem == p for point in base):
        return None
    return tflops / NVIDIA_TFLOPS[p.q_len][1 if p.causal else 0]
