"""What real sites on this machine do in time: `python -m benchmarks.federation [--quick]`.

takeover   seconds from kill -9 of the holder to the `at` of the next committed round, in lease lengths: three sites,
           each time killed at another place of its round. Goal: at most 2, with SQLite and with etcd (three members).
rounds     committed rounds a minute: five sites, digits, SQLite, as `tramfl up` starts them.
overhead   of the same rounds: all that is neither training nor transfer nor waiting, a round. Goal on one machine,
           where a round trip takes next to nothing: at most 50 ms. And the sum of all times in the rows over the time
           that passed by the wall clock. Goal: within 2 % of 1.
idle       processor time of a site and the process it trains in, of one core, while a run is paused and before any
           has begun. Goal: under 1 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import psutil  # type: ignore[import-untyped]
from msgspec.structs import replace

from tests.chaos.evidence import commits
from tests.chaos.scenes import Kind, Scene, scene
from tramfl.config import Budget
from tramfl.record import Row
from tramfl.simulation.scenarios import scenario_named

LEASE_SECONDS = 5.0
"""What federation.toml says unless changed."""
TAKEOVER_GOAL = 2.0
IDLE_GOAL = 0.01
OVERHEAD_GOAL = 0.050
WALL_GOAL = 0.02
PLACES = ("gathering", "training", "storing", "commit asked", "commit made", "handover asked")
KINDS: tuple[Kind, ...] = ("sqlite", "etcd")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="fewer kills, shorter looks")
    quick = options.parse_args().quick
    with tempfile.TemporaryDirectory() as folder:
        met = [measure_small(Path(folder, kind), kind, quick) for kind in KINDS]
        met.append(measure_rounds(Path(folder, "rounds"), 20 if quick else 60))
    return 0 if all(met) else 1


def measure_small(folder: Path, kind: Kind, quick: bool) -> bool:
    """Idle sites, then takeovers, of one federation of three; whether the goals are met."""
    folder.mkdir()
    draws = Random(0)
    with scene(folder, kind, lease_seconds=LEASE_SECONDS) as sites:
        seconds = 5.0 if quick else 20.0
        met = [tell_idle(kind, "no run yet", idle(sites, seconds))]
        sites.begin()
        sites.reach(5)
        sites.federation.order("pause")
        sites.federation.rest()
        met.append(tell_idle(kind, "paused run", idle(sites, seconds)))
        taken = [takeover(sites, place, draws) / LEASE_SECONDS for place in PLACES[: 2 if quick else None]]
        met.append(max(taken) <= TAKEOVER_GOAL)
        each = ", ".join(f"{t:.2f}" for t in taken)
        print(
            f"takeover, {kind}: median {statistics.median(taken):.2f}, worst {max(taken):.2f} lease lengths ({each});"
        )
        print(f"    goal at most {TAKEOVER_GOAL:g}: {'met' if met[-1] else 'MISSED'}", flush=True)
    return all(met)


def idle(sites: Scene, seconds: float) -> list[float]:
    """Each site's share of one core, with its workshop."""
    before = [_spent(process.pid) for process in sites.federation.processes.values()]
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    after = [_spent(process.pid) for process in sites.federation.processes.values()]
    return [(b - a) / took for a, b in zip(before, after, strict=True)]


def _spent(pid: int) -> float:
    site = psutil.Process(pid)
    times = [process.cpu_times() for process in (site, *site.children(recursive=True))]
    return sum(float(t.user + t.system) for t in times)


def tell_idle(kind: Kind, when: str, shares: list[float]) -> bool:
    """Print it; whether the goal is met."""
    met = max(shares) < IDLE_GOAL
    mean, worst = 100 * statistics.mean(shares), 100 * max(shares)
    print(f"idle site, {kind}, {when}: {mean:.2f} % of a core, worst of {len(shares)} {worst:.2f} %;")
    print(f"    goal under {100 * IDLE_GOAL:g} %: {'met' if met else 'MISSED'}", flush=True)
    return met


def takeover(sites: Scene, place: str, draws: Random) -> float:
    """Seconds from the kill of the holder to the next committed round."""
    run = sites.begin()
    caught = sites.catch(place)
    # Anywhere between two renewals of its lease.
    time.sleep(draws.uniform(0, LEASE_SECONDS / 3))
    before, at = sites.record(), time.time()
    sites.kill(caught.site)
    since: list[float] = []

    def committed() -> bool:
        since[:] = [r.weights.since for r in commits(sites.witness.history(run)) if r.epoch > before.epoch]
        return bool(since)

    sites.wait("round of the next holder", committed)
    return since[0] - at


def measure_rounds(folder: Path, seconds: float) -> bool:
    """Rounds a minute, and their overhead; whether the goals for it are met."""
    folder.mkdir()
    scenario = replace(scenario_named("digits-5"), budget=Budget(rounds=10**9))
    with scene(folder, "sqlite", 5, scenario=scenario, lease_seconds=LEASE_SECONDS) as sites:
        run = sites.begin()
        first, began = sites.reach(20).round, time.monotonic()
        time.sleep(seconds)
        rounds, took = sites.record().round - first, time.monotonic() - began
        print(f"rounds, 5 sites, digits, SQLite: {60 * rounds / took:,.0f} a minute ({rounds} in {took:.0f} s)")
        return tell_overhead(sites, run, first)


def tell_overhead(sites: Scene, run: str, first: int) -> bool:
    """Print the overhead of the rounds after `first`; whether the goals are met."""
    done = [record for record in commits(sites.witness.history(run)) if record.round >= first]
    rows = sites.witness.rows(run, done[-1].round, first + 1)
    passed = done[-1].weights.since - done[0].weights.since
    ratio = (rows[-1].total_seconds - rows[0].total_seconds + _seconds(rows[0])) / passed
    took = [row.overhead for row in rows]
    each, worst = statistics.median(took), statistics.quantiles(took, n=20)[-1]
    share = 100 * sum(took) / sum(map(_seconds, rows))
    met = each <= OVERHEAD_GOAL, abs(ratio - 1) <= WALL_GOAL
    print(f"overhead: {1000 * each:.1f} ms a round in the median, 95 of 100 within {1000 * worst:.1f} ms,")
    print(f"    {each / OVERHEAD_GOAL:.2f} of the goal of 50 ms: {'met' if met[0] else 'MISSED'};")
    print(f"    {share:.0f} % of the run's time; recorded over wall clock: {ratio:.4f},")
    print(f"    goal within 2 % of 1: {'met' if met[1] else 'MISSED'}", flush=True)
    return all(met)


def _seconds(row: Row) -> float:
    work = row.compute_seconds + row.transfer_seconds + row.idle_seconds
    return work + row.lost_seconds + row.overhead


if __name__ == "__main__":
    sys.exit(main())
