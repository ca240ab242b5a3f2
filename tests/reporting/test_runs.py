from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import tramfl
from tramfl.notation import BadInput
from tramfl.record import CONFIG_FILE, ROUNDS_FILE, SUMMARY_FILE, RowWriter, read_rows
from tramfl.reporting import comparing_plots, verdict, write_figures, write_page
from tramfl.reporting.colours import looks
from tramfl.reporting.runs import NOT_ENDED, doubts, load_run, load_runs

MakeRun = Callable[..., Path]


def test_a_run_folder_gives_back_its_settings_rows_and_summary(make_run: MakeRun) -> None:
    run = load_run(make_run(policy="random", seed=3, rounds=12))
    assert (run.scenario, run.policy, run.seed, len(run.rows)) == ("digits-5-uneven", "random", 3, 12)
    assert (run.nodes, len(run.labels), len(run.held)) == (5, 10, 5)
    assert run.trained


def test_a_folder_of_runs_stands_for_all_of_them_in_natural_order(make_run: MakeRun, tmp_path: Path) -> None:
    for seed in (2, 10, 1):
        make_run(f"all/seed-{seed}", seed=seed, rounds=3)
    assert [run.seed for run in load_runs([tmp_path / "all"])] == [1, 2, 10]


def test_of_many_runs_those_that_have_just_begun_are_left_out(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("all/a", rounds=3, seed=1)
    begun = make_run("all/b", rounds=3, seed=2)
    (begun / ROUNDS_FILE).write_text("")
    assert [run.seed for run in load_runs([tmp_path / "all"])] == [1]
    with pytest.raises(BadInput, match=r"all/b.* holds no round yet\.$"):
        load_runs([begun])
    (tmp_path / "all/a" / ROUNDS_FILE).write_text('{"round": 1, ')
    with pytest.raises(BadInput, match=r"holds no round yet\.$"):
        load_runs([tmp_path / "all"])


def test_a_run_named_twice_is_counted_once(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("all/a", rounds=3)
    assert len(load_runs([tmp_path / "all", tmp_path / "all" / "a"])) == 1


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_folder_that_is_no_run_is_named_in_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=rf"{name}.*\.$"):
        load_runs([tmp_path / name])


def test_no_folder_at_all_is_bad_input() -> None:
    with pytest.raises(BadInput, match="at least one folder"):
        load_runs([])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (CONFIG_FILE, "name = ", "not valid TOML"),
        (CONFIG_FILE, "seed = -1", "key `seed`"),
        (CONFIG_FILE, "resolved = {held = 3}", "`resolved`.*key `held`"),
        (ROUNDS_FILE, '{"round": 1}\n', "line 1"),
        (ROUNDS_FILE, "", "no round yet"),
        (SUMMARY_FILE, "{", "not a run's summary"),
        (SUMMARY_FILE, "[]", "not a run's summary"),
    ],
)
def test_a_damaged_file_is_named(make_run: MakeRun, file: str, content: str, message: str) -> None:
    folder = make_run(rounds=3)
    (folder / file).write_text(content)
    with pytest.raises(BadInput, match=f"{file}.*{message}|{message}"):
        load_run(folder)


def test_a_target_that_is_no_number_is_a_damaged_summary(make_run: MakeRun) -> None:
    folder = make_run(rounds=3)
    summary = folder / SUMMARY_FILE
    summary.write_text(summary.read_text().replace('"0.9":', '"most":'))
    with pytest.raises(BadInput, match="not a run's summary"):
        load_run(folder)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [('"node":', '"node":77,"x":', "a node that is not among"), ('"used":[', '"used":[1,', "other nodes or labels")],
)
def test_rows_that_contradict_each_other_are_refused(make_run: MakeRun, old: str, new: str, message: str) -> None:
    folder = make_run(rounds=3)
    first, *rest = (folder / ROUNDS_FILE).read_text().splitlines()
    lines = [first, *(line.replace(old, new, 1) for line in rest)]
    (folder / ROUNDS_FILE).write_text("\n".join(lines) + "\n")
    with pytest.raises(BadInput, match=message):
        load_run(folder)


def test_a_half_written_last_row_is_left_out(make_run: MakeRun) -> None:
    folder = make_run(rounds=5)
    rows = (folder / ROUNDS_FILE).read_bytes()
    (folder / ROUNDS_FILE).write_bytes(rows[:-20])
    assert len(load_run(folder).rows) == 4


def test_rounds_done_again_after_a_takeover_count_once(make_run: MakeRun) -> None:
    folder = make_run(rounds=6)
    lines = (folder / ROUNDS_FILE).read_text().splitlines()
    again = [line.replace('"epoch":1', '"epoch":2') for line in lines[3:5]]
    (folder / ROUNDS_FILE).write_text("\n".join([*lines[:5], *again]) + "\n")
    run = load_run(folder)
    assert [(row.round, row.epoch) for row in run.rows] == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]
    assert run.undone_rounds == 2
    assert "2 rounds in all" in " ".join(doubts([run]))


def test_a_run_without_a_summary_is_summed_up_from_its_rows(make_run: MakeRun) -> None:
    whole, killed = load_run(make_run("a")), load_run(make_run("b", summary=False))
    assert killed.summary.status == NOT_ENDED
    for name in (
        "rounds",
        "skipped_rounds",
        "samples",
        "total_seconds",
        "seconds_to_target",
        "cost",
        "test_accuracy",
    ):
        assert getattr(killed.summary, name) == getattr(whole.summary, name), name


