"""What only root may do: without it the tests that need it are skipped, except under CI=true."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest

from tests.system_parts import require


def require_root(what: str) -> None:
    """Skip unless this is root; under CI=true, fail."""
    if os.geteuid() == 0:
        return
    reason = f"only root may {what}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def run_as_root(*words: str) -> None:
    """Run a command that must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


class SmallDisk:
    """A file system of a few megabytes that can be filled up."""

    def __init__(self, place: Path) -> None:
        self.place = place

    @property
    def free(self) -> int:
        """Bytes that can still be written."""
        room = os.statvfs(self.place)
        return room.f_bavail * room.f_frsize

    def fill(self, leaving: int) -> None:
        """Leave only this many bytes."""
        ballast = self.place / "ballast"
        with ballast.open("ab") as file:
            while (more := self.free - leaving) > 0:
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), more)
                except OSError:
                    break  # a site was quicker: it is full

    def empty(self) -> None:
        """Give the room back."""
        (self.place / "ballast").unlink(missing_ok=True)


@contextlib.contextmanager
def small_disks() -> Iterator[list[SmallDisk]]:
    """Disks to be appended with `mounted`; taken away at the end."""
    require_root("mount a file system")
    disks: list[SmallDisk] = []
    try:
        yield disks
    finally:
        for disk in disks:
            run_as_root("umount", "--lazy", str(disk.place))


def mounted(place: Path, megabytes: int) -> SmallDisk:
    """A small disk in place of a folder."""
    place.mkdir(parents=True, exist_ok=True)
    run_as_root("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place))
    return SmallDisk(place)


_networks = itertools.count()


class Network:
    """Hosts on one switch, and a second switch beside it with no way between the two.

    This machine's own processes are on the first.
    """

    def __init__(self, hosts: int) -> None:
        self._tag = f"{os.getpid() % 0xFFFF:04x}{next(_networks)}"
        subnet = f"10.{200 + os.getpid() // 250 % 50}.{os.getpid() % 250}"
        self.addresses = [f"{subnet}.{10 + host}" for host in range(hosts)]
        self._own = f"{subnet}.1/24"
        self._switches = (f"tra{self._tag}", f"trb{self._tag}")

    def _host(self, host: int) -> str:
        return f"tramfl-{self._tag}-{host}"

    def _cable(self, host: int) -> str:
        return f"trv{self._tag}{host}"

    def prefix(self, host: int) -> Sequence[str]:
        """The words before a command that is to run at a host."""
        return "ip", "netns", "exec", self._host(host)

    def __enter__(self) -> Self:
        require("ip")
        require_root("make network namespaces")
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _build(self) -> None:
        for switch in self._switches:
            run_as_root("ip", "link", "add", switch, "type", "bridge")
            run_as_root("ip", "link", "set", switch, "up")
        run_as_root("ip", "address", "add", self._own, "dev", self._switches[0])
        for host, address in enumerate(self.addresses):
            name, cable = self._host(host), self._cable(host)
            run_as_root("ip", "netns", "add", name)
            self._connect(host)
            run_as_root("ip", "link", "set", cable, "master", self._switches[0], "up")
            for words in (
                ("address", "add", f"{address}/24", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
                ("link", "set", "lo", "up"),
            ):
                run_as_root("ip", "-n", name, *words)

    def _connect(self, host: int) -> None:
        """Make a cable: one end in the host, the other one here."""
        run_as_root(
            "ip", "link", "add", self._cable(host), "type", "veth", "peer", "name", "eth0", "netns", self._host(host)
        )

    def _remove(self) -> None:
        for host in range(len(self.addresses)):
            subprocess.run(["ip", "netns", "del", self._host(host)], capture_output=True, check=False)
            subprocess.run(["ip", "link", "del", self._cable(host)], capture_output=True, check=False)
        for switch in self._switches:
            subprocess.run(["ip", "link", "del", switch], capture_output=True, check=False)

    def part(self, *hosts: int) -> None:
        """Put these hosts on the other switch: they reach each other and nobody else."""
        for host in hosts:
            run_as_root("ip", "link", "set", self._cable(host), "master", self._switches[1])

    def cut(self, host: int) -> None:
        """Put a host on no switch at all."""
        run_as_root("ip", "link", "set", self._cable(host), "nomaster")

    def heal(self) -> None:
        """Everybody is on one switch again."""
        for host in range(len(self.addresses)):
            run_as_root("ip", "link", "set", self._cable(host), "master", self._switches[0])
