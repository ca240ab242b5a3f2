from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import UNSET, structs

import tramfl
from tramfl.record import ModelScores
from tramfl.reporting import page, several
from tramfl.reporting.colours import looks
from tramfl.reporting.comparing_plots import comparison
from tramfl.reporting.dashboard.wire import wire_row
from tramfl.reporting.page import render
from tramfl.reporting.run_plots import inside
from tramfl.reporting.runs import Run, load_run
from tramfl.reporting.series import node_usage
from tramfl.reporting.several import judged_by_mean_model, sent_bits, shared_in_words


def played(method: str, folder: Path) -> Run:
    """A run of the schedule alone, with scores put in its rows where every node keeps a model."""
    tramfl.simulate("digits-3", method=method, rounds=4, train=False, out=folder / method)
    run = load_run(folder / method)
    scores = ModelScores(headline="nodes", nodes=(0.5, 0.6, 0.7), mean=0.6, worst=0.5, consensus=0.8)
    if method == "fedavg":
        scores = ModelScores(headline="consensus", consensus=0.9)
    rows = [r if r.trained is UNSET else structs.replace(r, test_accuracy=0.6, models=scores) for r in run.rows]
    return Run(run.folder, run.settings, run.resolved, tuple(rows), run.summary)


def visit_of(run: Run) -> int:
    """Samples that a node trains between two exchanges."""
    assert run.settings.exchange is not None
    return run.settings.exchange.local_steps * run.settings.training.batch_size


def test_a_run_is_judged_by_the_mean_model_too_where_the_nodes_models_differ(tmp_path: Path) -> None:
    run = played("gossip", tmp_path)
    (other,) = judged_by_mean_model([run, played("fedavg", tmp_path), played("load-aware", tmp_path)])
    assert other.policy == "gossip, mean model"
    assert [row.test_accuracy for row in other.rows] == [0.8 for _ in run.rows]
    assert other.summary.seconds_to_target == {"0.7": run.rows[0].total_seconds, "0.9": None}
    alike = ModelScores(headline="nodes", mean=0.8, consensus=0.8)
    rows = tuple(structs.replace(row, models=alike) for row in run.rows)
    assert judged_by_mean_model([Run(run.folder, run.settings, run.resolved, rows, run.summary)]) == []


@pytest.mark.parametrize(("metric", "target"), [("loss", 0.9), ("f1", 0.7)])
def test_the_mean_model_is_judged_by_what_the_targets_are_of(metric: str, target: float, tmp_path: Path) -> None:
    run = played("gossip", tmp_path)
    budget = structs.replace(run.settings.budget, metric=metric, targets=(target,))
    settings = structs.replace(run.settings, budget=budget)
    (other,) = judged_by_mean_model([Run(run.folder, settings, run.resolved, run.rows, run.summary)])
    assert {row.measured(metric) for row in other.rows} == {0.8}
    assert list(other.summary.seconds_to_target.values()) == [run.rows[0].total_seconds]


def test_the_page_says_which_models_were_tested_and_what_was_shared(tmp_path: Path) -> None:
    runs = [played(name, tmp_path) for name in ("load-aware", "fedavg", "gossip", "cmfd")]
    words = several.tested_in_words(runs)
    assert "the model that travels (load-aware)" in words
    assert "the one model that all agree on (fedavg)" in words
    assert "the mean over the nodes' models (gossip, cmfd)" in words or "(cmfd, gossip)" in words
    assert shared_in_words(runs) == ["cmfd: 100 samples that the nodes keep aside of their data, without labels"]
    text = render(runs)
    assert "without labels" in text
    assert "Worst node" in text
    assert several.tested_in_words(runs[:1]) == ""


def test_several_models_are_drawn_as_several_lines_and_samples_count_for_the_node_that_trained_them(
    tmp_path: Path,
) -> None:
    run = played("gossip", tmp_path)
    figure = next(plot for plot in inside([run], looks([run.policy])) if plot.key == "route")
    names = [trace["name"] for trace in figure.views[0]["data"]]
    assert figure.title == "Every node's model"
    assert names == ["node 0", "node 1", "node 2", "mean over nodes", "consensus"]
    assert node_usage(run, 10).samples.tolist() == [[float(visit_of(run))] * 4] * 3


def test_traffic_is_what_the_rows_say_or_a_model_a_hop(tmp_path: Path) -> None:
    gossip, travels = played("gossip", tmp_path), played("load-aware", tmp_path)
    bits = gossip.summary.cost.model_bits
    assert sent_bits(gossip)[-1] == pytest.approx(4 * 6 * bits)
    hops = sum(row.node not in (None, row.holder) for row in travels.rows)
    assert sent_bits(travels)[-1] == pytest.approx(hops * bits)


def test_the_live_view_is_sent_who_trained_and_what_crossed_which_link(tmp_path: Path) -> None:
    run = played("gossip", tmp_path)
    models = wire_row(run.rows[0]).models
    assert models is not None
    assert models.trained == tuple((node, visit_of(run)) for node in range(3))
    assert len(models.sent) == models.transfers == 6
    assert (models.scores, models.worst, models.consensus) == ((0.5, 0.6, 0.7), 0.5, 0.8)
    assert wire_row(played("load-aware", tmp_path).rows[0]).models is None
    many = {"partition": {"layout": "iid", "nodes": 60}}
    result = tramfl.simulate("digits-3", method="gossip", rounds=1, train=False, settings=many)
    models = wire_row(result.rows[0]).models
    assert models is not None
    assert [source for source, _ in models.sent] == list(range(60))
    assert models.transfers == 60 * 59


def test_a_page_speaks_of_v_only_where_a_model_travels(tmp_path: Path) -> None:
    gossip, travels = played("gossip", tmp_path), played("load-aware", tmp_path)
    assert "The limit V on the variance is 100." in render([gossip, travels])
    alone = render([gossip])
    assert "limit V" not in alone
    assert "the method has no limit on it" in alone
    figure = next(plot for plot in inside([gossip], looks([gossip.policy])) if plot.key == "labels")
    assert "shapes" not in figure.views[0]["layout"]


def test_the_rounds_of_an_asynchronous_method_name_each_node_once(tmp_path: Path) -> None:
    run = played("gossip-async", tmp_path)
    nodes = [{each.node for each in row.by_node} for row in run.rows]
    assert any(len(each) < 3 for each in nodes), "no node was faster than another"
    shown = [min(each) if len(each) == 1 else f"{len(each)} nodes" for each in nodes]
    assert page._rounds(run)["node"] == shown


def test_a_caption_counts_one_round_as_one_and_lists_no_more_ends_than_can_be_read(tmp_path: Path) -> None:
    run = played("gossip", tmp_path)

    def words(count: int) -> str:
        summaries = [structs.replace(run.summary, policy=f"number-{n}", rounds=1) for n in range(count)]
        runs = [Run(run.folder, run.settings, run.resolved, run.rows[:1], summary) for summary in summaries]
        return next(p.words for p in comparison(runs, looks([r.policy for r in runs])) if p.key == "time")

    assert words(8).endswith(" s after 1 round.")
    assert "number-7" in words(8)
    assert words(9) == "A jump is a round that waited for a busy node or a slow link."
