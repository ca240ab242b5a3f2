"""Folders of other versions: those from before there was a schema number are read, newer ones refused in a sentence.

`written_by_0_1_0_dev/` was made with commit cf3b126, the last one without a number: tramfl run digits-3 --rounds 6
--threads 1 --target 0.5,0.9 --set evaluation.every=2, and a register with its first four rounds.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import msgspec
import pytest

from tests.conftest import Cli
from tramfl.notation import BadInput
from tramfl.record import SCHEMA, RowTail, RunFolder, read_rows
from tramfl.runtime.registers.sqlite import SqliteRegister
from tramfl.version import __version__

OLD = Path(__file__).parent / "written_by_0_1_0_dev"
DECIDED = (
    "round",
    "epoch",
    "holder",
    "node",
    "samples",
    "loads",
    "total_seconds",
    "used",
    "label_variance",
    "decision",
)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def decided(path: Path) -> list[list[object]]:
    return [[getattr(row, name) for name in DECIDED] for row in read_rows(path)]


def accuracies(path: Path) -> list[float | None]:
    return [row.test_accuracy for row in read_rows(path)]


def test_a_folder_without_a_number_is_reported_and_shown(cli: Cli, old: Path) -> None:
    assert "schema" not in (old / "config.toml").read_text() + (old / "rounds.jsonl").read_text()
    assert cli("report", old).code == 0
    summary = RunFolder(old).summary()
    assert summary is not None
    assert (summary.rounds, summary.schema) == (6, 1)
    assert len(RowTail(old / "rounds.jsonl").rows(0)) == 6


def test_a_folder_without_a_number_is_resumed_and_its_rows_stay_byte_for_byte(cli: Cli, old: Path) -> None:
    before = (old / "rounds.jsonl").read_bytes()
    assert cli("run", "--resume", "--rounds", 8, "--threads", 1, "--out", old).code == 0
    assert (old / "rounds.jsonl").read_bytes().startswith(before)
    fresh = old.parent / "fresh"
    assert cli("run", old / "config.toml", "--threads", 1, "--out", fresh).code == 0
    assert decided(fresh / "rounds.jsonl") == decided(old / "rounds.jsonl")
    assert accuracies(fresh / "rounds.jsonl") == pytest.approx(accuracies(old / "rounds.jsonl"), abs=1e-6)


def test_a_record_without_a_number_is_replayed(cli: Cli, old: Path) -> None:
    loads = old / "rounds.jsonl"
    done = cli("run", old / "config.toml", "--no-training", "--loads", loads, "--out", old.parent / "replayed")
    assert done.code == 0, done
    assert decided(old.parent / "replayed" / "rounds.jsonl") == decided(loads)


def test_a_register_of_sites_that_were_known_by_number_is_refused_in_one_sentence(old: Path) -> None:
    register = SqliteRegister(old / "register.sqlite", "b", lease_seconds=60, timeout_seconds=60)

    async def read() -> None:
        try:
            await register.look()
        finally:
            await register.close()

    with pytest.raises(BadInput, match=r"register\.sqlite was made by another version of tramfl; use that version"):
        asyncio.run(read())


def test_a_new_folder_has_the_number_in_each_of_its_three_files(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", "digits-3", "--no-training", "--rounds", 3, "--out", "new").code == 0
    new = tmp_path / "new"
    assert f"\n[resolved]\nschema = {SCHEMA}\n" in (new / "config.toml").read_text()
    assert json.loads((new / "summary.json").read_text())["schema"] == SCHEMA
    lines = [json.loads(line) for line in (new / "rounds.jsonl").read_bytes().splitlines()]
    assert [line.get("schema") for line in lines] == [SCHEMA, None, None]


NEWER = ["schema 7", f"tramfl {__version__} reads schemas up to {SCHEMA}"]


@pytest.fixture
def newer(cli: Cli, tmp_path: Path) -> Path:
    """A folder of which one file is to become one of a later version."""
    assert cli("run", "digits-3", "--no-training", "--rounds", 3, "--out", "new").code == 0
    return tmp_path / "new"


def test_settings_of_a_newer_schema_are_refused_with_the_version_that_reads_them(cli: Cli, newer: Path) -> None:
    config = newer / "config.toml"
    text = config.read_text().replace(f"schema = {SCHEMA}\n", "schema = 7\n")
    config.write_text("warp = 9\n" + text.replace(f'tramfl = "{__version__}"', 'tramfl = "3.1.0"'))
    for command in (("report", newer), ("run", config), ("run", "--resume", "--out", newer), ("watch", newer)):
        cli(*command).refused(str(config), *NEWER, "use tramfl 3.1.0, which wrote it, or a newer one")


def test_rows_of_a_newer_schema_are_refused(cli: Cli, newer: Path) -> None:
    rows = newer / "rounds.jsonl"
    rows.write_bytes(b'{"schema":7,"warp":9}\n' + rows.read_bytes())
    again = ("run", "digits-3", "--no-training", "--rounds", 3, "--out", "again")
    for command in (("report", newer), (*again, "--loads", rows)):
        cli(*command).refused(str(rows), *NEWER, "use the version of tramfl that wrote it or a newer one")


def test_rows_of_a_newer_schema_are_not_shown_live(newer: Path) -> None:
    rows = newer / "rounds.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b'{"schema":1', b'{"schema":7', 1))
    tail = RowTail(rows)
    assert tail.rows(0) == []
    assert "schema 7" in tail.trouble


def test_a_summary_of_a_newer_schema_is_refused(cli: Cli, newer: Path) -> None:
    (newer / "summary.json").write_text('{"schema": 7, "warp": 9}')
    cli("report", newer).refused(str(newer / "summary.json"), *NEWER)


@pytest.mark.parametrize("number", ["0", '"1"', "1.0"])
def test_a_number_that_is_none_is_refused(newer: Path, number: str) -> None:
    config = newer / "config.toml"
    config.write_text(config.read_text().replace(f"schema = {SCHEMA}\n", f"schema = {number}\n"))
    with pytest.raises(BadInput, match="whole number from 1"):
        RunFolder(newer).scenario()


def test_a_row_in_the_middle_costs_nothing(newer: Path) -> None:
    first, second, _ = read_rows(newer / "rounds.jsonl")
    assert b"schema" in msgspec.json.encode(first)
    assert b"schema" not in msgspec.json.encode(second)
