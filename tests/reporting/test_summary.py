from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from scipy.special import stdtrit

from tramfl.config import Evaluation
from tramfl.record import SUMMARY_FILE, Summary
from tramfl.reporting import (
    Run,
    as_data,
    as_table,
    differences,
    differences_table,
    load_run,
    times_to_target,
    verdict,
)
from tramfl.reporting.intervals import t_quantile
from tramfl.reporting.measures import percent
from tramfl.reporting.summary import seconds

MakeRun = Callable[..., Path]
MakeRace = Callable[..., list[Run]]


@pytest.fixture
def race(make_run: MakeRun) -> MakeRace:
    """Runs whose times to 90 % are given outright: `race(random=[3.0, None])` is two seeds, one of which failed."""

    def make(target: str = "0.9", scenario: str = "digits-5-uneven", **times: list[float | None]) -> list[Run]:
        runs = []
        for policy, found in times.items():
            for seed, value in enumerate(found):
                name = policy.replace("_", "-")
                folder = make_run(f"{scenario}-{policy}-{seed}", policy=name, seed=seed, rounds=2, scenario=scenario)
                path = folder / SUMMARY_FILE
                summary = msgspec.json.decode(path.read_bytes(), type=Summary)
                changed = msgspec.structs.replace(
                    summary, seconds_to_target={target: value}, test_accuracy=0.5, total_seconds=100.0
                )
                path.write_bytes(msgspec.json.encode(changed))
                runs.append(load_run(folder))
        return runs

    return make


def test_mean_deviation_and_confidence_interval_are_over_the_seeds(race: MakeRace) -> None:
    (time,) = times_to_target(race(random=[2.0, 4.0, 6.0]))
    assert (time.mean, time.spread, time.reached, time.seeds) == (4.0, 2.0, 3, 3)
    assert time.interval == pytest.approx(stdtrit(2, 0.975) * 2.0 / math.sqrt(3), rel=1e-6)


@pytest.mark.parametrize("freedom", [*range(1, 40), 100, 1000])
def test_the_quantile_is_students(freedom: int) -> None:
    assert t_quantile(freedom) == pytest.approx(stdtrit(freedom, 0.975), rel=1e-5)


def test_differences_are_between_equal_seeds_alone(race: MakeRace) -> None:
    runs = race(load_aware=[1.0, 10.0, 5.0, None], random=[3.0, 13.0, None, 7.0])
    (found,) = differences(runs)
    assert (found.policy, found.reference, found.seeds) == ("random", "load-aware", 2)
    assert found.mean == 2.5
    assert found.interval == pytest.approx(stdtrit(1, 0.975) * 0.5, rel=1e-6)
    assert not found.clear, "12.7 times half a second is more than two and a half"
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(differences_table([found]))
    assert "+2.50 ± 6.35 (2 seeds)" in console.export_text()


def test_a_constant_difference_between_jagged_times_is_clear(race: MakeRace) -> None:
    """Unpaired, the spreads of these times would hide it."""
    runs = race(load_aware=[1.0, 10.0, 5.0], random=[2.0, 11.1, 6.0])
    assert differences(runs)[0].clear
    assert "confidence interval" not in verdict(runs)


def test_the_lowest_mean_wins(race: MakeRace) -> None:
    times = times_to_target(race(load_aware=[2.0, 4.0], random=[5.0, 6.0]))
    assert [(time.policy, time.wins) for time in times] == [("load-aware", True), ("random", False)]


def test_a_policy_that_failed_with_one_seed_never_wins_over_one_that_never_failed(race: MakeRace) -> None:
    times = {time.policy: time for time in times_to_target(race(load_aware=[1.0, None], random=[50.0, 60.0]))}
    assert times["random"].wins
    assert not times["load-aware"].wins
    assert times["load-aware"].mean == 1.0


def test_nobody_wins_where_no_policy_reached_it_with_every_seed(race: MakeRace) -> None:
    assert not any(time.wins for time in times_to_target(race(load_aware=[1.0, None], random=[None, None])))


def test_a_policy_alone_wins_nothing(race: MakeRace) -> None:
    assert not times_to_target(race(random=[1.0]))[0].wins


def test_the_same_target_written_in_two_ways_is_one_target(race: MakeRace) -> None:
    runs = race(random=[1.0]) + race(target="0.90", load_aware=[2.0])
    assert len({time.target for time in times_to_target(runs)}) == 1


def test_the_table_is_fit_for_json_and_for_a_terminal(race: MakeRace) -> None:
    times = times_to_target(race(load_aware=[12.0, 14.0], random=[None, None], time_first=[20.0, None]))
    assert json.loads(json.dumps(as_data(times)))[0]["mean"] == 13.0
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(as_table(times))
    text = console.export_text()
    assert "★ 13.0 ± 12.7" in text
    assert "--" in text
    assert "20.0 (1 of 2)" in text


def test_a_policy_name_is_no_markup_in_the_terminal(race: MakeRace) -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(as_table(times_to_target(race(**{"[bold]x[/nope]": [1.0]}))))
    assert "[bold]x[/nope]" in console.export_text()


def test_the_verdict_names_winner_time_lead_and_seeds(race: MakeRace) -> None:
    runs = race(load_aware=[12.0, 12.6], time_first=[38.0, 38.26], random=[90.0, 91.0])
    assert verdict(runs) == (
        "load-aware reaches 90 % after 12.3 s of virtual time, 3.1 times sooner than the next, "
        "time-first (mean of 2 seeds)."
    )


