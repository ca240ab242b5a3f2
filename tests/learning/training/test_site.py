"""The learner of one real site against the learner of all nodes in simulation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import tramfl
from tramfl.config import Cost, Partition, Scenario, TrainingSettings
from tramfl.learning.app import App, app_named
from tramfl.learning.data.datasets import Dataset
from tramfl.learning.model.weights import about, digest, from_bytes, to_bytes
from tramfl.learning.training.learner import build_learner
from tramfl.learning.training.site import SiteLearner, build_site_learner
from tramfl.notation import BadInput

SCENARIO = Scenario(seed=3, partition=Partition(layout="3"), cost=Cost())
NODES = 3


def site(node: int = 0, **options: object) -> SiteLearner:
    return build_site_learner(SCENARIO, node=node, nodes=NODES, name="abc"[node], **options)  # type: ignore[arg-type]


def small(labels: tuple[int, ...], seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset.from_arrays(
        "small",
        rng.random((len(labels), 1, 4, 4)),
        labels,
        rng.random((6, 1, 4, 4)),
        (0, 1, 2, 0, 1, 2),
        classes="abc",
    )


def test_a_site_trains_the_same_weights_as_a_simulation_does(tmp_path: Path) -> None:
    simulated = build_learner(SCENARIO)
    w0 = simulated.initial()
    w1 = simulated.train(0, w0, (9, 8, 7, *(0,) * 7), 1)
    w2 = simulated.train(1, w1, (0, 0, 0, 5, 6, 40, *(0,) * 4), 2)
    site(0).write_initial(tmp_path / "w0")
    site(0).train(tmp_path / "w0", (9, 8, 7, *(0,) * 7), 1, tmp_path / "w1")
    site(1).train(tmp_path / "w1", (0, 0, 0, 5, 6, 40, *(0,) * 4), 2, tmp_path / "w2")
    for name, expected in (("w0", w0), ("w1", w1), ("w2", w2)):
        found = from_bytes((tmp_path / name).read_bytes())
        wanted = from_bytes(simulated.weights(expected))
        assert all(found[key].equal(wanted[key]) for key in wanted)


def test_what_was_drawn_travels_with_the_weights(tmp_path: Path) -> None:
    first = site(0)
    first.write_initial(tmp_path / "w0")
    samples = (3, 2, 1, *(0,) * 7)
    made = first.train(tmp_path / "w0", samples, 1, tmp_path / "w1")
    content = (tmp_path / "w1").read_bytes()
    assert digest(content) == made.digest
    assert json.loads(about(content)["drawn"]) == [list(samples), [0] * 10, [0] * 10]


def test_all_sites_make_the_same_first_weights(tmp_path: Path) -> None:
    assert len({site(node).write_initial(tmp_path / str(node)).digest for node in range(NODES)}) == 1


def test_a_site_without_data_of_its_own_has_the_share_that_simulation_deals_it() -> None:
    held = build_learner(SCENARIO).held
    assert [site(node).held for node in range(NODES)] == [tuple(row) for row in held.tolist()]
    assert site(0, share=2).held == tuple(held[2].tolist())


def test_a_share_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match=r"3 nodes, and site 'a' wants share 3"):
        site(0, share=3)


def test_a_site_with_data_of_its_own_trains_on_all_but_what_it_keeps_aside(tmp_path: Path) -> None:
    own = site(1, app=App(data=small((0,) * 10 + (2,) * 20)))
    assert own.labels == ("a", "b", "c")
    assert own.held == (9, 0, 18)
    own.write_initial(tmp_path / "w0")
    own.train(tmp_path / "w0", (9, 0, 18), 1, tmp_path / "w1")
    assert own.scores(tmp_path / "w1", (0.9,)).test_samples == 6


def test_data_may_depend_on_the_site() -> None:
    app = App(data=lambda site: small((0,) * 10 if site == "a" else (1,) * 10))
    assert [site(node, app=app).held for node in (0, 1)] == [(9, 0, 0), (0, 9, 0)]


def test_the_same_app_runs_in_simulation() -> None:
    app = App(data=lambda site=None: small((0, 1, 2) * 20) if site is None else None)
    scenario = Scenario(partition=Partition(layout="iid", nodes=2))
    result = tramfl.simulate(scenario, app=app, rounds=2, policy="random")
    assert result.summary.rounds == 2
    assert result.labels == ("a", "b", "c")


@pytest.mark.parametrize(
    "drawn", [None, "no", "[[1]]", "[" * 3000, json.dumps([[-1] * 10] * 3), json.dumps([[0.5] * 10] * 3)]
)
def test_weights_that_do_not_say_what_was_drawn_are_refused(tmp_path: Path, drawn: str | None) -> None:
    learner = site(0)
    learner.write_initial(tmp_path / "w0")
    state = from_bytes((tmp_path / "w0").read_bytes())
    (tmp_path / "bad").write_bytes(to_bytes(state, {"drawn": drawn} if drawn is not None else None))
    with pytest.raises(BadInput, match="drawn"):
        learner.train(tmp_path / "bad", (1, *(0,) * 9), 1, tmp_path / "w1")


def test_a_trial_leaves_no_trace(tmp_path: Path) -> None:
    learner = site(0)
    before = learner.write_initial(tmp_path / "w0").digest
    assert learner.calibrate() > 0
    assert learner.write_initial(tmp_path / "again").digest == before


def test_an_app_is_found_by_name_and_anything_else_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop.py").write_text("import tramfl\napp = tramfl.App()\nother = 3\n")
    assert app_named("shop:app") == App()
    with pytest.raises(BadInput, match=r"shop:other.*is a int, not a tramfl.App"):
        app_named("shop:other")
    with pytest.raises(BadInput, match="gave a int, not a"):
        App(data=lambda: 3).dataset()


def test_a_site_says_that_a_training_diverged_and_refuses_it_where_the_scenario_stops(tmp_path: Path) -> None:
    def diverging(divergence: str) -> SiteLearner:
        training = TrainingSettings(learning_rate=1e30, divergence=divergence)  # type: ignore[arg-type]
        return build_site_learner(replace(SCENARIO, training=training), node=0, nodes=NODES, name="a")

    samples = (40, 40, 40, *(0,) * 7)
    site(0).write_initial(tmp_path / "w0")
    assert not site(0).train(tmp_path / "w0", samples, 1, tmp_path / "fine").diverged
    with pytest.warns(UserWarning, match="the training loss at node 0"):
        assert diverging("warn").train(tmp_path / "w0", samples, 1, tmp_path / "w1").diverged
    with pytest.raises(BadInput, match=r'round 1: .* \(training.divergence = "stop"\)'):
        diverging("stop").train(tmp_path / "w0", samples, 1, tmp_path / "w2")
    assert not (tmp_path / "w2").exists()
