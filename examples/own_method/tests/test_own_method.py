"""The rule keeps tramfl's contract: pytest examples/own_method."""

from __future__ import annotations

from own_method import PassOn

from tramfl.config import ExchangeSettings
from tramfl.testing import RuleContract


class TestPassOn(RuleContract):
    """Every test of the contract, on this rule."""

    def rule(self, settings: ExchangeSettings, nodes: int) -> PassOn:
        """The rule under test."""
        return PassOn(settings, nodes)
