"""`tramfl pull` where the model cannot be had: one sentence at once, and the folder as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.conftest import Cli
from tests.runtime.federations import LocalFederation
from tramfl.config import Budget
from tramfl.runtime.transport import Peers
from tramfl.simulation.scenarios import scenario_named

SCENARIO = replace(scenario_named("digits-3"), budget=Budget(rounds=100_000))
ONE_STATUS = 3
"""Questions that it takes to ask every site how it is."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """Three sites at rest after some rounds; every test leaves them so, except the last."""
    with LocalFederation(tmp_path_factory.mktemp("f") / "f", SCENARIO, 3) as federation:
        federation.begin("done")
        federation.wait_for_round(4)
        federation.order("stop")
        federation.rest()
        yield federation


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often sites were asked for their status, and for the model."""
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        ask = getattr(Peers, name)

        async def counting(*arguments: Any) -> Any:
            counted[name] += 1
            return await ask(*arguments)

        monkeypatch.setattr(Peers, name, counting)

    count("order")
    count("fetch")
    return counted


def sites_with_the_model(federation: LocalFederation) -> list[str]:
    """Those that the record names; another one is there to tell of it."""
    names = [federation.names[node] for node in federation.record.safe.copies]
    assert len(names) == 2
    return names


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_weights_that_no_site_has_any_more_are_asked_for_once(
    federation: LocalFederation, cli: Cli, asked: Counter[str], tmp_path: Path
) -> None:
    record, holders = federation.record, sites_with_the_model(federation)
    states = [federation.site_folder(name) / "state" / "runs" for name in holders]
    files = [path for state in states for path in state.glob(f"*/*-{record.safe.digest}.safetensors")]
    assert len(files) == 2
    asked.clear()
    for file in files:
        file.rename(file.with_suffix(".away"))
    try:
        done = cli("pull", federation.federation, "--out", tmp_path / "pulled")
    finally:
        for file in files:
            file.with_suffix(".away").rename(file)
    done.refused(f"the weights of round {record.safe.round} lie at {', '.join(holders)}", "are not here")
    assert asked["fetch"] == 2
    assert asked["order"] <= 3 * ONE_STATUS
    assert not (tmp_path / "pulled").exists()


def test_a_model_whose_sites_do_not_answer_is_not_waited_for(
    federation: LocalFederation, cli: Cli, asked: Counter[str], tmp_path: Path
) -> None:
    pulled, new = tmp_path / "pulled", tmp_path / "new"
    assert cli("pull", federation.federation, "--out", pulled).code == 0
    before = content_of(pulled)
    record, holders = federation.record, sites_with_the_model(federation)
    for name in holders:
        federation.suspend(name)
    try:
        for folder in (new, pulled):
            asked.clear()
            done = cli("pull", federation.federation, "--out", folder)
            done.refused(
                f"the weights of round {record.safe.round} lie at {', '.join(holders)}, and cannot be fetched",
                "no site that has them answers",
            )
            assert asked == {"order": 2 * ONE_STATUS}
    finally:
        for name in holders:
            federation.proceed(name)
    assert not new.exists()
    assert content_of(pulled) == before
    federation.ready()
    assert cli("pull", federation.federation, "--out", new).code == 0
    assert (new / "model.safetensors").read_bytes() == before["model.safetensors"]


def test_a_federation_of_which_nobody_answers_is_asked_once(
    federation: LocalFederation, cli: Cli, asked: Counter[str], tmp_path: Path
) -> None:
    # The last test of the shared federation: it ends its sites.
    federation.end()
    cli("pull", federation.federation, "--out", tmp_path / "pulled").refused("no site of 'test' answers")
    assert asked == {"order": ONE_STATUS}
    assert not (tmp_path / "pulled").exists()
