"""Rules: what each backend accepts, as data, with the source of each and the sentence it gives.

Limits are for JAX 0.9 to 0.12. `by` says whose limit it is: JAX's own check, the vendor's documents,
TransformerEngine's code, or this app. A rule of cuDNN's that refuses although JAX's check does not know it (`by` lacks
"jax") is listed by name in the tests: there the vendor is stricter, and the rule decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from explorer.device import Device, named
from explorer.problem import Problem

Effect = Literal["refuses", "unfused", "doubt"]
By = Literal["jax", "vendor", "te", "app"]

JAX_CHECK = "jax/_src/cudnn/fused_attention_stablehlo.py, check_is_flash_attention (JAX 0.9-0.12)"
JAX_LAYOUT = "jax/_src/cudnn/fused_attention_stablehlo.py, check_layout (JAX 0.9-0.12)"
JAX_FP8 = "jax/_src/cudnn/fused_attention_stablehlo.py, dot_product_attention(use_fp8=True) (JAX 0.9-0.12)"
JAX_NN = "jax/_src/nn/functions.py, dot_product_attention (JAX 0.9-0.12)"
JAX_CPU_DOT = "jax/_src/lax/lax.py, dot_general: F16_F16_F32 is not supported on CPU (seen with JAX 0.10.2)"
CUDNN_DOCS = "NVIDIA cuDNN frontend, docs/operations/Attention.md, support matrix (cuDNN 9.18.1)"
CUDNN_NOTES = "NVIDIA cuDNN frontend, docs/operations/Attention.md, notes on the support surface (cuDNN 9.18.1)"
TE_FUSED = "TransformerEngine, transformer_engine/common/fused_attn/fused_attn.cpp (2.19)"
TE_SEEN = "seen on an NVIDIA H200 with TransformerEngine 2.20.2 and cuDNN 9.19: head_dim 72, 264 and 512 ran unfused"
TE_SEEN_FUSED = (
    "seen on an NVIDIA H200 with TransformerEngine 2.20.2 and cuDNN 9.14: every multiple of 8 to 256, 72 too, ran "
    "fused (recording support/h200), and 264 by a kernel for sm80"
)
FP8_SEEN = "seen on an NVIDIA H200 with cuDNN 9.14 and JAX 0.11.2: q_len 1 ended in “No valid engine configs”"
FP8_SEEN_RIGHT = 4 * 8 * 512  # B·N·T: the largest problem seen right where larger ones were seen wrong
FP8_WRONG_SEEN = (
    "seen on an NVIDIA H200 with cuDNN 9.14 and JAX 0.11.2: B=4 N=8 H=64 wrong and unrepeatable, causal at T=1024 and "
    "2048, full at T=2048; causal at T=512 right; full B=1 N=16 H=128 within its budget up to T=16384, though at T=8192"
    " two calls differed by more than that (recording fp8-sweep)"
)
TE_RECIPE_SEEN = (
    "seen on an NVIDIA H200 with TransformerEngine 2.20.2: DelayedScaling and Float8CurrentScaling, causal, T=2048 "
    "(recording fp8-table)"
)
TE_RECIPE = "TransformerEngine, transformer_engine/jax/quantize/helper.py (2.20)"
LAB_FP8 = "the lab, step 13: compute capability 9.0 or later; on an L4 (8.9) the code is shown, not run"

ELSEWHERE = named("h200")  # takes the most of all GPUs that were measured
CUDNN = ("cudnn", "cudnn_fp8")
TE = ("transformer_engine", "transformer_engine_fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One limit. `breaks` is true where a problem violates it; `axis` is what to change instead, if anything helps.

    axis: a field of Problem, "lengths" for q_len and kv_len alike, or "capability". multiple: what they must divide by.

    effect: "refuses" (the backend can't), "unfused" (it runs, but not its fused kernel), "doubt" (the vendor's
    documents say no where JAX's check says yes: shown beside the answer, does not decide it).
    versions: (library, since, until), in which the rule holds; where the version is unknown, the newest rule does.
    """

    name: str
    backends: tuple[str, ...]
    by: tuple[By, ...]
    breaks: Callable[[Problem, Device], bool]
    sentence: Callable[[Problem, Device], str]
    sources: tuple[str, ...]
    axis: str | None = None
    multiple: int | None = None
    effect: Effect = "refuses"
    versions: tuple[str, str | None, str | None] | None = None

    def holds(self, device: Device) -> bool:
        """Whether the rule applies to the library versions of this device."""
        if self.versions is None:
            return True
        library, since, until = self.versions
        found = parse_version(device.versions.get(library))
        if not found:
            return until is None
        return (since is None or found >= parse_version(since)) and (until is None or found < parse_version(until))


