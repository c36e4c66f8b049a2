"""A backend with a planted fault, for the tests of the Masks page: the worker imports this module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from explorer import backends, recover
from explorer.backends import naive
from explorer.masks import Mask
from explorer.problem import Problem
from explorer.recover import Recovered


def off_by_one(q: Any, k: Any, v: Any, *, mask: Mask) -> Any:
    """Causal, but query i sees key i + 1 too."""
    return naive.attend(q, k, v, mask=Mask(window=(10_000, 1)) if mask.causal else mask)


def each(problem: Problem, names: Sequence[str], *, head: int = 0) -> Iterator[Recovered]:
    """recover.each, with XLA's place taken by the faulty backend."""
    right = backends.BACKENDS["xla"]
    backends.BACKENDS["xla"] = backends.Backend(name="xla", label="SDPA XLA", attend=off_by_one, about="planted")
    try:
        yield from recover.each(problem, names, head=head)
    finally:
        backends.BACKENDS["xla"] = right
