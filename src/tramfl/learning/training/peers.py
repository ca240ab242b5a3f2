"""The models of all nodes, where every node keeps one: trained, added up, distilled, scored, saved.

What is to be computed arrives as work (`exchange.work`) with names for what it makes. Trainings that do not wait for
each other may run in processes of their own (`crew`); the result is the same.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tramfl.config import ACCURACY, ExchangeSettings, Scenario
from tramfl.draws import generator, whole_seed
from tramfl.exchange.work import Combining, Distilling, LocalTraining, Predicting, Work
from tramfl.learning.app import App
from tramfl.learning.chance import Purpose
from tramfl.learning.data.own import AnyData
from tramfl.learning.data.partition import NodeShare
from tramfl.learning.model.networks import outputs_in_parts, outputs_of
from tramfl.learning.model.weights import about as about_file
from tramfl.learning.model.weights import from_bytes, in_pieces, to_bytes
from tramfl.learning.seeding import drawing_from
from tramfl.learning.training.crew import Crew
from tramfl.learning.training.descent import descent_of
from tramfl.learning.training.learner import Learner, TestScores
from tramfl.learning.training.samples import Samples, training_samples
from tramfl.learning.training.trainer import hold_statistics
from tramfl.notation import BadInput, Digest

_VALUES = "values"
"""In the metadata of saved values: which of them are soft outputs."""
_BATCH = 500
"""Shared samples of one forward pass."""


@dataclass(frozen=True, eq=False)
class _Value:
    """A model: what of it would travel. Or soft outputs: one tensor."""

    tensors: list[Tensor]
    is_output: bool = False


class PeerLearner(Learner):
    """Computes, keeps and scores the models of all nodes."""

    def __init__(
        self,
        scenario: Scenario,
        data: AnyData,
        network: nn.Module,
        shares: Sequence[NodeShare] | None = None,
        app: App | None = None,
    ) -> None:
        super().__init__(scenario, data, network, shares, app)
        if scenario.training.carries_optimizer:
            raise BadInput(
                f"training.carry_optimizer is for a model that travels; with {scenario.method_name} every node keeps"
                " a model."
            )
        self.outputs: int = data.outputs
        """How many numbers a model gives for a sample."""
        self._exchange = scenario.exchange or ExchangeSettings()
        trained = {name for name, weight in self._network.named_parameters() if weight.requires_grad}
        self._is_weight = [name in trained for name in self._names]
        self._values = {self._initial: _Value([tensor.clone() for tensor in self._tensors])}
        self._metric, self._lower = scenario.budget.metric, scenario.budget.lower_is_better
        self._shared: tuple[Samples, Tensor] | None = None
        self.crew: Crew | None = None
        """Processes that train, where the run has some."""

    # What a run asks for.

    def do(self, work: Sequence[Work]) -> bool:
        """Compute what is asked for; whether the loss of a training was not a finite number."""
        diverged, trainings = False, list[LocalTraining]()
        for item in work:
            if any(digest not in self._values for digest in item.needs):
                diverged |= self._train_all(trainings)
                trainings = []
            if isinstance(item, LocalTraining):
                trainings.append(item)
            else:
                self._compute(item)
        return self._train_all(trainings) or diverged

    def close(self) -> None:
        """End the processes that train, if there are any."""
        if self.crew is not None:
            self.crew.close()

    def _train_all(self, items: Sequence[LocalTraining]) -> bool:
        """Train models that do not wait for each other; whether a loss was not a finite number."""
        tasks = [(item, self._values[item.parent].tensors, self._anchor(item)) for item in items]
        if self.crew is not None and len(tasks) > 1:
            found = self.crew.train(tasks)
        else:
            found = [self.trained(*task) for task in tasks]
        diverged = False
        for item, (value, loss) in zip(items, found, strict=True):
            self._values[item.child] = _Value(value)
            if not math.isfinite(loss):
                self._warn_of_divergence(loss, item.node, item.round)
                diverged = True
        return diverged

    def _compute(self, item: Combining | Predicting | Distilling) -> None:
        match item:
            case Combining():
                self._values[item.child] = self._combined(item)
            case Predicting():
                self._values[item.child] = _Value([self._predicted(item.parent)], is_output=True)
            case Distilling():
                self._values[item.child] = _Value(self._distilled(item))

    def discard(self, digest: Digest) -> None:
        """Nobody needs this value any longer."""
        if digest != self._initial:
            self._values.pop(digest, None)

    def score(self, models: Sequence[tuple[Digest, int]], targets: Sequence[float]) -> list[TestScores]:
        """Scores of models, each with the loss on what a node keeps aside; all on as many test samples.

        The subset comes first. Where the models' mean, or the last of them, may be at an open target, all of them are
        tested on all test samples.
        """
        found = [self._score(digest, node, ()) for digest, node in models]
        if targets and self._near(found, targets):
            everything = (math.inf,) if self._lower else (-math.inf,)
            found = [self._score(digest, node, everything) for digest, node in models]
        return found

    def saved(self, digests: Sequence[Digest], about: Mapping[str, str]) -> list[bytes | memoryview]:
        """Values as safetensors: every tensor under the name of its value, a stroke, and its own.

        In pieces without a copy, since this is the memory of all nodes: a dual for each of 90 links, say.
        """
        state: dict[str, Tensor] = {}
        for digest in digests:
            value = self._values[digest]
            names = ("outputs",) if value.is_output else self._names
            state.update({f"{digest}|{name}": t for name, t in zip(names, value.tensors, strict=True)})
        outputs = [digest for digest in digests if self._values[digest].is_output]
        return in_pieces(state, {**about, _VALUES: json.dumps(outputs)})

    def restore_values(self, content: bytes) -> None:
        """Take up the values that `saved` gave."""
        state = from_bytes(content, "the saved models")
        outputs = set(json.loads(about_file(content).get(_VALUES, "[]")))
        found: dict[Digest, dict[str, Tensor]] = {}
        for key, tensor in state.items():
            digest, _, name = key.rpartition("|")
            found.setdefault(digest, {})[name] = tensor
        device = self._tensors[0].device
        for digest, tensors in found.items():
            names = ("outputs",) if digest in outputs else self._names
            if set(tensors) != set(names):
                raise BadInput("the saved models: they are not of this network.")
            self._values[digest] = _Value([tensors[name].to(device) for name in names], digest in outputs)

    def delivered(self, digest: Digest, about: Mapping[str, str] | None = None) -> bytes:
        """A model as safetensors."""
        return to_bytes(dict(zip(self._names, self._values[digest].tensors, strict=True)), self._metadata(about))

    def module(self, digest: Digest) -> nn.Module:
        """A copy of the network with a model's weights."""
        self._put(self._values[digest].tensors)
        return copy.deepcopy(self._network).cpu().eval()

    # How it is computed.

    def trained(
        self, item: LocalTraining, parent: Sequence[Tensor], anchor: Sequence[Tensor] | None
    ) -> tuple[list[Tensor], float]:
        """The model after a training, and its loss: a function of the arguments and the seed alone."""
        self._put(parent)
        pulled = [t for t, is_weight in zip(self._tensors, self._is_weight, strict=True) if is_weight]
        towards = [t for t, is_weight in zip(anchor or (), self._is_weight, strict=False) if is_weight]

        def pull() -> None:
            with torch.no_grad():
                for weight, aim in zip(pulled, towards, strict=True):
                    weight.lerp_(aim, item.share)

        result = self._nodes[item.node].train(
            self._network,
            item.samples,
            round=item.round,
            drawn=item.drawn,
            used=item.used,
            after_step=pull if towards and item.share else None,
        )
        return [tensor.clone() for tensor in self._tensors], result.loss

    def _anchor(self, item: LocalTraining) -> list[Tensor] | None:
        return None if item.anchor is None else self._values[item.anchor].tensors

    def _combined(self, item: Combining) -> _Value:
        """The sum of factor * value.

        Weights are added up whatever the factors. Buffers, such as the statistics of batch norm, are averaged where
        the factors make an average, and are the first value's otherwise: a variance must not come out below 0.
        Whole numbers are the first value's.
        """
        values, factors = [self._values[digest] for digest in item.values], item.factors
        first = values[0]
        average = all(factor >= 0 for factor in factors) and math.isclose(math.fsum(factors), 1.0, rel_tol=1e-9)
        found: list[Tensor] = []
        for place, tensor in enumerate(first.tensors):
            adds = tensor.is_floating_point() and (first.is_output or self._is_weight[place] or average)
            if not adds:
                found.append(tensor)
                continue
            total = tensor * factors[0]
            for value, factor in zip(values[1:], factors[1:], strict=True):
                total.add_(value.tensors[place], alpha=factor)
            found.append(total)
        return _Value(found, first.is_output)

    def _predicted(self, digest: Digest) -> Tensor:
        """softmax f(x) for every shared sample, in their order."""
        samples, chosen = self._need_shared()
        self._put(self._values[digest].tensors)
        self._network.eval()
        with torch.inference_mode():
            batches = samples.batches(chosen, _BATCH)
            found = [outputs_in_parts(self._network, inputs).softmax(1) for inputs, _ in batches]
        return torch.cat(found).clone()

    def _distilled(self, item: Distilling) -> list[Tensor]:
        """The model after some passes over the shared samples, down the gradient of KL(h || p)."""
        samples, chosen = self._need_shared()
        wanted = self._values[item.towards].tensors[0]
        self._put(self._values[item.parent].tensors)
        training, network = self._training, self._network
        descent = descent_of(network, training, self._task)
        network.train()
        rng = generator(self._seed, Purpose.DISTIL, item.round, item.node)
        with drawing_from(
            whole_seed(self._seed, Purpose.DISTIL, item.round, item.node),
            samples.device,
            everywhere=self._task.has_code,
        ):
            hold_statistics(network, everywhere=training.batch_norm == "frozen-statistics")
            for _ in range(item.passes):
                order = torch.from_numpy(rng.permutation(len(chosen))).to(samples.device)
                for place, (inputs, _) in enumerate(samples.batches(chosen[order], training.batch_size)):
                    part = order[place * training.batch_size : (place + 1) * training.batch_size]
                    log_p = functional.log_softmax(outputs_of(network, inputs), dim=1)
                    descent.step(functional.kl_div(log_p, wanted[part], reduction="batchmean"))
        return [tensor.clone() for tensor in self._tensors]

    def _need_shared(self) -> tuple[Samples, Tensor]:
        assert self._shared is not None, "only rules that share samples predict and distil"
        return self._shared

    def share(self, other: AnyData | None) -> None:
        """Draw the inputs that all nodes see, without labels: of other data, or of what the nodes keep aside."""
        wanted, source = self._exchange.shared_samples, self._exchange.shared
        if not self._task.classifies:
            raise BadInput("exchange.rule = 'cmfd' distils outputs of classes; the app has a loss of its own.")
        if other is None:
            kept = [chosen for samples, chosen in self._validation if samples is self._samples and len(chosen)]
            if not kept:
                raise BadInput("exchange.shared = 'held-back' needs partition.validation_share above 0.")
            pool = np.sort(np.concatenate([chosen.cpu().numpy() for chosen in kept]))
            samples = self._samples
        else:
            samples = training_samples(other, self._training.image_size, self._samples.device, 0)
            pool = np.arange(len(samples))
            shape = tuple(next(iter(samples.batches(torch.arange(1), 1)))[0].shape)
            ours = tuple(next(iter(self._samples.batches(torch.arange(1), 1)))[0].shape)
            if shape != ours:
                raise BadInput(f"exchange.shared = {source!r} has inputs of {shape[1:]}, and the run has {ours[1:]}.")
        if len(pool) < wanted:
            raise BadInput(f"exchange.shared_samples = {wanted}: {source} has {len(pool)}; ask for as many at most.")
        chosen = generator(self._seed, Purpose.SHARED).permutation(pool)[:wanted]
        self._shared = samples, torch.from_numpy(chosen).to(samples.device)

    def _put(self, tensors: Sequence[Tensor]) -> None:
        """Load a model into the network."""
        self._loaded = None
        with torch.no_grad():
            for own, value in zip(self._tensors, tensors, strict=True):
                own.copy_(value)

    def _score(self, digest: Digest, node: int, targets: Sequence[float]) -> TestScores:
        self._put(self._values[digest].tensors)
        return self._scores(node, targets)

    def _near(self, found: Sequence[TestScores], targets: Sequence[float]) -> bool:
        """Whether the models' mean, or the last of them, may be at a target: within two standard errors."""
        known = [each.test_accuracy for each in found if each.test_accuracy is not None]
        if not known or self._metric != ACCURACY:
            return True
        best = max(math.fsum(known) / len(known), known[-1])
        aim = min(targets)
        return best + 2 * math.sqrt(max(aim * (1 - aim), 0.01) / self._evaluator.subset) >= aim
