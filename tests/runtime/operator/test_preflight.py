"""What preflight says of a site that cannot take part: each finding names what to fix."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.root import SmallDisk, mounted, small_disks
from tests.conftest import Cli
from tramfl.runtime.operator import preflight
from tramfl.runtime.operator.ports import free_ports
from tramfl.runtime.settings import read_site
from tramfl.runtime.transport.certificates import Authority
from tramfl.runtime.weights.store import SPARE_BYTES


@pytest.fixture
def site(cli: Cli, tmp_path: Path) -> Path:
    """The folder of site a, of two; b never starts."""
    addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    assert cli("init", tmp_path / "f", "--sites", "a,b", "--addresses", addresses).code == 0
    return tmp_path / "f" / "sites" / "a"


def findings(cli: Cli, site: Path, *options: str) -> dict[str, dict[str, Any]]:
    done = cli("preflight", site / "site.toml", "--format", "json", *options)
    found = {finding["check"]: finding for finding in done.data["findings"]}
    assert done.data["ready"] == all(finding["good"] for finding in found.values())
    assert done.code == (0 if done.data["ready"] else 1)
    return found


def test_a_site_whose_peer_is_not_there_yet_lacks_nothing_else(cli: Cli, site: Path) -> None:
    found = findings(cli, site)
    assert [check for check, finding in found.items() if not finding["good"]] == ["peer b"]
    assert "is it started" in found["peer b"]["message"]
    assert set(found) == {"certificates", "port", "register", "model and data", "disk", "peer b"}


def test_everything_that_is_wrong_is_said_at_once(cli: Cli, site: Path, tmp_path: Path) -> None:
    # A stranger's certificate, a taken port, a register in no folder, an app that is not there, a file for a disk.
    stranger = Authority.create("elsewhere").issue("a", ("127.0.0.1",))
    stranger.save(site / "site.crt", site / "site.key")
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(text + 'app = "nowhere.at.all:app"\n')
    (site / "state").write_text("in the way")
    federation = site / "federation.toml"
    lines = [
        f'path = "{tmp_path}/missing/register.sqlite"' if line.startswith("path = ") else line
        for line in federation.read_text().splitlines()
    ]
    federation.write_text("\n".join(lines) + "\n")
    address = next(line for line in lines if line.startswith("address")).split('"')[1]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        taken.listen()
        done = cli("preflight", site / "site.toml")
    assert done.code == 1
    fixes = [line.removeprefix("FIX  ").partition(": ") for line in done.out.splitlines() if line.startswith("FIX ")]
    wrong = {check: message for check, _, message in fixes}
    assert set(wrong) == {"certificates", "port", "register", "model and data", "disk"}
    assert "None of the authorities issued the certificate" in wrong["certificates"]
    assert address in wrong["port"]
    assert "missing" in wrong["register"]
    assert "nowhere.at.all" in wrong["model and data"]
    assert "state" in wrong["disk"]


def test_an_etcd_that_does_not_answer_is_named(cli: Cli, tmp_path: Path) -> None:
    port, etcd = free_ports(2)
    where = f"http://127.0.0.1:{etcd}"
    options = ("--addresses", f"127.0.0.1:{port}", "--register", "etcd", "--endpoints", where)
    assert cli("init", tmp_path / "f", "--sites", "a", *options).code == 0
    found, record, _ = asyncio.run(preflight._register(read_site(tmp_path / "f" / "sites" / "a" / "site.toml")))
    assert (found.check, found.good, record) == ("register", False, None)
    assert "etcd does not answer" in found.message


def test_files_that_are_not_there_are_one_sentence(cli: Cli, site: Path) -> None:
    cli("preflight", site / "nothing.toml").refused("nothing.toml", "no such file")
    (site / "federation.toml").unlink()
    cli("node", site / "site.toml").refused("federation.toml", "no such file")


class TestDisk:
    """A disk that is really small, with more or less of it free."""

    WEIGHTS_BYTES = 30_000

    @pytest.fixture
    def disk(self, site: Path) -> Iterator[SmallDisk]:
        """The disk of site a: some room for a model as small as that of the digits."""
        with small_disks() as disks:
            disks.append(mounted(site / "state", megabytes=2 + SPARE_BYTES // 10**6))
            yield disks[0]

    def found(self, site: Path) -> preflight.Finding:
        return preflight._disk(read_site(site / "site.toml"), self.WEIGHTS_BYTES)

    def test_one_with_room_for_the_run_is_good(self, site: Path, disk: SmallDisk) -> None:
        assert self.found(site).good

    def test_one_that_would_refuse_the_model_is_too_small(self, site: Path, disk: SmallDisk) -> None:
        # It could take the weights many times over, but a site takes none that leave too little to spare.
        disk.fill(leaving=SPARE_BYTES)
        found = self.found(site)
        assert not found.good
        assert found.message.startswith(f"{site / 'state'} has 33.6 MB free, and the run needs 3")
        assert found.message.endswith(f"MB; make room there, or set `state` in {site / 'site.toml'}.")

    def test_one_without_a_byte_left_is_named(self, site: Path, disk: SmallDisk) -> None:
        disk.fill(leaving=0)
        found = self.found(site)
        assert not found.good
        assert found.message.startswith(f"{site / 'state'} cannot be written: No space left on device; ")
        assert found.message.endswith(f"make room there, or set `state` in {site / 'site.toml'}.")
