"""jaxcheck: JAX's own checks for cuDNN attention, asked for a pretended GPU on any machine.

The only module that touches these private names of JAX. It works on JAX 0.9 to 0.12 and raises JaxMoved where a name,
a signature or a known answer has changed: never a wall of "no" that nobody notices (keras-team/keras#21507).
Imports JAX when called. Not while another thread traces attention: it replaces functions of JAX for a moment.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from explorer.backends import sdpa
from explorer.problem import Problem
from explorer.support.rules import parse_version

MODULE = "jax._src.cudnn.fused_attention_stablehlo"
ASKED = {  # JAX's questions to the machine, by name and parameters; ask() answers them instead
    "check_cudnn_version": (),
    "check_compute_capability": ("capability",),
    "is_cuda_compute_capability_equal": ("capability",),
}
CALL = ("query", "key", "value", "bias", "mask", "q_seqlen", "kv_seqlen", "fp8_params")
FP8_PARAMS = "fp8_params_keys"
NEWEST_CUDNN = "9.19.0"
BACKENDS = ("cudnn", "cudnn_fp8")
_lock = threading.RLock()


class JaxMoved(RuntimeError):
    """JAX's internals are not as this module knows them, so that no answer of theirs can be trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What JAX's check says: accepted, or the reason in JAX's own words."""

    accepted: bool
    reason: str | None = None
    custom_calls: tuple[str, ...] = ()  # of the lowered program; only from lowered()


def _moved(what: str) -> JaxMoved:
    import jax

    return JaxMoved(
        f"JAX {jax.__version__} has moved what this app asks ({what} in {MODULE}); the rules still answer, JAX's own "
        "check does not, until explorer/jaxcheck.py knows this version"
    )


def _module() -> Any:
    """JAX's module, after a look at every name and parameter used here."""
    try:
        module = importlib.import_module(MODULE)
    except ImportError as error:
        raise _moved(f"the module itself: {error}") from error
    for name, parameters in ASKED.items():
        function = getattr(module, name, None)
        if function is None or tuple(inspect.signature(function).parameters) != parameters:
            raise _moved(name)
    attention = getattr(module, "dot_product_attention", None)
    if attention is None or not set(CALL) <= set(inspect.signature(attention).parameters):
        raise _moved("dot_product_attention")
    if not hasattr(module, FP8_PARAMS) or not hasattr(module, "MaskType"):
        raise _moved(f"{FP8_PARAMS} or MaskType")
    return module


@dataclass(slots=True, kw_only=True)
class _Gpu:
    """Answers JAX's questions in place of the machine, by the names that JAX asks under; notes which it asked."""

    capability: tuple[int, int]
    cudnn: tuple[int, ...]
    asked: set[str] = field(default_factory=set)

    def check_cudnn_version(self) -> int:
        self.asked.add("check_cudnn_version")
        major, minor, patch = (*self.cudnn, 0, 0, 0)[:3]
        return major * 10_000 + minor * 100 + patch

    def check_compute_capability(self, capability: str) -> bool:
        self.asked.add("check_compute_capability")
        return self.capability >= parse_version(capability)

    def is_cuda_compute_capability_equal(self, capability: str) -> bool:
        self.asked.add("is_cuda_compute_capability_equal")
        return self.capability == parse_version(capability)


@contextlib.contextmanager
def _pretend(module: Any, capability: tuple[int, int], cudnn_version: str) -> Iterator[set[str]]:
    """Answer JAX's questions with this GPU and cuDNN; yields the names of those that JAX really asked."""
    import jax

    gpu = _Gpu(capability=capability, cudnn=parse_version(cudnn_version))
    with _lock:
        kept = {name: getattr(module, name) for name in ASKED}
        filtering = jax.config.values["jax_traceback_filtering"]
        try:
            jax.config.update(
                "jax_traceback_filtering", "off"
            )  # it looks up every file of a traceback: 20 ms a refusal
            for name in ASKED:
                setattr(module, name, getattr(gpu, name))
            yield gpu.asked
        finally:
            for name, function in kept.items():
                setattr(module, name, function)
            jax.config.update("jax_traceback_filtering", filtering)


