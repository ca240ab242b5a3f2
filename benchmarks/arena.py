"""How many rounds a second methods play in which every node keeps a model: `python benchmarks/arena.py`.

100 nodes x 10 labels without training. Goal: 100 rounds a second of processor time. On a full mesh a round has 9,900
transfers; the other methods have 100 to 200. Since machines differ, the same run also times the sort of a million
numbers and prints the ratio.
"""

from __future__ import annotations

import time

from msgspec.structs import replace

from benchmarks.simulation import yardstick
from tramfl.config import Budget, Partition
from tramfl.methods import method_named, method_names, with_method
from tramfl.simulation.arena import Arena
from tramfl.simulation.scenarios import scenario_named
from tramfl.simulation.setting import scheduling_only

GOAL, ROUNDS = 100.0, 40


def rounds_per_second(method: str) -> float:
    base = replace(
        scenario_named("mnist-10"), partition=Partition(layout="iid", nodes=100), budget=Budget(rounds=ROUNDS)
    )
    scenario = with_method(base, method_named(method))
    arena = Arena(scenario, scheduling_only(scenario), keep_rows=False)
    begin = time.process_time()
    played = sum(1 for _ in arena.rounds())
    return played / (time.process_time() - begin)


def main() -> None:
    unit, slow = yardstick(5), []
    print("| method | rounds/s, 100 nodes | rounds in the time of one sort |\n|---|---|---|")
    for name in method_names():
        if "exchange.rule" in method_named(name).settings:
            speed = max(rounds_per_second(name) for _ in range(2))
            slow += [name] if speed < GOAL else []
            print(f"| {name} | {speed:,.0f} | {speed * unit:.1f} |", flush=True)
    print(f"\nGoal, {GOAL:.0f} rounds/s: {'missed by ' + ', '.join(slow) if slow else 'met'}.")


if __name__ == "__main__":
    main()