def test_keys_of_a_later_version_do_not_stop_a_report(make_run: MakeRun) -> None:
    folder = make_run(rounds=3)
    config = folder / CONFIG_FILE
    config.write_text("novelty = 1\n" + config.read_text().replace("[training]", "[training]\nnovel = true"))
    assert load_run(folder).settings.name == "digits-5-uneven"


@pytest.mark.parametrize("resolved", [{}, {"held": [[1, 2]], "labels": ["a"]}])
def test_a_layout_that_is_absent_or_does_not_fit_is_left_out(make_run: MakeRun, resolved: dict[str, object]) -> None:
    run = load_run(make_run(resolved=resolved))
    assert run.held == ()
    assert run.labels == tuple("0123456789")


def test_policies_with_different_seeds_are_not_compared_without_a_word(make_run: MakeRun) -> None:
    ours = [load_run(make_run(f"ours-{seed}", rounds=6, seed=seed)) for seed in (0, 1)]
    theirs = load_run(make_run("theirs", rounds=6, policy="random", seed=1))
    (note,) = doubts([*ours, theirs])
    assert "were run with different seeds" in note
    assert doubts([ours[1], theirs]) == []


def test_doubts_name_what_makes_runs_hard_to_compare(make_run: MakeRun) -> None:
    runs = [
        load_run(make_run("a", rounds=3)),
        load_run(make_run("b", rounds=3, variance_limit=5000.0)),
        load_run(make_run("c", rounds=3, policy="random", summary=False)),
    ]
    notes = " ".join(doubts(runs))
    assert "variance_limit" in notes
    assert "same scenario, policy and seed" in notes
    assert "One run did not come to an end (random, seed 0)" in notes


def test_runs_that_differ_in_policy_and_seed_alone_raise_no_doubt(make_run: MakeRun) -> None:
    runs = [load_run(make_run(f"{p}{s}", rounds=3, policy=p, seed=s)) for p in ("random", "tram") for s in (0, 1)]
    assert doubts(runs) == []


def test_only_a_simulators_seconds_are_called_virtual(make_run: MakeRun, tmp_path: Path) -> None:
    for name, targets, rounds in (("reached", (0.5,), 60), ("missed", (1.0,), 5), ("none", (), 5)):
        real = load_run(make_run(f"{name}-real", targets=targets, rounds=rounds, resolved={"clock": "real"}))
        simulated = load_run(make_run(f"{name}-simulated", targets=targets, rounds=rounds))
        assert "virtual" in verdict([simulated])
        assert "virtual" not in verdict([real])
        assert "virtual" in write_page([simulated], tmp_path / "a.html").read_text().lower()
        page = write_page([real], tmp_path / "b.html").read_text()
        assert "virtual" not in page.split("<script", 1)[0].split("</style>", 1)[1].lower()
    other = load_run(make_run("other", policy="random", resolved={"clock": "real"}))
    both = [real, other]
    assert "virtual" not in verdict(both)
    assert "virtual" not in str(comparing_plots.comparison(both, looks(["load-aware", "random"]))).lower()
    assert "virtual" in str(comparing_plots.comparison([simulated], looks(["load-aware"]))).lower()
    assert any(b"Virtual" in path.read_bytes() for path in write_figures([simulated], tmp_path / "before", "svg"))
    assert all(b"Virtual" not in path.read_bytes() for path in write_figures(both, tmp_path / "figures", "svg"))


def test_a_clock_that_nobody_knows_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(BadInput, match="clock"):
        load_run(make_run(resolved={"clock": "sundial"}))


def test_a_run_whose_loss_was_not_finite_is_said_to_have_diverged(make_run: MakeRun) -> None:
    folder = make_run("nan", rounds=6)
    rows = list(read_rows(folder / ROUNDS_FILE))
    (folder / ROUNDS_FILE).unlink()
    writer = RowWriter(folder / ROUNDS_FILE)
    for row in rows:
        writer.write(msgspec.structs.replace(row, test_loss=math.nan) if row.round > 4 else row)
    writer.close()
    tested = sum(row.test_accuracy is not None for row in rows[4:])
    (note,) = doubts([load_run(folder)])
    assert note.startswith("load-aware, seed 0, diverged: from round 5 on, its loss was not a finite number")
    assert note.endswith(f" in {tested} rounds.")
    assert doubts([load_run(make_run("fine", rounds=6))]) == []


def test_of_many_nodes_the_loads_that_no_report_shows_take_no_memory(make_run: MakeRun, tmp_path: Path) -> None:
    sixty = {"partition": {"layout": "dirichlet", "nodes": 60, "min_partition_size": 1}}
    tramfl.simulate("digits-3", train=False, rounds=3, settings=sixty, out=tmp_path / "many")
    many, few = load_run(tmp_path / "many"), load_run(make_run(rounds=3))
    first, *others = many.rows
    assert all(row.loads is first.loads for row in others)
    assert many.nodes == len(first.loads.bandwidth) == 60
    assert all(flops is not None for row in few.rows for flops in row.loads.flops)
