"""Asks the policy for a decision; one that fails costs a round, not the site."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from tramfl.circulation import commands as do
from tramfl.notation import Counts, Decision, ModelCost, NodeId
from tramfl.runtime.journal import Log
from tramfl.scheduling.policy import Policy, check_decision, with_names


class Decider:
    """The policy of a run at this site."""

    def __init__(self, policy: Policy, name: str, wait_seconds: float, me: NodeId, cost: ModelCost, log: Log) -> None:
        self._policy, self._name, self._wait_seconds = policy, name, wait_seconds
        self._me, self._cost, self._log = me, cost, log

    async def decision(
        self, command: do.Decide, held: Counts, names: Sequence[str], rng: np.random.Generator
    ) -> Decision:
        """What the policy decides, in a thread, with sites by name in its reason; nobody trains where it fails."""
        try:
            found = await asyncio.to_thread(
                self._policy.decide, command.ledger, command.loads, held, self._me, self._cost, rng
            )
            found = check_decision(found, command.loads, held)
            return replace(found, reason=with_names(found.reason, names))
        except Exception as error:
            # What the policy was given came from other sites.
            self._log("not-decided", reason=f"{type(error).__name__}: {error}")
            why = "Nobody trains: the policy failed, see this site's log."
            return Decision(self._name, None, (0,) * held.shape[1], 0.0, 0.0, self._wait_seconds, why)
