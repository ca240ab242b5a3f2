"""The policy keeps tramfl's contract: pytest examples/own_policy."""

from __future__ import annotations

from own_policy import StayOrNearest

from tramfl.scheduling import Policy, PolicySettings
from tramfl.testing import PolicyContract


class TestStayOrNearest(PolicyContract):
    """Every test of the contract, on this policy."""

    def policy(self, settings: PolicySettings) -> Policy:
        """The policy under test."""
        return StayOrNearest(settings)
