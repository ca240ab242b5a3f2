"""The other end of a transfer: what arrives is stored, then acknowledged."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tramfl.circulation import Limits, State, advance
from tramfl.circulation.changes import MarkSafe
from tramfl.circulation.commands import (
    Acknowledge,
    Command,
    Refuse,
    SendModel,
    Store,
    Swap,
    Train,
)
from tramfl.circulation.custody import MemoryRegister, Record, first_record
from tramfl.circulation.events import (
    Decided,
    Event,
    LoadReported,
    ModelArrived,
    RecordRead,
    RecordSeen,
    Started,
    Stored,
    StoreFailed,
    Swapped,
    Trained,
)
from tramfl.circulation.phases import Assignment, Copy, Following, Gathering, Halted, Offer
from tramfl.notation import Decision, Loads

FIRST = first_record("run", 0, "w0", (0, 1, 2), labels=1)
LINKS = (float("inf"), 1e6, 2e6)
"""From node 0: node 2 is the nearest."""


class Node:
    """One of three machines, and what it asked for last; the register is real."""

    def __init__(self, me: int, register: MemoryRegister | None = None, limits: Limits | None = None) -> None:
        self.register = register or MemoryRegister(FIRST)
        self.state = State(me, 1e6, limits or Limits())
        self.commands: tuple[Command, ...] = ()
        self.tell(Started(0.0, (Copy("w0", 0, 1),)))
        self.tell(RecordRead(0.0, self.ticket, self.register.read()))

    def tell(self, *events: Event) -> Node:
        for event in events:
            self.state, self.commands = advance(self.state, event)
        return self

    @property
    def ticket(self) -> int:
        return int(getattr(self.state.phase, "ticket", self.state.ticket))

    def kinds(self) -> list[type]:
        return [type(c) for c in self.commands]

    def swap(self) -> Node:
        (swap,) = (c for c in self.commands if isinstance(c, Swap))
        after = self.register.swap(swap.revision, swap.record)
        assert after is not None
        return self.tell(Swapped(0.0, swap.ticket, after))

    def train(self, digest: str) -> Node:
        """A round trained and committed where the model is."""
        for peer in range(3):
            self.tell(LoadReported(0.0, self.ticket, peer, 1e9, LINKS[peer]))
        decision = Decision("by hand", self.state.me, (5,), 1.0, 0.0, 0.0, "So be it.")
        self.tell(Decided(0.0, self.ticket, decision))
        self.tell(Trained(0.0, self.ticket, digest, 1.0))
        (store,) = (c for c in self.commands if isinstance(c, Store))
        return self.tell(Stored(0.0, store.ticket, store.copy)).swap()

    def sent(self) -> SendModel:
        (send,) = (c for c in self.commands if isinstance(c, SendModel))
        return send

    @property
    def record(self) -> Record:
        return self.register.read().record

    def digests(self) -> set[str]:
        return {copy.digest for copy in self.state.copies}


def offer(digest: str = "w1", *, epoch: int = 1, round_: int = 1, assigned: bool = True) -> Offer:
    decision = Decision("by hand", 1, (5,), 1.0, 1.0, 0.0, "So be it.")
    assignment = Assignment(0, decision, Loads((1e9, 1e9, 1e9), LINKS), 0.0)
    return Offer(epoch, round_, digest, 77, assignment if assigned else None)


def made(record: Record | None) -> Record:
    assert record is not None
    return record


def mark(record: Record) -> MarkSafe:
    return MarkSafe(record.epoch, record.round, record.weights.digest, (0, 1), record.ledger, record.weights.since)


# What arrives.


@pytest.mark.parametrize("assigned", [True, False])
def test_a_model_is_acknowledged_only_once_it_is_stored(assigned: bool) -> None:
    node = Node(1).tell(ModelArrived(1.0, 0, offer(assigned=assigned), 1.0))
    (store,) = node.commands
    assert isinstance(store, Store)
    assert not node.state.has("w1")
    node.tell(Stored(3.0, store.ticket, store.copy))
    assert node.commands == (Acknowledge(0, 77),)
    assert node.state.has("w1")


def test_a_model_that_cannot_be_stored_is_refused() -> None:
    node = Node(1).tell(ModelArrived(1.0, 0, offer(), 1.0))
    node.tell(StoreFailed(1.0, node.state.ticket))
    assert node.commands == (Refuse(0, 77, "the weights could not be stored"),)
    assert not node.state.has("w1")
    assert node.state.incoming == ()


@pytest.mark.parametrize(
    ("epoch", "round_", "taken"),
    [(1, 9, False), (2, 4, False), (2, 5, True), (2, 6, True), (3, 0, True)],
)
def test_an_offer_that_the_run_has_moved_past_is_refused(epoch: int, round_: int, taken: bool) -> None:
    node = Node(1, MemoryRegister(replace(FIRST, epoch=2, safe=replace(FIRST.safe, round=5))))
    node.tell(ModelArrived(1.0, 0, offer(epoch=epoch, round_=round_), 1.0))
    assert node.kinds() == ([Store] if taken else [Refuse])


def test_two_models_may_be_on_their_way_to_disk_at_once() -> None:
    node = Node(1).tell(ModelArrived(1.0, 0, offer("w1"), 1.0))
    first = node.state.ticket
    node.tell(ModelArrived(1.0, 2, offer("w2", round_=2, assigned=False), 1.0))
    second = node.state.ticket
    node.tell(Stored(2.0, second, Copy("w2", 2, 1)), Stored(3.0, first, Copy("w1", 1, 1)))
    assert node.digests() >= {"w1", "w2"}
    assert isinstance(node.state.phase, Following)


def test_of_the_same_weights_stored_twice_the_later_round_counts_whichever_was_stored_last() -> None:
    node = Node(1).tell(ModelArrived(1.0, 0, offer("w1", round_=1), 1.0))
    slow = node.state.ticket
    node.tell(ModelArrived(2.0, 0, offer("w1", epoch=2, round_=3), 1.0))
    node.tell(Stored(2.0, node.state.ticket, Copy("w1", 3, 2)), Stored(9.0, slow, Copy("w1", 1, 1)))
    assert Copy("w1", 3, 2) in node.state.copies
    assert Copy("w1", 1, 1) not in node.state.copies


def assigned(sender: int, record: Record, samples: tuple[int, ...] = (7,)) -> Offer:
    """A round for node 1, as `sender` would have it."""
    decision = Decision("load-aware", 1, samples, 1.0, 1.0, 0.0, "because")
    loads = Loads((1e9, 1e9, 1e9), LINKS)
    return Offer(record.epoch, record.round, record.weights.digest, 5, Assignment(sender, decision, loads, 0.0))


def received(node: Node, sender: int, offer: Offer) -> Node:
    node.tell(ModelArrived(1.0, sender, offer, 0.5))
    (store,) = (command for command in node.commands if isinstance(command, Store))
    return node.tell(Stored(1.0, store.ticket, store.copy))


def named(node: Node, **changes: Any) -> Node:
    """The record changes, and the node sees it."""
    seen = node.register.read()
    versioned = node.register.swap(seen.revision, replace(seen.record, **changes))
    assert versioned is not None
    return node.tell(RecordSeen(2.0, versioned))


def trains(node: Node) -> list[tuple[int, ...]]:
    return [command.assignment.decision.samples for command in node.commands if isinstance(command, Train)]


def test_an_assignment_counts_from_the_records_holder_alone() -> None:
    node = received(Node(1), 0, assigned(0, FIRST))
    node = received(node, 2, assigned(2, FIRST, (9,)))
    assert trains(named(node, holder=1)) == [(7,)]
    liar = received(Node(1), 2, assigned(2, FIRST, (9,)))
    assert trains(named(liar, holder=1)) == []


def test_a_halted_holder_takes_no_assignment_from_anybody() -> None:
    node = named(Node(1), holder=1, status="paused")
    assert isinstance(node.state.phase, Halted)
    node = received(node, 2, assigned(2, FIRST))
    assert trains(named(node, status="running")) == []
    assert isinstance(node.state.phase, Gathering)


def test_a_node_that_lags_behind_takes_no_assignment_for_a_record_that_it_has_not_seen() -> None:
    later = replace(FIRST, ledger=replace(FIRST.ledger, round=1))
    node = received(Node(1), 2, assigned(2, later))
    assert node.state.accepted is None
    assert trains(named(node, ledger=later.ledger, holder=1)) == []


def test_a_node_that_has_not_read_the_record_takes_no_assignment() -> None:
    node = Node(1)
    node.state = State(1, 1e6, Limits())
    node.tell(Started(0.0, (Copy("w0", 0, 1),)))
    ticket = node.ticket
    received(node, 2, assigned(2, FIRST))
    named(node, holder=1)
    node.tell(RecordRead(3.0, ticket, node.register.read()))
    assert trains(node) == []
    assert isinstance(node.state.phase, Gathering)
