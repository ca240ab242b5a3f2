"""Backing a federation up and restoring it, as docs/operations.md says."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from tests.chaos.scenes import Kind, digits
from tests.runtime.etcd import EtcdCluster
from tests.runtime.federations import PATIENCE, LocalFederation


@pytest.mark.parametrize("kind", ["sqlite", "etcd"])
def test_a_federation_goes_on_from_a_backup_of_register_and_weights(kind: Kind, tmp_path: Path) -> None:
    folder, backup = tmp_path / "federation", tmp_path / "backup"
    networks = {"PYTHONPATH": str(Path(__file__).parent / "onsite")}
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(EtcdCluster(tmp_path / "etcd", members=1)) if kind == "etcd" else None
        settings = cluster.settings(timeout_seconds=20.0) if cluster is not None else None
        sites = stack.enter_context(LocalFederation(folder, digits(), 3, register=settings, environment=networks))
        sites.begin()
        sites.wait_for_round(4)
        sites.order("pause")
        before = sites.rest()
        _end(sites)
        if cluster is not None:
            cluster.terminate(0)
        register = tmp_path / "etcd" / "m0" if kind == "etcd" else folder / "register.sqlite"
        kept = [register, *(sites.site_folder(name) / "state" for name in sites.names)]
        for number, path in enumerate(kept):
            _copy(path, backup / str(number))
        # The disaster: nothing of the run is left.
        for path in (*kept, *folder.glob("register.sqlite-*")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        # Two of three state folders are restored: the third site starts with an empty one.
        for number, path in enumerate(kept[:3]):
            _copy(backup / str(number), path)
        if cluster is not None:
            cluster.start(0)
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


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, to)
    else:
        shutil.copy(path, to)


def _end(sites: LocalFederation) -> None:
    """SIGTERM, and wait."""
    for process in sites.processes.values():
        process.terminate()
    for process in sites.processes.values():
        process.wait(PATIENCE)
