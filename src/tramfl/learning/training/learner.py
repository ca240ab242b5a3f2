"""All nodes of a simulated run in one process: one network, its weights by name, one trainer per node.

Weights stay in memory under a name that says how they came about: the hash of the parent's name, round, node and
samples. Training is a function of just these, so the name is as good as a hash of the bytes, and hashing those would
cost 4 % of a digits round. SHA-256 of the bytes themselves is for weights that leave (`weights.digest`).

Only what training changes is kept, saved and sent (`model.travelling`); the rest of the network stays where it is.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from tramfl.config import Scenario
from tramfl.draws import whole_seed
from tramfl.learning.app import App
from tramfl.learning.chance import Purpose
from tramfl.learning.data.own import AnyData
from tramfl.learning.data.partition import NodeShare
from tramfl.learning.model.coded_files import CODEC, REFERENCE
from tramfl.learning.model.cost import flops_per_sample
from tramfl.learning.model.travelling import digest_of_rest, travelling_names, versions
from tramfl.learning.model.weights import State, check_fit, from_bytes, to_bytes
from tramfl.learning.model.weights import about as about_file
from tramfl.learning.seeding import seeded_everywhere
from tramfl.learning.training.descent import STATE_PREFIX, Carried, first_state, rate_factor
from tramfl.learning.training.evaluation import measure
from tramfl.learning.training.nodes import evaluator_of, node_trainers
from tramfl.learning.training.readout import Passed, Seen, Weights
from tramfl.learning.training.samples import choose_device, example, training_samples
from tramfl.learning.training.task import Task, check_network
from tramfl.learning.training.transit import CodedState, TransitCoder
from tramfl.notation import BadInput, Counts, Digest, ModelCost, NodeId
from tramfl.references import is_reference, users_code

BASE = "base"
"""In a file's metadata: the digest of what did not travel, where something did not."""


class DivergedTraining(UserWarning):
    """The loss of a training is no longer a finite number."""


@dataclass(frozen=True)
class TestScores:
    """How good a model is."""

    test_accuracy: float | None
    """None where the task has no accuracy."""
    test_loss: float | None
    validation_loss: float | None
    """On the samples the node keeps aside; None where it keeps none."""
    test_samples: int
    """How many test samples were looked at."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The other metrics, by name."""


@dataclass(frozen=True, eq=False)
class _Kept:
    """A model between rounds."""

    state: list[Tensor]
    """What travels, in the order of the network's state dict."""
    optimizer: Carried | None
    """The optimiser's state that travels; None before the first training."""
    drawn: Counts
    """Samples per node and label used on the way to this model."""
    loss: float | None = None
    """The training loss of the round that made it."""
    coded: CodedState = field(default_factory=dict)
    """What travels of it in coded form; empty where the run codes nothing."""
    tested: Weights | None = None
    """What is tested and delivered in its place; None where that is the model itself."""
    passed: Passed = field(default_factory=Passed)
    """What nodes remember of models on the way to this one, to form what is tested."""

    @property
    def seen(self) -> Seen:
        """The weights and the samples used on the way to them, as a node remembers both."""
        return Seen(self.state, int(self.drawn.sum()))


