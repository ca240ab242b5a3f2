"""The background copy, the copy of a run at rest, and what may be deleted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.circulation.test_receiving import FIRST, LINKS, Node, made, mark, offer
from tramfl.circulation import IllegalEvent, Limits, State
from tramfl.circulation.changes import Commit, HandOver, MarkSafe
from tramfl.circulation.commands import (
    AskLoads,
    CancelSend,
    Discard,
    SendModel,
    Swap,
    Train,
    Wake,
)
from tramfl.circulation.custody import MemoryRegister, Versioned, Weights, numbered
from tramfl.circulation.events import (
    Acknowledged,
    Decided,
    LoadMissing,
    LoadReported,
    ModelArrived,
    RecordRead,
    RecordSeen,
    RegisterSilent,
    SendFailed,
    Started,
    Stored,
    SwapRefused,
    Trained,
    Woke,
)
from tramfl.circulation.phases import Backup, Copy, Following, Gathering, Halted, Sending, Shipping, Training
from tramfl.notation import Decision

# The background copy.


def staying(unsafe_rounds: int = 4) -> Node:
    """Node 0, which has trained w1 and w2 and ships a copy of the latter."""
    return Node(0, limits=Limits(unsafe_rounds=unsafe_rounds)).train("w1").train("w2")


def test_a_holder_that_stays_ships_a_copy_after_half_of_the_unsafe_rounds_to_the_nearest_node() -> None:
    node = Node(0, limits=Limits(unsafe_rounds=3)).train("w1")
    assert SendModel not in node.kinds()
    sent = node.train("w2").sent()
    assert (sent.to, sent.offer.digest, sent.offer.round, sent.offer.assignment) == (2, "w2", 2, None)
    assert isinstance(node.state.phase, Gathering), "the next round does not wait for it"


def at_the_bound(decision: int = 0, reporting: tuple[int, ...] = (0, 1, 2)) -> Node:
    """Node 0, which alone has two rounds, as many as may be unsafe; `decision` is to train the next."""
    node = staying(unsafe_rounds=2)
    for peer in range(3):
        here = peer in reporting
        node.tell(
            LoadReported(0.0, node.ticket, peer, 1e9, LINKS[peer]) if here else LoadMissing(0.0, node.ticket, peer)
        )
    return node.tell(Decided(5.0, node.ticket, Decision("by hand", decision, (5,), 1.0, 1.0, 0.0, "So be it.")))


def test_a_holder_with_as_many_unsafe_rounds_as_may_be_trains_on_only_once_a_copy_is_safe() -> None:
    node = at_the_bound()
    assert isinstance(node.state.phase, Shipping)
    assert Train not in node.kinds()
    backup = node.state.backup
    assert backup is not None, "it was on its way since the first round"
    node.tell(Woke(7.0, node.ticket))
    assert isinstance(node.state.phase, Shipping), "the copy takes as long as it takes"
    node.tell(Acknowledged(8.0, backup.ticket)).swap()
    assert (node.record.safe.round, node.record.unsafe_rounds) == (1, 1)
    phase = node.state.phase
    assert isinstance(phase, Gathering)
    assert phase.attempt.lost_seconds == 0.0 - node.record.weights.since, "the wait is lost time"
    assert isinstance(node.train("w3").state.phase, Gathering)


def test_a_holder_at_the_bound_looks_for_another_node_when_the_copy_fails() -> None:
    node = at_the_bound()
    backup = node.state.backup
    assert backup is not None
    node.tell(SendFailed(6.0, backup.ticket), Woke(7.0, node.ticket))
    assert isinstance(node.state.phase, Gathering)
    node.tell(*(LoadReported(7.0, node.ticket, peer, 1e9, LINKS[peer]) for peer in range(3)))
    node.tell(Decided(7.0, node.ticket, Decision("by hand", 0, (5,), 1.0, 0.0, 0.0, "So be it.")))
    assert (node.sent().to, node.sent().offer.digest) == (1, "w2")


def test_a_copy_in_doubt_is_put_to_the_register_again_by_a_holder_at_the_bound() -> None:
    node = at_the_bound()
    backup = node.state.backup
    assert backup is not None
    node.tell(Acknowledged(6.0, backup.ticket))
    (swap,) = (c for c in node.commands if isinstance(c, Swap))
    node.tell(RegisterSilent(7.0, swap.ticket), Woke(8.0, node.ticket)).swap()
    assert isinstance(node.state.phase, Gathering)
    assert node.record.safe.round == 1


def test_a_holder_at_the_bound_may_send_the_model_on() -> None:
    assert isinstance(at_the_bound(decision=1).state.phase, Sending)


def test_a_holder_at_the_bound_trains_on_where_no_other_node_reports() -> None:
    assert isinstance(at_the_bound(reporting=(0,)).state.phase, Training)


def test_a_holder_at_the_bound_rests_when_the_run_is_paused() -> None:
    node = at_the_bound()
    paused = node.register.swap(node.register.read().revision, replace(node.record, status="paused"))
    assert paused is not None
    assert isinstance(node.tell(RecordSeen(6.0, paused)).state.phase, Halted)


def test_the_last_round_of_a_run_that_was_stopped_meanwhile_is_shipped_at_once() -> None:
    node = Node(0, limits=Limits(unsafe_rounds=100))
    for peer in range(3):
        node.tell(LoadReported(0.0, node.ticket, peer, 1e9, LINKS[peer]))
    decision = Decision("by hand", 0, (5,), 1.0, 0.0, 0.0, "So be it.")
    node.tell(Decided(0.0, node.ticket, decision))
    node.tell(Trained(1.0, node.ticket, "w1", 1.0))
    stopped = node.register.swap(1, replace(FIRST, status="stopped"))
    assert stopped is not None
    node.tell(Stored(1.0, node.ticket, Copy("w1", 1, 1)))
    node.tell(SwapRefused(1.0, node.ticket, stopped)).swap()
    assert isinstance(node.state.phase, Halted)
    (send,) = (c for c in node.commands if isinstance(c, SendModel))
    assert (send.to, send.offer.digest, send.offer.assignment) == (2, "w1", None)


def test_a_holder_that_stays_ships_a_copy_once_its_work_has_been_unsafe_for_long() -> None:
    node = Node(0, limits=Limits(unsafe_rounds=100, unsafe_seconds=2.0)).train("w1")
    assert SendModel not in node.kinds()
    assert SendModel in node.train("w2").kinds()


def test_a_background_copy_that_arrived_is_marked_safe() -> None:
    node = staying()
    node.tell(Acknowledged(1.0, node.sent().ticket)).swap()
    safe = node.record.safe
    assert (safe.round, safe.digest, safe.copies, safe.ledger) == (2, "w2", (0, 2), node.record.ledger)
    assert node.record.weights.copies == (0, 2)
    assert node.state.backup is None


def test_the_deadline_of_a_background_copy_follows_from_its_link() -> None:
    node = staying()
    (wake,) = (c for c in node.commands if isinstance(c, Wake) and c.ticket == node.sent().ticket)
    assert wake.seconds == Limits().overdue_after(1e6 / 2e6, 0)


def test_a_holder_that_was_handed_the_model_copies_back_over_the_link_it_came_by() -> None:
    node = Node(1, MemoryRegister(replace(FIRST, holder=0)), Limits(unsafe_rounds=1))
    node.tell(ModelArrived(1.0, 0, offer("w0", round_=0), 1.0))
    node.tell(Stored(1.0, node.state.ticket, Copy("w0", 0, 1)))
    handed = HandOver(1, 0, "w0", 1).applied(node.record, 0)
    assert handed is not None
    after = node.register.swap(1, handed)
    assert after is not None
    node.tell(RecordSeen(1.0, after))
    node.tell(Trained(2.0, node.ticket, "w1", 1.0))
    node.tell(Stored(2.0, node.ticket, Copy("w1", 1, 1))).swap()
    sent = node.sent()
    assert sent.to == 0
    (wake,) = (c for c in node.commands if isinstance(c, Wake) and c.ticket == sent.ticket)
    assert wake.seconds == Limits().overdue_after(1e6 / LINKS[1], 0)


def test_a_background_copy_marked_too_late_is_put_to_the_record_as_it_is_now() -> None:
    node = staying()
    sent = node.sent()
    node.train("w3").tell(Acknowledged(1.0, sent.ticket))
    stale = node.commands[0]
    assert isinstance(stale, Swap)
    moved = node.register.swap(node.register.read().revision, replace(node.record, status="paused"))
    assert moved is not None
    node.tell(SwapRefused(1.0, stale.ticket, moved)).swap()
    assert (node.record.safe.digest, node.record.weights.digest, node.record.status) == ("w2", "w3", "paused")


def test_a_background_copy_is_forgotten_where_newer_weights_are_safe_by_then() -> None:
    node = staying()
    node.tell(Acknowledged(1.0, node.sent().ticket))
    swap = node.commands[0]
    assert isinstance(swap, Swap)
    ahead = replace(node.record, safe=replace(node.record.safe, round=9))
    node.tell(SwapRefused(1.0, swap.ticket, Versioned(ahead, swap.revision + 1)))
    assert node.state.backup is None
    assert Swap not in node.kinds()


@pytest.mark.parametrize("overdue", [True, False])
def test_a_background_copy_that_failed_goes_to_another_node_next_time(overdue: bool) -> None:
    node = staying()
    sent = node.sent()
    assert sent.to == 2
    node.tell(Woke(9.0, sent.ticket) if overdue else SendFailed(9.0, sent.ticket))
    assert node.commands == ((CancelSend(sent.ticket, overdue=True),) if overdue else ())
    assert node.train("w3").sent().to == 1
    node.tell(SendFailed(9.0, node.sent().ticket))
    assert node.train("w4").sent().to == 2, "once everyone has failed, the nearest is tried again"


def test_only_one_background_copy_is_under_way_at_a_time() -> None:
    assert SendModel not in staying().train("w3").kinds()


def test_an_answer_that_does_not_fit_a_background_copy_is_an_error() -> None:
    node = staying()
    with pytest.raises(IllegalEvent):
        node.tell(Trained(1.0, node.sent().ticket, "w9", 1.0))


# What may be deleted.


def test_a_background_copy_in_doubt_keeps_its_weights_until_the_record_has_moved() -> None:
    node = staying()
    node.tell(Acknowledged(1.0, node.sent().ticket))
    swap = node.commands[0]
    assert isinstance(swap, Swap)
    node.tell(RegisterSilent(2.0, swap.ticket))
    assert node.state.has("w2")
    backup = node.state.backup
    assert backup is not None
    assert backup.in_doubt_at == swap.revision
    node.train("w3")
    assert node.state.backup is None or node.state.backup.change.digest == "w3"


def test_a_background_copy_in_doubt_that_landed_is_found_in_the_record() -> None:
    node = staying()
    node.tell(Acknowledged(1.0, node.sent().ticket))
    swap = node.commands[0]
    assert isinstance(swap, Swap)
    landed = node.register.swap(swap.revision, swap.record)
    assert landed is not None
    node.tell(RegisterSilent(2.0, swap.ticket), RecordSeen(3.0, landed))
    assert node.state.backup is None
    node.train("w3")
    assert node.state.has("w2"), "the record names it as safe"


def test_a_holder_keeps_what_the_record_and_its_background_copy_may_name_and_no_more() -> None:
    node = staying().train("w3").train("w4")
    assert node.digests() == {"w0", "w2", "w4"}, "safe, on its way, newest"


def test_a_restarted_holder_keeps_what_a_swap_of_its_former_life_may_yet_name() -> None:
    node = staying().train("w3")
    disk = node.state.copies
    again = Node(0, node.register)
    again.tell(Started(5.0, disk))
    again.tell(RecordRead(5.0, again.ticket, node.register.read()))
    assert again.state.has("w2")


def test_a_receiver_keeps_what_it_acknowledged_while_the_record_may_name_it() -> None:
    node = Node(1).tell(ModelArrived(1.0, 0, offer("w3", round_=3, assigned=False), 1.0))
    node.tell(Stored(1.0, node.state.ticket, Copy("w3", 3, 1)))
    for revision, round_ in enumerate((4, 5, 6), start=2):
        ledger = replace(FIRST.ledger, round=round_)
        moved = replace(FIRST, ledger=ledger, weights=replace(FIRST.weights, digest=f"w{round_}", copies=(0,)))
        node.tell(RecordSeen(2.0, Versioned(moved, revision)))
        assert node.state.has("w3")
    mark = MarkSafe(1, 3, "w3", (0, 1), replace(FIRST.ledger, round=3), 3.0)
    marked = mark.applied(moved, 0)
    assert marked is not None
    node.tell(RecordSeen(3.0, Versioned(marked, 9)))
    assert node.commands == (Discard(("w0",)),)
    assert node.state.has("w3")


def test_a_sender_keeps_its_copy_until_newer_weights_are_safe() -> None:
    handed = HandOver(1, 0, "w0", 1).applied(FIRST, 0)
    assert handed is not None
    committed = Commit(1, 0, "w0", "w1", (5,), 1.0, 1.0).applied(handed, 1)
    assert committed is not None
    onward = HandOver(1, 1, "w1", 2).applied(committed, 1)
    assert onward is not None
    node = Node(0).tell(RecordSeen(1.0, Versioned(handed, 2)), RecordSeen(2.0, Versioned(committed, 3)))
    assert node.state.has("w0")
    assert node.tell(RecordSeen(3.0, Versioned(onward, 4))).commands == (Discard(("w0",)),)


def test_news_that_a_refused_mark_brings_are_acted_on_as_no_other_news_of_it_will_come() -> None:
    node = Node(0, limits=Limits(unsafe_rounds=1)).train("w1")
    sent = node.sent()
    now = node.register.read()
    handed = node.register.swap(now.revision, made(HandOver(1, 1, "w1", 1).applied(now.record, 0)))
    assert handed is not None
    node.tell(RecordSeen(1.0, handed), Acknowledged(1.0, sent.ticket))
    assert isinstance(node.state.phase, Following)
    # Weights that are safe already are not marked again: put the copy of an older round in their place.
    older = replace(handed.record, safe=FIRST.safe)
    node.state = replace(node.state, backup=Backup(sent.ticket, mark(older)), seen=Versioned(older, handed.revision))
    node.tell(Acknowledged(1.0, sent.ticket))
    (swap,) = (c for c in node.commands if isinstance(c, Swap))
    back = Versioned(replace(handed.record, holder=0), handed.revision + 1)
    node.tell(SwapRefused(2.0, swap.ticket, back))
    assert isinstance(node.state.phase, Gathering)


# At rest.


def alone_at_rest(unfit: frozenset[int] = frozenset(), nodes: int = 3) -> Node:
    """Node 0, which comes back to a run that was stopped when only it had w1."""
    newest = Weights("w1", (0,), 1.0)
    members = numbered(nodes)
    stopped = replace(FIRST, weights=newest, ledger=FIRST.ledger.after((5,), 1.0), status="stopped", members=members)
    node = Node(0)
    node.register = MemoryRegister(stopped)
    node.state = State(0, 1e6, Limits(), unfit=unfit)
    node.tell(Started(0.0, (Copy("w0", 0, 1), Copy("w1", 1, 1))))
    return node.tell(RecordRead(0.0, node.ticket, node.register.read()))


def shipped(node: Node) -> list[SendModel]:
    return [command for command in node.commands if isinstance(command, SendModel)]


def test_a_holder_at_rest_asks_until_somebody_takes_what_only_it_has() -> None:
    node = alone_at_rest()
    for _ in range(3):
        (ask,) = (c for c in node.commands if isinstance(c, AskLoads))
        assert (ask.nodes, ask.ticket) == ((1, 2), node.ticket)
        node.tell(Woke(7.0, node.ticket))
        assert shipped(node) == []
    node.tell(LoadReported(8.0, node.ticket, 1, 1e9, LINKS[1]), Woke(9.0, node.ticket))
    (send,) = shipped(node)
    assert (send.to, send.offer.digest, send.offer.assignment) == (1, "w1", None)
    node.tell(Acknowledged(10.0, send.ticket)).swap()
    assert (node.record.safe.round, node.record.safe.copies) == (1, (0, 1))
    assert (node.commands, node.state.phase) == ((Discard(("w0",)),), Halted())


def test_at_rest_a_node_that_did_not_take_a_copy_is_asked_again_only_after_all_others() -> None:
    both = alone_at_rest(unfit=frozenset({2}))
    both.tell(*(LoadReported(8.0, both.ticket, n, 1e9, LINKS[n]) for n in (2, 1)), Woke(9.0, both.ticket))
    assert shipped(both)[0].to == 1
    alone = alone_at_rest(unfit=frozenset({2}))
    alone.tell(LoadReported(8.0, alone.ticket, 2, 1e9, LINKS[2]), Woke(9.0, alone.ticket))
    assert shipped(alone)[0].to == 2


def test_a_copy_in_doubt_is_put_to_the_register_again_as_nobody_else_moves_the_record() -> None:
    for was_made in (False, True):
        node = alone_at_rest()
        node.tell(LoadReported(8.0, node.ticket, 1, 1e9, LINKS[1]), Woke(9.0, node.ticket))
        node.tell(Acknowledged(10.0, shipped(node)[0].ticket))
        (swap,) = (c for c in node.commands if isinstance(c, Swap))
        made = node.register.swap(swap.revision, swap.record) if was_made else None
        node.tell(RegisterSilent(11.0, swap.ticket), Woke(12.0, node.ticket))
        (again,) = (c for c in node.commands if isinstance(c, Swap))
        assert again.record == swap.record
        if made is not None:
            node.tell(SwapRefused(13.0, again.ticket, made))
        else:
            node.swap()
        assert node.record.safe.round == 1
        assert node.state.backup is None


def test_a_site_that_is_all_there_is_rests_at_once() -> None:
    node = alone_at_rest(nodes=1)
    assert (node.commands, node.state.phase) == ((), Halted())
