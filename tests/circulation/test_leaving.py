"""How a node leaves: what it hands on, to which node, and when it gives its lease up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.circulation.test_machine import Node, decision, holder, register, set_status
from tramfl.circulation.changes import Resign
from tramfl.circulation.commands import (
    AskLoads,
    CancelSend,
    CancelTraining,
    CloseRound,
    Depart,
    Nudge,
    ReadRecord,
    Refuse,
    SendModel,
    Store,
    Swap,
)
from tramfl.circulation.custody import MemoryRegister, first_record
from tramfl.circulation.events import (
    Acknowledged,
    LeaveOrdered,
    LoadMissing,
    LoadReported,
    ModelArrived,
    RecordSeen,
    RegisterSilent,
    SendFailed,
    Started,
    Superseded,
    Woke,
)
from tramfl.circulation.phases import Assignment, Copy, HandingOn, Joining, Leaving, Left, Offer, Swapping
from tramfl.notation import Loads


def leaving(node: Node, at: float = 0.0) -> Node:
    return node.tell(LeaveOrdered(at)).join(at)


def alone_with_w1() -> Node:
    """Node 0, which holds and has trained w1, which no other node has."""
    return holder().hear(0, 1, 2).decide(0).trained("w1", 10.0).stored(10.0).swap(10.0)


def test_a_node_that_does_not_hold_departs_as_soon_as_it_has_read_the_record() -> None:
    node = Node(1, register()).join().tell(LeaveOrdered(1.0))
    assert [type(c) for c in node.commands] == [ReadRecord]
    node.join()
    assert node.commands == (Depart(release=True),)
    assert isinstance(node.state.phase, Left)


def test_a_holder_hands_the_model_to_a_node_that_has_it_without_waiting_for_the_others() -> None:
    node = leaving(holder())
    assert node.asked(AskLoads).nodes == (1, 2)
    send = node.hear(2).asked(SendModel)
    assert (send.to, send.offer.digest, send.offer.assignment) == (2, "w0", None)
    node.tell(Acknowledged(1.0, send.ticket)).swap(1.0)
    assert node.commands == (Nudge(2), Depart(release=True, to=2))
    assert (node.record.holder, node.record.epoch) == (2, 1)


def test_a_holder_waits_for_all_that_may_answer_and_takes_the_best_link_where_no_node_has_the_weights() -> None:
    node = leaving(alone_with_w1(), at=11.0)
    node.tell(LoadReported(11.0, node.ticket, 1, 1e9, 5e6))
    assert isinstance(node.state.phase, Leaving)
    node.tell(LoadReported(11.0, node.ticket, 2, 1e9, 9e6))
    send = node.asked(SendModel)
    assert (send.to, send.offer.digest, send.offer.round) == (2, "w1", 1)


def test_weights_that_lay_here_alone_are_safe_once_they_are_handed_on() -> None:
    node = leaving(alone_with_w1(), at=11.0).hear(1, 2, at=11.0)
    to = node.asked(SendModel).to
    node.tell(Acknowledged(12.0, node.ticket)).swap(12.0)
    assert node.record.safe.digest == "w1"
    assert node.record.safe.copies == (0, to)
    assert node.commands[-1] == Depart(release=True, to=to)


@pytest.mark.parametrize("answer", [SendFailed, Woke])
def test_a_node_that_does_not_take_the_model_is_followed_by_the_next(answer: type) -> None:
    node = leaving(alone_with_w1(), at=11.0).hear(1, 2, at=11.0)
    first = node.asked(SendModel)
    node.tell(answer(20.0, first.ticket))
    assert node.commands[0] == CancelSend(first.ticket, overdue=answer is Woke)
    second = node.asked(SendModel)
    assert {first.to, second.to} == {1, 2}
    node.tell(answer(30.0, second.ticket))
    assert node.commands[-1] == Depart(release=False)


def test_where_the_node_that_has_the_weights_fails_the_others_are_asked_again() -> None:
    node = leaving(holder()).hear(2)
    first = node.asked(SendModel)
    # The other node's report comes too late to be kept.
    node.tell(LoadReported(0.1, first.ticket - 1, 1, 1e9, 5e6), SendFailed(1.0, first.ticket))
    assert node.asked(AskLoads).nodes == (1,)
    second = node.hear(1, at=1.0).asked(SendModel)
    assert second.to == 1
    node.tell(SendFailed(2.0, second.ticket))
    assert node.commands == (CancelSend(second.ticket), Depart(release=True))


def test_who_leaves_with_the_only_copy_keeps_its_lease_and_who_leaves_others_behind_does_not() -> None:
    for node, release in ((alone_with_w1(), False), (holder(), True)):
        leaving(node, at=11.0)
        node.tell(LoadMissing(11.0, node.ticket, 1))
        assert isinstance(node.state.phase, Leaving)
        node.tell(LoadMissing(11.0, node.ticket, 2))
        assert node.commands == (Depart(release=release),)


def test_at_the_deadline_a_leaving_holder_takes_what_has_answered() -> None:
    node = leaving(alone_with_w1(), at=11.0).hear(1, at=11.0)
    assert node.tell(Woke(13.0, node.ticket)).asked(SendModel).to == 1
    silent = leaving(alone_with_w1(), at=11.0)
    assert silent.tell(Woke(13.0, silent.ticket)).commands == (Depart(release=False),)


def test_a_leaving_holder_drops_the_round_in_hand() -> None:
    training = holder().hear(0, 1, 2).decide(0)
    ticket = training.ticket
    training.tell(LeaveOrdered(1.0))
    assert training.commands[0] == CancelTraining(ticket)
    assert isinstance(training.state.phase, Joining)
    sending = holder().hear(0, 1, 2).decide(1)
    ticket = sending.ticket
    assert sending.tell(LeaveOrdered(1.0)).commands[0] == CancelSend(ticket)


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_under_way_is_settled_before_the_node_leaves(landed: bool) -> None:
    node = holder().hear(0, 1, 2).decide(0).trained("w1", 10.0).stored(10.0)
    swap = node.asked(Swap)
    node.tell(LeaveOrdered(10.0))
    assert node.commands == (ReadRecord(node.ticket),)
    if landed:
        assert node.register.swap(swap.revision, swap.record) is not None
    node.join(10.5)
    if not landed:
        node.swap(10.5)
    assert node.asked(CloseRound).record.round == 1
    assert isinstance(node.state.phase, Leaving)


def test_a_node_whose_commit_is_in_doubt_keeps_its_lease() -> None:
    node = holder().hear(0, 1, 2).decide(0).trained("w1", 10.0).stored(10.0).tell(LeaveOrdered(10.0))
    assert node.tell(RegisterSilent(11.0, node.ticket)).commands == (Depart(release=False),)


def test_a_node_that_cannot_read_the_record_keeps_its_lease() -> None:
    node = Node(1, register()).join().tell(LeaveOrdered(1.0))
    assert node.tell(RegisterSilent(2.0, node.ticket)).commands == (Depart(release=False),)


def test_a_node_that_was_reading_the_record_when_it_was_asked_to_leave_asks_once_more() -> None:
    node = Node(0, register())
    before = node.tell(Started(0.0, (Copy("w0", 0, 1),))).ticket
    node.tell(LeaveOrdered(0.5), RegisterSilent(1.0, before))
    assert isinstance(node.state.phase, Joining)
    assert isinstance(node.join(1.5).state.phase, Leaving)


def test_a_paused_run_is_handed_on_and_a_stopped_one_only_while_its_weights_lie_here_alone() -> None:
    assert isinstance(leaving(Node(0, register("paused")).join()).state.phase, Leaving)
    assert leaving(Node(0, register("stopped")).join()).commands == (Depart(release=True),)
    node = set_status(alone_with_w1(), "stopped", at=11.0)
    assert isinstance(leaving(node, at=12.0).state.phase, Leaving)


def test_a_federation_of_one_leaves_at_once() -> None:
    only = MemoryRegister(first_record("run", 0, "w0", (0,), labels=2))
    node = Node(0, only)
    assert leaving(node.join()).commands == (Depart(release=False),)


def test_a_leaving_holder_without_the_weights_resigns_first() -> None:
    node = Node(0, register(), disk=())
    node.tell(LeaveOrdered(0.0)).join()
    assert isinstance(node.state.phase, Swapping)
    assert isinstance(node.state.phase.change, Resign)
    node.swap(1.0)
    assert node.commands == (Depart(release=True),)


def test_a_leaving_holder_that_was_taken_over_from_departs() -> None:
    node = leaving(holder()).hear(1)
    assert isinstance(node.state.phase, HandingOn)
    ticket, now = node.ticket, node.register.read()
    after = node.register.swap(now.revision, replace(now.record, epoch=2, holder=2))
    assert after is not None
    node.tell(RecordSeen(5.0, after))
    assert node.commands == (CancelSend(ticket), Depart(release=True))


def offer() -> Offer:
    return Offer(1, 0, "w0", 77, Assignment(0, decision(1), Loads((1e9,) * 3, (1e6,) * 3), 0.0))


def test_a_leaving_node_takes_no_model_not_even_one_on_its_way_to_disk() -> None:
    node = Node(1, register()).join().tell(ModelArrived(1.0, 0, offer(), 1.0))
    stored = node.asked(Store)
    node.tell(LeaveOrdered(1.0), ModelArrived(1.0, 2, offer(), 1.0))
    assert isinstance(node.commands[0], Refuse)
    node.commands = (stored,)
    node.stored(2.0)
    assert isinstance(node.commands[0], Refuse)
    assert node.state.copies == (Copy("w0", 0, 1),)


def test_a_second_order_to_leave_and_all_news_after_departure_change_nothing() -> None:
    node = holder().tell(LeaveOrdered(0.0))
    assert node.tell(LeaveOrdered(0.5)).commands == ()
    gone = leaving(Node(1, register()).join())
    before = gone.state
    gone.tell(RecordSeen(9.0, gone.register.read()), LeaveOrdered(9.0), ModelArrived(9.0, 0, offer(), 1.0))
    assert (gone.state, gone.commands) == (before, ())


def test_an_earlier_life_ends_where_a_later_one_has_joined() -> None:
    node = holder().hear(0, 1, 2).decide(0)
    ticket = node.ticket
    node.tell(Superseded(3.0))
    assert node.commands == (CancelTraining(ticket), Depart(release=False, superseded=True))
    assert isinstance(node.state.phase, Left)
