"""Losses, optimisers, schedules, augmentation and steps: the scenario's, and the user's own."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tramfl.config import Evaluation, Partition, Scenario, TrainingSettings
from tramfl.learning.app import App
from tramfl.learning.data.own import Data
from tramfl.learning.training.building import build_learner
from tramfl.learning.training.descent import rate_factor
from tramfl.learning.training.learner import DivergedTraining, Learner
from tramfl.learning.training.task import Context, Task
from tramfl.notation import BadInput

RNG = np.random.default_rng(5)
IMAGES, LABELS = RNG.normal(size=(90, 3, 8, 8)).astype(np.float32), np.arange(90) % 3
TABLE, NUMBERS = RNG.normal(size=(90, 4)), RNG.normal(size=90)
PICTURES = Data((IMAGES, LABELS), (IMAGES, LABELS))


def net(classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, classes))


def learner(app: App | None = None, **training: Any) -> Learner:
    scenario = Scenario(partition=Partition(layout="iid", nodes=3), training=TrainingSettings(**training))
    return build_learner(scenario, app=app or App(model=net, data=PICTURES))


def trained(learner: Learner, rounds: int = 3) -> str:
    digest = learner.initial()
    for round in range(1, rounds + 1):
        node = round % len(learner.held)
        digest = learner.train(node, digest, tuple(learner.held[node].tolist()), round)
    return digest


def weights(app: App | None = None, **training: Any) -> bytes:
    made = learner(app, **training)
    return made.weights(trained(made), with_optimizer=False)


CHANGES: list[dict[str, Any]] = [
    {},
    {"optimizer": "adam"},
    {"optimizer": "adam", "weight_decay": 0.3},
    {"optimizer": "adamw", "weight_decay": 0.3},
    {"weight_decay": 0.3},
    {"clip_norm": 0.1},
    {"label_smoothing": 0.2},
    {"calibration": 0.1},
    {"schedule": "cosine", "schedule_samples": 60},
    {"schedule": "step", "schedule_samples": 20},
    {"augmentation": ("flip",)},
    {"augmentation": ("crop",)},
    {"augmentation": ("flip", "crop")},
    {"precision": "bf16"},
    {"carry_optimizer": True},
]


def test_every_key_changes_what_is_trained_and_the_same_keys_give_the_same_bits() -> None:
    found = [weights(**change) for change in CHANGES]
    assert len(set(found)) == len(CHANGES)
    assert found == [weights(**change) for change in CHANGES]


@pytest.mark.parametrize("eps", [0.02, 0.5])
def test_calibration_adds_the_logarithm_of_label_shares_mixed_with_even_ones(eps: float) -> None:
    added = Task(TrainingSettings(calibration=eps)).calibration((30, 10, 0))
    assert added is not None
    shares = (1 - eps) * np.array([0.75, 0.25, 0.0]) + eps / 3
    assert added.numpy() == pytest.approx(np.log(shares))
    assert Task(TrainingSettings()).calibration((30, 10, 0)) is None


def test_a_node_without_a_label_hardly_lowers_its_logit_with_calibration() -> None:
    def lowered(**training: Any) -> float:
        made = learner(**training)
        before, bias = made.module(made.initial()), "4.bias"
        node = made.module(made.train(0, made.initial(), (10, 10, 0), 1))
        return float(before.state_dict()[bias][2] - node.state_dict()[bias][2])

    plain = lowered()
    assert plain > 0
    assert lowered(calibration=0.01) < 0.1 * plain


def test_calibration_has_no_effect_where_labels_are_not_what_is_balanced_or_the_loss_is_the_apps() -> None:
    regions = App(model=lambda classes: net(3), data=Data((IMAGES, LABELS), (IMAGES, LABELS), strata=LABELS % 2))
    own = App(model=net, data=PICTURES, loss=functional.cross_entropy)
    for app in (regions, own):
        assert weights(app, calibration=0.1) == weights(app)


def test_carry_momentum_is_the_older_name_of_carry_optimizer() -> None:
    assert weights(carry_momentum=True) == weights(carry_optimizer=True)


def test_frozen_statistics_stay_as_they_were_and_do_not_travel() -> None:
    normal, frozen = learner(), learner(batch_norm="frozen-statistics")
    assert normal.base is None
    assert frozen.base is not None
    assert normal.cost.model_bits - frozen.cost.model_bits == 8 * (4 * 4 + 4 * 4 + 8)
    before = frozen._network[1].running_mean.clone()  # type: ignore[index]
    trained(frozen)
    assert torch.equal(frozen._network[1].running_mean, before)  # type: ignore[index]


def test_a_schedule_is_a_function_of_the_samples_used() -> None:
    cosine = TrainingSettings(schedule="cosine", schedule_samples=100)
    assert [round(rate_factor(cosine, used), 3) for used in (0, 50, 100, 200)] == [1.0, 0.5, 0.0, 0.0]
    step = TrainingSettings(schedule="step", schedule_samples=10, schedule_factor=0.5)
    assert [rate_factor(step, used) for used in (0, 9, 10, 25)] == [1.0, 1.0, 0.5, 0.25]
    with pytest.raises(BadInput, match=r"schedule = 'step' needs training\.schedule_samples"):
        learner(schedule="step")


def test_a_run_whose_rate_has_come_to_zero_learns_no_more() -> None:
    made = learner(schedule="cosine", schedule_samples=1, batch_norm="frozen-statistics")
    first = trained(made, 1)
    assert made.weights(trained(made, 2)) == made.weights(first)


def test_flips_and_shifts_keep_shape_and_pixels() -> None:
    seen: list[Tensor] = []

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(192, 3)

        def forward(self, images: Tensor) -> Tensor:
            if self.training:
                seen.append(images)
            logits: Tensor = self.inner(images.flatten(1))
            return logits

    trained(learner(App(model=Looking, data=PICTURES), augmentation=("flip", "crop")), 1)
    known = {round(float(v), 5) for v in IMAGES.flatten()}
    assert seen[0].shape[1:] == (3, 8, 8)
    assert {round(float(v), 5) for v in seen[0].flatten()} <= known
    table = App(model=lambda: nn.Linear(4, 3), data=Data((TABLE, LABELS), (TABLE, LABELS)))
    with pytest.raises(BadInput, match=r"training\.augmentation is for images"):
        weights(table, augmentation=("flip",))


# ---- the user's own code


def draws(inputs: Tensor) -> Tensor:
    """An augmentation that draws from all three global generators."""
    factor = torch.rand(()).item() + float(np.random.rand()) + random.random()  # noqa: NPY002
    return inputs * factor


def test_what_the_users_code_draws_follows_from_the_seed_and_leaves_other_draws_alone() -> None:
    app = App(model=net, data=PICTURES, augment=draws)
    first = weights(app)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    assert weights(app) == first
    after = (random.random(), float(np.random.rand()))  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    assert after == (random.random(), float(np.random.rand()))  # noqa: NPY002


REGRESSION = Data((TABLE, NUMBERS), (TABLE, NUMBERS), strata=LABELS, classes=("n", "s", "w"))


def line(classes: int) -> nn.Module:
    return nn.Linear(4, classes)


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(outputs[:, 0], targets)


def test_regression_balanced_by_something_else_has_a_loss_and_no_accuracy() -> None:
    made = learner(App(model=line, data=REGRESSION, loss=squares, metrics=["mae", "r2"]), learning_rate=0.05)
    assert made.labels == ("n", "s", "w")
    before, after = made.scores(made.initial(), 0), made.scores(trained(made, 9), 0)
    assert after.test_accuracy is None
    assert after.test_loss is not None
    assert before.test_loss is not None
    assert after.test_loss < before.test_loss
    assert after.metrics["mae"] < before.metrics["mae"]
    assert after.validation_loss is not None


def test_an_optimiser_of_the_users_own_is_used_scheduled_and_carried() -> None:
    def make(parameters: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(parameters, lr=0.01, momentum=0.5)

    def app(make: Any) -> App:
        return App(model=line, data=REGRESSION, loss=squares, optimizer=make)

    plain = weights(app(make))
    assert plain != weights(app(None))
    assert plain != weights(app(make), schedule="cosine", schedule_samples=60)
    carrying = learner(app(make), carry_optimizer=True)
    content = carrying.weights(trained(carrying))
    restored = learner(app(make), carry_optimizer=True)
    digest = restored.restore(content, carrying.drawn(trained(carrying)))
    assert restored.weights(digest) == content
    assert carrying.cost.model_bits == 8 * 4 * (5 + 2 * 5 + 2)  # weights, two buffers each, one count a tensor
    first = carrying.weights(carrying.initial())
    assert len(first) == pytest.approx(len(content), abs=8)
    with pytest.raises(BadInput, match=r"optimizer gave a int, not a torch\.optim\.Optimizer"):
        weights(app(lambda parameters: 3))


def test_a_step_of_the_users_own_may_do_everything_or_leave_the_descent_to_the_run() -> None:
    contexts: list[Context] = []

    def leaves(model: nn.Module, batch: Any, context: Context) -> Tensor:
        contexts.append(copy.copy(context))
        return squares(model(batch[0]), batch[1])

    def does(model: nn.Module, batch: Any, context: Context) -> float:
        context.optimizer.zero_grad()
        loss = squares(model(batch[0]), batch[1])
        loss.backward()  # type: ignore[no-untyped-call]
        context.optimizer.step()
        return loss.item()

    plain = weights(App(model=line, data=REGRESSION, loss=squares), clip_norm=1e9)
    assert weights(App(model=line, data=REGRESSION, step=leaves)) == plain
    assert weights(App(model=line, data=REGRESSION, step=does)) == plain
    assert [c.used for c in contexts[:2]] == [0, contexts[1].used]
    assert contexts[0].round == 1
    assert contexts[-1].used < 81


def test_two_optimisers_train_two_parts_of_a_model() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 1), nn.Linear(4, 1)

    def make(parameters: list[Tensor], model: Pair) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(model.left.parameters(), lr=0.1), torch.optim.Adam(model.right.parameters(), lr=0.1)]

    def step(model: Pair, batch: Any, context: Context) -> float:
        for part, optimizer in zip((model.left, model.right), context.optimizers, strict=True):
            optimizer.zero_grad()
            squares(part(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return 0.0

    app = App(model=Pair, data=REGRESSION, optimizer=make, step=step)
    scenario = Scenario(partition=Partition(layout="iid", nodes=3), training=TrainingSettings(carry_optimizer=True))
    with pytest.raises(BadInput, match=r"give cost\.flops_per_sample"):
        build_learner(scenario, app=app)
    from msgspec.structs import replace

    from tramfl.config import Cost

    made = build_learner(replace(scenario, cost=Cost(flops_per_sample=1.0)), app=app)
    digest = trained(made)
    names = {name.split("/")[1] for name in made._kept[digest].optimizer or ()}
    assert names == {"1"}, "plain SGD keeps nothing"


class Wrapped(nn.Module):
    """Gives what Hugging Face models give."""

    def __init__(self, give: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.give = nn.Linear(4, 3), give

    def forward(self, inputs: Tensor) -> Any:
        return self.give(self.inner(inputs))


def test_logits_are_taken_where_a_model_gives_more() -> None:
    table = Data((TABLE, LABELS), (TABLE, LABELS))

    def of(give: Callable[[Tensor], Any]) -> bytes:
        torch.manual_seed(0)
        return weights(App(model=Wrapped(give), data=table))

    plain = of(lambda logits: logits)
    assert of(lambda logits: {"logits": logits, "hidden": 1}) == plain
    assert of(lambda logits: SimpleNamespace(logits=logits)) == plain
    with pytest.raises(BadInput, match="gives a dict without `logits`"):
        of(lambda logits: {"scores": logits})


@pytest.mark.parametrize(
    ("app", "words"),
    [
        (App(model=lambda: nn.Linear(5, 3), data=PICTURES), r"does not take inputs of \(2, 3, 8, 8\)"),
        (App(model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), data=PICTURES), r"not \(2, 3\)"),
        (App(model=line, data=REGRESSION), "the targets are not classes, so cross-entropy cannot be the loss"),
        (App(model=line, data=REGRESSION, loss=lambda o, t: o), "not a scalar tensor"),
        (App(model=line, data=REGRESSION, loss=lambda o, t: o @ t), "the loss does not take outputs of"),
        (App(model=line, data=REGRESSION, loss=3), "loss is a int, not a function"),
        (App(data=REGRESSION, loss=squares), "'auto' is for images of channels x height x width"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_a_run_begins(app: App, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        learner(app)


def test_a_loss_that_is_no_longer_finite_is_a_warning_unless_the_run_stops_at_it() -> None:
    app = App(model=line, data=REGRESSION, loss=squares)
    made = learner(app, learning_rate=1e30)
    with pytest.warns(DivergedTraining, match=r"round 2: the training loss at node 2 is (nan|inf)"):
        digest = trained(made, 2)
    loss = made.training_loss(digest)
    assert loss is not None
    assert not np.isfinite(loss)
    stops = learner(app, learning_rate=1e30, divergence="stop")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert stops.diverged(trained(stops, 2))


def test_a_validation_part_takes_the_place_of_the_samples_kept_aside() -> None:
    data = Data((TABLE, NUMBERS), (TABLE, NUMBERS), (TABLE[:30], NUMBERS[:30]), strata=LABELS)
    made = learner(App(model=line, data=data, loss=squares))
    assert made.held.sum() == 90
    scores = made.scores(made.initial(), 0)
    half = build_learner(
        Scenario(partition=Partition(layout="iid", nodes=3), evaluation=Evaluation(subset=15)),
        app=App(model=line, data=data, loss=squares),
    )
    assert scores.validation_loss != half.scores(half.initial(), 0).validation_loss


def test_segmentation_counts_pixels() -> None:
    masks = RNG.integers(0, 2, (90, 8, 8))
    data = Data((IMAGES, masks), (IMAGES, masks), strata=LABELS)
    made = learner(App(model=lambda: nn.Conv2d(3, 2, 1), data=data))
    scores = made.scores(trained(made), 0)
    assert scores.test_accuracy == pytest.approx(0.5, abs=0.1)
