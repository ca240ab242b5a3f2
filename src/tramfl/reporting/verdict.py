"""The outcome in one honest sentence for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tramfl.reporting.colours import in_order
from tramfl.reporting.intervals import half_width
from tramfl.reporting.measures import Target, in_order_of_difficulty, percent
from tramfl.reporting.runs import NOT_ENDED, Run, by_measure, by_scenario, virtual
from tramfl.reporting.summary import TargetTime, rounds_text, seconds, seconds_by_seed, times_to_target


def verdict(runs: Sequence[Run]) -> str:
    """What came out, in one sentence."""
    if not runs:
        return "There is no run to report."
    groups = list(by_scenario(runs).values())
    if len(groups) > 1:
        return _of_scenarios(groups)
    if len(runs) == 1:
        return _of_run(runs[0])
    if not any(run.trained for run in runs):
        return _of_schedules(runs)
    if not any(run.tested for run in runs):
        return f"No model was tested: {_untested(runs)}."
    return " ".join(_of_measure(alike) for alike in by_measure(runs).values())


def _of_measure(runs: Sequence[Run]) -> str:
    """Of runs whose targets are of one metric."""
    times = times_to_target(runs)
    return _of_race(times, runs) if times else f"No target was set; {_closest(runs)}."


def _of_scenarios(groups: Sequence[Sequence[Run]]) -> str:
    wins: dict[str, int] = {}
    decided = 0
    for group in groups:
        times = times_to_target(group)
        top = max((time.aim for time in times if time.wins), key=_difficulty, default=None)
        winners = [time.policy for time in times if time.wins and time.aim == top]
        decided += bool(winners)
        for policy in winners:
            wins[policy] = wins.get(policy, 0) + 1
    if not wins:
        return f"In none of the {len(groups)} scenarios did a policy win the race to a target."
    most = max(wins.values())
    first = [policy for policy in in_order(wins) if wins[policy] == most]
    undecided = f"; {len(groups) - decided} had no winner" if decided < len(groups) else ""
    verb = "is" if len(first) == 1 else "are each"
    hardest = "hardest" if any(run.measure.lower for group in groups for run in group) else "highest"
    return (
        f"{_listed(first)} {verb} fastest to the {hardest} target that was reached with every seed "
        f"in {most} of {len(groups)} scenarios{undecided}."
    )


def _of_run(run: Run) -> str:
    summary = run.summary
    work, of_time = f"{rounds_text(summary.rounds)} and {summary.samples:,} samples", _of_time([run])
    if not run.trained:
        return (
            f"Scheduling only, no model was trained: {run.policy} scheduled {_rate(run):,.0f} samples per second"
            f"{of_time} over {summary.rounds:,} rounds (seed {run.seed})."
        )
    so_far = " so far" if summary.status == NOT_ENDED else ""
    if not run.tested:
        trained = f"{run.policy} trained {seconds(summary.total_seconds)} s{of_time}, {work}{so_far}"
        return f"{trained}; its model was not tested: {_untested([run])} (seed {run.seed})."
    measure, measured = run.measure, run.measured
    last = "" if measured is None else f"; its last test {measure.name} was {measure.value(measured)}"
    reached = {float(key): value for key, value in summary.seconds_to_target.items()}
    targets = measure.easiest_first(reached)
    place = max((n for n, target in enumerate(targets) if reached[target] is not None), default=None)
    missed = targets if place is None else targets[place + 1 :]
    if place is not None:
        top, short = targets[place], f", but did not reach {measure.target(targets[-1])} within {work}{so_far}{last}"
        missing = short if missed else ""
        return f"{run.policy} reaches {_at(Target(measure, top), reached[top], of_time)}{missing} (seed {run.seed})."
    if missed:
        return (
            f"{run.policy} did not reach {measure.target(missed[0])} in {seconds(summary.total_seconds)} s"
            f"{of_time}, {work}{so_far}{last} (seed {run.seed})."
        )
    return (
        f"{run.policy} trained {seconds(summary.total_seconds)} s{of_time}, {work}{so_far}{last} (seed {run.seed})."
    )


def _untested(runs: Sequence[Run]) -> str:
    every = max(run.settings.evaluation.every for run in runs)
    return f"evaluation.every is {every:,}, and no run came so far" if every > 1 else "nothing was trained"


def _of_race(times: Sequence[TargetTime], runs: Sequence[Run]) -> str:
    """The hardest target that a policy reached decides; harder ones that none reached are named."""
    aims, of_time = in_order_of_difficulty(time.aim for time in times)[::-1], _of_time(runs)
    top = next((aim for aim in aims if any(time.reached for time in times if time.aim == aim)), None)
    if top is None:
        return f"Nobody reached {aims[-1]} within the budget; {_closest(runs)}."
    nobody = f"Nobody reached {aims[0]} within the budget; " if top != aims[0] else ""
    entries = sorted(
        (time for time in times if time.aim == top),
        key=lambda t: (not t.always, -t.reached, t.mean or math.inf),
    )
    first = entries[0]
    if len(entries) == 1:
        return f"{nobody}{_alone(first, of_time)}."
    if not first.always:
        start = f"{nobody}no policy" if nobody else "No policy"
        some = f"{first.reached} of {first.seeds} seeds, after {seconds(first.mean or 0.0)} s{of_time} on average"
        return f"{start} reached {top} with every seed; {first.policy} came closest, with {some}."
    winners = [time for time in entries if time.wins]
    if len(winners) > 1:
        tied = _listed([time.policy for time in winners])
        return f"{nobody}{tied} tie: each reaches {_at(top, first.mean, of_time)}{_over_seeds(winners)}."
    return f"{nobody}{first.policy} reaches {_at(top, first.mean, of_time)}, {_lead(entries, runs)}."


def _lead(entries: Sequence[TargetTime], runs: Sequence[Run]) -> str:
    """How far the winner, which comes first, is ahead of the next that always reached the target."""
    first, *others = entries
    rivals = [time for time in others if time.always]
    if not rivals:
        who = f"{others[0].policy} did not" if len(others) == 1 else "which no other policy did"
        if any(time.reached for time in others):
            who += " with every seed"
        return who + _over_seeds([first])
    following = rivals[0]
    ours, theirs = first.mean or 0.0, following.mean or 0.0
    ratio = theirs / ours if ours else math.inf
    sooner = f"{ratio:.1f} times sooner" if ratio >= 1.1 else f"{percent(round(1 - ours / theirs, 3))} sooner"
    clear = first.seeds == 1 or _clear(runs, first, following)
    caveat = "" if clear else ", though on equal seeds the difference is within its 95 % confidence interval"
    which = "the next, " if len(others) > 1 else ""
    return f"{sooner} than {which}{following.policy}{_over_seeds([first, following])}{caveat}"


def _clear(runs: Sequence[Run], first: TargetTime, following: TargetTime) -> bool:
    """Whether the 95 % confidence interval of the difference on equal seeds excludes 0, as far as there is one."""
    ours, theirs = (seconds_by_seed(runs, time.policy, time.target) for time in (first, following))
    apart = [theirs[seed] - ours[seed] for seed in ours.keys() & theirs.keys()]
    interval = half_width(apart)
    return interval is None or math.fsum(apart) / len(apart) > interval


def _alone(time: TargetTime, of_time: str) -> str:
    if time.always:
        spread = f", give or take {seconds(time.interval)} s at 95 % confidence" if time.interval is not None else ""
        return f"{time.policy} reaches {_at(time.aim, time.mean, of_time)}{spread}{_over_seeds([time])}"
    with_some = f"with {time.reached} of {time.seeds} seeds"
    return f"{time.policy} reaches {_at(time.aim, time.mean, of_time)} on average, but only {with_some}"


def _difficulty(aim: Target) -> float:
    """A number that grows with how hard a target of a metric is."""
    return -aim.target if aim.measure.lower else aim.target


def _at(aim: Target, after: float | None, of_time: str) -> str:
    return f"{aim} after {seconds(after or 0.0)} s{of_time}"


def _of_time(runs: Sequence[Run]) -> str:
    return " of virtual time" if virtual(runs) else ""


def _of_schedules(runs: Sequence[Run]) -> str:
    rates = _means(runs, _rate)
    first, *others = sorted(in_order(rates), key=lambda policy: -rates[policy])
    lead = f"{first} schedules {rates[first]:,.0f} samples per second{_of_time(runs)}"
    if others:
        lead += f", {_times_as_many(rates[first], rates[others[0]])} {'the next, ' * (len(others) > 1)}{others[0]}"
    beyond = any(
        run.summary.largest_label_variance > run.settings.variance_limit for run in runs if run.policy == first
    )
    caveat = ", but lets the label variance grow beyond V" if beyond else ""
    return f"Scheduling only, no model was trained: {lead}{_seed_note(runs)}{caveat}."


def _times_as_many(ours: float, theirs: float) -> str:
    if math.isclose(ours, theirs):
        return "as many as"
    return f"{ours / theirs:.1f} times as many as" if theirs else "more than"


def _closest(runs: Sequence[Run]) -> str:
    """Who ended with the best value of the metric, and after how long; the runs have the same metric."""
    measure, measured = runs[0].measure, [run for run in runs if run.measured is not None]
    if not measured:
        return f"no test {measure.name} was measured"
    values = _means(measured, lambda run: run.measured or 0.0)
    lasted = _means(measured, lambda run: run.summary.total_seconds)
    best = next(policy for policy in in_order(values) if values[policy] == measure.best(values.values()))
    which = f"the best, {best}, ended" if len(values) > 1 else f"{best} ended"
    after = f"after {seconds(lasted[best])} s{_of_time(measured)}"
    reached = measure.value(values[best]) if measure.is_accuracy else measure.brief(values[best])
    return f"{which} at {reached} {after}{_seed_note(measured)}"


def _means(runs: Sequence[Run], figure: Callable[[Run], float]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for run in runs:
        values.setdefault(run.policy, []).append(figure(run))
    return {policy: math.fsum(found) / len(found) for policy, found in values.items()}


def _rate(run: Run) -> float:
    return run.summary.samples / run.summary.total_seconds if run.summary.total_seconds else 0.0


def _over_seeds(times: Sequence[TargetTime]) -> str:
    return _counted({time.seeds for time in times})


def _seed_note(runs: Sequence[Run]) -> str:
    return _counted({sum(run.policy == policy for run in runs) for policy in {run.policy for run in runs}})


def _counted(counts: set[int]) -> str:
    if counts == {1}:
        return " (one seed)"
    if len(counts) == 1:
        return f" (mean of {counts.pop()} seeds)"
    return f" (means of {min(counts)} to {max(counts)} seeds)"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
