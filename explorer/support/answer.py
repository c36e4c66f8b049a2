"""Answer: one question, four witnesses, the failed rule, and the nearest values that would do with what they cost.

The witnesses, from the weakest: "rule" (the rules here), "check" (the library's own, asked), "compile" and "run" (on
the GPU at hand, or recorded on it). Nothing is asked here: what a check or a run found comes in as Check and Proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from explorer import cost
from explorer.device import CAPABILITIES, Device
from explorer.problem import DTYPES, Problem
from explorer.support.rules import Rule, broken, unfused

LIBRARY_SAID_NO = "the rules said yes, the library said no"
WIDEST = 256  # no backend's limit lies beyond it
Says = Literal["yes", "no", "not asked"]
Others = Callable[[str, Problem, Device], "Proof | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What a library's own check says; by names the library and version. fused: False where it takes another kernel."""

    accepted: bool
    by: str
    reason: str | None = None
    fused: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What compiling and running found, on which GPU and with which versions."""

    status: str
    gpu: str | None
    reason: str | None = None
    kernel: str | None = None
    max_abs_error: float | None = None
    budget: float | None = None
    fused: bool | None = None
    wall_ms: float | None = None
    device_ms: float | None = None
    versions: str = ""
    time: str | None = None
    recorded: bool = False

    @property
    def stands(self) -> bool:
        """Whether "run" may be said: kernel, largest error and GPU in one record."""
        return None not in (self.gpu, self.kernel, self.max_abs_error)

    @property
    def where(self) -> str:
        parts = [self.gpu or "a CPU", self.versions, f"recorded {(self.time or '')[:10]}" if self.recorded else "live"]
        return ", ".join(part for part in parts if part)

    def to_json(self) -> dict[str, Any]:
        names = ("status", "gpu", "reason", "kernel", "max_abs_error", "budget", "fused", "wall_ms", "device_ms")
        return {n: getattr(self, n) for n in (*names, "versions", "time", "recorded")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    name: Literal["rule", "check", "compile", "run"]
    says: Says
    text: str


def more_or_less(ratio: float) -> str:
    """1.04 -> "+4 %", 3 -> "3 ×"."""
    return f"{ratio:.3g} ×" if ratio >= 2 else f"{100 * (ratio - 1):+.2g} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """An accepted value on one axis, how to get there, and the work and traffic it takes against what was asked."""

    axis: str
    value: Any
    how: str
    flops_ratio: float | None = None
    bytes_ratio: float | None = None
    together: dict[str, Any] | None = None  # what else must change
    problem: Problem | None = None
    wall_ms: float | None = None
    device_ms: float | None = None

    def to_json(self) -> dict[str, Any]:
        names = ("axis", "value", "how", "flops_ratio", "bytes_ratio", "together", "wall_ms", "device_ms")
        return {n: getattr(self, n) for n in names}

    def __str__(self) -> str:
        work = "" if self.flops_ratio in (None, 1) else f" ({more_or_less(self.flops_ratio)} work)"
        more = "" if not self.together else f", with {', '.join(f'{k} {v}' for k, v in self.together.items())}"
        ms, clock = (self.device_ms, "device") if self.device_ms is not None else (self.wall_ms, "wall")
        took = "" if ms is None else f"; {ms:.3g} ms on the {clock} clock"
        return f"{self.axis} {self.value}: {self.how}{work}{more}{took}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Yes or no for one backend and problem on one device, with all that stands behind it."""

    backend: str
    problem: Problem
    device: Device
    supported: bool
    witness: Literal["rule", "check", "compile", "run"]
    rule: str | None
    reason: str | None
    fused: bool | None  # False: accepted, but not by the fused kernel; None: has none, or is not known
    headline: str | None
    sources: tuple[str, ...]
    witnesses: tuple[Witness, ...]
    proof: Proof | None = None
    others: Others | None = field(default=None, repr=False, compare=False)  # proofs of neighbours, for their times

    @property
    def nearest(self) -> tuple[Neighbour, ...]:
        """What would do instead; empty where it does as it is."""
        if self.supported and self.fused is not False:
            return ()
        return nearest(self.backend, self.problem, self.device, self.others)

    @property
    def state(self) -> str:
        """What the matrix shows: proven, unfused, rule, refused, disagrees or failed."""
        status = self.proof.status if self.proof else None
        if status == "disagrees":
            return "disagrees"
        if status in ("failed", "timed_out"):
            return "failed"
        if not self.supported:
            return "refused"
        if self.fused is False:
            return "unfused"
        return "proven" if self.witness == "run" else "rule"

    def to_json(self) -> dict[str, Any]:
        question = self.problem.to_json()
        return {
            "head_dim": self.problem.head_dim,
            "backend": self.backend,
            "supported": self.supported,
            "witness": self.witness,
            "rule": self.rule,
            "reason": self.reason,
            "nearest": [n.to_json() for n in self.nearest],
            "sources": list(self.sources),
            "question": question
            | {"gpu": self.device.name if self.device.is_gpu else None, "capability": self.device.capability_text},
            "state": self.state,
            "fused": self.fused,
            "headline": self.headline,
            "witnesses": {w.name: {"says": w.says, "text": w.text} for w in self.witnesses},
            "proof": None if self.proof is None else self.proof.to_json(),
        }


