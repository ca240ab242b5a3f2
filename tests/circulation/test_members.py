"""Members come and go: what the record says of them, and what a node does that is one no more."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.circulation.test_machine import Node, holder, register
from tramfl.circulation.changes import AddMember, Change, Commit, HandOver, MarkSafe, RemoveMember, TakeOver
from tramfl.circulation.commands import AnswerOrder, AskLoads, CancelTraining, Decide, Depart, SendModel, Swap
from tramfl.circulation.custody import Entry, Record, Safe, Weights
from tramfl.circulation.events import Acknowledged, LeaveOrdered, Ordered, RecordRead, RecordSeen, Swapped
from tramfl.circulation.phases import Following, HandingOn, Leaving, Left
from tramfl.notation import Ledger

FIRST = register().read().record


def applied(change: Change, record: Record = FIRST, me: int = 0) -> Record:
    after = change.applied(record, me)
    assert after is not None
    return after


def without(number: int, record: Record = FIRST) -> Record:
    return applied(RemoveMember(record.epoch, record.members[number].name), record)


def seen(node: Node, record: Record, at: float = 1.0) -> Node:
    """The record became this, and the node hears of it."""
    after = node.register.swap(node.register.read().revision, record)
    assert after is not None
    return node.tell(RecordSeen(at, after))


def test_a_new_member_gets_the_next_number_and_a_former_one_its_own() -> None:
    grown = applied(AddMember(1, "new", "there:1"))
    assert grown.members == (*FIRST.members, Entry("new", "there:1"))
    back = applied(AddMember(1, "1", "elsewhere:1"), without(1, grown))
    assert back.present == (0, 1, 2, 3)
    assert back.members[1] == Entry("1", "elsewhere:1")


def test_a_removed_member_keeps_its_number_and_its_samples_stay_in_the_ledger() -> None:
    trained = replace(FIRST, ledger=Ledger((3, 4), 1.0, 1))
    after = without(1, trained)
    assert (after.present, after.number_of("1"), after.ledger) == ((0, 2), 1, trained.ledger)


@pytest.mark.parametrize(
    "change", [AddMember(1, "1", ""), RemoveMember(1, "nobody"), AddMember(2, "x", ""), RemoveMember(2, "1")]
)
def test_a_change_of_members_that_is_made_already_or_of_another_epoch_does_not_fit(change: Change) -> None:
    assert change.applied(FIRST, 0) is None


def test_the_last_member_cannot_be_removed() -> None:
    alone = without(2, without(1))
    assert RemoveMember(1, "0").applied(alone, 0) is None


@pytest.mark.parametrize(
    ("change", "me"),
    [
        (HandOver(1, 0, "w0", 1), 0),
        (Commit(1, 0, "w0", "w1", (1, 1), 1.0, 1.0), 0),
        (TakeOver(1, 1, "w0"), 1),
        (MarkSafe(1, 1, "w1", (0, 1), Ledger((1, 1), 1.0, 1), 1.0), 0),
    ],
)
def test_no_change_makes_a_node_that_is_no_member_holder_or_keeper_of_weights(change: Change, me: int) -> None:
    gone = me if isinstance(change, Commit) else 1
    assert change.applied(FIRST, me) is not None
    assert change.applied(without(gone), me) is None


def test_a_follower_that_was_removed_departs() -> None:
    node = seen(Node(1, register()).join(), without(1))
    assert node.commands == (Depart(release=True, removed=True),)
    assert isinstance(node.state.phase, Left)


def test_a_node_that_starts_and_is_no_member_departs() -> None:
    at = register()
    assert at.swap(1, without(1)) is not None
    assert Node(1, at).join().commands == (Depart(release=True, removed=True),)


def test_a_holder_that_was_removed_drops_the_round_in_hand_and_hands_the_model_on() -> None:
    node = seen(holder().hear(0, 1, 2).decide(0), without(0))
    assert isinstance(node.state.phase, Leaving)
    assert isinstance(node.commands[0], CancelTraining)
    assert node.asked(AskLoads).nodes == (1, 2)
    assert isinstance(node.hear(1).state.phase, HandingOn)


def test_a_commit_that_meets_its_own_removal_is_dropped() -> None:
    node = holder().hear(0, 1, 2).decide(0).trained("w1", 10.0).stored(10.0)
    after = node.register.swap(1, without(0))
    assert after is not None
    node.tell(RecordSeen(10.0, after))
    node.tell(RecordRead(10.0, node.ticket, after))
    assert isinstance(node.state.phase, Leaving)
    assert after.record.round == 0


def test_a_removed_node_is_neither_asked_nor_counted_and_a_new_one_is() -> None:
    node = seen(holder().hear(0, 1, 2).decide(None), applied(AddMember(1, "3", "there:1"), without(1)))
    node = Node(0, node.register).join()
    assert node.asked(AskLoads).nodes == (0, 2, 3)
    loads = node.hear(0, 2, 3).asked(Decide).loads
    assert len(loads.flops) == 4
    assert loads.reporting == (0, 2, 3)


def test_a_copy_at_a_removed_node_does_not_count_and_is_made_again() -> None:
    two = replace(FIRST, weights=Weights("w0", (0, 1)), safe=replace(FIRST.safe, copies=(0, 1)))
    assert two.newest_is_safe
    left = replace(without(1, two), ledger=Ledger((9, 9), 9.0, 9), safe=replace(two.safe, round=9))
    assert not left.newest_is_safe
    assert left.unsafe_rounds == 9
    again = applied(MarkSafe(1, 9, "w0", (0, 2), left.ledger, 0.0), left)
    assert again.safe == Safe(9, "w0", (0, 2), left.ledger)
    assert again.newest_is_safe
    at = register()
    assert at.swap(1, left) is not None
    node = Node(0, at).join().hear(0, 2).decide(0)
    assert node.asked(SendModel).to == 2, "the holder ships before it trains on"


def test_an_order_to_add_a_member_is_answered_with_a_record_that_has_it() -> None:
    node = Node(1, register()).join()
    node.tell(Ordered(1.0, 7, AddMember(0, "new", "there:1")))
    ticket = node.state.orders[0].ticket
    node.tell(RecordRead(1.0, ticket, node.register.read()))
    swap = node.asked(Swap)
    after = node.register.swap(swap.revision, swap.record)
    assert after is not None
    node.tell(Swapped(1.0, swap.ticket, after))
    answer = node.asked(AnswerOrder)
    assert answer.record is not None
    assert answer.record.members[3] == Entry("new", "there:1")
    assert isinstance(node.state.phase, Following)


def test_a_receiver_that_was_removed_while_the_model_was_on_its_way_does_not_become_the_holder() -> None:
    node = holder().hear(0, 1, 2).decide(1)
    ticket = node.ticket
    seen(node, without(1))
    node.tell(Acknowledged(2.0, ticket))
    assert node.asked(AskLoads).nodes == (0, 2)
    leaving = holder().tell(LeaveOrdered(0.0)).join().hear(1)
    ticket = leaving.ticket
    seen(leaving, without(1))
    leaving.tell(Acknowledged(2.0, ticket))
    assert leaving.asked(AskLoads).nodes == (2,)
