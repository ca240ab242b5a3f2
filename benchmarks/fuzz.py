"""Wrong inputs at every entry point of the wire and the files, and a whole hostile member of a federation:
`python -m benchmarks.fuzz [--inputs N] [--actions N] [--seed S]`.

Goal: 100,000 inputs with no crash, no hang and no change of state; 100,000 actions of one member, after which no
honest site has ended, no committed round is lost or changed, memory, disk and logs are bounded, and rounds have gone
on at no less than half the usual rate. The same seed gives the same inputs, and the same draws of actions.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from tests.runtime.fuzzing import Bench
from tests.runtime.hostile import besieged

LEAST_RATE = 0.5
"""Of the usual rounds per second."""


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


def feed(inputs: int, seed: int) -> None:
    """Wrong inputs to one site."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        bench = asyncio.run(play(inputs, seed, Path(folder)))
    print(f"{inputs} inputs in {time.perf_counter() - begin:.0f} s, none did harm (seed {seed})")
    _print("entry points", bench.counts)
    _print("outcomes", bench.outcomes)


def besiege(actions: int, seed: int) -> bool:
    """A hostile member among three honest sites; whether rounds went on fast enough."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        siege, rate = asyncio.run(besieged(Path(folder), seed, actions))
    print(
        f"{actions} actions of a hostile member in {time.perf_counter() - begin:.0f} s, none did harm (seed {seed})"
    )
    print(f"  rounds per second: {siege.usual:.2f} without it, {rate:.2f} with it")
    _print("actions", siege.done)
    return rate >= LEAST_RATE * siege.usual


def _print(title: str, counts: Counter[str]) -> None:
    print(f"  {title}: " + ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.most_common()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--actions", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.inputs:
        feed(arguments.inputs, arguments.seed)
    if arguments.actions and not besiege(arguments.actions, arguments.seed):
        print(f"rounds went on at less than {LEAST_RATE} of the usual rate", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
