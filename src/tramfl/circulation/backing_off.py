"""Nodes that promise and do not deliver are left out for a while: 1 round, then 2, then 4, up to 512.

A node fails where a model did not reach it, or where it held the model and was lost or resigned. It is left out of
the rounds that this node decides; other holders find out for themselves. A round of its own that becomes safe, which
takes another node that has it, clears it.

Where rounds are short, the wait for a node that fails costs many of them. On a real clock, a node that fails again is
also left out for 4 times as long as that took, then 8, then 16 times, so that it never costs more than a part of the
time.
"""

from __future__ import annotations

from msgspec.structs import replace

from tramfl.circulation.custody import Record
from tramfl.circulation.phases import Backoff, State
from tramfl.notation import NodeId

MOST_ROUNDS = 512
"""With 64, a member that took models and never answered slowed rounds of 0.1 s to 0.23 of their rate."""


def failed(state: State, node: NodeId, round_: int, at: float = 0.0, lost_seconds: float = 0.0) -> State:
    """A node failed in the round after `round_` rounds, at moment `at`, and cost `lost_seconds`: leave it out."""
    if node == state.me:
        return state
    before = state.backoff.get(node)
    failures = 1 + (before.failures if before is not None else 0)
    rounds = min(MOST_ROUNDS, 1 << min(failures - 1, 30))
    # One failure may be chance. In virtual time only rounds count, so that simulations stay what they were.
    counts = failures > 1 and state.counts_overhead
    until = at + 2 * rounds * lost_seconds if counts else 0.0
    return replace(state, backoff={**state.backoff, node: Backoff(failures, round_ + rounds, until)})


def cleared(state: State, record: Record) -> State:
    """The record is new: where a round of a node that had failed has become safe, it is trusted again."""
    if not state.backoff or state.seen is None:
        return state
    before = state.seen.record
    is_safe = record.epoch == before.epoch and record.safe.round > before.safe.round
    if not is_safe or before.holder not in state.backoff:
        return state
    return replace(state, backoff={n: b for n, b in state.backoff.items() if n != before.holder})


def left_out(state: State, round_: int, at: float) -> frozenset[NodeId]:
    """The nodes that are left out of the round after `round_` rounds, if it is decided at this moment."""
    return frozenset(node for node, backoff in state.backoff.items() if backoff.lasts(round_, at))