class Learner:
    """Trains, keeps and scores models for every node of a simulated run."""

    def __init__(
        self,
        scenario: Scenario,
        data: AnyData,
        network: nn.Module,
        shares: Sequence[NodeShare] | None = None,
        app: App | None = None,
    ) -> None:
        training = self._training = scenario.training
        self._seed = scenario.seed
        self._task = Task(training, app)
        self._task.has_code |= is_reference(training.network) or is_reference(scenario.dataset)
        self._task.balances_classes = data.balances_classes
        rate_factor(training, 0)  # a schedule that lacks a key is refused before anything is loaded
        self.labels: tuple[str, ...] = tuple(data.strata_names)
        """The names of what is balanced: the strata, which are the classes by default."""
        device = choose_device(training.device)
        self._samples = training_samples(data, training.image_size, device, training.workers)
        self._network = network.to(device)
        self._evaluator = evaluator_of(scenario, data, self._samples, self._task, app)
        self._nodes, self._validation = node_trainers(scenario, data, self._samples, self._task, shares)
        self.held: Counts = np.array([node.held for node in self._nodes], dtype=np.int64)
        """l_ic: training samples per node and label."""
        outputs = data.outputs if data.knows_outputs else None
        check_network(self._network, training.network, self._task, example(self._samples, 2), outputs)
        self._set_apart(training.batch_norm == "frozen-statistics")
        self._first_state = first_state(self._network, training, self._task) if training.carries_optimizer else {}
        first = dict(zip(self._names, self._tensors, strict=True)) | self._first_state
        self._transit = TransitCoder(scenario.transit.codec, scenario.seed, first)
        self._readout = scenario.evaluation.readout
        self.cost = self._cost(scenario)
        """M and D_M, as computed from the network unless the scenario says otherwise."""
        self._kept: dict[Digest, _Kept] = {}
        self._loaded: Digest | None = None
        self._initial = _name("initial", scenario.seed)
        self._keep(self._initial, np.zeros_like(self.held), None, None, self._transit.unchanged())

    # What a run does with models.

    def initial(self) -> Digest:
        """The model before the first round; it needs no discarding and cannot be lost."""
        return self._initial

    def train(self, node: NodeId, parent: Digest, samples: tuple[int, ...], round: int) -> Digest:
        """Step 4: `node` trains the parent's weights on `samples[c]` samples of each label c."""
        child = _name(parent, round, node, *samples)
        if child in self._kept:
            return child
        before = self._load(parent)
        self._loaded = None
        unchanged = versions(self._staying)
        with self._reporting(f"round {round}: training at node {node}"):
            trained = self._nodes[node].train(
                self._network,
                samples,
                round=round,
                drawn=before.drawn[node],
                used=int(before.drawn.sum()),
                carried=before.optimizer,
            )
        if self._staying and versions(self._staying) != unchanged:
            self._refuse_change(unchanged)
        if trained.diverged:
            self._warn_of_divergence(trained.loss, node, round)
        optimizer = trained.optimizer if self._training.carries_optimizer else None
        left = dict(zip(self._names, self._tensors, strict=True)) | (optimizer or {})
        coded = self._transit.through(left, round)
        drawn = before.drawn.copy()
        drawn[node] += samples
        kept = self._keep(child, drawn, optimizer, trained.loss, coded)
        if not self.tests_newest:
            tested, passed = before.passed.after(node, before.seen, kept.seen, self._readout)
            self._kept[child] = dataclasses.replace(kept, tested=tested, passed=passed)
        return child

    def training_loss(self, digest: Digest) -> float | None:
        """The mean loss of the training that made a model; None where it is not known."""
        return self._find(digest).loss

    def diverged(self, digest: Digest) -> bool:
        """Whether the training that made a model had no finite loss; False where its loss is not known."""
        loss = self._find(digest).loss
        return loss is not None and not math.isfinite(loss)

    def discard(self, digest: Digest) -> None:
        """Forget a model; an unknown one, or the initial one, is left as it is."""
        if digest != self._initial:
            self._kept.pop(digest, None)

    def drawn(self, digest: Digest) -> Counts:
        """Samples per node and label used on the way to a model: with `weights`, all that `restore` needs."""
        return self._find(digest).drawn.copy()

    @property
    def is_coded(self) -> bool:
        """Whether what travels is coded."""
        return self._transit.codec != "float32"

    @property
    def tests_newest(self) -> bool:
        """Whether the newest weights are what is tested and delivered."""
        return self._readout == "last"

    def weights(
        self,
        digest: Digest,
        *,
        with_optimizer: bool = True,
        with_passed: bool = True,
        about: Mapping[str, str] | None = None,
    ) -> bytes:
        """A model as safetensors: what travels of it, with the optimiser's state if the run carries it.

        `with_passed`: what the nodes remember for the read-out is in it too, so that `restore` goes on as if nothing
        had happened.
        """
        kept = self._find(digest)
        state = dict(zip(self._names, kept.state, strict=True))
        if with_optimizer:
            # Every file of a run has the same tensors, the first one too: a receiver knows what to expect.
            state.update(kept.optimizer or self._first_state)
        return to_bytes(state | (kept.passed.saved(self._names) if with_passed else {}), self._metadata(about))

    def coded_weights(self, digest: Digest, reference: Digest, about: Mapping[str, str]) -> bytes:
        """A model as the coded file that travels; `reference` is the digest of what it is coded against."""
        kept = self._find(digest)
        state = dict(zip(self._names, kept.state, strict=True)) | (kept.optimizer or self._first_state)
        about = {**about, CODEC: self._transit.codec, REFERENCE: reference}
        return to_bytes(self._transit.packed(state, kept.coded), self._metadata(about))

    def use_reference(self, content: bytes) -> None:
        """Code against the weights in a plain file of this run from now on. BadInput where they do not fit."""
        self._transit.use_reference(from_bytes(content, "the reference"))

    def delivered(self, digest: Digest, about: Mapping[str, str] | None = None) -> bytes:
        """What is tested in a model's place, as safetensors."""
        kept = self._find(digest)
        return to_bytes(dict(zip(self._names, kept.tested or kept.state, strict=True)), self._metadata(about))

    def remembered(self, digest: Digest, about: Mapping[str, str]) -> bytes:
        """The same, with what the nodes remember to form the next."""
        kept = self._find(digest)
        state = dict(zip(self._names, kept.tested or kept.state, strict=True))
        return to_bytes(state | kept.passed.saved(self._names), self._metadata(about))

    def recall(self, digest: Digest, content: bytes, *, own: bool) -> None:
        """Let a model remember what a file of `remembered` has; `own`: the file was written with this very model."""
        state = from_bytes(content, "the read-out")
        passed = Passed.taken_from(state, self._names)
        check_fit(dict(zip(self._names, self._tensors, strict=True)), state, "the read-out")
        device = self._tensors[0].device
        self._kept[digest] = dataclasses.replace(
            self._find(digest),
            # The model has been elsewhere where the file is not its own: it is received anew.
            passed=passed if own else Passed(averages=passed.averages),
            tested=[state[name].to(device) for name in self._names] if own else None,
        )

    def module(self, digest: Digest) -> nn.Module:
        """A copy of the network with what is delivered of a model, on the processor and in evaluation mode."""
        self._load_tested(digest)
        return copy.deepcopy(self._network).cpu().eval()

    def restore(
        self, content: bytes, drawn: Sequence[Sequence[int]] | Counts, *, name: Digest | None = None
    ) -> Digest:
        """Take up a model that `weights` gave; `name` is what it was called, if training is to go on the same."""
        state = from_bytes(content, "the saved model")
        passed = Passed.taken_from(state, self._names)
        state, coded = self._decoded(content, state)
        carried = {key: state.pop(key) for key in list(state) if key.startswith(STATE_PREFIX)}
        check_fit(dict(zip(self._names, self._tensors, strict=True)), state, "the saved model")
        if self.base is not None and about_file(content).get(BASE) != self.base:
            raise BadInput("the saved model: it belongs to another frozen part than this network has.")
        used = np.asarray(drawn, dtype=np.int64)
        if used.shape != self.held.shape:
            raise BadInput(f"the saved model: drawn counts are {used.shape}, and the run has {self.held.shape}.")
        device = self._tensors[0].device
        optimizer: Carried | None = None
        if self._training.carries_optimizer and carried and used.any():
            check_fit(self._first_state, carried, "the saved model")
            optimizer = {key: carried[key].to(device) for key in self._first_state}
        digest = name or hashlib.sha256(content).hexdigest()
        weights = [state[key].to(device) for key in self._names]
        self._kept[digest] = _Kept(weights, optimizer, used, coded=coded, passed=passed)
        return digest

    def scores(self, digest: Digest, node: NodeId, targets: Sequence[float] = ()) -> TestScores:
        """Scores on the test samples, and the loss on what `node` keeps aside; `targets` are those still to reach."""
        self._load_tested(digest)
        return self._scores(node, targets)

    def _scores(self, node: NodeId, targets: Sequence[float]) -> TestScores:
        """The scores of what is in the network."""
        with self._calm(), self._reporting("the test"):
            test = self._evaluator.test(self._network, targets)
            validation = self._kept_aside(node)
        return TestScores(test.accuracy, test.loss, validation, test.samples, test.metrics)

    def validation_loss(self, digest: Digest, node: NodeId) -> float | None:
        """The loss on what `node` keeps aside; None where it keeps nothing."""
        self._load(digest)
        with self._calm():
            return self._kept_aside(node)

    def distance(self, one: Digest, other: Digest) -> float:
        """The L2 norm of the difference between two models, over what training changes gradually."""
        pairs = zip(self._find(one).state, self._find(other).state, strict=True)
        apart = (b.double() - a.double() for a, b in pairs if a.is_floating_point())
        return math.sqrt(sum(float(tensor.square().sum()) for tensor in apart))

    def _kept_aside(self, node: NodeId) -> float | None:
        samples, chosen = self._validation[node]
        loss = measure(self._network, samples, chosen, self._task)[1] if len(chosen) else None
        return None if loss is None else loss / len(chosen)

    # How it is built.

    def _set_apart(self, frozen_statistics: bool) -> None:
        """Find what travels and what stays."""
        state = self._network.state_dict()
        self._names = travelling_names(self._network, frozen_statistics=frozen_statistics)
        self._tensors = [state[name] for name in self._names]
        self._staying = [tensor for name, tensor in state.items() if name not in set(self._names)]
        self.base: Digest | None = digest_of_rest(self._network, self._names)
        """SHA-256 of what stays at the sites; None where everything travels."""

    def _cost(self, scenario: Scenario) -> ModelCost:
        given = scenario.cost
        return ModelCost(
            # Counting takes a second, most of it to load what torch counts with: not where it is given.
            given.flops_per_sample or flops_per_sample(self._network, example(self._samples, 1)[0]),
            given.model_bits * self._transit.ratio if given.model_bits else self._transit.bits,
        )

    # What goes wrong.

    def _refuse_change(self, unchanged: tuple[int, ...]) -> None:
        names = [name for name in self._network.state_dict() if name not in set(self._names)]
        pairs = zip(names, unchanged, versions(self._staying), strict=True)
        changed = next(name for name, before, after in pairs if before != after)
        raise BadInput(
            f"training changed {changed}, which belongs to a frozen part of the network and does not travel: keep"
            " that part in evaluation mode, or let its weights be trained."
        )

    def _warn_of_divergence(self, loss: float, node: NodeId, round_: int) -> None:
        """Where the scenario stops at it, the run says so itself."""
        if self._training.divergence == "warn":
            said = f"round {round_}: the training loss at node {node} is {loss}; the learning rate may be too high."
            warnings.warn(DivergedTraining(said), stacklevel=2)

    # Models in memory.

    def _reporting(self, what: str) -> AbstractContextManager[None]:
        """Around what runs the user's code, if any does: what it raises becomes one sentence."""
        return users_code(what) if self._task.has_code else nullcontext()

    @contextmanager
    def _calm(self) -> Iterator[None]:
        """What the user's code draws in a test follows from the seed and changes nothing else."""
        if not self._task.has_code:
            yield
            return
        with seeded_everywhere(whole_seed(self._seed, Purpose.TEST_ORDER)):
            yield

    def _metadata(self, about: Mapping[str, str] | None) -> dict[str, str]:
        """The metadata of a file of weights: `about`, and which frozen part it belongs to."""
        return dict(about or {}) | ({} if self.base is None else {BASE: self.base})

    def _decoded(self, content: bytes, state: State) -> tuple[State, CodedState]:
        """The tensors of a coded file, decoded; those of a plain file as they are."""
        codec = about_file(content).get(CODEC)
        if codec is None:
            return state, {}
        if codec != self._transit.codec:
            raise BadInput(f"the saved model: it is coded as {codec[:40]!r}, not as {self._transit.codec!r}.")
        return self._transit.unpacked(state)

    def _find(self, digest: Digest) -> _Kept:
        try:
            return self._kept[digest]
        except KeyError:
            raise KeyError(f"model {digest} was discarded or never trained") from None

    def _load(self, digest: Digest) -> _Kept:
        """Put a kept model into the network, unless it is the one there already."""
        kept = self._find(digest)
        if self._loaded != digest:
            self._put(kept.state)
            self._loaded = digest
        return kept

    def _load_tested(self, digest: Digest) -> None:
        """Put what is tested of a kept model into the network."""
        tested = self._find(digest).tested
        if tested is None:
            self._load(digest)
        else:
            self._put(tested)
            self._loaded = None

    def _put(self, weights: Weights) -> None:
        with torch.no_grad():
            for tensor, value in zip(self._tensors, weights, strict=True):
                tensor.copy_(value)

    def _keep(
        self, digest: Digest, drawn: Counts, optimizer: Carried | None, loss: float | None, coded: CodedState
    ) -> _Kept:
        kept = _Kept([tensor.clone() for tensor in self._tensors], optimizer, drawn, loss, coded)
        self._kept[digest], self._loaded = kept, digest
        return kept


def _name(*how: object) -> Digest:
    return hashlib.sha256("/".join(map(str, how)).encode()).hexdigest()
