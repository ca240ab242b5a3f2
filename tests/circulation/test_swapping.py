"""What the register answers, or fails to answer, to a proposed change."""

from __future__ import annotations

from msgspec.structs import replace

from tramfl.circulation import Limits, State, advance
from tramfl.circulation.changes import Commit, HandOver, TakeOver
from tramfl.circulation.commands import CloseRound, Command, ReadRecord, Swap, Train, Wake
from tramfl.circulation.custody import MemoryRegister, Record, Versioned, Weights, first_record
from tramfl.circulation.events import (
    Acknowledged,
    Decided,
    Event,
    HolderLost,
    LoadReported,
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
from tramfl.circulation.phases import Copy, Following, Gathering, Swapping
from tramfl.notation import Decision, Ledger

FIRST = first_record("run", 0, "w0", (0, 1), labels=1)


class Node:
    """One of two machines, and what it asked for last."""

    def __init__(self, me: int, register: MemoryRegister, *disk: Copy) -> None:
        self.register = register
        self.state = State(me, 1e6, Limits(register_retry=0.5))
        self.commands: tuple[Command, ...] = ()
        self.tell(Started(0.0, disk or (Copy("w0", 0, 1),)))
        self.tell(RecordRead(0.0, self.ticket, register.read()))

    def tell(self, *events: Event) -> Node:
        for event in events:
            self.state, self.commands = advance(self.state, event)
        return self

    @property
    def ticket(self) -> int:
        return int(getattr(self.state.phase, "ticket", self.state.ticket))

    def kinds(self) -> list[type]:
        return [type(c) for c in self.commands]

    def make(self) -> Versioned:
        """The register makes the swap that was asked for, whether or not the node learns of it."""
        (swap,) = (c for c in self.commands if isinstance(c, Swap))
        after = self.register.swap(swap.revision, swap.record)
        assert after is not None
        return after

    def decided(self, node: int | None) -> Node:
        for peer in (0, 1):
            self.tell(LoadReported(0.0, self.ticket, peer, 1e9, 1e6))
        samples, idle = ((0,), 1.0) if node is None else ((5,), 0.0)
        return self.tell(Decided(0.0, self.ticket, Decision("by hand", node, samples, 1.0, 1.0, idle, "So be it.")))


def committing() -> Node:
    node = Node(0, MemoryRegister(FIRST)).decided(0)
    node.tell(Trained(1.0, node.ticket, "w1", 1.0))
    return node.tell(Stored(1.0, node.ticket, Copy("w1", 1, 1)))


def handing_over() -> Node:
    node = Node(0, MemoryRegister(FIRST)).decided(1)
    return node.tell(Acknowledged(1.0, node.ticket))


def change(register: MemoryRegister, record: Record) -> Versioned:
    after = register.swap(register.read().revision, record)
    assert after is not None
    return after


def test_an_unanswered_swap_is_asked_about_a_little_later_and_again() -> None:
    node = committing()
    for _ in range(3):
        node.tell(RegisterSilent(2.0, node.ticket))
        assert node.commands == (Wake(node.ticket, 0.5),)
        node.tell(Woke(2.5, node.ticket))
        assert node.kinds() == [ReadRecord]
    assert isinstance(node.state.phase, Swapping)


def test_an_unanswered_commit_that_landed_closes_its_round_once() -> None:
    node = committing()
    node.make()
    node.tell(RegisterSilent(2.0, node.ticket))
    node.tell(Woke(2.5, node.ticket))
    node.tell(RecordRead(2.5, node.ticket, node.register.read()))
    assert CloseRound in node.kinds()
    assert isinstance(node.state.phase, Gathering)
    assert node.register.read().record.ledger == Ledger((5,), 1.0, 1)


def test_an_unanswered_commit_that_did_not_land_is_proposed_again_as_it_was() -> None:
    node = committing()
    first = node.commands
    node.tell(RegisterSilent(2.0, node.ticket))
    node.tell(Woke(2.5, node.ticket))
    node.tell(RecordRead(2.5, node.ticket, node.register.read()))
    (again,) = node.commands
    (swap,) = first
    assert isinstance(again, Swap)
    assert isinstance(swap, Swap)
    assert (again.record, again.revision) == (swap.record, swap.revision)
    assert again.ticket > swap.ticket


def test_a_commit_whose_first_try_lands_after_all_is_not_made_twice() -> None:
    node = committing()
    (late,) = node.commands
    assert isinstance(late, Swap)
    node.tell(RegisterSilent(2.0, node.ticket))
    node.tell(Woke(2.5, node.ticket))
    node.tell(RecordRead(2.5, node.ticket, node.register.read()))
    assert node.register.swap(late.revision, late.record) is not None
    node.tell(SwapRefused(3.0, node.ticket, node.register.read()))
    assert CloseRound in node.kinds()
    assert node.register.read().record.round == 1


def test_a_late_answer_to_the_first_try_is_ignored() -> None:
    node = committing()
    first = node.ticket
    after = node.make()
    node.tell(RegisterSilent(2.0, first))
    before = node.state
    assert node.tell(Swapped(2.2, first, after)).state == before


def test_a_commit_refused_because_the_run_was_paused_is_put_to_the_paused_record() -> None:
    node = committing()
    paused = change(node.register, replace(FIRST, status="paused"))
    node.tell(SwapRefused(1.0, node.ticket, paused))
    after = node.make().record
    assert (after.status, after.round, after.weights.digest) == ("paused", 1, "w1")


def test_a_commit_of_a_deposed_holder_is_void_and_its_weights_go() -> None:
    node = committing()
    taken = TakeOver(1, 1, "w0").applied(FIRST, 1)
    assert taken is not None
    node.tell(SwapRefused(1.0, node.ticket, change(node.register, taken)))
    assert isinstance(node.state.phase, Following)
    assert CloseRound not in node.kinds()
    assert not node.state.has("w1")
    assert node.state.has("w0")


def test_a_round_that_a_former_life_committed_is_not_closed_as_ones_own() -> None:
    node = committing()
    former = Commit(1, 0, "w0", "w1-of-old", (3,), 2.0, 0.9).applied(FIRST, 0)
    assert former is not None
    node.state = replace(node.state, copies=(*node.state.copies, Copy("w1-of-old", 1, 1)))
    node.tell(SwapRefused(1.0, node.ticket, change(node.register, former)))
    assert CloseRound not in node.kinds()
    phase = node.state.phase
    assert isinstance(phase, Gathering), "it goes on from what its former life trained"


def test_a_commit_that_someone_took_over_from_still_closes_its_round() -> None:
    node = committing()
    landed = node.make().record
    taken = replace(landed, epoch=2, holder=1, weights=replace(landed.weights, copies=(0, 1)))
    node.tell(SwapRefused(2.0, node.ticket, change(node.register, taken)))
    assert CloseRound in node.kinds()
    assert isinstance(node.state.phase, Following)


def test_news_of_ones_own_swap_before_its_answer_changes_nothing() -> None:
    node = committing()
    after = node.make()
    node.tell(RecordSeen(1.0, after))
    assert isinstance(node.state.phase, Swapping)
    assert node.commands == ()
    node.tell(Swapped(1.0, node.ticket, after))
    assert CloseRound in node.kinds()


def test_an_unanswered_handover_that_landed_leaves_the_sender_following() -> None:
    node = handing_over()
    node.make()
    node.tell(RegisterSilent(2.0, node.ticket))
    node.tell(Woke(2.5, node.ticket))
    node.tell(RecordRead(2.5, node.ticket, node.register.read()))
    assert isinstance(node.state.phase, Following)


def test_an_unanswered_handover_that_did_not_land_is_proposed_again() -> None:
    node = handing_over()
    node.tell(RegisterSilent(2.0, node.ticket))
    node.tell(Woke(2.5, node.ticket))
    node.tell(RecordRead(2.5, node.ticket, node.register.read()))
    phase = node.state.phase
    assert isinstance(phase, Swapping)
    assert isinstance(phase.change, HandOver)
    assert node.make().record.holder == 1


def test_a_handover_of_weights_that_a_former_life_has_trained_past_is_void() -> None:
    node = handing_over()
    node.state = replace(node.state, copies=(*node.state.copies, Copy("w1", 1, 1)))
    moved = Commit(1, 0, "w0", "w1", (3,), 2.0, 0.9).applied(FIRST, 0)
    assert moved is not None
    node.tell(SwapRefused(1.0, node.ticket, change(node.register, moved)))
    assert isinstance(node.state.phase, Gathering)
    assert Swap not in node.kinds()


def test_a_takeover_is_never_tried_again_on_a_record_that_moved() -> None:
    node = Node(1, MemoryRegister(FIRST))
    node.tell(HolderLost(5.0, node.register.read()))
    assert Swap in node.kinds()
    moved = change(node.register, replace(FIRST, weights=Weights("w0", (0, 1), since=4.0)))
    node.tell(SwapRefused(5.0, node.ticket, moved))
    assert isinstance(node.state.phase, Following)
    assert node.commands == ()


def test_a_takeover_that_went_unanswered_is_tried_again_on_the_same_record() -> None:
    node = Node(1, MemoryRegister(FIRST))
    node.tell(HolderLost(5.0, node.register.read()))
    node.tell(RegisterSilent(6.0, node.ticket))
    node.tell(Woke(6.5, node.ticket))
    node.tell(RecordRead(6.5, node.ticket, node.register.read()))
    assert node.make().record.epoch == 2


def test_a_takeover_that_landed_unanswered_makes_the_node_holder() -> None:
    node = Node(1, MemoryRegister(FIRST))
    node.tell(HolderLost(5.0, node.register.read()))
    node.make()
    node.tell(RegisterSilent(6.0, node.ticket))
    node.tell(Woke(6.5, node.ticket))
    node.tell(RecordRead(6.5, node.ticket, node.register.read()))
    phase = node.state.phase
    assert isinstance(phase, Gathering)
    assert phase.attempt.lost_seconds == 6.5, "all time since the last commit is lost"


def test_nothing_is_trained_while_the_fate_of_a_swap_is_unknown() -> None:
    node = committing()
    for _ in range(5):
        node.tell(RegisterSilent(2.0, node.ticket), RecordSeen(2.0, node.register.read()))
        node.tell(Woke(2.5, node.ticket))
        assert not {Train, CloseRound} & set(node.kinds())
