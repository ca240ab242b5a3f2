"""How fast a simulated run trains, beside a bare PyTorch loop: `python benchmarks/training.py [--quick]`.

The loop gets the same network with the same first weights, the same samples in the same batches, as tensors that are
ready to be used, and torch.optim.SGD; the run has everything a run has (scheduler, round machine, drawing of samples,
keeping of weights, rows) but no evaluation. Both use one thread, take turns, and the best of their repeats counts;
seconds are those of the processor, for neither ever waits and other work on the machine must not count.
Goal: at least 95 % of the loop's samples per second.

MNIST's network trains on made-up images of MNIST's size, so no file is needed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional

from tramfl.config import Budget, Scenario
from tramfl.learning import trainer
from tramfl.learning.datasets import Dataset, load_dataset
from tramfl.learning.learner import Learner, build_learner
from tramfl.learning.networks import build_network
from tramfl.simulation.experiment import Experiment, Setting
from tramfl.simulation.scenarios import scenario_named

GOAL = 0.95


@dataclass(frozen=True)
class Case:
    """A run to time."""

    name: str
    scenario: Scenario
    data: Dataset


def made_up_mnist(train: int = 6000, test: int = 500) -> Dataset:
    """Noise of MNIST's shape: what an image shows makes no difference to the time it takes."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (train + test, 28, 28), dtype=np.uint8)
    labels = np.arange(train + test) % 10
    return Dataset.from_arrays("mnist", images[:train], labels[:train], images[train:], labels[train:])


def cases(quick: bool) -> list[Case]:
    digits, mnist = scenario_named("digits-5-uneven"), scenario_named("mnist-5-uneven")
    mnist = replace(mnist, variance_limit=100.0)  # a tenth of the images: rounds of some hundred samples still
    return [
        Case("digits, digits-mlp", _limited(digits, 6_000 if quick else 30_000), load_dataset("digits", Path())),
        Case("made-up MNIST, mnist-cnn", _limited(mnist, 600 if quick else 3_000), made_up_mnist()),
    ]


def _limited(scenario: Scenario, samples: int) -> Scenario:
    return replace(scenario, budget=Budget(samples=samples))


def run_seconds(scenario: Scenario, learner: Learner) -> tuple[float, Experiment]:
    """A whole run without evaluation: no judge."""
    setting = Setting(learner.held, learner.cost, tuple(learner.classes), learner, None, learner.initial())
    begin = time.process_time()
    experiment = Experiment(scenario, setting)
    for _ in experiment.rounds():
        pass
    return time.process_time() - begin, experiment


def recorded_batches(scenario: Scenario, data: Dataset) -> list[tuple[Tensor, Tensor]]:
    """The very batches a run trains on, in order, each a tensor of its own."""
    batches: list[tuple[Tensor, Tensor]] = []
    original = trainer.Samples.batches

    def recording(self: trainer.Samples, order: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in original(self, order, batch_size):
            batches.append((images.clone(), labels.clone()))
            yield images, labels

    trainer.Samples.batches = recording  # type: ignore[method-assign]
    try:
        run_seconds(scenario, build_learner(scenario, dataset=data))
    finally:
        trainer.Samples.batches = original  # type: ignore[method-assign]
    return batches


def loop_seconds(scenario: Scenario, batches: list[tuple[Tensor, Tensor]], network: nn.Module) -> float:
    """The bare loop, as a PyTorch tutorial has it."""
    training = scenario.training
    network.train()
    begin = time.process_time()
    optimiser = torch.optim.SGD(network.parameters(), lr=training.learning_rate, momentum=training.momentum)
    for images, labels in batches:
        optimiser.zero_grad()
        functional.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return time.process_time() - begin


def new_network(case: Case) -> nn.Module:
    """The network of a case."""
    name, classes = case.scenario.training.network, len(case.data.classes)
    return build_network(name, classes=classes, input_shape=case.data.input_shape, weights=None, seed=0)


def measure(case: Case, repeats: int) -> tuple[int, int, float, float]:
    """Samples and rounds of the run, and the best seconds of run and loop."""
    batches = recorded_batches(case.scenario, case.data)
    samples = sum(len(labels) for _, labels in batches)
    run, loop, rounds = float("inf"), float("inf"), 0
    for _ in range(repeats):
        loop = min(loop, loop_seconds(case.scenario, batches, new_network(case)))
        seconds, experiment = run_seconds(case.scenario, build_learner(case.scenario, dataset=case.data))
        run, rounds = min(run, seconds), len(experiment.rows)
        assert sum(experiment.rows[-1].used) == samples
    return samples, rounds, run, loop


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer samples and repeats")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print("samples per second of a whole simulated run, evaluation aside, and of a bare PyTorch loop; one thread\n")
    print(f"{'case':26}{'samples':>9}{'rounds':>8}{'run':>10}{'bare loop':>11}{'ratio':>8}")
    ratios = []
    for case in cases(quick):
        samples, rounds, run, loop = measure(case, 3 if quick else 9)
        ratios.append(loop / run)
        print(f"{case.name:26}{samples:9,}{rounds:8,}{samples / run:10,.0f}{samples / loop:11,.0f}{loop / run:8.1%}")
    met = min(ratios) >= GOAL
    print(f"\ngoal: at least {GOAL:.0%} of the bare loop in every case: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
