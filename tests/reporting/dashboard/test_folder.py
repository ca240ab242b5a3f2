from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

import tramfl
from tests.reporting.dashboard.conftest import append, rows_of, write_rows
from tramfl.notation import BadInput
from tramfl.record import CONFIG_FILE, ROUNDS_FILE, SUMMARY_FILE, RunFolder
from tramfl.record.tail import MOST_ROWS
from tramfl.reporting.dashboard import FolderSource

MakeRun = Callable[..., Path]


def all_rows(source: FolderSource) -> list[int]:
    source.now()
    found: list[int] = []
    while fresh := source.rows(len(found)):
        found += [row.round for row in fresh]
    return found


def test_a_finished_run_is_shown_as_its_files_say(make_run: MakeRun) -> None:
    source = FolderSource(make_run(rounds=4, variance_limit=50.0))
    now = source.now()
    assert (now.title, now.policy, now.seed, now.status, now.clock) == (
        "digits-5-uneven", "load-aware", 0, "finished", "virtual",
    )  # fmt: skip
    assert [site.name for site in now.sites] == [f"node {i}" for i in range(5)]
    assert now.sites[0].held is not None
    assert sum(now.sites[0].held) > 0
    assert now.labels == tuple(map(str, range(10)))
    assert (now.variance_limit, now.targets, now.model_bits) == (50.0, (0.7, 0.9), 38.42e6)
    assert all_rows(source) == [1, 2, 3, 4]


def test_a_method_in_which_every_node_keeps_a_model_has_no_limit_on_the_variance(tmp_path: Path) -> None:
    tramfl.simulate("digits-3", method="gossip", rounds=1, train=False, out=tmp_path)
    assert FolderSource(tmp_path).now().variance_limit is None


def test_rows_are_read_from_where_the_last_reading_ended(make_run: MakeRun) -> None:
    folder = make_run(rounds=6)
    rows = rows_of(folder)
    write_rows(folder, rows[:2])
    source = FolderSource(folder)
    assert all_rows(source) == [1, 2]
    name = source.now().run
    append(folder, rows[2:])
    assert source.now().run == name
    assert [row.round for row in source.rows(2)] == [3, 4, 5, 6]
    assert [row.round for row in source.rows(5)] == [6]
    assert source.rows(6) == []


def test_a_long_run_comes_in_parts(make_run: MakeRun) -> None:
    source = FolderSource(make_run(rounds=MOST_ROWS + 5))
    source.now()
    assert len(source.rows(0)) == MOST_ROWS
    assert len(all_rows(source)) == MOST_ROWS + 5


def test_a_row_that_is_half_written_waits_until_it_is_whole(make_run: MakeRun) -> None:
    folder = make_run(rounds=3)
    content = (folder / ROUNDS_FILE).read_bytes()
    (folder / ROUNDS_FILE).write_bytes(content[:-40])
    source = FolderSource(folder)
    assert all_rows(source) == [1, 2]
    with (folder / ROUNDS_FILE).open("ab") as file:
        file.write(content[-40:])
    source.now()
    assert [row.round for row in source.rows(2)] == [3]


def test_a_restart_of_the_watcher_keeps_the_name_and_a_restart_of_the_run_does_not(make_run: MakeRun) -> None:
    folder = make_run(rounds=5)
    rows = rows_of(folder)
    source = FolderSource(folder)
    name = source.now().run
    assert FolderSource(folder).now().run == name
    assert all_rows(source)
    write_rows(folder, rows[:3])  # as a resumed run does it
    assert source.now().run != name
    assert all_rows(source) == [1, 2, 3]


def test_rows_cut_off_in_place_begin_anew(make_run: MakeRun) -> None:
    folder = make_run(rounds=5)
    source = FolderSource(folder)
    assert len(all_rows(source)) == 5
    name = source.now().run
    lines = (folder / ROUNDS_FILE).read_bytes().splitlines(keepends=True)
    with (folder / ROUNDS_FILE).open("r+b") as file:
        file.truncate(len(lines[0]))
    assert source.now().run != name
    assert all_rows(source) == [1]


def test_before_the_first_row_the_sites_are_known(make_run: MakeRun) -> None:
    folder = make_run(rounds=1, summary=False)
    (folder / ROUNDS_FILE).unlink()
    source = FolderSource(folder)
    assert len(source.now().sites) == 5
    assert source.rows(0) == []


