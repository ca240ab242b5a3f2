"""What a hop costs: `python benchmarks/transfer.py [--quick]`.

45 MB of weights go from one process to another over mutual TLS on loopback: from the sender's call, which follows
its decision at once, to the receiver's acknowledgement that they are verified, fsynced and in its store, and on to
the swap in the SQLite register that makes the receiver the holder. Beside it, a bare Python socket with mutual TLS
sends the same bytes to a third process, which writes and fsyncs them and answers with one byte. Both keep their
connection, take turns, and the medians count. Goal: at most 1.5 times the bare socket.

Then 1 GB moves once, and the peak memory of either end is read from the kernel (VmHWM).
Goal: less than 300 MB above the model's size; as no end ever holds more than a few chunks, it is far below even that.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import multiprocessing
import os
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from msgspec.structs import replace

from tramfl.circulation.custody import first_record, numbered
from tramfl.circulation.phases import Copy, Offer
from tramfl.notation import Digest, NodeId
from tramfl.runtime.registers.contract import ABSENT
from tramfl.runtime.registers.sqlite import SqliteRegister
from tramfl.runtime.roster import Roster
from tramfl.runtime.settings import Federation, FederationFile, SiteEntry
from tramfl.runtime.transport import Credentials, Peers, Server
from tramfl.runtime.transport.certificates import Authority
from tramfl.runtime.weights.manifest import Manifest
from tramfl.runtime.weights.store import WeightStore, file_digest
from tramfl.runtime.wire import Accepted, AskLoad, AskRows, Consignment, Load, Order, OrderResult, Refused, Rows

HOP_BYTES = 45_000_000
LARGE_BYTES = 1_000_000_000
HOP_GOAL = 1.5
MEMORY_GOAL = 300_000_000
SPAWN = multiprocessing.get_context("spawn")


class StoringHost:
    """A receiver that puts what arrives into its store, and nothing else."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.store: WeightStore | None = WeightStore(folder)
        self.manifest: Manifest | None = Manifest.of(model)

    async def load(self, peer: NodeId, ask: AskLoad) -> Load:
        """Not asked."""
        raise NotImplementedError

    def receiving(self) -> contextlib.AbstractContextManager[None]:
        """Nothing to note."""
        return contextlib.nullcontext()

    async def admission(self, peer: NodeId, consignment: Consignment) -> str | None:
        """Every model is welcome."""
        return None

    async def arrived(
        self, peer: NodeId, consignment: Consignment, staged: Path, seconds: float, since: float
    ) -> Accepted | Refused:
        """Store it."""
        assert self.store is not None
        offer = consignment.offer
        await asyncio.to_thread(self.store.put, staged, Copy(offer.digest, offer.round, offer.epoch))
        return Accepted()

    async def order(self, who: str, order: Order) -> OrderResult:
        """What a benchmark orders is that the store be emptied for the next repeat."""
        assert self.store is not None
        await asyncio.to_thread(self.store.discard, [copy.digest for copy in self.store.copies()])
        return OrderResult(True, "Emptied.")

    async def rows(self, who: str, ask: AskRows) -> Rows:
        """Not asked."""
        raise NotImplementedError

    def model_path(self, digest: Digest) -> Path | None:
        """Not asked."""
        return None


