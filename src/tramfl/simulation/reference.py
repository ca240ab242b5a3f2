"""Targets of our own: in proportion to what training on IID data reaches, as the paper's are to its own start.

One run on IID data sets them, before any policy is looked at. The paper starts from ImageNet's weights; other weights
reach other accuracies, and with them the paper's targets may be out of reach, or none at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from tramfl.config import Budget, Partition, Scenario
from tramfl.record import RunFolder
from tramfl.simulation.play import Request

IMAGENET_ACCURACY = 0.93
"""What a ResNet-18 pre-trained on ImageNet is commonly said to reach on CIFAR-10; a reference point, not measured."""
REFERENCE_SAMPLES = 10_000
"""Samples of the run: the same for scenarios of any length, so that the targets stay."""
LAST_TESTS = 5
"""The run reached the mean of this many tests at its end."""


def iid_reference(like: Scenario) -> Scenario:
    """The run that sets targets for scenarios of the same data set and training."""
    return replace(
        like,
        name=f"{like.dataset}-iid",
        policy="time-first",
        partition=Partition(layout="iid", nodes=10),
        budget=Budget(samples=REFERENCE_SAMPLES, seconds=like.budget.seconds),
    )


def reference_run(template: Request, like: Scenario, out: Path) -> tuple[Request, RunFolder]:
    """The run that sets targets, and its folder below `out`; on one core, as its last digits depend on how many."""
    reference = iid_reference(like)
    folder = out / "reference" / reference.name
    return replace(template, scenario=reference, out=folder, threads=1), RunFolder(folder)


def own_targets(reference: RunFolder, papers: Sequence[float]) -> tuple[float, ...]:
    """The paper's targets, in proportion to what the reference run reached."""
    measured = [row.test_accuracy for row in reference.rows() if row.test_accuracy is not None][-LAST_TESTS:]
    reached = sum(measured) / len(measured)
    return tuple(round(reached * target / IMAGENET_ACCURACY, 2) for target in papers)


def with_targets(scenario: Scenario, more: Sequence[float]) -> Scenario:
    """The scenario with further targets."""
    targets = tuple(sorted({*scenario.budget.targets, *more}))
    return replace(scenario, budget=replace(scenario.budget, targets=targets))
