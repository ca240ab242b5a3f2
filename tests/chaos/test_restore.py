"""Backing a federation up and restoring it, as docs/operations.md says."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.chaos.scenes import digits
from tests.runtime.federations import PATIENCE, LocalFederation


def test_a_federation_goes_on_from_a_backup_of_register_and_weights(tmp_path: Path) -> None:
    folder, backup = tmp_path / "federation", tmp_path / "backup"
    networks = {"PYTHONPATH": str(Path(__file__).parent / "onsite")}
    with LocalFederation(folder, digits(), 3, environment=networks) as sites:
        sites.begin()
        sites.wait_for_round(4)
        sites.order("pause")
        before = sites.rest()
        _end(sites)
        register, states = folder / "register.sqlite", [sites.site_folder(name) / "state" for name in sites.names]
        backup.mkdir()
        shutil.copy(register, backup)
        for number, state in enumerate(states):
            shutil.copytree(state, backup / str(number))
        # The disaster: nothing of the run is left.
        for file in folder.glob("register.sqlite*"):
            file.unlink()
        for state in states:
            shutil.rmtree(state)
        # Two of three state folders are restored: the third site starts with an empty one.
        shutil.copy(backup / "register.sqlite", register)
        for number, state in enumerate(states[:2]):
            shutil.copytree(backup / str(number), state)
        sites.start()
        sites.ready()
        restored = sites.seen("record", lambda: sites.status().record, PATIENCE)
        assert (restored.run, restored.round, restored.weights.digest) == (
            before.run,
            before.round,
            before.weights.digest,
        )
        sites.order("resume")
        sites.wait_for_round(before.round + 2)
        assert [row.round for row in sites.rows()][: before.round] == list(range(1, before.round + 1))


def _end(sites: LocalFederation) -> None:
    """SIGTERM, and wait."""
    for process in sites.processes.values():
        process.terminate()
    for process in sites.processes.values():
        process.wait(PATIENCE)
