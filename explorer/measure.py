"""Measure: one Problem and one Backend give one Record. The one place that catches a backend's errors.

Runs in the worker (or in the command); nothing here loads JAX before it is called.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from explorer import backends, ceilings, clock, cost, device, evidence, fp8, memory, numerics, trace
from explorer.clock import Build, Cache, Cancelled, Protocol
from explorer.device import Device
from explorer.problem import Problem
from explorer.record import Record, Timing
from explorer.sensors import Sensors

CACHE = Cache()
Report = Callable[[int, int, str], None]


def silent(done: int, total: int, text: str) -> None:
    """A report that nobody reads."""


def never() -> bool:
    return False


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def variants(problem: Problem, specs: Sequence[str]) -> list[tuple[str, Problem]]:
    """(backend name, its problem) of each NAME or NAME:DTYPE, each once; raises ValueError."""
    found = dict.fromkeys(backends.parse(spec) for spec in specs)
    return [(name, problem if dtype is None else problem.but(dtype=dtype)) for name, dtype in found]


def run(
    problem: Problem,
    specs: Sequence[str],
    *,
    protocol: Protocol = clock.LAB,
    report: Report = silent,
    cancelled: Callable[[], bool] = never,
) -> Iterator[Record]:
    """One Record for each backend, as each is done. specs: NAME or NAME:DTYPE. Raises ValueError."""
    chosen = variants(problem, specs)
    here = device.here()
    for done, (name, its_problem) in enumerate(chosen):
        report(done, len(chosen), f"{name} {its_problem.dtype}")
        yield measure(its_problem, name, here=here, protocol=protocol, cancelled=cancelled)
    report(len(chosen), len(chosen), "done")


def blank(problem: Problem, name: str, status: str, reason: str, here: Device | None = None, **parts: Any) -> Record:
    """A record without times: refused, failed, lost with the worker, and so on."""
    return Record(
        problem=problem,
        backend=name,
        status=status,
        reason=reason,
        cost=costs(problem, None),
        environment=device.environment(here) if here else {},
        time=now(),
        **parts,
    )


def measure(
    problem: Problem,
    name: str,
    *,
    here: Device | None = None,
    protocol: Protocol = clock.LAB,
    cancelled: Callable[[], bool] = never,
) -> Record:
    """why_not, memory, compile, inputs, run, check, time, evidence: the whole way of one record."""
    here = here or device.here()
    backend = backends.BACKENDS[name]
    reason = backend.why_not(problem, here)
    if reason is not None:
        return blank(problem, name, "refused", reason, here)
    # The formula comes first: nothing may be allocated, not even by the compiler's autotuning, for what can't fit.
    need, free = memory.predicted(name, problem, on_gpu=here.is_gpu), memory.free_bytes()
    sizes: dict[str, Any] = {
        "formula_bytes": cost.formula_bytes(name, problem),
        "argument_bytes": None,
        "output_bytes": None,
        "temp_bytes": None,
        "predicted_bytes": need,
        "free_bytes": free,
        "peak_bytes": None,
    }
    refusal = too_large(need, free, "by formula", on_gpu=here.is_gpu)
    if refusal is None and here.is_gpu:  # the host draws the inputs in float32 first
        on_host = cost.input_bytes(problem) // problem.item_bytes * (4 + problem.item_bytes)
        refusal = too_large(on_host, memory.host_free_bytes(), "for the inputs", on_gpu=False)
    if refusal:
        return blank(problem, name, "out_of_memory", refusal, here, memory=sizes)
    parts: dict[str, Any] = {"memory": sizes}
    stage = "compile"
    try:
        build, _ = CACHE.get(key(problem, name), lambda: compile_one(problem, name))
        sizes |= memory.analysis(build.call)
        parts["evidence"] = evidence.judge(
            marker=backend.marker,
            calls=evidence.custom_calls(build.program),
            ran=[],
            dtype=problem.dtype,
            on_gpu=here.is_gpu,
        )
        total = sum(sizes[n] or 0 for n in ("argument_bytes", "output_bytes", "temp_bytes"))
        sizes["predicted_bytes"] = max(need, total)
        if refusal := too_large(total, free, "by the compiler's analysis", on_gpu=here.is_gpu):
            return blank(problem, name, "out_of_memory", refusal, here, **parts)
        if cancelled():
            raise Cancelled
        stage = "run"
        return execute(problem, name, build, here, protocol, cancelled, parts)
    except Cancelled:
        return blank(problem, name, "cancelled", "cancelled before it was done", here, **parts)
    except MemoryError as error:
        return blank(problem, name, "out_of_memory", f"the host ran out of memory: {first_line(error)}", here, **parts)
    except Exception as error:  # noqa: BLE001 - the one place that catches a backend's errors; each is kept
        return blank(problem, name, *what_broke(error, stage, sizes), here, **parts)


def what_broke(error: Exception, stage: str, sizes: dict[str, Any]) -> tuple[str, str]:
    """Status and sentence for what a backend raised."""
    text = first_line(error)
    if "RESOURCE_EXHAUSTED" in str(error):
        need, free = sizes["predicted_bytes"], sizes["free_bytes"]
        figures = f"needs {memory.gib(need)}, {memory.gib(free)} were free"
        block = memory.largest_block_bytes()
        if block is not None and free is not None and block < need <= free:
            figures += f", in pieces of at most {memory.gib(block)}: earlier runs have split this process's memory"
        who = "the compiler ran out of device memory while it tried its candidates" if stage == "compile" else ""
        return "out_of_memory", f"{who or 'the device ran out of memory'} ({figures}): {text}"
    if stage == "compile" and isinstance(error, NotImplementedError | ValueError | RuntimeError):
        return "refused", f"the rules said yes, the library said no: {text}"
    return "failed", f"{stage} failed: {text}"


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def too_large(need: int, free: int | None, how: str, *, on_gpu: bool) -> str | None:
    if free is None or need <= memory.MARGIN * free:
        return None
    place = "the GPU" if on_gpu else "this machine"
    return f"needs {memory.gib(need)} {how}, but only {memory.gib(free)} are free on {place}"


def key(problem: Problem, name: str) -> tuple[Any, ...]:
    """What a compiled program depends on: not the seed, not the inputs."""
    p = problem
    return (name, p.q_shape, p.kv_shape, p.dtype, p.mask, p.backward, matmul_precision())


def compile_one(problem: Problem, name: str) -> Build:
    return clock.build(function_of(problem, name), shapes_of(problem))


def function_of(problem: Problem, name: str) -> Callable[..., Any]:
    """(q, k, v) -> out, or (q, k, v, g) -> (out, dq, dk, dv); every array an argument, every result returned."""
    attend = functools.partial(backends.BACKENDS[name].attend, mask=problem.mask)
    if not problem.backward:
        return lambda q, k, v: attend(q, k, v)

    def both(q: Any, k: Any, v: Any, g: Any) -> Any:
        import jax

        out, pull = jax.vjp(lambda *x: attend(*x), q, k, v)
        return out, *pull(g)

    return both


def shapes_of(problem: Problem) -> list[Any]:
    import jax

    dtype = numerics.numpy_dtype(problem.dtype)
    shapes = [problem.q_shape, problem.kv_shape, problem.kv_shape, problem.q_shape]
    return [jax.ShapeDtypeStruct(s, dtype) for s in (shapes if problem.backward else shapes[:3])]


INPUTS: OrderedDict[Problem, tuple[dict[str, np.ndarray], tuple[Any, ...]]] = OrderedDict()
INPUTS_MOST_BYTES = 2**31
MOST_INPUTS, MOST_TRUTHS = 8, 16  # a sweep that is run again finds both


def inputs_of(problem: Problem) -> tuple[dict[str, np.ndarray], tuple[Any, ...]]:
    """The rounded arrays on the host, and the same on the device; the last few are kept for the next backend."""
    import jax

    drawn = problem.but(causal=False, window=None, kv_valid=None)  # a mask changes no input
    if drawn in INPUTS:
        INPUTS.move_to_end(drawn)
        return INPUTS[drawn]
    size = cost.input_bytes(drawn)
    while INPUTS and (len(INPUTS) >= MOST_INPUTS or sum(map(cost.input_bytes, INPUTS)) + size > INPUTS_MOST_BYTES):
        INPUTS.popitem(last=False)
    host = numerics.cast(numerics.draw(drawn), drawn.dtype)
    on_device = tuple(clock.wait([jax.device_put(array) for array in host.values()]))
    INPUTS[drawn] = host, on_device
    return host, on_device


def execute(
    problem: Problem,
    name: str,
    build: Build,
    here: Device,
    protocol: Protocol,
    cancelled: Callable[[], bool],
    parts: dict[str, Any],
) -> Record:
    """Run, check, and only if it agrees: time, trace, evidence."""
    host, arguments = inputs_of(problem)
    hit = build.first_call_ms is not None  # a sweep compiles ahead: what nobody has called yet was compiled for this
    start = time.perf_counter()
    result = clock.wait(build.call(*arguments))
    if build.first_call_ms is None:
        build.first_call_ms = (time.perf_counter() - start) * 1e3
    accuracy, complaint = check(problem, name, host, result, here)
    parts["accuracy"] = accuracy
    if complaint:
        complaint += unsteady(problem, build, arguments, result)
    del result
    if complaint:
        return blank(problem, name, "disagrees", complaint, here, **parts)
    if unread := unread_inputs(problem, build):
        return blank(problem, name, "disagrees", unread, here, **parts)
    sensors = Sensors()
    sets = itertools.cycle([arguments, *copies(problem, arguments, protocol)])
    wall, stopped_by = clock.steady(build.call, sets, protocol, cancelled=cancelled, sensors=sensors)
    on_device, kernel, ran, why = None, None, [], "a CPU has no device clock"
    if here.is_gpu and protocol.trace_calls:
        calls = trace.how_many(protocol.trace_calls, wall.median, protocol.limit_s)
        pacer = clock.pacer_of(protocol, sensors)
        taken = trace.take(build.call, sets, calls=calls, pacer=pacer, cancelled=cancelled)
        sensors.read()
        on_device = taken.samples()
        ran = evidence.kernels(taken.events)
        why = None if on_device else "the trace held no kernel"
        if len(ran) > 1 and any(evidence.ATTENTION_KERNEL.search(k["name"]) for k in ran):
            kernel = taken.samples(lambda n: bool(evidence.ATTENTION_KERNEL.search(n)))
    elif here.is_gpu:
        why = "no trace was asked for"
    backend = backends.BACKENDS[name]
    parts["evidence"] = evidence.judge(
        marker=backend.marker,
        calls=evidence.custom_calls(build.program),
        ran=ran,
        dtype=problem.dtype,
        on_gpu=here.is_gpu,
        error=accuracy["max_abs_error"],
    )
    if backend.explain is not None:
        parts["evidence"] |= backend.explain(problem, build.call, arguments, parts["evidence"])
    if name == "auto":
        parts["evidence"]["chose"] = "cudnn" if parts["evidence"]["fused"] else "xla"
    readings = sensors.readings
    timing = Timing(
        lower_ms=build.lower_ms,
        compile_ms=build.compile_ms,
        cache_hit=hit,
        disk_hit=build.disk_hit,
        first_call_ms=build.first_call_ms,
        wall_ms=wall,
        device_ms=on_device,
        kernel_ms=kernel,
        device_reason=why,
        mode=protocol.mode,
        cold_l2=protocol.cold_l2,
        warmup=protocol.warmup,
        stopped_by=stopped_by,
        sm_clock_mhz=tuple(r[0] for r in readings) or None,
        power_w=tuple(r[1] for r in readings) or None,
        temperature_c=tuple(r[2] for r in readings) or None,
    )
    return Record(
        problem=problem,
        backend=name,
        status="ok",
        timing=timing,
        cost=costs(problem, timing, parts["evidence"]["note"], ceilings.kept(here)),
        environment={**device.environment(here), "matmul_precision": matmul_precision()},
        time=now(),
        **parts,
    )


def unsteady(problem: Problem, build: Build, arguments: tuple[Any, ...], result: Any) -> str:
    """For a result that is wrong: whether a second call on the same arrays gives another one; then not even the
    computation is the same from call to call, and no rounding explains it."""
    first, second = (np.asarray(x[0] if problem.backward else x) for x in (result, build.call(*arguments)))
    if first.tobytes() == second.tobytes():
        return ""
    return "; a second call on the same arrays gave another output"


def unread_inputs(problem: Problem, build: Build) -> str | None:
    """A sentence if the program doesn't read all its arrays: then its time is not that of this computation.

    Where no query sees two keys the softmax has nothing to weigh, and q and k are left out rightly.
    """
    if problem.mask.live_pairs(problem.q_len, problem.kv_len) <= problem.q_len:
        return None
    names = ("q", "k", "v", "g")[: 4 if problem.backward else 3]
    unread = evidence.unread_inputs(build.program, len(names))
    if not unread:
        return None
    what = " and ".join(names[i] for i in unread) if len(unread) < len(names) else "one or more of its inputs"
    return (
        f"the compiled program doesn't read {what}: its output isn't computed from them, so its time would say nothing"
    )


def copies(problem: Problem, arguments: tuple[Any, ...], protocol: Protocol) -> list[tuple[Any, ...]]:
    """For a cold L2: more sets of the same inputs, COLD_BYTES in all; each has left the cache when its turn comes."""
    if not protocol.cold_l2:
        return []
    import jax.numpy as jnp

    count = min(COLD_SETS, -(-COLD_BYTES // cost.input_bytes(problem)))
    return [tuple(jnp.array(x, copy=True) for x in arguments) for _ in range(count)]


# H200, inputs × 1000: the rows that came out wrong were those whose two largest scores lie within 1.8e-4 of each other
LARGE_SCALE = 30.0
COLD_BYTES = 2**28  # twice the largest L2 of the GPUs in device.DATASHEETS (B200: 126 MB)
COLD_SETS = 4096


def matmul_precision() -> str:
    import jax

    return str(jax.config.jax_default_matmul_precision or "default")  # pyright: ignore[reportAttributeAccessIssue]


def costs(
    problem: Problem, timing: Timing | None, precision: str = "", found: ceilings.Ceilings | None = None
) -> dict[str, Any]:
    """FLOPs and least bytes; TFLOP/s on the device clock where there is one, else on the wall clock, which is named.

    kernel_tflops: of the attention kernel alone, where the program holds others, such as FP8's casts.
    """
    kernel = None if timing is None else timing.kernel_ms
    if timing is None:
        rest: dict[str, Any] = dict.fromkeys(
            ("tflops", "tflops_clock", "peak_tflops", "copy_tb_s", "bound_tflops", "bound_share", "suspect")
        )
    else:
        rest = ceilings.verdict(problem, timing, precision, found)
    return {
        "flops": cost.flops(problem),
        "min_bytes": cost.min_bytes(problem),
        "intensity": cost.intensity(problem),
        "kernel_tflops": None if kernel is None else cost.flops(problem) / kernel.median / 1e9,
        **rest,
    }


def check(
    problem: Problem, name: str, host: dict[str, np.ndarray], result: Any, here: Device
) -> tuple[dict[str, Any], str | None]:
    """The accuracy part of a record, and why it disagrees (None: it agrees)."""
    highest = matmul_precision() in ("highest", "float32")
    highest = highest or not here.is_gpu  # a CPU has no TF32
    out = np.asarray(result[0] if problem.backward else result)
    if out.shape != problem.q_shape:
        raise ValueError(f"the output must be {problem.q_shape}, got {out.shape}")
    part = numerics.sample(problem)
    rounding = backends.BACKENDS[name].rounding
    truth, plain = exact_and_plain(problem, host, part, rounding)
    ours = part.take(out)
    off = numerics.errors(ours, truth)
    first, last = problem.mask.row_bounds(part.rows, problem.kv_len)
    undefined = first == last  # rows that see no key: softmax of nothing, in any backend another convention
    invented = np.isnan(truth) & np.isfinite(ours.astype(np.float32)) & ~undefined[None, :, None]
    worst_text = ""
    if invented.any():
        worst_text = f"{int(invented.sum())} numbers stand where the exact result is NaN"
    elif not off.nonfinite and not part.whole and np.isfinite(truth).all() and (count := numerics.nonfinite(out)):
        worst_text = f"{count} elements of the output are not finite, outside the checked rows"
    if name == "naive":
        pin = numerics.pinned(problem.dtype, off.largest_exact, highest=highest)
        allowed = numerics.Budget(value=pin, plain_error=None, basis=f"naive itself is pinned to {pin:.2g}")
    else:
        allowed = numerics.budget(rounding or problem.dtype, plain, off.largest_exact, highest=highest)
    agrees = off.is_finite and off.max_abs <= allowed.value and not worst_text
    pair, row = part.pairs[off.worst[0]], part.rows[off.worst[1]]
    rows, pairs = (
        f"{len(part.rows)} of {problem.q_len} rows",
        f"{len(part.pairs)} of {problem.batch * problem.heads} heads",
    )
    accuracy: dict[str, Any] = {
        "max_abs_error": off.max_abs,
        "mean_abs_error": off.mean_abs,
        "rmse": off.rmse,
        "worst": {"batch": int(pair[0]), "row": int(row), "head": int(pair[1]), "dim": off.worst[2]},
        "budget": allowed.value,
        "budget_basis": allowed.basis,
        "plain_error": allowed.plain_error,
        "plain_precision": f"{problem.dtype} on {here.name} at matmul precision {matmul_precision()}"
        if rounding is None
        else f"{rounding} weights and output, float32 sums, on the host",
        "verdict": "agrees" if agrees else "disagrees",
        "reference": "exact float64 (NumPy), " + ("every element" if part.whole else f"{rows}, {pairs}"),
        "lab_allclose": numerics.lab_close(ours, truth, problem.dtype),
        "lab_tolerance": numerics.LAB_TOLERANCE[problem.dtype],
        "undefined_rows": int(undefined.sum()),
    }
    if rounding is not None:
        accuracy["reference"] += f", on the inputs rounded to {rounding}"
        accuracy |= lost_by_rounding(problem, host, part, ours, rounding)
    accuracy = {k: (None if isinstance(v, float) and not np.isfinite(v) else v) for k, v in accuracy.items()}
    if undefined.all():  # nothing was compared, so nothing was passed
        reason = "no query sees a key, so no right answer exists, and there is no time for it"
        errors = dict.fromkeys(("max_abs_error", "mean_abs_error", "rmse", "lab_allclose"))
        return accuracy | errors | {"verdict": "not checked", "reference": reason}, reason
    if problem.backward and agrees:
        return check_gradients(problem, host, result, accuracy, highest, rounding)
    return accuracy, None if agrees else complaint(problem, off, allowed.value, worst_text, rounding)


def complaint(
    problem: Problem, off: numerics.Errors, allowed: float, worst_text: str, rounding: str | None = None
) -> str:
    if off.is_finite and not worst_text:
        said = f"off by {off.max_abs:.3g} from the exact result, {allowed:.3g} is allowed"
        if rounding is not None and problem.input_scale >= LARGE_SCALE:
            said += (
                "; with scores this large each query picks one key, and FP8's matrix units sum too coarsely (about 13 "
                "bits on Hopper) to tell near ties apart"
            )
        return said
    why = worst_text or f"{off.nonfinite} checked elements of the output are NaN or infinite"
    if problem.dtype == "float16" and problem.input_scale > 1:
        why += "; float16 holds nothing above 65,504 and the scores go beyond it"
    elif problem.inputs == "nan":
        why += "; the inputs hold a NaN"
    return why


def check_gradients(
    problem: Problem,
    host: dict[str, np.ndarray],
    result: Any,
    accuracy: dict[str, Any],
    highest: bool,
    rounding: str | None = None,
) -> tuple[dict[str, Any], str | None]:
    """The gradients of the first batch entry against float64; too large ones are not checked, and don't pass."""
    if 14.0 * problem.heads * problem.q_len * problem.kv_len * problem.head_dim > 2e10:
        reason = "the gradients are too large to check in float64, so there is no time for them"
        return accuracy | {"verdict": "not checked", "reference": reason}, reason
    q, k, v, g = (host[n][0] for n in ("q", "k", "v", "g"))
    if rounding is not None:
        scales = [fp8.scale_of(host[n], rounding) for n in ("q", "k", "v", "g")]
        q, k, v, g = (fp8.rounded(x, s, rounding) for x, s in zip((q, k, v, g), scales, strict=True))
    worst: dict[str, float | None] = {}
    wrong = []
    truths = numerics.exact_gradients(q, k, v, g, problem.mask)
    for name, ours, truth in zip(("dq", "dk", "dv"), result[1:], truths, strict=True):
        off = numerics.errors(np.asarray(ours)[0], truth)
        # A gradient sums over up to kv_len rounded terms; its own size sets the scale (twice the pin, as forward)
        allowed = 2 * numerics.pinned(problem.dtype, off.largest_exact, highest=highest)
        if rounding is not None:  # two rounding steps of the largest: a pin for outputs of size 1 would let 0 pass
            allowed = 2 * numerics.epsilon(rounding) * off.largest_exact
        worst[name] = off.max_abs if off.is_finite else None
        if not off.is_finite:
            wrong.append(f"{name} holds NaN or infinity")
        elif off.max_abs > allowed:
            wrong.append(f"{name} is off by {off.max_abs:.3g}, {allowed:.3g} is allowed")
    accuracy |= {"gradient_max_abs_error": worst, "verdict": "disagrees" if wrong else "agrees"}
    return accuracy, "; ".join(wrong) or None