def write_model(path: Path, size: int) -> Digest:
    """Weights of noise: one tensor of `size` bytes."""
    header = json.dumps({"weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for start in range(0, size, 1 << 20):
            file.write(os.urandom(min(1 << 20, size - start)))
    return file_digest(path)


def peak_bytes() -> int:
    """The most memory this process has had."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def certify(folder: Path) -> None:
    authority = Authority.create("benchmark")
    (folder / "ca.crt").write_bytes(authority.certificate_pem)
    for name in ("from", "to"):
        authority.issue(name).save(folder / f"{name}.crt", folder / f"{name}.key")


def credentials(folder: Path, name: str) -> Credentials:
    return Credentials.from_files(folder / "ca.crt", folder / f"{name}.crt", folder / f"{name}.key")


def federation(port: int) -> Federation:
    sites = (SiteEntry(name="from", address="127.0.0.1:1"), SiteEntry(name="to", address=f"127.0.0.1:{port}"))
    return Federation(FederationFile(name="benchmark", site=sites), Path("federation.toml"))


def receive(folder: Path, model: Path, pipe: Connection) -> None:
    """A process: a site that takes models until it is asked to end."""

    async def serve() -> None:
        host = StoringHost(folder / "store", model)
        server = Server("127.0.0.1:0", credentials(folder, "to"), Roster(federation(1)), host, print)
        await server.start()
        pipe.send(server.port)
        await asyncio.to_thread(pipe.recv)
        await server.stop(0)

    asyncio.run(serve())
    pipe.send(peak_bytes())


def send_once(folder: Path, model: Path, digest: Digest, port: int, pipe: Connection) -> None:
    """A process: a site that sends one model."""

    async def send() -> None:
        peers = Peers(Roster(federation(port)), "from", credentials(folder, "from"))
        consignment = Consignment("benchmark", Offer(1, 1, digest, 1, None), model.stat().st_size)
        await peers.send(1, consignment, model, lambda sent: None)
        await peers.close()

    asyncio.run(send())
    pipe.send(peak_bytes())


def receive_bare(folder: Path, pipe: Connection) -> None:
    """A process: writes and fsyncs what comes over one TLS connection, and says so with one byte."""
    context = _context(folder, "to", ssl.Purpose.CLIENT_AUTH)
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        with context.wrap_socket(listener.accept()[0], server_side=True) as connection:
            buffer = bytearray(1 << 20)
            while head := connection.recv(8):
                _receive_file(connection, int.from_bytes(head, "big"), folder / "bare", buffer)
                connection.sendall(b".")
                (folder / "bare").unlink()


def _receive_file(connection: ssl.SSLSocket, size: int, path: Path, buffer: bytearray) -> None:
    view = memoryview(buffer)
    with path.open("wb", buffering=0) as file:
        while size:
            count = connection.recv_into(view[: min(size, len(view))])
            file.write(view[:count])
            size -= count
        os.fsync(file.fileno())


def _context(folder: Path, name: str, purpose: ssl.Purpose) -> ssl.SSLContext:
    context = ssl.create_default_context(purpose, cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return context


def send_bare(connection: ssl.SSLSocket, model: Path) -> None:
    connection.sendall(model.stat().st_size.to_bytes(8, "big"))
    with model.open("rb", buffering=0) as file:
        while block := file.read(1 << 20):
            connection.sendall(block)
    assert connection.recv(1) == b"."


@contextmanager
def process(target: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """A child that has a pipe as its last argument; ended, by its own id, if it does not end itself."""
    here, there = SPAWN.Pipe()
    child = SPAWN.Process(target=target, args=(*arguments, there))
    child.start()
    try:
        yield here
        child.join(30)
    finally:
        if child.is_alive():
            child.kill()


async def hops(folder: Path, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of each hop, ours and the bare socket's, in turns."""
    model = folder / "model"
    digest = write_model(model, HOP_BYTES)
    ours, bare = [], []
    with process(receive, folder, model) as site, process(receive_bare, folder) as plain:
        peers = Peers(Roster(federation(site.recv())), "from", credentials(folder, "from"))
        register = SqliteRegister(folder / "register.sqlite", "from", lease_seconds=3600.0)
        await register.join()
        held = await register.swap(ABSENT, first_record("benchmark", 0, digest, (0,), labels=10, members=numbered(2)))
        raw = socket.create_connection(("127.0.0.1", plain.recv()))
        with _context(folder, "from", ssl.Purpose.SERVER_AUTH).wrap_socket(raw, server_hostname="to") as connection:
            for ticket in range(repeats + 1):
                consignment = Consignment("benchmark", Offer(1, 1, digest, ticket, None), model.stat().st_size)
                begin = time.perf_counter()
                await peers.send(1, consignment, model, lambda sent: None)
                assert held is not None
                held = await register.swap(held.revision, replace(held.record, holder=1 - ticket % 2))
                middle = time.perf_counter()
                send_bare(connection, model)
                bare.append(time.perf_counter() - middle)
                ours.append(middle - begin)
                await peers.order(1, Order("status"), 5)
        await peers.close()
        await register.close()
        site.send("end")
        site.recv()
    return ours[1:], bare[1:]  # the first of each is a rehearsal


def large(folder: Path, size: int) -> tuple[int, int]:
    """Peak memory of the sender and of the receiver of one large model."""
    model = folder / "large"
    digest = write_model(model, size)
    with process(receive, folder, model) as receiver:
        with process(send_once, folder, model, digest, receiver.recv()) as sender:
            sending = sender.recv()
        receiver.send("end")
        receiving = receiver.recv()
    taken = next((folder / "store").glob("*.safetensors"))
    assert hashlib.file_digest(taken.open("rb"), "sha256").hexdigest() == digest
    return sending, receiving


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats and a smaller large model")
    parser.add_argument("--folder", type=Path, help="where the files go; the system's place for such if not given")
    arguments = parser.parse_args()
    size = LARGE_BYTES // 5 if arguments.quick else LARGE_BYTES
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        certify(folder)
        ours, bare = asyncio.run(hops(folder, 7 if arguments.quick else 31))
        sending, receiving = large(folder, size)
    ratio = statistics.median(ours) / statistics.median(bare)
    print(f"a hop of {HOP_BYTES / 1e6:.0f} MB, to durable, acknowledged and committed, median of {len(ours)}:")
    print(f"  tramfl      {statistics.median(ours) * 1e3:6.0f} ms   ({min(ours) * 1e3:.0f} to {max(ours) * 1e3:.0f})")
    print(f"  bare socket {statistics.median(bare) * 1e3:6.0f} ms   ({min(bare) * 1e3:.0f} to {max(bare) * 1e3:.0f})")
    print(f"  ratio       {ratio:6.2f}      goal: at most {HOP_GOAL}")
    print(f"peak memory while {size / 1e6:.0f} MB move, goal: less than {(size + MEMORY_GOAL) / 1e6:.0f} MB:")
    print(f"  sender {sending / 1e6:.0f} MB, receiver {receiving / 1e6:.0f} MB")
    return 0 if ratio <= HOP_GOAL and max(sending, receiving) < size + MEMORY_GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
