"""What the nodes of a simulated run train and test on: each one's trainer and kept samples, and the evaluator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from tramfl.config import ACCURACY, LOSS, Scenario
from tramfl.draws import generator
from tramfl.learning.app import App
from tramfl.learning.chance import Purpose
from tramfl.learning.data.own import AnyData
from tramfl.learning.data.partition import NodeShare, divide
from tramfl.learning.training.evaluation import Aim, Evaluator
from tramfl.learning.training.metrics import metrics_of
from tramfl.learning.training.pools import LabelPools
from tramfl.learning.training.samples import Samples, samples_of, test_samples
from tramfl.learning.training.task import Task
from tramfl.learning.training.trainer import NodeTrainer
from tramfl.notation import Counts, NodeId


def node_trainers(
    scenario: Scenario, data: AnyData, samples: Samples, task: Task, shares: Sequence[NodeShare] | None
) -> tuple[list[NodeTrainer], list[tuple[Samples, Tensor]]]:
    """Each node's trainer, and the samples that its local loss is measured on.

    `samples` are all training samples of the data; `shares` say which node has which of them, where the scenario's
    partition does not.
    """
    if shares is None:
        partition = scenario.partition
        if data.validation is not None:
            partition = replace(partition, validation_share=0.0)
        rng = generator(scenario.seed, Purpose.DIVIDE)
        shares = divide(data.strata, partition, rng, data.node_of_sample)
    trainers = [_trainer(scenario, data, samples, task, node, share) for node, share in enumerate(shares)]
    if data.validation is not None:
        common = samples_of(data.validation, samples.device, scenario.training.workers)
        order = _some(np.arange(len(common)), scenario, samples)
        return trainers, [(common, order)] * len(trainers)
    return trainers, [(samples, _some(share.validation, scenario, samples)) for share in shares]


def evaluator_of(scenario: Scenario, data: AnyData, samples: Samples, task: Task, app: App | None) -> Evaluator:
    """What tests a model with the metrics that the scenario asks for."""
    training, evaluation, budget = scenario.training, scenario.evaluation, scenario.budget
    wanted = dict.fromkeys(evaluation.metrics)
    if budget.metric not in (ACCURACY, LOSS):
        wanted.setdefault(budget.metric)
    test, chosen = test_samples(data, training.image_size, samples.device, training.workers, evaluation.test_samples)
    return Evaluator(
        test,
        subset=evaluation.subset,
        task=task,
        metrics=metrics_of(wanted, app.metrics if app is not None else None),
        aim=Aim(budget.metric, "lower" if budget.lower_is_better else "higher"),
        chosen=chosen,
    )


def _trainer(
    scenario: Scenario, data: AnyData, samples: Samples, task: Task, node: NodeId, share: NodeShare
) -> NodeTrainer:
    strata = data.strata[share.train]
    pools = [share.train[strata == label] for label in range(len(data.strata_names))]
    ordered = LabelPools(pools, seed=scenario.seed, node=node)
    return NodeTrainer(samples, ordered, scenario.training, seed=scenario.seed, node=node, task=task)


def _some(indices: Counts, scenario: Scenario, samples: Samples) -> Tensor:
    order = generator(0, Purpose.TEST_ORDER).permutation(indices)
    return torch.from_numpy(order[: scenario.evaluation.subset]).to(samples.device)