def test_a_run_that_is_still_being_prepared_can_be_watched(make_run: MakeRun, tmp_path: Path) -> None:
    folder = tmp_path / "early"
    folder.mkdir()
    place = os.open(folder, os.O_RDONLY)
    fcntl.flock(place, fcntl.LOCK_EX)
    try:
        source = FolderSource(folder)
        assert source.now().status == "preparing"
        made = make_run("made", rounds=2, summary=False)
        for name in (CONFIG_FILE, ROUNDS_FILE):
            (made / name).rename(folder / name)
        assert source.now().status == "running"
        assert all_rows(source) == [1, 2]
    finally:
        os.close(place)


def test_watching_never_locks_the_folder(make_run: MakeRun) -> None:
    folder = make_run(rounds=2)
    source = FolderSource(folder)
    assert all_rows(source)
    place = os.open(folder, os.O_RDONLY)
    fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert source.now().status == "running"
    os.close(place)
    assert source.now().status == "finished"


def test_a_run_that_was_killed_is_distinguished_from_one_that_goes_on(make_run: MakeRun) -> None:
    folder = make_run(rounds=3, summary=False)
    source = FolderSource(folder)
    assert source.now().status == "running"  # the file is fresh, and not every system shows locks
    os.utime(folder / ROUNDS_FILE, (1, 1))
    assert source.now().status == "stopped"


def test_an_old_summary_does_not_end_a_run_that_was_taken_up_again(make_run: MakeRun) -> None:
    folder = make_run(rounds=3)
    rows = rows_of(folder)
    source = FolderSource(folder)
    append(folder, [replace(rows[-1], round=4)])
    assert len(all_rows(source)) == 4
    assert source.now().status == "running"


def test_a_run_that_could_not_go_on_is_shown_with_the_reason(make_run: MakeRun) -> None:
    folder = make_run(rounds=20)
    files = RunFolder(folder)
    summary = files.summary()
    assert summary is not None
    files.conclude(replace(summary, status="stopped", stopped_because="every S* is 0."))
    now = FolderSource(folder).now()
    assert (now.status, now.message) == ("stopped", "The run was stopped: every S* is 0.")


def test_real_time_is_shown(make_run: MakeRun) -> None:
    names = ["north", "south", "west", "east", "centre"]
    now = FolderSource(make_run(rounds=1, resolved={"clock": "real", "sites": names})).now()
    assert now.clock == "real"
    assert [site.name for site in now.sites] == names[: len(now.sites)]


@pytest.mark.parametrize(
    ("line", "words"),
    [(b"{]\n", "line 3, is not a round's row"), (b'{"round": 3}\n', "line 3"), (b"\xff\xfe\n", "line 3")],
)
def test_a_line_that_is_no_row_is_reported_and_ends_the_rows(make_run: MakeRun, line: bytes, words: str) -> None:
    folder = make_run(rounds=2)
    with (folder / ROUNDS_FILE).open("ab") as file:
        file.write(line)
    source = FolderSource(folder)
    assert all_rows(source) == [1, 2]
    assert words in source.now().message


def test_a_row_of_other_nodes_is_reported_and_ends_the_rows(make_run: MakeRun) -> None:
    folder = make_run(rounds=2)
    append(folder, [replace(rows_of(folder)[-1], node=7)])
    source = FolderSource(folder)
    assert all_rows(source) == [1, 2]
    assert "not among its 5" in source.now().message


def test_a_broken_summary_is_no_obstacle(make_run: MakeRun) -> None:
    folder = make_run(rounds=2)
    (folder / SUMMARY_FILE).write_text("{")
    assert FolderSource(folder).now().status == "running"


def test_a_folder_that_vanishes_is_no_obstacle(make_run: MakeRun) -> None:
    folder = make_run(rounds=2)
    source = FolderSource(folder)
    assert all_rows(source)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert source.now().title == "digits-5-uneven"
    assert all_rows(source) == []


def test_a_folder_without_a_run_is_refused_in_a_sentence(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such folder"):
        FolderSource(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"holds no run.*config\.toml"):
        FolderSource(tmp_path / "empty")
    make_run("several/a", rounds=1)
    make_run("several/b", rounds=1)
    with pytest.raises(BadInput, match=r"holds 2 run\(s\).*several/a"):
        FolderSource(tmp_path / "several")