def documented(backend: str, problem: Problem, device: Device) -> tuple[bool, str] | None:
    """What NVIDIA's own documents say, whatever JAX makes of it, and why not; None where they are about others."""
    if backend not in ("cudnn", "cudnn_fp8") or not device.is_gpu:
        return None
    for effect in ("refuses", "doubt"):
        for rule in broken(backend, problem, device, effect):
            if "vendor" in rule.by:
                return False, rule.sentence(problem, device)
    return True, ""


def answer(
    backend: str,
    problem: Problem,
    device: Device,
    *,
    check: Check | None = None,
    proof: Proof | None = None,
    others: Others | None = None,
) -> Answer:
    """The answer by rule, or by the strongest witness given. others: proofs of the neighbours, for their times."""
    refusing = broken(backend, problem, device)
    by_rule = refusing[0].sentence(problem, device) if refusing else None
    supported, witness, reason = not refusing, "rule", by_rule
    rule: str | None = refusing[0].name if refusing else None
    deciding: tuple[Rule, ...] = refusing[:1] or broken(backend, problem, device, "unfused")
    headline = None
    vendor = documented(backend, problem, device)
    vendor_is_stricter = any("jax" not in r.by for r in refusing)

    if check is not None:
        if check.accepted == supported:
            witness = "check"
        elif check.accepted and vendor_is_stricter:
            headline = f"{check.by} lets it through, the rule is stricter and decides: {by_rule}"
        elif check.accepted:
            supported, witness, rule, reason = True, "check", None, None
            headline = f"the rules said no, {check.by} says yes. Rule: {by_rule}"
        else:
            supported, witness, rule, reason = False, "check", None, check.reason
            headline = f"the rules said yes, {check.by} says no: {check.reason}"
    if headline is None and vendor is not None and vendor[0] != supported:
        headline = (
            f"JAX lets it through, NVIDIA's documents do not, so that only a run can tell: {vendor[1]}"
            if supported
            else f"NVIDIA's documents allow it, JAX does not: {reason}"
        )

    doubts = [] if refusing else [r for r in broken(backend, problem, device, "doubt") if "vendor" not in r.by]
    if headline is None and doubts and supported:
        headline, deciding = doubts[0].sentence(problem, device), tuple(doubts)

    fused = None
    slower = unfused(backend, problem, device)
    if backend.startswith("transformer_engine") and supported:
        fused = slower is None if check is None or check.fused is None else check.fused
        if not fused:
            rule = deciding[0].name if deciding else None
            reason = slower or f"accepted, but not by the fused kernel: {check.reason if check else ''}"

    if proof is not None and proof.status in ("ok", "disagrees", "failed", "timed_out", "refused"):
        strongest = "run" if proof.stands else "compile"
        if proof.status == "ok":
            if not supported:
                headline = f"the rules said no, but it ran and agreed on {proof.where}. Rule: {by_rule}"
            if proof.fused is not None and fused is not None and proof.fused != fused:
                headline = (
                    f"the rules said {'fused' if fused else 'unfused'}, the run was "
                    f"{'fused' if proof.fused else 'unfused'}: {proof.kernel}"
                )
            supported, witness = True, strongest
            if proof.fused is not None and (fused is not None or not proof.fused):
                fused = proof.fused
            if fused is False:
                reason = reason or "accepted, but not by the fused kernel"
            else:
                rule, reason = None, None
        elif proof.status == "refused" and (proof.reason or "").startswith(LIBRARY_SAID_NO):
            supported, witness, rule, reason, headline = False, "compile", None, proof.reason, proof.reason
        elif proof.status != "refused":
            supported, witness, rule, reason = False, strongest, None, proof.reason
            headline = f"the rules said yes, but on {proof.where}: {proof.reason}" if by_rule is None else headline

    sources = tuple(dict.fromkeys(source for r in deciding for source in r.sources))
    return Answer(
        backend=backend,
        problem=problem,
        device=device,
        supported=supported,
        witness=witness,  # pyright: ignore[reportArgumentType]
        rule=rule,
        reason=reason,
        fused=fused,
        headline=headline,
        sources=sources,
        witnesses=_witnesses(backend, by_rule or slower, by_rule is None, vendor, check, proof, device),
        proof=proof,
        others=others,
    )


