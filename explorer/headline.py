"""Headline: what records say, as one sentence to be read from the last row, with its number and its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from explorer import backends
from explorer.charts import label, ms
from explorer.memory import gib
from explorer.problem import AXIS_LETTERS
from explorer.record import Record, Samples
from explorer.versus import LEAST

SHORT = {"naive": "naive", "xla": "XLA", "auto": "JAX's own choice", "cudnn": "cuDNN"}
CLOCK = {"device_ms": "in the kernels", "wall_ms": "on the wall clock"}
FEWEST = 3  # calls on either side; with fewer a difference is not called
SAME_PROGRAM = "the same program"
TOO_CLOSE = "too close to call"
WITHOUT = {
    "refused": "can't run", "disagrees": "gives a wrong result, so no time,", "out_of_memory": "runs out of memory",
    "failed": "failed", "timed_out": "ran out of time", "cancelled": "was not measured",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """text: the sentence. evidence: what stands behind it. note: what limits it. clock: the one it compares on.

    has_number: it tells a time or a size of the subject. is_close: the difference is too small to call.
    """

    text: str
    evidence: str = ""
    note: str = ""
    clock: str = "wall_ms"
    has_number: bool = False
    is_close: bool = False


def of_time(records: Sequence[Record], subject: str, against: str, clock: str, *, place: str = "here") -> Headline:
    """The subject's time against the other's, on the wanted clock if both have it. subject, against: NAME[:DTYPE]."""
    ours, theirs = find(records, subject), find(records, against) if against else None
    if ours is None:
        return Headline(text="Nothing is measured yet.")
    if clock == "device_ms" and not all(each is None or _samples(each, clock) for each in (ours, theirs) if _ok(each)):
        used, note = "wall_ms", _why_wall(ours, theirs)
    else:
        used, note = clock, ""
    mine, base = _samples(ours, used), None if theirs is None else _samples(theirs, used)
    names = _names(ours, theirs)
    if mine is None:
        return Headline(text=f"{_capital(names[0])} {_without(ours)} {place}.", evidence=ours.reason or "", clock=used)
    where, proof = f"{CLOCK[used]}, {sizes(ours)}", _proof(ours)
    if theirs is None or base is None:
        text = f"{_capital(names[0])} takes {ms(mine.median)} {place} {where}, {proof}"
        if theirs is not None:
            text = (
                f"{_capital(names[1])} {_without(theirs)} {place}; {names[0]} takes {ms(mine.median)} {where}, {proof}"
            )
            note = theirs.reason or note
        return Headline(text=text, evidence=_accuracy(ours), note=note, clock=used, has_number=True)
    ratio = base.median / mine.median
    why = not_called(ours, theirs, used)
    if why in (SAME_PROGRAM, TOO_CLOSE):
        how = f"{_capital(names[0])} and {names[1]} are {why} {place}"
    elif why:
        how = f"{_capital(names[0])} and {names[1]} can't be told apart {place}, {why}"
    else:
        word = "faster" if ratio > 1 else "slower"
        how = f"{_capital(names[0])} {factor(max(ratio, 1 / ratio))} × {word} than {names[1]} {place}"
    text = f"{how}: {ms(mine.median)} against {ms(base.median)} {where}, {proof}"
    return Headline(
        text=text, evidence=_accuracy(ours, theirs), note=note, clock=used, has_number=True, is_close=bool(why)
    )


def of_memory(records: Sequence[Record], subject: str, against: str, *, place: str = "here") -> Headline:
    """Working memory beside inputs and output, by the compiler's own analysis."""
    ours, theirs = find(records, subject), find(records, against) if against else None
    if ours is None:
        return Headline(text="Nothing is measured yet.")
    names = _names(ours, theirs)
    mine, base = (None if each is None else (each.memory or {}).get("temp_bytes") for each in (ours, theirs))
    if mine is None:
        return Headline(text=f"{_capital(names[0])} {_without(ours)} {place}.", evidence=ours.reason or "")
    evidence = "Working memory beside inputs and output, by the compiler's analysis of the program that ran"
    if theirs is None or base is None:
        return Headline(
            text=f"{_capital(names[0])} needs {_size(mine)} of working memory {place}, {sizes(ours)}",
            evidence=evidence, has_number=True,
        )  # fmt: skip
    close = abs(mine - base) <= LEAST * max(mine, base)
    need = f"{_size(base)} of working memory {place}"
    if close:
        text = f"{_capital(names[0])} and {names[1]} need the same {need}, {sizes(ours)}"
    else:
        times = f", {factor(base / mine)} × less" if 0 < mine < base < 1000 * mine else ""
        text = f"{_capital(names[1])} needs {need}, {names[0]} {_size(mine)}{times}; {sizes(ours)}"
    return Headline(text=text, evidence=evidence, has_number=True, is_close=close)


