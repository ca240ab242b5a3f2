"""What preflight says of a site that cannot take part: each finding names what to fix."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.chaos.root import SmallDisk, mounted, small_disks
from tests.conftest import Cli
from tests.runtime.federations import LocalFederation
from tramfl.runtime.operator.ports import free_ports
from tramfl.runtime.operator.preflight import PEER_SECONDS
from tramfl.runtime.transport.certificates import Authority
from tramfl.runtime.weights.store import SPARE_BYTES
from tramfl.simulation.scenarios import scenario_named


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
        found = findings(cli, site)
    wrong = {check: finding["message"] for check, finding in found.items() if not finding["good"]}
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
    found = findings(cli, tmp_path / "f" / "sites" / "a")
    assert not found["register"]["good"]
    assert "etcd does not answer" in found["register"]["message"]
    assert found["model and data"]["good"]


def test_files_that_are_not_there_are_one_sentence(cli: Cli, site: Path) -> None:
    cli("preflight", site / "nothing.toml").refused("nothing.toml", "no such file")
    (site / "federation.toml").unlink()
    cli("node", site / "site.toml").refused("federation.toml", "no such file")


class TestDisk:
    """A disk that is really small, with more or less of it free."""

    @pytest.fixture
    def disk(self, site: Path) -> Iterator[SmallDisk]:
        """The disk of site a: some room for a model as small as that of the digits."""
        with small_disks() as disks:
            disks.append(mounted(site / "state", megabytes=2 + SPARE_BYTES // 10**6))
            yield disks[0]

    def test_one_with_room_for_the_run_is_good(self, cli: Cli, site: Path, disk: SmallDisk) -> None:
        assert findings(cli, site)["disk"]["good"]

    def test_one_that_would_refuse_the_model_is_too_small(self, cli: Cli, site: Path, disk: SmallDisk) -> None:
        # It could take the weights many times over, but a site takes none that leave too little to spare.
        disk.fill(leaving=SPARE_BYTES)
        found = findings(cli, site)["disk"]
        assert not found["good"]
        assert found["message"].startswith(f"{site / 'state'} has 33.6 MB free, and the run needs 3")
        assert found["message"].endswith(f"MB; make room there, or set `state` in {site / 'site.toml'}.")

    def test_one_without_a_byte_left_is_named(self, cli: Cli, site: Path, disk: SmallDisk) -> None:
        disk.fill(leaving=0)
        done = cli("preflight", site / "site.toml")
        assert done.code == 1
        (line,) = (line for line in done.out.splitlines() if "disk" in line)
        assert line.startswith(f"FIX  disk: {site / 'state'} cannot be written: No space left on device; ")
        assert line.endswith(f"make room there, or set `state` in {site / 'site.toml'}.")


class TestClocks:
    """Peers that run with other clocks than this machine's."""

    SECONDS_OFF: ClassVar = {"b": 90.0, "c": -90.0}

    @pytest.fixture
    def federation(self, tmp_path: Path) -> Iterator[LocalFederation]:
        """Sites b and c, each with a clock of its own; a is still to come."""
        for name, off in self.SECONDS_OFF.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "sitecustomize.py").write_text(
                f"import time\nright = time.time\ntime.time = lambda: right() + {off}\n"
            )
        with LocalFederation(
            tmp_path / "f",
            scenario_named("digits-3"),
            3,
            wrap=lambda name: ("env", f"PYTHONPATH={tmp_path / name}"),
        ) as federation:
            federation.start(*self.SECONDS_OFF)
            federation.ready(*self.SECONDS_OFF)
            yield federation

    def test_a_peer_whose_clock_is_wrong_is_named(self, cli: Cli, federation: LocalFederation) -> None:
        found = findings(cli, federation.site_folder("a"))
        assert [check for check, finding in found.items() if not finding["good"]] == ["peer b", "peer c"]
        for peer, way in (("b", "ahead of"), ("c", "behind")):
            message = found[f"peer {peer}"]["message"]
            said = re.fullmatch(
                rf"its clock is ([\d.]+) s {way} this one; keep both by NTP, and restart the site that was wrong\.",
                message,
            )
            assert said, message
            # What the answer took on its way is not counted, and it took no longer than it may.
            assert 90 - PEER_SECONDS <= float(said[1]) <= 90
