"""Sites that an operator, or their own results, keep out of rounds."""

from __future__ import annotations

from benchmarks.trial.sites import BAD, LINES, PATIENCE, Far, Goals
from tramfl.notation import BadInput
from tramfl.record import Row


def show_guards(far: Far, goals: Goals) -> None:
    """Let a site train nonsense, drain a site, and ask for more sites than there are."""
    sites, bad = far.sites, far.sites.names.index(BAD)
    too_few = ""
    try:
        sites.start_with(len(LINES) + 1, "too-few")
    except BadInput as error:
        too_few = str(error)
    goals.note(f"guards, start --min-sites {len(LINES) + 1}", too_few or "started", "refused", bool(too_few))
    far.set_lines(200)
    far.poison.touch()
    sites.order("start", "guards", replacing=True)

    def rejected() -> Row | None:
        return next((row for row in sites.rows() if row.rejected and bad in row.rejected), None)

    row = sites.seen("round in which nonsense was rejected", rejected, PATIENCE)
    far.poison.unlink()
    trained = sites.names[row.node] if row.node is not None else "nobody"
    figure = f"not committed; the round was trained by {trained}"
    goals.note(f"guards, {BAD} trains nonsense in round {row.round}", figure, "trained elsewhere", row.node != bad)
    print(f"  {BAD} logs: {next(e['reason'] for e in sites.events(BAD) if e['event'] == 'not-accepted')}")
    sites.order_site("b", "drain")
    begin = sites.record.round + 2  # the round in hand may still be its own
    end = sites.wait_for_round(begin + 8, PATIENCE).round
    drained = [r.round for r in sites.rows() if begin <= r.round <= end and r.node == sites.names.index("b")]
    sites.order_site("b", "undrain")
    sites.seen("round at b", lambda: next((r for r in sites.rows() if r.round > end and r.node == 1), None), PATIENCE)
    sites.order("stop")
    sites.rest()
    figure = f"{len(drained)} of rounds {begin} to {end}; it trains again since it is not"
    goals.note("guards, what b trains while it is drained", figure, "none", not drained)
