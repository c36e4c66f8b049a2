"""support: what each backend accepts, by rule, for any GPU; loads no JAX."""

from __future__ import annotations

from explorer.support.rules import RULES, Rule, broken, unfused, why_not

__all__ = ["RULES", "Rule", "broken", "unfused", "why_not"]
