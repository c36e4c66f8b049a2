"""Backends: every way to compute attention, by name. Importing this loads no JAX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from explorer import fp8, support
from explorer.backends import cudnn_fp8, naive, sdpa, transformer_engine
from explorer.device import Device
from explorer.problem import DTYPES, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One way to compute attention, and its own account of what it cannot do."""

    name: str
    label: str
    attend: Callable[..., Any]  # (q, k, v, *, mask) -> out, laid out (b, t, n, h); imports JAX when called
    about: str
    marker: str | None = None  # custom-call target that must appear in the compiled program
    rounding: str | None = None  # the format it rounds its inputs to; None: it takes them as they are
    # (problem, compiled call, arguments, evidence) -> more evidence, in plain words, after a run
    explain: Callable[..., dict[str, Any]] | None = None

    def why_not(self, problem: Problem, device: Device) -> str | None:
        """None: supported; else a sentence to show."""
        return support.why_not(self.name, problem, device)


CUDNN_MARKER = "__cudnn$fmha"
BACKENDS: dict[str, Backend] = {
    b.name: b
    for b in (
        Backend(
            name="naive", label="Naive JAX", attend=naive.attend, about="from scratch: scores, softmax, weights × v"
        ),
        Backend(
            name="auto", label="SDPA auto", attend=sdpa.auto, about="jax.nn.dot_product_attention, JAX's own choice"
        ),
        Backend(
            name="xla", label="SDPA XLA", attend=sdpa.xla, about='jax.nn.dot_product_attention(implementation="xla")'
        ),
        Backend(
            name="cudnn",
            label="SDPA cuDNN",
            attend=sdpa.cudnn,
            about='jax.nn.dot_product_attention(implementation="cudnn")',
            marker=CUDNN_MARKER,
        ),
        Backend(
            name="cudnn_fp8",
            label="cuDNN FP8",
            attend=cudnn_fp8.attend,
            about="cuDNN's FP8 attention (E4M3), through JAX's private call",
            marker="__cudnn$fmhaSoftmaxF8",
            rounding=fp8.E4M3,
            explain=cudnn_fp8.explain,
        ),
        Backend(
            name="transformer_engine",
            label="TransformerEngine",
            attend=transformer_engine.attend,
            about="te.flax.DotProductAttention",
            marker=transformer_engine.MARKER,
            explain=transformer_engine.explain,
        ),
        Backend(
            name="transformer_engine_fp8",
            label="TransformerEngine, recipe",  # not "FP8": its attention has run in bf16 whatever the recipe
            attend=transformer_engine.attend_fp8,
            about="te.flax.DotProductAttention under te.autocast with DelayedScaling",
            marker=transformer_engine.MARKER,
            explain=transformer_engine.explain_fp8,
        ),
    )
}


def parse(spec: str) -> tuple[str, str | None]:
    """NAME or NAME:DTYPE; raises ValueError with the known names."""
    name, _, dtype = spec.strip().partition(":")
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}")
    if dtype and dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype}")
    return name, dtype or None
