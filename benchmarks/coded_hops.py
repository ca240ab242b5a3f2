"""What a hop of ResNet-18 costs over a link of 50 Mbit/s, by codec: `python -m benchmarks.coded_hops` (as root).

The file that a site would store goes from one process to another over mutual TLS, inside a network namespace of its
own whose loopback is limited to 50 Mbit/s. Seconds run from the sender's call to the receiver's acknowledgement that
the file is verified, fsynced and in its store, over a connection that is there already, as between sites at work; the
median of several hops counts. Bytes are what the kernel counted, acknowledgements included. Goal: at most 0.26 (int8)
and 0.135 (int4) of float32's bytes, and of its seconds likewise. The rest is what a hop takes beside its bytes at the
link's rate: to hash, to sync, to agree.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import get_args

import torch

from benchmarks.transfer import certify, credentials, federation, process, receive
from tramfl.circulation.phases import Offer
from tramfl.config import Codec
from tramfl.learning.model.coded_files import CODEC, REFERENCE
from tramfl.learning.model.networks import build_network
from tramfl.learning.model.weights import digest, to_bytes
from tramfl.learning.training.transit import TransitCoder
from tramfl.runtime.roster import Roster
from tramfl.runtime.transport import Peers
from tramfl.runtime.wire import Consignment, Order

LIMIT, RATE = "50mbit", 50e6
TURNS = 5
INSIDE = "--inside"
DEVICES = Path("/proc/self/net/dev")


def main() -> None:
    """Start again in a namespace of its own, or measure there."""
    if INSIDE not in sys.argv:
        os.execvp("unshare", ["unshare", "--net", sys.executable, "-m", "benchmarks.coded_hops", INSIDE])
    for words in ("ip link set lo mtu 1500 up", f"tc qdisc add dev lo root tbf rate {LIMIT} burst 32k latency 200ms"):
        subprocess.run(words.split(), check=True)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_measure(Path(folder)))


async def _measure(folder: Path) -> None:
    certify(folder)
    heads = "codec", "file, MB", "of float32", "bytes on the wire, of float32", "hop, s", "of float32", "the rest, s"
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    first: tuple[float, float, float] | None = None
    for codec in get_args(Codec):
        place = folder / codec
        place.mkdir()
        for name in ("ca.crt", "from.crt", "from.key", "to.crt", "to.key"):
            (place / name).write_bytes((folder / name).read_bytes())
        model = place / "model.safetensors"
        model.write_bytes(weights(codec))
        size = model.stat().st_size
        seconds, moved = await _hops(place, model)
        first = first or (size, moved, seconds)
        shares = [value / whole for value, whole in zip((size, moved, seconds), first, strict=True)]
        print(f"| {codec} | {size / 1e6:.2f} | {shares[0]:.4f} | {shares[1]:.4f}", end="")
        print(f" | {seconds:.2f} | {shares[2]:.4f} | {seconds - 8 * moved / RATE:.2f} |", flush=True)


def weights(codec: Codec) -> bytes:
    """A trained ResNet-18 as a site stores it."""
    network = build_network("resnet18", classes=10, input_shape=(3, 48, 48), weights=None, seed=0, own=None)
    reference = network.state_dict()
    coder = TransitCoder(codec, 0, reference)
    draw = torch.Generator().manual_seed(0)
    trained = {
        name: tensor + 1e-3 * torch.randn(tensor.shape, generator=draw) if tensor.is_floating_point() else tensor
        for name, tensor in reference.items()
    }
    coded = coder.through(trained, 1)
    about = {CODEC: codec, REFERENCE: "0" * 64} if codec != "float32" else None
    return to_bytes(coder.packed(trained, coded), about)


def counted() -> int:
    """Bytes that have come through the loopback of this namespace."""
    (line,) = (line for line in DEVICES.read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])


async def _hops(folder: Path, model: Path) -> tuple[float, float]:
    """The median seconds of a hop, and the bytes of one."""
    with process(receive, folder, model) as site:
        peers = Peers(Roster(federation(site.recv())), "from", credentials(folder, "from"))
        found, name, size = [], digest(model.read_bytes()), model.stat().st_size
        for ticket in range(TURNS):
            await peers.order(1, Order("status"), 60)  # connects, and empties the receiver's store
            consignment = Consignment("benchmark", Offer(1, 1, name, ticket, None), size)
            before, began = counted(), time.perf_counter()
            await peers.send(1, consignment, model, lambda sent: None)
            found.append((time.perf_counter() - began, counted() - before))
        await peers.close()
        site.send("end")
        site.recv()
    return statistics.median(seconds for seconds, _ in found), statistics.median(moved for _, moved in found)


if __name__ == "__main__":
    main()