def find(records: Sequence[Record], spec: str) -> Record | None:
    """The record of NAME or NAME:DTYPE."""
    name, dtype = backends.parse(spec)
    return next((r for r in records if r.backend == name and dtype in (None, r.problem.dtype)), None)


def not_called(one: Record, other: Record, clock: str) -> str | None:
    """Why no difference between the two times is called, in a few words; None where it may be. Both have a time.

    One and the same program differs by chance alone, few calls have no spread, and else the difference has to be a
    hundredth, with the medians' 95 % intervals apart.
    """
    if one.backend == chosen_by(other) or other.backend == chosen_by(one):
        return SAME_PROGRAM
    ours, theirs = getattr(one.timing, clock), getattr(other.timing, clock)
    if (fewest := min(len(ours.values), len(theirs.values))) < FEWEST:
        return f"by {fewest} call{'' if fewest == 1 else 's'} only"
    (low, high), (other_low, other_high) = ours.median_interval, theirs.median_interval
    near = abs(ours.median / theirs.median - 1) < LEAST
    return TOO_CLOSE if near or (low <= other_high and other_low <= high) else None


def chosen_by(found: Record) -> str | None:
    """The implementation that JAX chose, where that was left to it."""
    return (found.evidence or {}).get("chose")


def factor(value: float) -> str:
    """Two digits, more only where they are whole: 1.3, 7.5, 20."""
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def sizes(found: Record) -> str:
    """T, and S where it is another, and what makes the problem special."""
    p = found.problem
    parts = [f"{AXIS_LETTERS['q_len']}={p.q_len}"]
    if p.kv_len != p.q_len:
        parts.append(f"{AXIS_LETTERS['kv_len']}={p.kv_len}")
    return " ".join([*parts, *([] if p.mask.name == "full" else [p.mask.name])])


def _names(ours: Record, theirs: Record | None) -> tuple[str, str]:
    """Both names; with the dtypes where these differ."""
    differ = theirs is not None and theirs.problem.dtype != ours.problem.dtype

    def name(each: Record | None) -> str:
        if each is None:
            return ""
        said = SHORT.get(each.backend) or label(each.backend)
        return f"{said} in {each.problem.dtype}" if differ else said

    return name(ours), name(theirs)


def _capital(text: str) -> str:
    """A sentence's first letter, except of names that begin small on purpose."""
    return text if text.startswith("cu") else text[:1].upper() + text[1:]


def _ok(each: Record | None) -> bool:
    return each is not None and each.status == "ok"


def _samples(each: Record, clock: str) -> Samples | None:
    return getattr(each.timing, clock, None)


def _why_wall(*both: Record | None) -> str:
    reasons = [each.timing.device_reason for each in both if each and each.timing and not each.timing.device_ms]
    why = next((reason for reason in reasons if reason), "not measured")
    return f"wall clock, since there is no device clock: {why}"


def _without(found: Record) -> str:
    return WITHOUT.get(found.status, "has no time")


def _proof(found: Record) -> str:
    proof = found.evidence or {}
    verdict = proof.get("verdict") or "kernel unknown"
    if proof.get("proven"):
        return f"proven {verdict}" if verdict == "fused" else f"{verdict}, proven"
    return "which kernel ran is not proven"


def _accuracy(*both: Record | None) -> str:
    said = []
    for each in both:
        accuracy = (each.accuracy or {}) if each is not None else {}
        if each is not None and accuracy.get("max_abs_error") is not None and accuracy.get("budget") is not None:
            name = SHORT.get(each.backend) or label(each.backend)
            error, budget = accuracy["max_abs_error"], accuracy["budget"]
            said.append(f"{name} {error:.2g} of {budget:.2g} allowed, {accuracy['verdict']}")
    return (
        f"Largest error against the exact result: {'; '.join(said)}" if said else "Not checked against the exact result"
    )


def _size(size: int) -> str:
    return "none" if size == 0 else gib(size)