def parse_version(text: str | None) -> tuple[int, ...]:
    """9.19.0 as (9, 19, 0); trailing words such as .dev0 are left out; () where there is no version."""
    numbers = re.match(r"\d+(\.\d+)*", text or "")
    return () if numbers is None else tuple(int(part) for part in numbers.group().split("."))


def _at_least(device: Device, capability: tuple[int, int]) -> bool:
    return device.capability is not None and device.capability >= capability


def _gpu(device: Device) -> str:
    return "this GPU" if device.capability is None else f"compute capability {device.capability_text}"


def widest(device: Device) -> int:
    """The largest head_dim that JAX lets through to cuDNN in float16 and bfloat16."""
    return 256 if _at_least(device, (9, 0)) else 128


def documented_widest(problem: Problem, device: Device) -> int:
    """The largest head_dim in NVIDIA's support matrix; a q_len of 1 is its "decode"."""
    if device.capability is not None and device.capability[0] == 9:
        return 256
    return 128 if problem.backward or problem.q_len == 1 else 256


def _undocumented_head_dim(p: Problem, d: Device) -> bool:
    blackwell_backward_256 = p.backward and p.head_dim == 256 and d.capability is not None and d.capability[0] == 10
    return p.head_dim > documented_widest(p, d) and not blackwell_backward_256


def _missing(*libraries: str) -> Callable[[Problem, Device], bool]:
    return lambda p, d: any(library in d.missing for library in libraries)


def _why_missing(*libraries: str) -> Callable[[Problem, Device], str]:
    return lambda p, d: next(d.missing[library] for library in libraries if library in d.missing)


def _te_widest(d: Device) -> int:
    return 256 if _at_least(d, (9, 0)) else 128


def _passage(p: Problem) -> str:
    return "backward pass" if p.backward else "decode step" if p.q_len == 1 else "forward pass"