def lost_by_rounding(
    problem: Problem, host: dict[str, np.ndarray], part: numerics.Sample, ours: np.ndarray, rounding: str
) -> dict[str, Any]:
    """What a user loses: the error against the exact result on the inputs as given, and what rounding did to each."""
    off = numerics.errors(ours, exact_and_plain(problem, host, part)[0])
    parts = {"max_abs_error": off.max_abs, "mean_abs_error": off.mean_abs, "rmse": off.rmse}
    return {
        "unrounded": {name: value if off.is_finite else None for name, value in parts.items()},
        "rounding": rounding,
        "rounded_inputs": {name: fp8.loss(array, rounding).to_json() for name, array in host.items()},
    }


TRUTHS: OrderedDict[tuple[Problem, str], tuple[np.ndarray, numerics.Errors | None]] = OrderedDict()


def exact_and_plain(
    problem: Problem, host: dict[str, np.ndarray], part: numerics.Sample, rounding: str | None = None
) -> tuple[np.ndarray, numerics.Errors | None]:
    """The exact result on the sample, and how far the plain computation is off there; the last few are kept.

    rounding: on the inputs as they are after rounding to that format, with a scale for each tensor.
    """
    found = problem.but(backward=False), rounding or matmul_precision()
    if found in TRUTHS:
        TRUTHS.move_to_end(found)
        return TRUTHS[found]
    q = part.take(host["q"])
    group = problem.heads // problem.kv_heads
    k, v = part.take_kv(host["k"], group), part.take_kv(host["v"], group)
    live = problem.mask.allows(part.rows[:, None], np.arange(problem.kv_len)[None, :])
    if rounding is not None:
        scales = [fp8.scale_of(host[n], rounding) for n in ("q", "k", "v")]
        q, k, v = (fp8.rounded(x, s, rounding) for x, s in zip((q, k, v), scales, strict=True))
        truth = numerics.exact(q, k, v, live)
        plain_out = numerics.plain_fp8(q, k, v, live, float(scales[2]))
        return keep_truth(found, truth, numerics.errors(plain_out, truth))
    truth = numerics.exact(q, k, v, live)
    plain_out = np.asarray(compile_plain(problem).call(q, k, v, live))
    return keep_truth(found, truth, numerics.errors(plain_out, truth))