def _call(module: Any, backend: str, problem: Problem) -> tuple[Callable[..., Any], list[Any]]:
    """The function to trace and the abstract arrays to trace it with."""
    import jax
    import jax.numpy as jnp

    shapes = [problem.q_shape, problem.kv_shape, problem.kv_shape]
    if backend == "cudnn":
        arrays = [jax.ShapeDtypeStruct(shape, problem.dtype) for shape in shapes]
        forward = functools.partial(sdpa.cudnn, mask=problem.mask)
    elif backend == "cudnn_fp8":
        # 16-bit inputs are quantised on the way; anything else reaches JAX as it is
        dtype = jnp.float8_e4m3fn if problem.dtype in ("float16", "bfloat16") else problem.dtype
        arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
        arrays += [jax.ShapeDtypeStruct((1, 1, 1, 1), jnp.float32)] * len(getattr(module, FP8_PARAMS))
        forward = functools.partial(_forward_fp8, module=module, problem=problem)
    else:
        raise ValueError(f"JAX has a check of its own for {' and '.join(BACKENDS)} only, got {backend}")
    return (functools.partial(_backward, forward=forward) if problem.backward else forward), arrays


def _forward_fp8(q: Any, k: Any, v: Any, *params: Any, module: Any, problem: Problem) -> Any:
    import jax.numpy as jnp

    more: dict[str, Any] = {}
    if problem.window is not None:  # the call has no word for a window but a mask array
        more["mask"] = jnp.ones((1, 1, problem.q_len, problem.kv_len), bool)
    if problem.kv_valid is not None:
        more["q_seqlen"] = jnp.full((problem.batch,), problem.q_len, jnp.int32)
        more["kv_seqlen"] = jnp.full((problem.batch,), problem.kv_valid, jnp.int32)
    return module.dot_product_attention(
        q,
        k,
        v,
        use_fp8=True,
        fp8_params=dict(zip(getattr(module, FP8_PARAMS), params, strict=True)),
        mask_type=module.MaskType.CAUSAL if problem.causal else module.MaskType.NO_MASK,
        scale=problem.head_dim**-0.5,
        **more,
    )[0]


def _backward(q: Any, k: Any, v: Any, *params: Any, forward: Callable[..., Any]) -> Any:
    import jax
    import jax.numpy as jnp

    out, pullback = jax.vjp(lambda *qkv: forward(*qkv, *params), q, k, v)
    return pullback(jnp.ones(out.shape, out.dtype))


def _refusal(error: Exception) -> Answer:
    return Answer(accepted=False, reason=f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")


def _ask(module: Any, backend: str, problem: Problem, capability: tuple[int, int], cudnn_version: str) -> Answer:
    import jax

    function, arrays = _call(module, backend, problem)
    with _pretend(module, capability, cudnn_version) as asked:
        try:
            jax.eval_shape(function, *arrays)
        except (NotImplementedError, ValueError) as error:  # the two that JAX's check raises; others are not answers
            return _refusal(error)
    if not {"check_cudnn_version", "is_cuda_compute_capability_equal"} <= asked:
        raise _moved("the check itself: it accepted without asking for the GPU")
    return Answer(accepted=True)


@functools.cache
def _known_answers_hold() -> None:
    """A yes and a no that have stood since JAX 0.9, for each backend; anything else means that JAX has moved."""
    module = _module()
    plain = Problem(dtype="bfloat16", head_dim=64)
    for backend in BACKENDS:
        yes = _ask(module, backend, plain, (9, 0), NEWEST_CUDNN)
        no = _ask(module, backend, plain.but(head_dim=100), (9, 0), NEWEST_CUDNN)
        if not yes.accepted or no.accepted or "head dim" not in str(no.reason):
            raise _moved(f"the answers for {backend}: head_dim 64 gave {yes}, head_dim 100 gave {no}")


def ask(backend: str, problem: Problem, capability: tuple[int, int], cudnn_version: str | None = None) -> Answer:
    """JAX's own check of the installed version, for a GPU of that capability; raises JaxMoved, never guesses."""
    _known_answers_hold()
    return _ask(_module(), backend, problem, capability, cudnn_version or NEWEST_CUDNN)


def lowered(backend: str, problem: Problem, capability: tuple[int, int], cudnn_version: str | None = None) -> Answer:
    """As ask(), and lowered for CUDA besides: the custom calls that the program would hold."""
    import re

    import jax

    answer = ask(backend, problem, capability, cudnn_version)
    if not answer.accepted:
        return answer
    module = _module()
    function, arrays = _call(module, backend, problem)
    with _pretend(module, capability, cudnn_version or NEWEST_CUDNN):
        text = jax.jit(function).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    calls = tuple(dict.fromkeys(re.findall(r'custom_call @"?(__cudnn\$\w+)', text)))
    if not calls:
        raise _moved("the lowering: it holds no __cudnn$ custom call")
    return Answer(accepted=True, custom_calls=calls)