RULES: tuple[Rule, ...] = (
    Rule(
        name="xla-cpu-float16",
        backends=("xla", "auto"),
        by=("jax",),
        breaks=lambda p, d: p.dtype == "float16" and d.platform == "cpu",
        sentence=lambda p, d: (
            "jax.nn's XLA attention multiplies float16 with sums in float32, which JAX does not offer on a CPU; "
            "it takes float32 or bfloat16 there"
        ),
        sources=(JAX_CPU_DOT,),
        axis="dtype",
    ),
    Rule(
        name="needs-gpu",
        backends=CUDNN,
        by=("jax", "vendor"),
        breaks=lambda p, d: not d.is_gpu,
        sentence=lambda p, d: "cuDNN attention needs an NVIDIA GPU; this machine has none",
        sources=(JAX_CHECK, CUDNN_DOCS),
    ),
    Rule(
        name="library-missing",
        backends=("cudnn",),
        by=("app",),
        breaks=_missing("cudnn"),
        sentence=_why_missing("cudnn"),
        sources=("this machine",),
    ),
    Rule(
        name="library-missing",
        backends=("cudnn_fp8",),
        by=("app",),
        breaks=_missing("cudnn", "cudnn_fp8"),
        sentence=_why_missing("cudnn", "cudnn_fp8"),
        sources=("this machine",),
    ),
    Rule(
        name="cudnn-capability",
        backends=CUDNN,
        by=("vendor",),
        breaks=lambda p, d: d.is_gpu and not _at_least(d, (8, 0)),
        sentence=lambda p, d: f"cuDNN attention needs compute capability 8.0 or later, got {d.capability_text}",
        sources=(
            CUDNN_DOCS,
            "jax.nn.dot_product_attention's own documentation names no limit; its check lets 7.5 pass",
        ),
        axis="capability",
    ),
    Rule(
        name="cudnn-version-on-10.3",
        backends=CUDNN,
        by=("jax", "vendor"),
        breaks=lambda p, d: d.capability == (10, 3),
        sentence=lambda p, d: f"compute capability 10.3 needs cuDNN 9.11 or later, got {d.versions.get('cudnn')}",
        sources=(JAX_CHECK,),
        versions=("cudnn", None, "9.11"),
    ),
    Rule(
        name="cudnn-dtype",
        backends=CUDNN,
        by=("jax", "vendor"),
        breaks=lambda p, d: p.dtype not in ("float16", "bfloat16"),
        sentence=lambda p, d: f"cuDNN attention takes float16 or bfloat16, not {p.dtype}",
        sources=(JAX_LAYOUT, CUDNN_DOCS),
        axis="dtype",
    ),
    Rule(
        name="cudnn-head-dim",
        backends=("cudnn",),
        by=("jax",),
        breaks=lambda p, d: p.head_dim % 8 != 0 or p.head_dim > widest(d),
        sentence=lambda p, d: f"cuDNN takes a head_dim of 8, 16, … {widest(d)} on {_gpu(d)}, got {p.head_dim}",
        sources=(JAX_CHECK, CUDNN_DOCS, CUDNN_NOTES),
        axis="head_dim",
        versions=("jax", "0.8.2", None),
    ),
    Rule(
        name="cudnn-head-dim",
        backends=("cudnn",),
        by=("jax",),
        breaks=lambda p, d: p.head_dim % 8 != 0 or p.head_dim > (256 if d.capability == (9, 0) else 128),
        sentence=lambda p, d: (
            f"before JAX 0.8.2, cuDNN takes a head_dim of 8, 16, … {256 if d.capability == (9, 0) else 128} "
            f"on {_gpu(d)}, got {p.head_dim}"
        ),
        sources=("jax/_src/cudnn/fused_attention_stablehlo.py before commit 3feb4748 (2025-11-24)",),
        axis="head_dim",
        versions=("jax", None, "0.8.2"),
    ),
    Rule(
        name="cudnn-backward-lengths",
        backends=("cudnn",),
        by=("jax",),
        breaks=lambda p, d: p.backward and (p.q_len % 2 != 0 or p.kv_len % 2 != 0),
        sentence=lambda p, d: (
            f"through JAX, cuDNN's backward pass takes an even q_len and kv_len, got {p.q_len} and {p.kv_len}; "
            "the forward pass takes any"
        ),
        sources=(JAX_CHECK + ": it counts an absent bias as one", CUDNN_NOTES + ": any length"),
        axis="lengths",
        multiple=2,
    ),
    Rule(
        name="cudnn-window",
        backends=("cudnn",),
        by=("jax",),
        # JAX ignores the right side of the window under its plain causal mask alone
        breaks=lambda p, d: p.window is not None and p.window[1] != 0 and not (p.causal and p.kv_valid is None),
        sentence=lambda p, d: (
            "cuDNN takes a window to the left only, or any window with a causal mask and no padding; "
            f"got {p.window} with {'causal and padding' if p.causal else 'no causal mask'}"
        ),
        sources=(JAX_NN,),
        axis="window",
    ),
    Rule(
        name="cudnn-documented-head-dim",
        backends=("cudnn",),
        by=("vendor",),
        effect="doubt",
        breaks=lambda p, d: p.head_dim % 8 != 0 or _undocumented_head_dim(p, d),
        sentence=lambda p, d: (
            f"NVIDIA's support matrix has head_dim up to {documented_widest(p, d)} by 8 for the {_passage(p)} "
            f"on {_gpu(d)}, got {p.head_dim}"
        ),
        sources=(CUDNN_DOCS, CUDNN_NOTES),
        axis="head_dim",
    ),
    Rule(
        name="fp8-capability",
        backends=("cudnn_fp8",),
        by=("vendor",),
        breaks=lambda p, d: d.is_gpu and not _at_least(d, (9, 0)),
        sentence=lambda p, d: (
            f"cuDNN's FP8 attention starts with compute capability 9.0 (Hopper), got {d.capability_text}"
            + (", though its matrix units know FP8" if d.capability == (8, 9) else "")
        ),
        sources=(CUDNN_DOCS + ": fp8 from Hopper on", TE_FUSED + ": FP8 from sm_arch 90 on"),
        axis="capability",
    ),
    Rule(
        name="fp8-head-dim",
        backends=("cudnn_fp8",),
        by=("jax", "vendor"),
        breaks=lambda p, d: not p.backward and (p.head_dim % 16 != 0 or p.head_dim > 256),
        sentence=lambda p, d: f"cuDNN's FP8 attention takes a head_dim of 16, 32, … 256, got {p.head_dim}",
        sources=(JAX_CHECK, CUDNN_NOTES),
        axis="head_dim",
    ),
    Rule(
        name="fp8-backward-head-dim",
        backends=("cudnn_fp8",),
        by=("jax", "vendor"),
        breaks=lambda p, d: p.backward and p.head_dim != 128,
        sentence=lambda p, d: f"cuDNN's FP8 backward pass takes a head_dim of 128 alone, got {p.head_dim}",
        sources=(JAX_CHECK, TE_FUSED + ": sm90 bwd d=128 only"),
        axis="head_dim",
    ),
    Rule(
        name="fp8-backward-lengths",
        backends=("cudnn_fp8",),
        by=("jax",),
        breaks=lambda p, d: p.backward and (p.q_len % 128 != 0 or p.kv_len % 128 != 0),
        sentence=lambda p, d: (
            "cuDNN's FP8 backward pass takes a q_len and kv_len that are multiples of 128, "
            f"got {p.q_len} and {p.kv_len}"
        ),
        sources=(JAX_CHECK,),
        axis="lengths",
        multiple=128,
    ),
    Rule(
        name="fp8-one-query",
        backends=("cudnn_fp8",),
        by=("app",),
        breaks=lambda p, d: not p.backward and p.q_len == 1,
        sentence=lambda p, d: "cuDNN has no FP8 kernel for a single query: q_len must be 2 or more, got 1",
        sources=(FP8_SEEN,),
        axis="q_len",
    ),
    Rule(
        name="fp8-wrong-output",
        backends=("cudnn_fp8",),
        by=("app",),
        effect="doubt",
        breaks=lambda p, d: (
            p.batch * p.heads * p.q_len > FP8_SEEN_RIGHT and (p.causal or (p.batch > 1 and p.head_dim < 128))
        ),
        sentence=lambda p, d: (
            "cuDNN's FP8 attention was seen to give a wrong output, another at each call, on a problem of this size: "
            "only its check decides"
        ),
        sources=(FP8_WRONG_SEEN,),
        axis="q_len",
    ),
    Rule(
        name="fp8-mask",
        backends=("cudnn_fp8",),
        by=("jax",),
        breaks=lambda p, d: not p.mask.plain,
        sentence=lambda p, d: f"cuDNN's FP8 attention takes a full or a causal mask only, got {p.mask.name}",
        sources=(JAX_FP8,),
        axis="window",
    ),
    Rule(
        name="fp8-documented",
        backends=("cudnn_fp8",),
        by=("vendor",),
        effect="doubt",
        breaks=lambda p, d: (
            d.capability is not None and (d.capability[0] == 12 or (d.capability[0] in (10, 11) and p.head_dim > 128))
        ),
        sentence=lambda p, d: (
            f"NVIDIA's support matrix has no FP8 attention for {_gpu(d)}"
            if d.capability is not None and d.capability[0] == 12
            else f"NVIDIA documents FP8 attention on {_gpu(d)} up to head_dim 128, got {p.head_dim}"
        ),
        sources=(CUDNN_DOCS, TE_FUSED + ": sm100 d<=128"),
        axis="head_dim",
    ),
    Rule(
        name="library-missing",
        backends=TE,
        by=("te",),
        breaks=_missing("transformer_engine"),
        sentence=_why_missing("transformer_engine"),
        sources=("this machine",),
    ),
    Rule(
        name="needs-gpu",
        backends=TE,
        by=("te",),
        breaks=lambda p, d: not d.is_gpu,
        sentence=lambda p, d: "TransformerEngine needs an NVIDIA GPU; this machine has none",
        sources=("TransformerEngine links libcuda.so.1, which comes with the driver",),
    ),
    Rule(
        name="te-version",
        backends=TE,
        by=("te",),
        breaks=lambda p, d: d.is_gpu,
        sentence=lambda p, d: f"TransformerEngine 2.12 or later is needed, got {d.versions.get('transformer_engine')}",
        sources=("te.autocast since 2.9; fused attention with cuDNN 9.12 and later tried from 2.12 on",),
        versions=("transformer_engine", None, "2.12"),
    ),
    Rule(
        name="te-mask",
        backends=TE,
        by=("app",),
        breaks=lambda p, d: not p.mask.plain,
        sentence=lambda p, d: f"TransformerEngine is driven here with a full or a causal mask only, got {p.mask.name}",
        sources=("explorer/backends/transformer_engine.py",),
        axis="window",
    ),
    Rule(
        name="te-fp8-capability",
        backends=("transformer_engine_fp8",),
        by=("te",),
        breaks=lambda p, d: d.is_gpu and not _at_least(d, (9, 0)),
        sentence=lambda p, d: (
            f"FP8 in TransformerEngine's attention needs compute capability 9.0 or later, got {d.capability_text}"
            + (" (its matrix products would take FP8)" if d.capability == (8, 9) else "")
        ),
        sources=(LAB_FP8, TE_FUSED + ": FP8 from sm_arch 90 on", TE_RECIPE + ": FP8 matrix products from 8.9 on"),
        axis="capability",
    ),
    Rule(
        name="te-recipe-without-effect",
        backends=("transformer_engine_fp8",),
        by=("app",),
        effect="doubt",
        breaks=lambda p, d: True,
        sentence=lambda p, d: (
            "the recipe is accepted, and the attention kernel that runs is the 16-bit one: its output was bit for bit "
            "that without a recipe, so this is no FP8 attention"
        ),
        sources=(TE_RECIPE_SEEN,),
    ),
    Rule(
        name="te-fp8-dtype",
        backends=("transformer_engine_fp8",),
        by=("app",),
        breaks=lambda p, d: p.dtype not in ("float16", "bfloat16"),
        sentence=lambda p, d: f"the FP8 recipe is shown on float16 or bfloat16 inputs, as in the lab, not {p.dtype}",
        sources=("the lab, step 13: bfloat16",),
        axis="dtype",
    ),
    Rule(
        name="te-fused-dtype",
        backends=TE,
        by=("te",),
        effect="unfused",
        breaks=lambda p, d: p.dtype not in ("float16", "bfloat16"),
        sentence=lambda p, d: f"TransformerEngine's fused kernel takes float16 or bfloat16, not {p.dtype}",
        sources=(TE_FUSED,),
        axis="dtype",
    ),
    Rule(
        name="te-fused-capability",
        backends=TE,
        by=("te",),
        effect="unfused",
        breaks=lambda p, d: d.is_gpu and not _at_least(d, (8, 0)),
        sentence=lambda p, d: (
            f"TransformerEngine's fused kernel needs compute capability 8.0 or later, got {d.capability_text}"
        ),
        sources=(TE_FUSED,),
        axis="capability",
    ),
    Rule(
        name="te-fused-cudnn-on-12.0",
        backends=TE,
        by=("te",),
        effect="unfused",
        breaks=lambda p, d: d.capability == (12, 0),
        sentence=lambda p, d: (
            f"TransformerEngine's fused kernel needs cuDNN 9.18.1 or later on {_gpu(d)}, got {d.versions.get('cudnn')}"
        ),
        sources=(TE_FUSED,),
        versions=("cudnn", None, "9.18.1"),
    ),
    Rule(
        name="te-fused-head-dim",
        backends=TE,
        by=("te",),
        effect="unfused",
        breaks=lambda p, d: p.head_dim % 8 != 0 or p.head_dim > _te_widest(d),
        sentence=lambda p, d: (
            f"TransformerEngine's fused kernel takes a head_dim of 8, 16, … {_te_widest(d)} "
            f"on {_gpu(d)}, got {p.head_dim}"
        ),
        sources=(TE_SEEN, TE_SEEN_FUSED, TE_FUSED),
        axis="head_dim",
    ),
    Rule(
        name="te-fused-head-dim-72",
        backends=TE,
        by=("te",),
        effect="unfused",
        breaks=lambda p, d: p.head_dim == 72,
        sentence=lambda p, d: "TransformerEngine ran head_dim 72 unfused with cuDNN 9.19; with 9.14 it ran it fused",
        sources=(TE_SEEN, TE_SEEN_FUSED),
        axis="head_dim",
        versions=("cudnn", "9.15", None),
    ),
)