def compile_plain(problem: Problem) -> Build:
    """The plain computation on this problem's sample, from the cache or compiled now."""
    import jax

    part, dtype = numerics.sample(problem), numerics.numpy_dtype(problem.dtype)
    pairs, rows, keys, width = len(part.pairs), len(part.rows), problem.kv_len, problem.head_dim
    shapes = [(pairs, rows, width), (pairs, keys, width), (pairs, keys, width)]

    def make() -> Build:
        structs = [
            *(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes),
            jax.ShapeDtypeStruct((rows, keys), np.bool_),
        ]
        return clock.build(numerics.plain, structs, is_tuned=jax.default_backend() != "gpu")

    return CACHE.get(("plain", *shapes, problem.dtype, matmul_precision()), make)[0]


def keep_truth(
    found: tuple[Problem, str], truth: np.ndarray, plain: numerics.Errors | None
) -> tuple[np.ndarray, numerics.Errors | None]:
    TRUTHS[found] = truth, plain
    while len(TRUTHS) > MOST_TRUTHS:
        TRUTHS.popitem(last=False)
    return truth, plain


def as_shape(array: np.ndarray) -> Any:
    import jax

    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def outputs(
    problem: Problem, specs: Sequence[str], *, batch: int = 0, head: int = 0, most: int = 256
) -> dict[str, np.ndarray | str]:
    """Each backend's output of one batch entry and head as float32 (rows and columns cropped to most), or why not."""
    found: dict[str, np.ndarray | str] = {}
    here = device.here()
    for name, its_problem in variants(problem, specs):
        label = name if its_problem.dtype == problem.dtype else f"{name}:{its_problem.dtype}"
        reason = backends.BACKENDS[name].why_not(its_problem, here)
        reason = reason or too_large(
            memory.predicted(name, its_problem, on_gpu=here.is_gpu),
            memory.free_bytes(),
            "by formula",
            on_gpu=here.is_gpu,
        )
        if reason:
            found[label] = reason
            continue
        try:
            build, _ = CACHE.get(key(its_problem, name), functools.partial(compile_one, its_problem, name))
            _, arguments = inputs_of(its_problem)
            out = clock.wait(build.call(*arguments))
            whole = np.asarray(out[0] if its_problem.backward else out)
            found[label] = whole[batch, :most, head, :most].astype(np.float32)
        except Exception as error:  # noqa: BLE001 - a backend's errors end here, as a sentence; the others go on
            found[label] = first_line(error)
    return found


def cache_info() -> dict[str, int]:
    return CACHE.info()


def guess_seconds(problem: Problem, names: int, *, on_gpu: bool, protocol: Protocol = clock.LAB) -> float:
    """A rough prediction for the controls: naive's rate (H200 20, a CPU core 0.02 TFLOP/s), and the check."""
    rate = 20e12 if on_gpu else 2e10
    a_call = cost.flops(problem) / rate + (2e-4 if on_gpu else 1e-4)
    calls = min((protocol.warmup + protocol.repeats + 1) * a_call, protocol.limit_s + a_call)
    return names * (calls + min(numerics.EXACT_FLOPS, cost.flops(problem)) / 1e10 + 0.2)
