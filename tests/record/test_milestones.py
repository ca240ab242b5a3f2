from __future__ import annotations

from msgspec.structs import replace

from tramfl.config import Budget, Evaluation
from tramfl.notation import Ledger
from tramfl.record import Milestones, Scores, is_past_a_limit, is_test_due

BUDGET = Budget(targets=(0.5, 0.9), rounds=10)


def after(*accuracies: float | None) -> Milestones:
    found = Milestones.of(BUDGET)
    for seconds, accuracy in enumerate(accuracies, start=1):
        found = found.after(Scores(accuracy), float(seconds))
    return found


def test_a_test_is_due_after_every_second_trained_round_however_many_were_skipped_in_between() -> None:
    ledger, tested = Ledger.empty(2), []
    for samples in ((1, 0), (0, 0), (0, 1), (0, 0), (0, 0), (1, 1), (1, 0)):
        ledger = ledger.after(samples, 1.0)
        if is_test_due(Evaluation(every=2), ledger, trained=any(samples)):
            tested.append(ledger.round)
    assert tested == [3, 7]


def test_a_skipped_round_is_never_tested() -> None:
    assert not is_test_due(Evaluation(every=1), Ledger((0,), 1.0, 1, skipped=1), trained=False)


def test_a_target_is_open_until_a_test_reaches_it_and_stays_reached() -> None:
    assert after(0.3, None).open == (0.5, 0.9)
    assert after(0.3, 0.5).open == (0.9,)
    assert after(0.3, 0.5, 0.2).open == (0.9,)
    assert after(0.95, 0.1).seconds == (1.0, 1.0)


def test_the_seconds_of_a_target_are_those_of_the_first_test_that_reached_it() -> None:
    assert after(0.2, 0.6, 0.7, 0.9, 0.99).seconds == (2.0, 4.0)


def test_a_run_is_over_at_its_last_target_or_at_its_first_limit() -> None:
    early, late = Ledger((1,), 1.0, 3), Ledger((1,), 1.0, 10)
    assert not after(0.6).is_over(BUDGET, early)
    assert after(0.6).is_over(BUDGET, late)
    assert after(0.6, 0.9).is_over(BUDGET, early)


def test_a_run_without_targets_is_over_at_a_limit_only() -> None:
    budget = replace(BUDGET, targets=())
    assert not Milestones.of(budget).all_reached
    assert not Milestones.of(budget).is_over(budget, Ledger((1,), 1.0, 9))


def test_each_limit_counts_in_its_own_unit() -> None:
    ledger = Ledger((3, 4), 5.0, 6)
    limits = {"rounds": 6, "seconds": 5.0, "samples": 7}
    for key, value in limits.items():
        assert is_past_a_limit(Budget(**{key: value}), ledger)  # type: ignore[arg-type]
        assert not is_past_a_limit(Budget(**{key: value + 1}), ledger)  # type: ignore[arg-type]
