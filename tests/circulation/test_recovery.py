"""What a node does after it, or the holder, was away."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tramfl.circulation import Limits, State, advance
from tramfl.circulation.changes import Commit, HandOver, Resign, TakeOver
from tramfl.circulation.commands import (
    AskLoads,
    CancelSend,
    CancelTraining,
    Command,
    Discard,
    ReadRecord,
    SendModel,
    Swap,
    Train,
    Wake,
)
from tramfl.circulation.custody import Record, Safe, Versioned, Weights, numbered
from tramfl.circulation.events import (
    Acknowledged,
    Decided,
    Event,
    HolderLost,
    LoadReported,
    ModelArrived,
    RecordRead,
    RecordSeen,
    RegisterSilent,
    Started,
    Stored,
    Swapped,
    SwapRefused,
    Trained,
    Woke,
)
from tramfl.circulation.phases import (
    Assignment,
    Copy,
    Following,
    Gathering,
    Halted,
    Joining,
    Offer,
    StandingBy,
    Storing,
    Swapping,
    Training,
)
from tramfl.notation import Decision, Ledger, Loads

# Node 0 holds w7, which only it has; nodes 0 and 1 have w5, which is safe.
RECORD = Record(
    run="run",
    epoch=1,
    holder=0,
    weights=Weights("w7", (0,), since=70.0),
    safe=Safe(5, "w5", (0, 1), Ledger((5,), 50.0, 5), since=50.0),
    ledger=Ledger((7,), 70.0, 7),
    members=numbered(3),
)
NOW = Versioned(RECORD, 20)
W5, W7 = Copy("w5", 5, 1), Copy("w7", 7, 1)


class Node:
    """One of three machines, and what it asked for last."""

    def __init__(self, me: int, *disk: Copy, now: Versioned = NOW) -> None:
        self.state = State(me, 1e6, Limits(takeover_grace=1.0))
        self.commands: tuple[Command, ...] = ()
        self.tell(Started(80.0, disk))
        assert self.kinds() == [ReadRecord]
        self.tell(RecordRead(80.0, self.ticket, now))

    def tell(self, *events: Event) -> Node:
        for event in events:
            self.state, self.commands = advance(self.state, event)
        return self

    @property
    def ticket(self) -> int:
        return int(getattr(self.state.phase, "ticket", self.state.ticket))

    def kinds(self) -> list[type]:
        return [type(c) for c in self.commands]

    def proposed(self) -> object:
        phase = self.state.phase
        assert isinstance(phase, Swapping)
        return phase.change

    def decided(self, node: int) -> Node:
        for peer in range(3):
            self.tell(LoadReported(80.0, self.ticket, peer, 1e9, 1e6))
        return self.tell(Decided(80.0, self.ticket, decision(node)))


def decision(node: int) -> Decision:
    return Decision("by hand", node, (5,), 1.0, 1.0, 0.0, "So be it.")


def taken_over(by: int = 1) -> Versioned:
    record = TakeOver(1, 20, "w5").applied(RECORD, by)
    assert record is not None
    return Versioned(record, 21)


# A start.


def test_a_node_that_starts_waits_for_the_register_as_long_as_it_takes() -> None:
    node = Node(1, W5)
    node.tell(Started(90.0, (W5,)))
    for _ in range(3):
        node.tell(RegisterSilent(91.0, node.ticket))
        assert node.kinds() == [Wake]
        node.tell(Woke(91.5, node.ticket))
        assert node.kinds() == [ReadRecord]
    assert isinstance(node.state.phase, Joining)


def test_news_before_the_start_is_not_acted_on() -> None:
    state = State(0, 1e6, Limits())
    for event in (RecordSeen(80.0, NOW), HolderLost(80.0, NOW)):
        state, commands = advance(state, event)
        assert commands == ()
    assert isinstance(state.phase, Joining)


def test_news_while_starting_waits_for_the_answer_that_is_on_its_way() -> None:
    state, _ = advance(State(0, 1e6, Limits()), Started(80.0, (W5, W7)))
    state, commands = advance(state, RecordSeen(80.0, NOW))
    assert (type(state.phase), commands) == (Joining, ())


def test_a_restarted_holder_with_the_weights_decides_its_round_anew_and_counts_the_time_as_lost() -> None:
    node = Node(0, W5, W7)
    phase = node.state.phase
    assert isinstance(phase, Gathering)
    assert phase.attempt.lost_seconds == 10.0
    assert AskLoads in node.kinds()


def test_a_holder_whose_clock_is_behind_the_last_committers_has_lost_nothing() -> None:
    node = Node(0, W5, W7, now=Versioned(replace(RECORD, weights=replace(RECORD.weights, since=500.0)), 20))
    phase = node.state.phase
    assert isinstance(phase, Gathering)
    assert phase.attempt.lost_seconds == 0.0


@pytest.mark.parametrize(("disk", "has_safe"), [((), False), ((W5,), True)])
def test_a_restarted_holder_without_the_weights_resigns(disk: tuple[Copy, ...], has_safe: bool) -> None:
    node = Node(0, *disk)
    assert node.proposed() == Resign(1, has_safe=has_safe)
    (swap,) = node.commands
    assert isinstance(swap, Swap)
    node.tell(Swapped(80.0, swap.ticket, Versioned(swap.record, 21)))
    assert isinstance(node.state.phase, Following)


def test_who_resigns_from_a_record_that_moved_says_anew_what_it_has() -> None:
    node = Node(0, W5)
    moved = Versioned(replace(RECORD, safe=Safe(6, "w6", (0, 2), Ledger((6,), 60.0, 6))), 21)
    node.tell(SwapRefused(81.0, node.ticket, moved))
    assert node.proposed() == Resign(1, has_safe=False)


def test_who_resigned_may_take_over_from_the_safe_weights_like_anybody_else() -> None:
    node = Node(0, W5)
    (swap,) = node.commands
    assert isinstance(swap, Swap)
    vacant = Versioned(swap.record, 21)
    node.tell(Swapped(80.0, swap.ticket, vacant), HolderLost(80.0, vacant))
    assert isinstance(node.state.phase, StandingBy)
    node.tell(Woke(81.0, node.ticket))
    assert node.proposed() == TakeOver(1, 21, "w5")


def test_a_restarted_node_that_does_not_hold_follows() -> None:
    node = Node(1, W5)
    assert isinstance(node.state.phase, Following)
    assert node.commands == ()


def test_a_restarted_receiver_that_the_record_names_decides_anew_without_its_assignment() -> None:
    handed = HandOver(1, 7, "w7", 1).applied(RECORD, 0)
    assert handed is not None
    node = Node(1, W5, W7, now=Versioned(handed, 21))
    assert isinstance(node.state.phase, Gathering)


def test_a_node_that_returns_drops_weights_of_an_epoch_that_ended() -> None:
    node = Node(0, W5, W7, now=taken_over())
    assert node.commands == (Discard(("w7",)),)
    assert node.state.copies == (W5,)


# Takeover.


def test_a_node_with_the_newest_weights_takes_over_at_once() -> None:
    node = Node(2, W7).tell(HolderLost(90.0, NOW))
    assert node.proposed() == TakeOver(1, 20, "w7")


def test_a_node_with_only_the_safe_weights_takes_over_after_the_grace() -> None:
    node = Node(1, W5).tell(HolderLost(90.0, NOW))
    assert node.commands == (Wake(node.ticket, 1.0),)
    assert isinstance(node.state.phase, StandingBy)
    node.tell(Woke(91.0, node.ticket))
    assert node.proposed() == TakeOver(1, 20, "w5")
    (swap,) = node.commands
    assert isinstance(swap, Swap)
    assert (swap.record.epoch, swap.record.holder, swap.record.round) == (2, 1, 5)


def test_a_node_with_neither_stays_a_follower() -> None:
    node = Node(2, Copy("w6", 6, 1)).tell(HolderLost(90.0, NOW))
    assert (type(node.state.phase), node.commands) == (Following, ())


def test_a_node_that_stands_by_gives_way_to_the_one_that_took_over() -> None:
    node = Node(1, W5).tell(HolderLost(90.0, NOW), RecordSeen(90.5, taken_over(by=2)))
    assert isinstance(node.state.phase, Following)


def test_who_stands_by_is_not_hurried_by_the_same_news_again() -> None:
    node = Node(1, W5).tell(HolderLost(90.0, NOW))
    before = node.state
    assert node.tell(HolderLost(90.5, NOW)).state == before


def test_the_loss_of_a_holder_that_is_no_longer_the_holder_is_no_ground_to_take_over() -> None:
    node = Node(1, W5).tell(RecordSeen(90.0, taken_over(by=2)), HolderLost(90.5, NOW))
    assert (type(node.state.phase), node.commands) == (Following, ())


@pytest.mark.parametrize(("status", "takes"), [("running", True), ("paused", True), ("stopped", False)])
def test_only_a_stopped_run_is_left_without_a_holder(status: str, takes: bool) -> None:
    now = Versioned(replace(RECORD, status=status), 20)
    node = Node(2, W7, now=now).tell(HolderLost(90.0, now))
    assert isinstance(node.state.phase, Swapping) is takes


def test_a_takeover_of_a_paused_run_does_not_set_it_going() -> None:
    now = Versioned(replace(RECORD, status="paused"), 20)
    node = Node(2, W7, now=now).tell(HolderLost(90.0, now))
    (swap,) = node.commands
    assert isinstance(swap, Swap)
    node.tell(Swapped(90.0, swap.ticket, Versioned(swap.record, 21)))
    assert isinstance(node.state.phase, Halted)


# News for a holder.


def test_a_deposed_holder_gives_up_its_training() -> None:
    node = Node(0, W5, W7).decided(0)
    training = node.ticket
    node.tell(RecordSeen(90.0, taken_over()))
    assert CancelTraining(training) in node.commands
    assert isinstance(node.state.phase, Following)
    assert node.tell(Trained(91.0, training, "w8", 1.0)).commands == ()


def test_a_deposed_holder_gives_up_its_transfer() -> None:
    node = Node(0, W5, W7).decided(2)
    sending = node.ticket
    node.tell(RecordSeen(90.0, taken_over()))
    assert CancelSend(sending) in node.commands
    assert node.tell(Acknowledged(91.0, sending)).commands == ()


def test_weights_that_a_deposed_holder_was_storing_go_with_the_next_record() -> None:
    node = Node(0, W5, W7).decided(0)
    node.tell(Trained(81.0, node.ticket, "w8", 1.0))
    phase = node.state.phase
    assert isinstance(phase, Storing)
    node.tell(RecordSeen(90.0, taken_over()), Stored(91.0, phase.ticket, Copy("w8", 8, 1)))
    assert isinstance(node.state.phase, Following)
    node.tell(RecordSeen(92.0, Versioned(replace(taken_over().record, status="paused"), 22)))
    assert node.commands == (Discard(("w8",)),)


def test_a_holder_goes_on_undisturbed_when_only_its_background_copy_was_marked() -> None:
    node = Node(0, W5, W7).decided(0)
    before = node.state.phase
    node.tell(RecordSeen(90.0, Versioned(replace(RECORD, safe=replace(RECORD.safe, copies=(0, 1, 2))), 21)))
    assert node.state.phase == before
    assert node.commands == ()


@pytest.mark.parametrize("node_to_train", [0, 2])
def test_a_holder_whose_former_life_moved_the_record_on_starts_from_what_it_says_now(node_to_train: int) -> None:
    node = Node(0, W5, W7, Copy("w8", 8, 1)).decided(node_to_train)
    work = node.ticket
    moved = Commit(1, 7, "w7", "w8", (1,), 9.0, 79.0).applied(RECORD, 0)
    assert moved is not None
    node.tell(RecordSeen(81.0, Versioned(moved, 21)))
    assert isinstance(node.state.phase, Gathering)
    assert {CancelTraining(work), CancelSend(work)} & set(node.commands)
    node.decided(2)
    (send,) = (c for c in node.commands if isinstance(c, SendModel))
    assert (send.offer.digest, send.offer.round) == ("w8", 8)


def test_old_news_changes_nothing() -> None:
    node = Node(0, W5, W7).decided(0)
    before = node.state
    for revision in (3, 20):
        assert node.tell(RecordSeen(90.0, Versioned(taken_over().record, revision))).state == before


# An assignment that is kept.


def accepted(epoch: int = 1, round_: int = 7) -> Node:
    """Node 1, which has taken w7 in with an assignment."""
    node = Node(1, W5)
    assignment = Assignment(0, decision(1), Loads((1e9, 1e9, 1e9), (1e6, 1e6, 1e6)), 3.0)
    node.tell(ModelArrived(81.0, 0, Offer(epoch, round_, "w7", 99, assignment), 2.0))
    return node.tell(Stored(81.0, node.state.ticket, Copy("w7", round_, epoch)))


def test_a_receiver_trains_what_was_assigned_once_the_record_names_it() -> None:
    handed = HandOver(1, 7, "w7", 1).applied(RECORD, 0)
    assert handed is not None
    node = accepted().tell(RecordSeen(82.0, Versioned(handed, 21)))
    phase = node.state.phase
    assert isinstance(phase, Training)
    assert (phase.attempt.lost_seconds, phase.transfer_seconds) == (3.0, 2.0)


def test_a_receiver_that_takes_over_decides_for_itself() -> None:
    node = accepted().tell(HolderLost(90.0, NOW))
    (swap,) = node.commands
    assert isinstance(swap, Swap)
    node.tell(Swapped(90.0, swap.ticket, Versioned(swap.record, 21)))
    assert isinstance(node.state.phase, Gathering)
    assert Train not in node.kinds()


def test_who_took_over_asks_the_lost_holder_but_does_not_wait_for_it() -> None:
    node = Node(2, W7).tell(HolderLost(90.0, NOW))
    (swap,) = node.commands
    assert isinstance(swap, Swap)
    node.tell(Swapped(90.0, swap.ticket, Versioned(swap.record, 21)))
    assert isinstance(node.state.phase, Gathering)
    assert node.state.phase.awaited == {1, 2}
    (ask,) = (c for c in node.commands if isinstance(c, AskLoads))
    assert ask.nodes == (0, 1, 2)


# Two candidates, one record.


def test_of_two_nodes_that_take_over_the_loser_follows_the_winner() -> None:
    winner, loser = Node(1, W5, W7), Node(2, W7)
    for node in (winner, loser):
        node.tell(HolderLost(90.0, NOW))
    (swap,) = winner.commands
    assert isinstance(swap, Swap)
    after = Versioned(swap.record, 21)
    winner.tell(Swapped(90.0, winner.ticket, after))
    loser.tell(SwapRefused(90.0, loser.ticket, after))
    assert isinstance(winner.state.phase, Gathering)
    assert isinstance(loser.state.phase, Following)
    assert loser.commands == ()
