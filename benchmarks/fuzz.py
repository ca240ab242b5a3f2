"""Wrong inputs at every entry point of the wire and the files: `python -m benchmarks.fuzz [--inputs N] [--seed S]`.

Goal: 100,000 inputs with no crash, no hang and no change of state; the same seed gives the same inputs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from tests.runtime.fuzzing import Bench


async def play(inputs: int, seed: int, folder: Path) -> Bench:
    bench, rng = Bench(folder), Random(seed)
    try:
        for number in range(inputs):
            try:
                await bench.one(rng)
            except BaseException:
                print(f"input {number} of seed {seed} did harm:", file=sys.stderr)
                raise
    finally:
        await bench.close()
    return bench


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        bench = asyncio.run(play(arguments.inputs, arguments.seed, Path(folder)))
    print(f"{arguments.inputs} inputs in {time.perf_counter() - begin:.0f} s, none did harm (seed {arguments.seed})")
    for title, counts in (("entry points", bench.counts), ("outcomes", bench.outcomes)):
        print(f"  {title}: " + ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
