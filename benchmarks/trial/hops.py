"""What hops take, and what rounds take beside them."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from benchmarks.trial.sites import PATIENCE, Far, Goals
from tramfl.record import Row

MEDIAN_GOAL, WORST_GOAL, FIRST_GOAL = 1.25, 2.0, 2.0
ROUND_TRIPS_GOAL, MORE_SECONDS_GOAL, WALL_GOAL = 6, 0.050, 0.02


class Hop(NamedTuple):
    """A model that went from one site to another."""

    round: int
    link: tuple[int, int]
    predicted: float
    actual: float
    first: bool
    """Whether it was the first on its link, in this direction."""

    @property
    def error(self) -> float:
        """How far off the prediction was, as a factor of at least 1."""
        return max(self.predicted / self.actual, self.actual / self.predicted)


def hops(rows: list[Row]) -> list[Hop]:
    """Every hop of a run that was made in one go."""
    found: list[Hop] = []
    seen: set[tuple[int, int]] = set()
    for row in rows:
        if row.node is None or row.node == row.holder or row.transfer_seconds <= 0 or row.lost_seconds > 0:
            continue
        link = row.holder, row.node
        predicted = next(c.transfer_seconds for c in row.decision.candidates if c.node == row.node)
        if predicted <= 0:
            continue
        found.append(Hop(row.round, link, predicted, row.transfer_seconds, link not in seen))
        seen.add(link)
    return found


def show_hops(far: Far, rounds: int, goals: Goals) -> None:
    """Play rounds, and print how well their hops were predicted."""
    far.sites.order("start", "hops")
    far.sites.wait_for_round(rounds, PATIENCE)
    far.sites.order("stop")
    far.sites.rest()
    made = hops(far.sites.rows())
    for hop in made:
        one, other = (far.sites.names[n] for n in hop.link)
        rate = far.network.rate(*hop.link)
        kind = "first" if hop.first else "later"
        print(
            f"  round {hop.round:3}  {one} -> {other}  {rate:4.0f} Mbit/s  {kind}"
            f"  predicted {hop.predicted:6.2f} s  actual {hop.actual:6.2f} s  ratio {hop.predicted / hop.actual:.2f}"
        )
    later = [hop.error for hop in made if not hop.first] or [1.0]
    first = [hop.error for hop in made if hop.first] or [1.0]
    print(f"  {len(made)} hops, {len(first)} of them the first on their link")
    for what, error, goal in (
        ("hops, error of predictions once a link has carried a model, median", statistics.median(later), MEDIAN_GOAL),
        ("hops, error of predictions once a link has carried a model, worst", max(later), WORST_GOAL),
        ("hops, error of the prediction for the first on a link, worst", max(first), FIRST_GOAL),
    ):
        goals.note_time(what, f"a factor of {error:.2f}", f"at most {goal}", error <= goal)


def show_overhead(far: Far, rounds: int, goals: Goals) -> None:
    """Play rounds of a small model, and print what they took beside training and transfers."""
    far.sites.order("start", "overhead")
    before = far.sites.wait_for_round(10, PATIENCE)
    after = far.sites.wait_for_round(before.round + rounds, PATIENCE)
    far.sites.order("stop")
    far.sites.rest()
    rows = [row for row in far.sites.rows() if before.round < row.round <= after.round]
    took = [row.overhead for row in rows if row.lost_seconds == 0]
    median, slow = statistics.median(took), statistics.quantiles(took, n=20)[-1]
    passed = after.weights.since - before.weights.since
    ratio = (after.ledger.seconds - before.ledger.seconds) / passed
    longest = far.network.longest_round_trip
    goal = ROUND_TRIPS_GOAL * longest + MORE_SECONDS_GOAL
    goals.note_time(
        f"overhead of a round, median of {len(took)}",
        f"{1000 * median:.0f} ms; 95 % within {1000 * slow:.0f} ms",
        f"at most {ROUND_TRIPS_GOAL} x {1000 * longest:.0f} + {1000 * MORE_SECONDS_GOAL:.0f} = {1000 * goal:.0f} ms",
        median <= goal,
    )
    close = abs(ratio - 1) <= WALL_GOAL
    goals.note_time("recorded time over the wall clock's", f"{ratio:.4f}", f"within {WALL_GOAL:.0%} of 1", close)
