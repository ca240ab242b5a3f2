from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as with_fields

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from tramfl.config import Budget, Scenario
from tramfl.notation import BadInput, Digest, NodeId
from tramfl.record import Scores, seconds_to, summary_of
from tramfl.simulation.experiment import Experiment, Setting
from tramfl.simulation.scenarios import scenario_named
from tramfl.simulation.setting import scheduling_only


class Rising:
    """A judge whose verdict rises by a tenth at every look."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, ...]] = []

    def diverged(self, digest: Digest) -> bool:
        return False

    def scores(self, digest: Digest, node: NodeId, targets: Sequence[float]) -> Scores:
        self.asked.append(tuple(targets))
        return Scores(len(self.asked) / 10, 1.0, None)


def scenario(**budget: object) -> Scenario:
    base = scenario_named("mnist-5")
    return replace(base, budget=Budget(**budget))  # type: ignore[arg-type]


def judged(chosen: Scenario) -> tuple[Experiment, Rising]:
    judge = Rising()
    setting = with_fields(scheduling_only(chosen), judge=judge)
    experiment = Experiment(chosen, setting)
    for _ in experiment.rounds():
        pass
    return experiment, judge


@pytest.mark.parametrize(
    ("budget", "ends"),
    [
        ({"rounds": 7}, lambda e: len(e.rows) == 7),
        ({"seconds": 9.0}, lambda e: e.rows[-2].total_seconds < 9 <= e.rows[-1].total_seconds),
        ({"samples": 900}, lambda e: sum(e.rows[-2].used) < 900 <= sum(e.rows[-1].used)),
        ({"rounds": 99, "targets": (0.3, 0.5)}, lambda e: e.rows[-1].test_accuracy == 0.5),
        ({"rounds": 3, "targets": (0.9,)}, lambda e: len(e.rows) == 3),
    ],
)
def test_a_run_ends_at_its_last_target_or_its_first_limit(budget: dict[str, object], ends: object) -> None:
    experiment, _ = judged(scenario(**budget))
    assert callable(ends)
    assert ends(experiment)
    assert experiment.summary().status == "finished"


def test_without_a_limit_a_run_does_not_begin() -> None:
    chosen = scenario(targets=(0.5,))
    with pytest.raises(BadInput, match=r"no limit.*budget\.rounds, budget\.seconds and budget\.samples"):
        Experiment(chosen, scheduling_only(chosen))


def test_the_judge_is_asked_for_the_targets_that_are_still_open() -> None:
    _, judge = judged(scenario(rounds=9, targets=(0.2, 0.4)))
    assert judge.asked == [(0.2, 0.4), (0.2, 0.4), (0.4,), (0.4,)]


def test_a_model_is_tested_after_every_nth_trained_round_only() -> None:
    base = scenario(rounds=12)
    experiment, judge = judged(replace(base, evaluation=replace(base.evaluation, every=3)))
    trained = [row for row in experiment.rows if row.node is not None]
    assert [row.test_accuracy is not None for row in trained] == [k % 3 == 2 for k in range(len(trained))]
    assert len(judge.asked) == len(trained) // 3


def test_the_summary_adds_up() -> None:
    experiment, _ = judged(scenario(rounds=8, targets=(0.3, 0.95)))
    summary, rows = experiment.summary(), experiment.rows
    assert summary.seconds_to_target["0.3"] == rows[2].total_seconds == seconds_to(rows, 0.3)
    assert summary.seconds_to_target["0.95"] is None
    parts = summary.compute_seconds + summary.transfer_seconds + summary.idle_seconds
    assert summary.total_seconds == pytest.approx(parts)
    assert summary.samples == sum(sum(row.samples) for row in rows)
    assert summary.largest_label_variance == max(row.label_variance for row in rows)
    assert summary.largest_label_variance <= experiment.scenario.variance_limit


def test_a_run_that_has_not_begun_has_a_summary_too() -> None:
    chosen = scenario(rounds=3)
    summary = Experiment(chosen, scheduling_only(chosen)).summary()
    assert (summary.rounds, summary.samples, summary.status) == (0, 0, "interrupted")


def test_the_first_holder_is_drawn_from_the_seed() -> None:
    chosen = scenario(rounds=1)
    holders = [
        next(Experiment(s, scheduling_only(s)).rounds()).holder for s in (replace(chosen, seed=k) for k in range(20))
    ]
    assert set(holders) == set(range(5))


def test_the_weights_after_the_last_row_are_kept_until_the_row_is_dealt_with() -> None:
    dropped: list[Digest] = []

    class Learner:
        """Names its models by their round, and notes which are dropped."""

        def train(self, node: NodeId, parent: Digest, samples: tuple[int, ...], round_: int) -> Digest:
            return f"w{round_}"

        def discard(self, digest: Digest) -> None:
            dropped.append(digest)

    chosen = scenario(rounds=60)
    setting: Setting = with_fields(scheduling_only(chosen), learner=Learner())
    experiment = Experiment(chosen, setting)
    before = experiment.weights
    for _ in experiment.rounds():
        assert before not in dropped, "an interrupt may still have to go back to these"
        before = experiment.weights
        assert before not in dropped
    assert len(dropped) > 30, "but not for ever"


def test_rows_and_weights_are_taken_back_together() -> None:
    chosen = scenario(rounds=5)
    experiment = Experiment(chosen, scheduling_only(chosen))
    states = [(0, experiment.reached)]
    states += [(len(experiment.rows), experiment.reached) for _ in experiment.rounds()]
    experiment.go_back_to(states[2][1])
    assert (len(experiment.rows), experiment.reached) == states[2]
    assert not experiment.finished


class Scripted:
    """A judge whose tests come out as they were written down."""

    def __init__(self, accuracies: Sequence[float]) -> None:
        self._left = list(accuracies)
        self.asked: list[tuple[float, ...]] = []

    def diverged(self, digest: Digest) -> bool:
        return False

    def scores(self, digest: Digest, node: NodeId, targets: Sequence[float]) -> Scores:
        self.asked.append(tuple(targets))
        return Scores(test_accuracy=self._left.pop(0))


def test_a_target_is_held_from_when_the_mean_of_the_last_tests_stays_at_it() -> None:
    chosen = replace(scenario(rounds=60), budget=Budget(targets=(0.5, 0.79), rounds=60, held_for=3))
    judge = Scripted([0.6, 0.9, 0.2, 0.3, 0.7, 0.7, 0.8, 0.9, 0.9, 0.1])
    experiment = Experiment(chosen, with_fields(scheduling_only(chosen), judge=judge))
    tested = [row for row in experiment.rounds() if row.test_accuracy is not None]
    summary = experiment.summary()
    # Means of three: -, -, 0.57, 0.47, 0.4, 0.57, 0.73, 0.8.
    assert len(tested) == 8, "the run goes on past the first crossing, to the first mean of three at 0.79"
    assert summary.seconds_to_target == {"0.5": tested[0].total_seconds, "0.79": tested[1].total_seconds}
    assert summary.seconds_held == {"0.5": tested[5].total_seconds, "0.79": tested[7].total_seconds}
    assert set(judge.asked) == {(0.5, 0.79)}, "every test is exact about every target, since a mean must stay there"


def test_without_held_for_a_run_ends_at_the_first_crossing_and_says_nothing_of_holding() -> None:
    chosen = replace(scenario(rounds=60), budget=Budget(targets=(0.5,), rounds=60))
    experiment = Experiment(chosen, with_fields(scheduling_only(chosen), judge=Scripted([0.1, 0.6, 0.2])))
    assert sum(row.node is not None for row in experiment.rounds()) == 2
    assert b"seconds_held" not in msgspec.json.encode(experiment.summary())


@pytest.mark.parametrize("policy", ["load-aware", "variance-first", "express"])
def test_a_run_that_v_keeps_from_training_for_ever_stops_and_says_why(policy: str) -> None:
    chosen = replace(scenario(rounds=100_000), policy=policy, variance_limit=0.0)
    held = np.array([[9, 0], [9, 0]])  # the second label is nobody's, the first alone is in balance
    setting = with_fields(scheduling_only(chosen), held=np.array([[9, 0], [0, 9]]))
    experiment = Experiment(chosen, setting)
    rows = list(experiment.rounds())
    assert len(rows) == 1
    assert rows[0].node is None
    summary = experiment.summary()
    assert summary.status == "stopped"
    assert "every S* is 0 under V = 0" in str(summary.stopped_because)
    again = Experiment(chosen, setting, done=rows)
    assert list(again.rounds()) == []
    assert again.summary() == summary
    free = Experiment(replace(chosen, budget=Budget(rounds=5)), with_fields(setting, held=held))
    assert len(list(free.rounds())) == 5, "where training is possible the run goes on"


@pytest.mark.parametrize("policy", ["time-first", "tram", "random"])
def test_a_tenth_of_next_to_nothing_stops_those_who_take_a_tenth_as_well(policy: str) -> None:
    chosen = replace(scenario(rounds=1000), policy=policy)
    experiment = Experiment(chosen, with_fields(scheduling_only(chosen), held=np.array([[5, 0], [0, 5]])))
    assert len(list(experiment.rounds())) == 1
    assert "less than one sample" in str(experiment.summary().stopped_because)


def test_rows_that_are_not_kept_give_the_same_summary() -> None:
    chosen = scenario(rounds=30)
    kept, lean = (Experiment(chosen, scheduling_only(chosen), keep_rows=keep) for keep in (True, False))
    assert list(kept.rounds()) == list(lean.rounds()) == kept.rows
    assert lean.rows == []
    assert lean.summary() == kept.summary() == summary_of(chosen, kept.rows, kept.setting.cost, finished=True)
