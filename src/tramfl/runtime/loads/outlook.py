"""What a site says of its loads beyond the coming round, computed from its meters' history.

The simulation computes it with the same code (`scheduling.predictors.Behaviour`), from the loads of its slots. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tramfl.notation import Habit, Outlook
from tramfl.runtime.loads.compute import ComputeMeter
from tramfl.runtime.loads.links import LinkMeter
from tramfl.scheduling.predictors import behaviour_of


def outlook_of(compute: ComputeMeter, links: LinkMeter, sites: Sequence[str], me: int) -> Outlook | None:
    """The outlook of site `me` of `sites`; None before the second reading of its machine.

    A step is the usual time between two readings. A link is observed when a model crosses it, which is less often,
    so its persistence is converted to one step.
    """
    step = compute.pace.seconds
    if step is None:
        return None
    past = [links.past(site) for site in sites]
    behaviour = behaviour_of([list(compute.rates), *(list(values) for values, _, _ in past)])
    own, *others = behaviour.habits([compute.expected(), *(rate for _, rate, _ in past)])
    if own is None:
        return None
    known = [
        _in_steps(habit, step, every) if habit is not None and number != me else None
        for number, (habit, (_, _, every)) in enumerate(zip(others, past, strict=True))
    ]
    return Outlook(own, tuple(known), step)


def _in_steps(habit: Habit, step: float, every: float | None) -> Habit:
    """A habit whose persistence is that over one step, where observations are `every` seconds apart."""
    return habit if every is None else replace(habit, persistence=habit.persistence ** (step / every))
