"""What signatures cost, beside a swap in the register: `python benchmarks/signing.py`.

Swaps of a record of ten sites with a row of 3 kB in a SQLite register on disk, with and without signatures, in turns;
and what one signature and one check take. The median counts. Goal: signed swaps take at most 1.2 times as long.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from tramfl.circulation.custody import Entry, Record, first_record
from tramfl.notation import Ledger
from tramfl.runtime.registers import ABSENT, CheckedRegister
from tramfl.runtime.registers.records import RECORD, stored
from tramfl.runtime.registers.sqlite import SqliteRegister
from tramfl.runtime.transport import Credentials
from tramfl.runtime.transport.certificates import Authority
from tramfl.runtime.transport.sealing import SiteSeal
from tramfl.runtime.wire import PROTOCOL

NAMES = tuple(f"site-{n}" for n in range(10))
SWAPS = 300
ROW = b"x" * 3000


def main() -> None:
    """Print the figures."""
    authority = Authority.create("benchmark")
    issued = authority.issue(NAMES[0])
    seal = SiteSeal(NAMES[0], Credentials(authority.certificate_pem, issued.certificate_pem, issued.key_pem))
    members = tuple(Entry(name, f"{name}.example.org:7400") for name in NAMES)
    record = replace(first_record("run", 0, "a" * 64, (0, 1), 10, members), protocol=PROTOCOL)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        plain, signed = asyncio.run(_swaps(Path(folder), record, seal))
    content = stored(record)
    sealed = seal.seal(RECORD, content)
    signing = _median(lambda: seal.seal(RECORD, content))
    checking = _median(lambda: seal.opened(RECORD, sealed, NAMES))
    print(f"record {len(content)} bytes, signed {len(sealed)} bytes")
    print(f"one signature {1e3 * signing:.3f} ms, one check {1e3 * checking:.3f} ms")
    print(f"swap {1e3 * plain:.2f} ms, with signatures {1e3 * signed:.2f} ms: {signed / plain:.2f} times")
    print(f"signature and check over a swap: {(signing + checking) / plain:.3f}")


async def _swaps(folder: Path, first: Record, seal: SiteSeal) -> tuple[float, float]:
    """The median seconds of a swap without and with signatures."""
    registers = []
    for name, using in (("plain", None), ("signed", seal)):
        inner = SqliteRegister(folder / f"{name}.sqlite", NAMES[0], 3600.0, 60.0)
        register = CheckedRegister(inner, folder / f"{name}.msgpack", _ignore, using)
        await register.join()
        registers.append(register)
    seconds: tuple[list[float], list[float]] = ([], [])
    revisions, record = [ABSENT, ABSENT], first
    for turn in range(SWAPS):
        record = replace(record, ledger=Ledger((turn,) * 10, float(turn), turn))
        for which, register in enumerate(registers):
            began = time.perf_counter()
            swapped = await register.swap(revisions[which], record, ROW)
            seconds[which].append(time.perf_counter() - began)
            assert swapped is not None
            revisions[which] = swapped.revision
    for register in registers:
        await register.close()
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def _median(work: Callable[[], object]) -> float:
    found = []
    for _ in range(SWAPS):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def _ignore(event: str, **fields: object) -> None:
    pass


if __name__ == "__main__":
    main()