BY_BACKEND: dict[tuple[str, Effect], list[Rule]] = {}
for _rule in RULES:
    for _backend in _rule.backends:
        BY_BACKEND.setdefault((_backend, _rule.effect), []).append(_rule)


def broken(backend: str, problem: Problem, device: Device, effect: Effect = "refuses") -> tuple[Rule, ...]:
    """The backend's rules of that effect which the problem breaks on this device, the most telling first."""
    rules = BY_BACKEND.get((backend, effect), ())
    return tuple(rule for rule in rules if rule.holds(device) and rule.breaks(problem, device))


def why_not(backend: str, problem: Problem, device: Device) -> str | None:
    """None: the rules let it through; else the sentence of the first rule that it breaks.

    Where that is the want of a GPU, it says too what a GPU would refuse: whoever asks here may have one elsewhere.
    """
    for rule in broken(backend, problem, device):
        said = rule.sentence(problem, device)
        there = why_not(backend, problem, ELSEWHERE) if rule.name == "needs-gpu" else None
        return f"{said}; an H200 would refuse it too: {there}" if there else said
    return None


def unfused(backend: str, problem: Problem, device: Device) -> str | None:
    """Why the backend would run without its fused kernel, or None: it would use it, or has none, or refuses."""
    if why_not(backend, problem, device) is None:
        for rule in broken(backend, problem, device, "unfused"):
            return f"accepted, but not by the fused kernel: {rule.sentence(problem, device)}"
    return None
