"""TCP ports of loopback for processes that are still to be started: nobody else is given one in the meantime.

A port that the kernel chose (bind to port 0, then close) may be chosen again before the process listens on it, for
any outgoing connection. The ports here lie below the range from which the kernel chooses. Each process claims a
block of them by the name of an abstract socket, which the kernel frees when the process ends, and gives out every
port of its blocks once.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from pathlib import Path

FIRST_PORT = 10_240
BLOCK = 256
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Ports of loopback on which nobody listens, each given out once by this process and by no other."""
    return list(itertools.islice((port for port in _ports if _is_free(port)), count))


def _claimed() -> Iterator[int]:
    for block in range(FIRST_PORT, _first_of_kernel() - BLOCK + 1, BLOCK):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0tramfl-ports-{block}")
        except OSError:
            claim.close()  # another process has it
            continue
        claim.detach()  # held until the process ends
        yield from range(block, block + BLOCK)
    # More processes than blocks, or a kernel that chooses from all ports: what it chooses is the best there is.
    while True:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            yield listener.getsockname()[1]


def _first_of_kernel() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError):
        return 0


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


_ports = _claimed()
