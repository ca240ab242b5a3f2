"""A holder whose work every other node refuses resigns, so that one bad node does not keep the model for good.

A receiver may check weights before it takes them in. What one receiver refuses, another may take. Where all others
that report refuse what a holder has trained, none of it can become safe: the holder resigns, a node that has the safe
weights takes over from them, and all nodes leave the holder out for a while (`backing_off`). The refused rounds are
lost. Weights that are safe already are not given up: only an operator rolls them back.
"""

from __future__ import annotations

from msgspec.structs import replace

from tramfl.circulation.changes import Resign
from tramfl.circulation.custody import Record
from tramfl.circulation.events import SendFailed, Woke
from tramfl.circulation.phases import State
from tramfl.circulation.steps import Step, current, propose
from tramfl.notation import NodeId


def noted(state: State, event: SendFailed | Woke, receiver: NodeId) -> State:
    """A model did not reach its receiver: note where the receiver refused it for what it is."""
    if not (isinstance(event, SendFailed) and event.not_accepted):
        return state
    return replace(state, doubted_by=state.doubted_by | {receiver})


def forgotten(state: State, record: Record) -> State:
    """The record is new: where the model has moved on, or work of the holder is safe, nobody doubts it any more."""
    if not state.doubted_by or state.seen is None or _held(record) == _held(state.seen.record):
        return state
    return replace(state, doubted_by=frozenset())


def _held(record: Record) -> tuple[object, ...]:
    return record.epoch, record.holder, record.safe.digest


def is_stuck(state: State) -> bool:
    """Whether this holder, which others doubt, may train no further before a copy is safe."""
    return bool(state.doubted_by) and current(state).unsafe_rounds >= state.limits.unsafe_rounds


def is_forsaken(state: State) -> bool:
    """Whether all others that report refuse what this holder trained, and safe weights are there to go on from."""
    record = current(state)
    others = frozenset(record.present) - {state.me} - state.absent
    unsafe = record.weights.digest != record.safe.digest and state.backup is None
    there = state.has(record.safe.digest) or not others.isdisjoint(record.safe.copies)
    return unsafe and there and bool(others) and others <= state.doubted_by


def resign(state: State) -> Step:
    """Give the model up, and the weights that only this node has."""
    record = current(state)
    state = replace(state, disowned=record.weights.digest)
    return propose(state, Resign(record.epoch, state.has(record.safe.digest)))
