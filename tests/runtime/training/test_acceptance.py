from __future__ import annotations

import math

import pytest

from tramfl.config import Acceptance
from tramfl.runtime.training import Judgement, NewWeights
from tramfl.runtime.training.workshop import FoundLoss


def made(before: float, after: float, *, diverged: bool = False) -> NewWeights:
    return NewWeights("w", 1, 1.0, diverged, (before, after))


def test_without_a_rule_everything_is_accepted() -> None:
    judgement = Judgement(None)
    assert judgement.of_training(made(1.0, math.nan, diverged=True)) is None
    assert not judgement.checks_arrivals
    assert judgement.last == ""


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (made(1.0, 1.0, diverged=True), "the training is not a finite number"),
        (made(1.0, math.nan), "kept aside is not a finite number"),
        (made(1.0, math.inf), "kept aside is not a finite number"),
        (made(1.5, 3.1), r"is 3\.1, and was 1\.5 before; accept\.max_loss_ratio is 2"),
    ],
)
def test_weights_that_are_worse_by_far_or_have_no_finite_loss_are_rejected(new: NewWeights, why: str) -> None:
    judgement = Judgement(Acceptance(max_loss_ratio=2.0))
    reason = judgement.of_training(new)
    assert reason is not None
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(reason)
    assert judgement.last == reason


def test_weights_up_to_the_limit_are_accepted_whatever_was_before() -> None:
    judgement = Judgement(Acceptance(max_loss_ratio=2.0))
    assert judgement.of_training(made(1.5, 3.0)) is None
    assert judgement.of_training(made(math.inf, 3.0)) is None
    assert judgement.of_training(NewWeights("w", 1, 1.0)) is None, "a site that keeps no samples aside cannot judge"


def arrived(loss: float | None, change: float | None = None, since: int = 0) -> FoundLoss:
    return FoundLoss(loss, change, since)


def test_what_arrives_is_held_against_what_came_last_not_against_what_training_here_made_of_it() -> None:
    judgement = Judgement(Acceptance(max_loss_ratio=2.0, arrivals=True))
    assert judgement.of_arrival(arrived(4.0), 1) is None, "the first has nothing to be held against"
    assert judgement.of_training(made(4.0, 0.1)) is None
    assert judgement.of_arrival(arrived(7.0), 1) is None, "other labels were trained meanwhile"
    assert judgement.of_training(made(1.0, 0.1)) is None
    assert judgement.of_arrival(arrived(2.1), 1) is not None
    assert judgement.of_arrival(arrived(1.9), 1) is None
    assert judgement.of_arrival(arrived(math.nan), 1) is not None
    assert judgement.of_arrival(arrived(None), 1) is None


def changed(by: float) -> NewWeights:
    return NewWeights("w", 1, 1.0, False, None, None, by)


def used_to(*changes: float) -> Judgement:
    judgement = Judgement(Acceptance(max_change_ratio=3.0, arrivals=True))
    assert [judgement.of_training(changed(by)) for by in changes] == [None] * len(changes)
    return judgement


def test_a_change_far_above_the_usual_one_is_rejected_and_does_not_become_usual() -> None:
    judgement = used_to(1.0, 1.2, 0.8)
    for _ in range(10):
        reason = judgement.of_training(changed(3.5))
        assert reason == "the weights changed by 3.5 a round, and usually by 1; accept.max_change_ratio is 3"
    assert judgement.of_training(changed(2.9)) is None
    assert judgement.of_training(changed(math.inf)) is not None


def test_nothing_is_known_of_what_is_usual_before_three_changes_and_without_the_key() -> None:
    assert used_to(1.0, 1.0).of_training(changed(1e6)) is None
    judgement = Judgement(Acceptance())
    assert [judgement.of_training(changed(by)) for by in (1.0, 1.0, 1.0, 1e9)] == [None] * 4


def test_what_arrives_may_have_changed_as_usual_in_each_round_since_this_site_trained() -> None:
    judgement = used_to(1.0, 1.0, 1.0)
    assert judgement.of_arrival(arrived(None, 11.0, since=6), 10) is None, "4 rounds"
    assert judgement.of_arrival(arrived(None, 13.0, since=6), 10) is not None
    assert judgement.of_arrival(arrived(None, 13.0, since=10), 10) is None, "nothing to hold it against"
