"""`tramfl faults`: play seeded fault schedules and check every invariant after every event."""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Annotated

import typer

from tramfl.processes import workers_with
from tramfl.simulation.fault_schedules import schedule_of
from tramfl.simulation.faults import try_schedule


def faults(
    schedules: Annotated[int, typer.Option(min=1, help="How many schedules to play.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first; each next one has the next seed.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes to play them in.")] = 1,
) -> None:
    """Search for a schedule of faults that breaks an invariant; a seed that fails fails again in the same way."""
    seeds = range(seed, seed + schedules)
    failed = 0
    processes = workers_with("tramfl.simulation.faults")
    # An interrupt is for this process to deal with; a worker would only print a traceback.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(jobs, mp_context=processes, initializer=signal.signal, initargs=ignore) as pool:
        for played, (number, broken) in enumerate(
            zip(seeds, pool.map(try_schedule, seeds, chunksize=20), strict=True), start=1
        ):
            if broken is not None:
                failed += 1
                print("\n".join(schedule_of(number).describe()))
                print(f"  {broken}")
                print(f"  play it again: tramfl faults --schedules 1 --seed {number}")
            if played % 1000 == 0 and played < schedules:
                print(f"{played:,} of {schedules:,} schedules played, {failed} with a violation", flush=True)
    print(f"{schedules:,} schedules played from seed {seed} on, {failed} with a violation of an invariant.")
    if failed:
        sys.exit(1)