@pytest.mark.parametrize(
    ("times", "sentence"),
    [
        (
            {"load_aware": [1.0, 9.0], "random": [5.5, 5.5]},
            "load-aware reaches 90 % after 5.00 s of virtual time, 1.1 times sooner than random (mean of 2 seeds), "
            "though on equal seeds the difference is within its 95 % confidence interval.",
        ),
        (
            {"load_aware": [5.0], "random": [5.2]},
            "load-aware reaches 90 % after 5.00 s of virtual time, 3.8 % sooner than random (one seed).",
        ),
        (
            {"load_aware": [5.0], "random": [5.0]},
            "load-aware and random tie: each reaches 90 % after 5.00 s of virtual time (one seed).",
        ),
        (
            {"load_aware": [5.0, 5.0], "random": [None, 7.0], "tram": [None, None]},
            "load-aware reaches 90 % after 5.00 s of virtual time, which no other policy did with every seed "
            "(mean of 2 seeds).",
        ),
        (
            {"load_aware": [None, 5.0], "random": [None, None]},
            "No policy reached 90 % with every seed; load-aware came closest, with 1 of 2 seeds, "
            "after 5.00 s of virtual time on average.",
        ),
        (
            {"load_aware": [None], "random": [None]},
            "Nobody reached 90 % within the budget; the best, load-aware, ended at 50.0 % "
            "after 100.0 s of virtual time (one seed).",
        ),
        (
            {"load_aware": [4.0, 6.0]},
            "load-aware reaches 90 % after 5.00 s of virtual time, give or take 12.7 s at 95 % confidence "
            "(mean of 2 seeds).",
        ),
        (
            {"load_aware": [4.0, None]},
            "load-aware reaches 90 % after 4.00 s of virtual time on average, but only with 1 of 2 seeds.",
        ),
        (
            {"load_aware": [2.0, 2.0], "random": [8.0]},
            "load-aware reaches 90 % after 2.00 s of virtual time, 4.0 times sooner than random "
            "(means of 1 to 2 seeds).",
        ),
        ({"load_aware": [2.0]}, "load-aware reaches 90 % after 2.00 s of virtual time (seed 0)."),
    ],
)
def test_the_verdict_is_honest(race: MakeRace, times: dict[str, list[float | None]], sentence: str) -> None:
    assert verdict(race(**times)) == sentence


def test_one_run_that_failed_says_how_far_it_came(race: MakeRace) -> None:
    sentence = verdict(race(random=[None]))
    assert sentence.startswith("random did not reach 90 % in 100.0 s of virtual time, 2 rounds and")
    assert "its last test accuracy was 50.0 %" in sentence


def test_a_higher_target_that_nobody_reached_is_not_passed_over(race: MakeRace) -> None:
    runs = race(load_aware=[2.0], random=[4.0])
    higher = [
        Run(r.folder, r.settings, r.resolved, r.rows, msgspec.structs.replace(
            r.summary, seconds_to_target=r.summary.seconds_to_target | {"0.99": None}))
        for r in runs
    ]  # fmt: skip
    assert verdict(higher).startswith("Nobody reached 99 % within the budget; load-aware reaches 90 % after 2.00 s")


def test_several_scenarios_count_their_winners(race: MakeRace) -> None:
    runs = race(load_aware=[2.0], random=[4.0]) + race(scenario="b", load_aware=[None], random=[None])
    assert verdict(runs) == (
        "load-aware is fastest to the highest target that was reached with every seed in 1 of 2 scenarios; "
        "1 had no winner."
    )


def test_a_run_of_the_scheduler_alone_is_judged_by_samples_per_second(make_run: MakeRun) -> None:
    runs = [load_run(make_run(p, policy=p, training=False, targets=())) for p in ("load-aware", "time-first")]
    assert verdict(runs).startswith("Scheduling only, no model was trained: time-first schedules ")
    assert "samples per second of virtual time" in verdict(runs[:1])


def test_runs_that_trained_but_were_never_tested_are_not_said_to_be_schedules(make_run: MakeRun) -> None:
    options = {"training": False, "resolved": {"trained": True}, "evaluation": Evaluation(every=100), "rounds": 20}
    runs = [load_run(make_run(p, policy=p, **options)) for p in ("load-aware", "random")]
    assert verdict(runs) == "No model was tested: evaluation.every is 100, and no run came so far."
    assert times_to_target(runs) == []
    alone = verdict(runs[:1])
    assert alone.startswith("load-aware trained ")
    assert "its model was not tested: evaluation.every is 100, and no run came so far (seed 0)." in alone


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.00"),
        (0.00033, "0.00033"),
        (0.0512, "0.0512"),
        (0.1, "0.10"),
        (5.0, "5.00"),
        (12.34, "12.3"),
        (1234.5, "1,234"),
    ],
)
def test_seconds_have_about_three_digits_that_count(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(("share", "text"), [(0.895, "89.5 %"), (0.904, "90.4 %"), (0.7, "70 %"), (1.0, "100 %")])
def test_a_target_is_written_as_it_was_set(share: float, text: str) -> None:
    assert percent(share) == text


def test_runs_without_targets_are_judged_by_their_last_accuracy(make_run: MakeRun) -> None:
    runs = [load_run(make_run(p, policy=p, targets=())) for p in ("load-aware", "random")]
    assert verdict(runs).startswith("No target was set; the best, ")


def test_no_run_has_no_verdict() -> None:
    assert verdict([]) == "There is no run to report."
