"""A cable with a length: two TAP devices, and every frame that enters one leaves the other after a delay.

    python relay.py NEAR FAR MILLISECONDS

It makes both devices, writes "ready", and carries frames until it is ended; both devices go with it. The kernel's own
tool for this, netem, is missing in many kernels.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import select
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_BYTES = 65_536


def tap(name: str) -> int:
    """A TAP device."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


def carry(near: int, far: int, seconds: float) -> None:
    """Carry frames both ways, for ever."""
    queues: dict[int, collections.deque[tuple[float, bytes]]] = {near: collections.deque(), far: collections.deque()}
    other = {near: far, far: near}
    while True:
        now = time.monotonic()
        due = [queue[0][0] for queue in queues.values() if queue]
        readable, _, _ = select.select([near, far], [], [], max(0.0, min(due) - now) if due else None)
        now = time.monotonic()
        for device in readable:
            try:
                while True:
                    queues[other[device]].append((now + seconds, os.read(device, FRAME_BYTES)))
            except BlockingIOError:
                pass
        for device, queue in queues.items():
            while queue and queue[0][0] <= now:
                with contextlib.suppress(OSError):  # the device is down: a frame is lost, as on any network
                    os.write(device, queue.popleft()[1])


if __name__ == "__main__":
    ends = tap(sys.argv[1]), tap(sys.argv[2])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    carry(*ends, float(sys.argv[3]) / 1000)