def _witnesses(
    backend: str,
    sentence: str | None,
    rule_says_yes: bool,
    vendor: tuple[bool, str] | None,
    check: Check | None,
    proof: Proof | None,
    device: Device,
) -> tuple[Witness, ...]:
    said = sentence or "no rule refuses it"
    if vendor is not None and vendor[1] != said:
        said += f" (NVIDIA's documents: {'yes' if vendor[0] else 'no'})"
    found = [Witness(name="rule", says="yes" if rule_says_yes else "no", text=said)]
    if check is not None:
        text = check.reason or "accepted"
        found.append(Witness(name="check", says="yes" if check.accepted else "no", text=f"{check.by}: {text}"))
    else:
        has_one = backend.startswith(("cudnn", "transformer_engine"))
        text = "not asked" if has_one else "this backend has no check of its own"
        found.append(Witness(name="check", says="not asked", text=text))
    if proof is None:
        text = "nothing was compiled or run" + ("" if device.is_here else ": that GPU is not at hand")
        return (*found, *(Witness(name=n, says="not asked", text=text) for n in ("compile", "run")))
    ran, refused = proof.status in ("ok", "disagrees"), proof.status == "refused"
    library_refused = refused and (proof.reason or "").startswith(LIBRARY_SAID_NO)
    compiled: Says = (
        "yes" if ran else "no" if library_refused or "compile failed" in (proof.reason or "") else "not asked"
    )
    where = proof.where
    found.append(Witness(name="compile", says=compiled, text=where if ran else f"{where}: {proof.reason}"))
    if ran:
        off = "unknown" if proof.max_abs_error is None else f"{proof.max_abs_error:.2g}"
        kernel = proof.kernel or "no kernel trace"
        text = f"{where}: {kernel}, largest error {off}" + ("" if proof.status == "ok" else f"; {proof.reason}")
        found.append(Witness(name="run", says="yes" if proof.status == "ok" else "no", text=text))
    else:
        says: Says = "no" if "run failed" in (proof.reason or "") or proof.status == "timed_out" else "not asked"
        found.append(Witness(name="run", says=says, text=f"{where}: {proof.reason}"))
    return tuple(found)


def nearest(
    backend: str,
    problem: Problem,
    device: Device,
    others: Others | None = None,
) -> tuple[Neighbour, ...]:
    """The nearest accepted values on each axis of the broken rules; where several are broken, what else must change."""

    def rules(p: Problem) -> tuple[Rule, ...]:
        return broken(backend, p, device) or broken(backend, p, device, "unfused")

    wrong = rules(problem)
    axes = dict.fromkeys(rule.axis for rule in wrong if rule.axis)
    if "capability" in axes:
        newer = _newer(backend, problem)
        if newer is None:
            return ()
        _, changes = _mended(backend, problem, newer, [a for a in axes if a != "capability"])
        text = newer.capability_text or ""
        how = f"a GPU of compute capability {text} or later"
        return (Neighbour(axis="capability", value=text, how=how, together=changes or None),)
    found: list[Neighbour] = []
    for axis in axes:
        elsewhere, changes = _mended(backend, problem, device, [a for a in axes if a != axis])
        for candidate, how in _candidates(axis, elsewhere, [r for r in wrong if r.axis == axis], rules):
            proof = others(backend, candidate, device) if others else None
            found.append(
                Neighbour(
                    axis=axis,
                    value=_value(axis, candidate),
                    how=how,
                    flops_ratio=cost.flops(candidate) / cost.flops(problem),
                    bytes_ratio=cost.min_bytes(candidate) / cost.min_bytes(problem),
                    together=changes or None,
                    problem=candidate,
                    wall_ms=proof.wall_ms if proof else None,
                    device_ms=proof.device_ms if proof else None,
                )
            )
    return tuple(found)


