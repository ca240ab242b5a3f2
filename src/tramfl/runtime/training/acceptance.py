"""Whether weights may be committed, or taken in: their loss on the samples that this site keeps aside, and how much a
round changed them."""

from __future__ import annotations

import math
import statistics
from collections import deque

from tramfl.config import Acceptance
from tramfl.runtime.training.workshop import FoundLoss, NewWeights

RECENT_CHANGES = 9
"""The last changes that a new one is held against."""
LEAST_CHANGES = 3
"""With fewer, nothing is known of what is usual."""


class Judgement:
    """One site's judgement of weights; None in place of a rule accepts everything."""

    def __init__(self, rule: Acceptance | None) -> None:
        self._rule = rule
        self._came_with: float | None = None
        """The loss of the last accepted weights as they came here, before this site trained them: training lowers it,
        and where sites hold different labels, honest rounds elsewhere raise it again."""
        self._changes: deque[float] = deque(maxlen=RECENT_CHANGES)
        """L2 norms of the last accepted changes, of one round each."""
        self.last = ""
        """Why weights were last not accepted; empty where none were."""

    @property
    def checks_arrivals(self) -> bool:
        """Whether weights that arrive are to be judged."""
        return self._rule is not None and self._rule.arrivals

    def of_training(self, made: NewWeights) -> str | None:
        """Why what was trained here may not be committed; None where it may."""
        if self._rule is None:
            return None
        if made.diverged:
            return self._rejected("the loss of the training is not a finite number")
        losses = made.losses
        objection = None if losses is None else self._of_loss(losses[1], losses[0])
        if losses is not None and objection is None:
            self._came_with = losses[0]
        return objection or self._of_change(made.change, rounds=1)

    def of_arrival(self, found: FoundLoss, round_: int) -> str | None:
        """Why weights after this round are not taken in; None where they are.

        They are held against the last ones that this site accepted, as they came; the first must have a finite loss.
        """
        objection = None if found.loss is None else self._of_loss(found.loss, self._came_with)
        if found.loss is not None and objection is None:
            self._came_with = found.loss
        return objection or self._of_change(found.change, round_ - found.since)

    def _of_change(self, change: float | None, rounds: int) -> str | None:
        """Why a change over some rounds is too large: rounds that each change as usual add up to no more."""
        if self._rule is None or self._rule.max_change_ratio is None or change is None or rounds < 1:
            return None
        each = change / rounds
        if not math.isfinite(each):
            return self._rejected("the change of the weights is not a finite number")
        if len(self._changes) >= LEAST_CHANGES:
            usual = statistics.median(self._changes)
            if each > self._rule.max_change_ratio * usual:
                return self._rejected(
                    f"the weights changed by {each:.4g} a round, and usually by {usual:.4g};"
                    f" accept.max_change_ratio is {self._rule.max_change_ratio:g}"
                )
        if rounds == 1:  # a sum of several says less
            self._changes.append(each)
        return None

    def _of_loss(self, loss: float, before: float | None) -> str | None:
        assert self._rule is not None
        if not math.isfinite(loss):
            return self._rejected("the loss on the samples kept aside is not a finite number")
        # A loss before that is not finite is no measure: any finite one is better.
        if before is not None and loss > self._rule.max_loss_ratio * before:
            return self._rejected(
                f"the loss on the samples kept aside is {loss:.4g}, and was {before:.4g} before;"
                f" accept.max_loss_ratio is {self._rule.max_loss_ratio:g}"
            )
        return None

    def _rejected(self, reason: str) -> str:
        self.last = reason
        return reason
