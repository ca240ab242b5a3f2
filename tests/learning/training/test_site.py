"""The learner of one real site against the learner of all nodes in simulation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.torch import load_file

import tramfl
from tramfl.config import Acceptance, Cost, Partition, Scenario, TrainingSettings, Transit
from tramfl.learning.app import App, app_named
from tramfl.learning.data.datasets import Dataset
from tramfl.learning.model.coded_files import decoded_file
from tramfl.learning.model.weights import about, digest, from_bytes, to_bytes
from tramfl.learning.training.building import build_learner
from tramfl.learning.training.site import SiteLearner, build_site_learner
from tramfl.notation import BadInput

SCENARIO = Scenario(seed=3, partition=Partition(layout="3"), cost=Cost())
NODES = 3


def site(node: int = 0, **options: object) -> SiteLearner:
    return build_site_learner(SCENARIO, node=node, name="abc"[node], **options)  # type: ignore[arg-type]


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
    assert json.loads(about(content)["drawn"]) == {"a": list(samples)}


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
    "drawn",
    [
        None,
        "no",
        "[[1]]",
        "[" * 3000,
        json.dumps({"a": [-1] * 10}),
        json.dumps({"a": [0.5] * 10}),
        json.dumps([[0] * 10] * 3),
        '{"b": [1]}',
    ],
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
        return build_site_learner(replace(SCENARIO, training=training), node=0, name="a")

    samples = (40, 40, 40, *(0,) * 7)
    site(0).write_initial(tmp_path / "w0")
    assert not site(0).train(tmp_path / "w0", samples, 1, tmp_path / "fine").diverged
    with pytest.warns(UserWarning, match="the training loss at node 0"):
        assert diverging("warn").train(tmp_path / "w0", samples, 1, tmp_path / "w1").diverged
    with pytest.raises(BadInput, match=r'round 1: .* \(training.divergence = "stop"\)'):
        diverging("stop").train(tmp_path / "w0", samples, 1, tmp_path / "w2")
    assert not (tmp_path / "w2").exists()


def test_a_site_that_judges_says_what_a_training_did_to_the_loss_on_samples_kept_aside(
    tmp_path: Path,
) -> None:
    judging = build_site_learner(replace(SCENARIO, accept=Acceptance()), node=0, name="a")
    judging.write_initial(tmp_path / "w0")
    made = judging.train(tmp_path / "w0", (40, 40, 40, *(0,) * 7), 1, tmp_path / "w1")
    assert made.losses is not None
    before, after = made.losses
    found = [judging.check(tmp_path / name).loss for name in ("w0", "w1")]
    assert found == pytest.approx([before, after])
    assert after < before
    assert site(0).train(tmp_path / "w0", (40, 40, 40, *(0,) * 7), 1, tmp_path / "w2").losses is None


def test_a_site_that_bounds_changes_says_how_far_a_training_moved_the_weights_and_what_arrives_has_come(
    tmp_path: Path,
) -> None:
    bounding = build_site_learner(replace(SCENARIO, accept=Acceptance(max_change_ratio=5.0)), node=0, name="a")
    bounding.write_initial(tmp_path / "w0")
    assert bounding.check(tmp_path / "w0").change is None, "nothing was trained here yet"
    made = [bounding.train(tmp_path / f"w{k}", FIRST, k + 1, tmp_path / f"w{k + 1}") for k in range(2)]
    assert all(each.change is not None and 0 < each.change < 10 for each in made)
    one, two = load_file(tmp_path / "w1"), load_file(tmp_path / "w2")
    apart = sum(float((two[name].double() - one[name].double()).square().sum()) for name in one) ** 0.5
    assert made[1].change == pytest.approx(apart)
    found = bounding.check(tmp_path / "w2")
    assert found.change == pytest.approx(apart)
    assert found.since == 1, "it trained from w1 last"
    assert site(0).train(tmp_path / "w0", FIRST, 1, tmp_path / "w3").change is None


CODED = replace(SCENARIO, transit=Transit(codec="int4"), evaluation=replace(SCENARIO.evaluation, readout="average"))
FIRST, SECOND = (9, 8, 7, *(0,) * 7), (0, 0, 0, 5, 6, 40, *(0,) * 4)


def coded_site(node: int, place: Path, seed: int | None = None) -> SiteLearner:
    """A site with its folder of references; another seed stands for a PyTorch that draws other first weights."""
    made = build_site_learner(CODED, node=node, name="abc"[node], references=place / "abc"[node])
    if seed is not None:
        other = build_site_learner(replace(CODED, seed=seed), node=node, name="abc"[node])
        made._learner.use_reference(other._learner.weights(other._learner.initial()))
    return made


def test_coded_files_of_sites_train_and_test_the_same_as_a_simulation(tmp_path: Path) -> None:
    simulated = build_learner(CODED)
    w1 = simulated.train(0, simulated.initial(), FIRST, 1)
    w2 = simulated.train(1, w1, SECOND, 2)
    w3 = simulated.train(1, w2, SECOND, 3)
    w4 = simulated.train(0, w3, FIRST, 4)
    one, other = coded_site(0, tmp_path), coded_site(1, tmp_path)
    names = [tmp_path / f"w{number}" for number in range(5)]
    assert one.write_initial(names[0]).digest == other.write_initial(tmp_path / "again").digest
    one.train(names[0], FIRST, 1, names[1], tmp_path / "read-a")
    other.train(names[1], SECOND, 2, names[2], tmp_path / "read-b")
    # The training process of a site may be started again at any time.
    other = coded_site(1, tmp_path)
    other.write_initial(tmp_path / "again")
    other.train(names[2], SECOND, 3, names[3], tmp_path / "read-b")
    made = one.train(names[3], FIRST, 4, names[4], tmp_path / "read-a")
    reference = next((tmp_path / "a").glob("*.safetensors")).read_bytes()
    assert made.reference == digest(reference)
    assert about(names[4].read_bytes())["codec"] == "int4"
    for path, expected in zip(names[1:], (w1, w2, w3, w4), strict=True):
        found = from_bytes(decoded_file(path.read_bytes(), reference))
        wanted = from_bytes(simulated.weights(expected, with_passed=False))
        assert all(found[key].equal(wanted[key]) for key in wanted)
    assert other.scores(names[3], (), tmp_path / "read-b") == simulated.scores(w3, 1)
    assert one.scores(names[4], (), tmp_path / "read-a") == simulated.scores(w4, 0)
    # Without the mean, the newest weights are what can be tested.
    assert one.scores(names[4], ()) != simulated.scores(w4, 0)


def test_a_site_without_the_reference_says_which_one_it_lacks_and_goes_on_once_it_has_it(tmp_path: Path) -> None:
    here, there = coded_site(0, tmp_path), coded_site(1, tmp_path, seed=99)
    made = here.write_initial(tmp_path / "w0")
    assert made.reference is not None
    with pytest.raises(BadInput, match=f"coded against '{made.reference}', which is not at this site"):
        there.train(tmp_path / "w0", SECOND, 1, tmp_path / "w1")
    (tmp_path / "b").mkdir()
    name = f"{made.reference}.safetensors"
    (tmp_path / "b" / name).write_bytes((tmp_path / "a" / name).read_bytes())
    assert there.train(tmp_path / "w0", SECOND, 1, tmp_path / "w1").reference == made.reference
    here.train(tmp_path / "w1", FIRST, 2, tmp_path / "w2")


def test_a_made_up_reference_leads_nowhere(tmp_path: Path) -> None:
    here = coded_site(0, tmp_path)
    here.write_initial(tmp_path / "w0")
    content = (tmp_path / "w0").read_bytes()
    for wrong in ("../../secrets", "", "f" * 64):
        metadata = {**about(content), "reference": wrong}
        (tmp_path / "hostile").write_bytes(to_bytes(from_bytes(content), metadata))
        with pytest.raises(BadInput, match=r"reference|coded against"):
            here.train(tmp_path / "hostile", FIRST, 1, tmp_path / "w1")


def test_the_counts_of_other_sites_travel_on_and_a_new_site_begins_with_none(tmp_path: Path) -> None:
    samples = (2, 3, 4, *(0,) * 7)
    site(0).write_initial(tmp_path / "w0")
    assert json.loads(about((tmp_path / "w0").read_bytes())["drawn"]) == {}
    site(0).train(tmp_path / "w0", samples, 1, tmp_path / "w1")
    elsewhere = tuple(min(5, held) for held in site(2).held)
    site(2).train(tmp_path / "w1", elsewhere, 2, tmp_path / "w2")
    site(0).train(tmp_path / "w2", samples, 3, tmp_path / "w3")
    counts = json.loads(about((tmp_path / "w3").read_bytes())["drawn"])
    assert counts == {"a": [2 * n for n in samples], "c": list(elsewhere)}
