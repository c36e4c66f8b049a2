"""support: what each backend accepts on any GPU, by rule, and the answer the witnesses add up to. Loads no JAX."""

from __future__ import annotations

from explorer.support.answer import Answer, Check, Neighbour, Proof, Witness, answer, documented, nearest
from explorer.support.rules import RULES, Rule, broken, unfused, why_not

__all__ = [
    "RULES",
    "Answer",
    "Check",
    "Neighbour",
    "Proof",
    "Rule",
    "Witness",
    "answer",
    "broken",
    "documented",
    "nearest",
    "unfused",
    "why_not",
]
