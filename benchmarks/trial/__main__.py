"""Sites that are far apart, on this machine: `make trial`, or as root `python -m benchmarks.trial [--short]`.

Four sites, each in a network namespace behind a line of its own: 20 to 200 Mbit/s, and 5 to 40 ms one way between two
sites. Three members of etcd beside the first three. The model has 45 MB. What it prints:

overhead   all that is neither training nor transfer nor waiting, a round, of a model that takes no time to send. Goal
           in the median: 6 of the longest round trips between two sites, and 50 ms. And the sum of all times in the
           record over the time that passed by the wall clock. Goal: within 2 % of 1.

hops       predicted over actual seconds of every hop. Goal: once a link has carried a model, within a factor of 1.25
           in the median and 2 at worst; within 2 for its first.

collapse   a link falls from 100 to 1 Mbit/s in the middle of a hop. Goal: the round commits elsewhere within three
           times what it takes there, and what had arrived is kept. It is shown twice. First the sender is drained,
           so that the model has to go to a third site. Then the sender itself is the only other site.

guards     a site trains nonsense: its weights are not committed, and the round ends elsewhere. A drained site trains
           no more until it is let in again. A run does not start with fewer sites than --min-sites asks for.

members    while a run goes on, a fifth site is added. Goal: it trains within two of its turns, and no other site is
           restarted. A site is removed. Goal: it trains no more. The certificate of a site is revoked. Goal: every
           site refuses it within one lease. A site starts with another learning rate. Goal: it does not join, and one
           sentence names the difference.

resident   the holder is drained while one other site has the newest weights. Goal: no transfer is predicted to that
           site, and it is sent no model.

bound      the link of the holder's copies falls to 2 Mbit/s. Goal: at most `unsafe_rounds` (3) rounds lie at the
           holder alone. The holder is killed. Goal: at most 3 committed rounds are lost, the run goes on, and the
           audit trail has the lost rounds. Then `tramfl rollback` takes the run back to a kept version. Goal: the run
           goes on from there.

Every figure is printed with its goal and whether that is met or missed; the last lines repeat them. Exit code 1 says
that a goal is missed. All traffic stays in the namespaces, which are removed at the end.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.trial.collapse import show_collapse
from benchmarks.trial.guards import show_guards
from benchmarks.trial.hops import show_hops, show_overhead
from benchmarks.trial.losses import show_bound, show_resident
from benchmarks.trial.members import VISIT_EVERY, show_members
from benchmarks.trial.sites import Goals, far_apart, scenario

PARTS = ("overhead", "hops", "collapse", "guards", "members", "resident", "bound")


def main() -> int:
    """Run the trial."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--short", action="store_true", help="fewer rounds")
    options.add_argument("--only", choices=PARTS, action="append", help="this part alone; may be repeated")
    asked = options.parse_args()
    if os.geteuid() != 0:
        print("make trial needs root: it makes network namespaces.")
        return 1
    goals = Goals()
    with tempfile.TemporaryDirectory() as folder:
        show(Path(folder), set(asked.only or PARTS), asked.short, goals)
    goals.sum_up()
    return 1 if goals.missed else 0


def show(folder: Path, wanted: set[str], short: bool, goals: Goals) -> None:
    """Show the wanted parts; those that need the same scenario share a federation."""
    if "overhead" in wanted:
        with far_apart(folder / "small", scenario(network=None)) as far:
            show_overhead(far, 30 if short else 100, goals)
    if wanted & {"hops", "collapse", "guards"}:
        with far_apart(folder / "large", scenario()) as far:
            if "hops" in wanted:
                show_hops(far, 12 if short else 50, goals)
            if "collapse" in wanted:
                show_collapse(far, goals)
            if "guards" in wanted:
                show_guards(far, goals)
    if "members" in wanted:
        with far_apart(folder / "members", scenario(visit_every_rounds=VISIT_EVERY)) as far:
            show_members(far, goals)
    if wanted & {"resident", "bound"}:
        # This policy stays where the model is: every hop would take longer.
        with far_apart(folder / "steady", scenario(policy="time-first"), {"kept_every": 2}) as far:
            if "resident" in wanted:
                show_resident(far, goals)
            if "bound" in wanted:
                show_bound(far, goals)


if __name__ == "__main__":
    sys.exit(main())
