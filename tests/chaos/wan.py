"""Hosts that are far apart: each in a network namespace, behind a line with a rate of its own and a delay."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.chaos.root import Network, run_as_root

MTU = 9000
"""Fewer frames for the same bits: the relays are Python."""
RELAY = Path(__file__).with_name("relay.py")


class Line(NamedTuple):
    """What connects a host with the switch."""

    up: float
    """Mbit/s from the host."""
    down: float
    """Mbit/s to the host."""
    delay: float
    """Milliseconds one way, between the host and the switch."""


class FarNetwork(Network):
    """Hosts on one switch; what goes from one to another crosses the lines of both."""

    def __init__(self, lines: Sequence[Line]) -> None:
        super().__init__(len(lines))
        self.lines = list(lines)
        self._relays: list[subprocess.Popen[str]] = []

    def rate(self, one: int, other: int) -> float:
        """Mbit/s from one host to another."""
        return min(self.lines[one].up, self.lines[other].down)

    @property
    def longest_round_trip(self) -> float:
        """Seconds between the two hosts that are farthest apart, there and back."""
        *_, second, first = sorted(line.delay for line in self.lines)
        return 2 * (first + second) / 1000

    def change(self, host: int, *, up: float | None = None, down: float | None = None) -> None:
        """Give a line other rates."""
        line = self.lines[host]
        line = self.lines[host] = line._replace(up=up or line.up, down=down or line.down)
        if up is not None:
            _shape(("tc", "-n", self._host(host)), "eth0", line.up)
        if down is not None:
            _shape(("tc",), self._cable(host), line.down)

    def _connect(self, host: int) -> None:
        near, far = f"{self._cable(host)}x", self._cable(host)
        relay = subprocess.Popen(
            [sys.executable, "-S", str(RELAY), near, far, str(self.lines[host].delay)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._relays.append(relay)
        assert relay.stdout is not None
        assert relay.stdout.readline() == "ready\n", "no relay: are there TAP devices?"
        run_as_root("ip", "link", "set", near, "mtu", str(MTU), "name", "eth0", "netns", self._host(host))
        run_as_root("ip", "link", "set", far, "mtu", str(MTU))
        self.change(host, up=self.lines[host].up, down=self.lines[host].down)

    def _remove(self) -> None:
        for relay in self._relays:
            relay.kill()
            relay.wait()
            if relay.stdout is not None:
                with contextlib.suppress(OSError):
                    relay.stdout.close()
        super()._remove()


def _shape(tc: Sequence[str], device: str, rate: float) -> None:
    """A token bucket with 10 ms of bursts, and a queue of 100 ms, as a home router has."""
    burst = max(4 * MTU, int(rate * 1e6 / 8 * 0.01))
    shape = ("root", "tbf", "rate", f"{rate}mbit", "burst", str(burst), "latency", "100ms")
    run_as_root(*tc, "qdisc", "replace", "dev", device, *shape)