def _value(axis: str, candidate: Problem) -> Any:
    if axis == "lengths":
        return [candidate.q_len, candidate.kv_len]
    return getattr(candidate, axis)


def _mended(backend: str, problem: Problem, device: Device, axes: list[str]) -> tuple[Problem, dict[str, Any]]:
    """The problem with every other axis set to its first accepted value, and what was changed."""
    changes: dict[str, Any] = {}
    for axis in axes:

        def rules(p: Problem, axis: str = axis) -> tuple[Rule, ...]:
            every = broken(backend, p, device) or broken(backend, p, device, "unfused")
            return tuple(rule for rule in every if rule.axis == axis)

        for candidate, _ in _candidates(axis, problem, list(rules(problem)), rules):
            changes[axis] = _value(axis, candidate)
            problem = candidate
            break
    return problem, changes


def _candidates(axis: str, p: Problem, wrong: list[Rule], rules: Any) -> list[tuple[Problem, str]]:
    """(problem, how to get there), nearest first, of those that break no rule given."""
    if axis == "head_dim":
        wider = next((h for h in range(p.head_dim + 1, WIDEST + 1) if not rules(p.but(head_dim=h))), None)
        narrower = next((h for h in range(min(p.head_dim - 1, WIDEST), 0, -1) if not rules(p.but(head_dim=h))), None)
        found = []
        if wider is not None:
            how = (
                f"pad q, k and v with {wider - p.head_dim} zeros and keep the scale at 1/√{p.head_dim}: the same result"
            )
            found.append((p.but(head_dim=wider), how))
        if narrower is not None:
            found.append((p.but(head_dim=narrower), f"another model: {p.head_dim - narrower} dimensions fewer"))
        return sorted(found, key=lambda c: abs(c[0].head_dim - p.head_dim))
    if axis == "dtype":
        others = [p.but(dtype=d) for d in ("bfloat16", "float16", "float32") if d != p.dtype and d in DTYPES]
        return [(q, f"cast q, k and v from {p.dtype}: rounds them") for q in others if not rules(q)]
    if axis == "lengths":
        step = max([rule.multiple or 1 for rule in wrong], default=1)
        up = p.but(q_len=-(-p.q_len // step) * step, kv_len=-(-p.kv_len // step) * step, kv_valid=p.kv_valid)
        down = p.but(q_len=p.q_len // step * step or step, kv_len=p.kv_len // step * step or step, kv_valid=None)
        padded = (
            "pad to it, with the padding masked out"
            if not (p.causal and p.q_len == p.kv_len)
            else ("pad at the end: the causal mask hides the padding")
        )
        found = [(up, padded)]
        if down.q_len <= p.q_len and down.kv_len <= p.kv_len:
            found.append((down, f"fewer tokens: {p.q_len - down.q_len} off q_len, {p.kv_len - down.kv_len} off kv_len"))
        return [(q, how) for q, how in found if not rules(q)]
    if axis == "window":
        q = p.but(window=None, kv_valid=None)
        return [] if rules(q) else [(q, "another mask: without the window and the padding")]
    raise ValueError(f"no way is known to change {axis}")


def _newer(backend: str, problem: Problem) -> Device | None:
    """The oldest GPU that breaks no rule about GPUs."""
    for capability in CAPABILITIES:
        gpu = Device(platform="gpu", name="", capability=capability, is_here=False)
        every = broken(backend, problem, gpu) + broken(backend, problem, gpu, "unfused")
        if not any(rule.axis == "capability" for rule in every):
            return gpu
    return None
