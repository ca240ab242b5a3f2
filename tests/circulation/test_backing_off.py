"""A black hole costs a run little: it is left out for longer each time."""

from __future__ import annotations

from msgspec.structs import replace

from tramfl.circulation import Limits, State, advance
from tramfl.circulation.backing_off import MOST_ROUNDS, cleared, failed, left_out
from tramfl.circulation.commands import AskLoads, SendModel, Swap
from tramfl.circulation.custody import MemoryRegister, Versioned, first_record
from tramfl.circulation.events import (
    Acknowledged,
    Decided,
    Event,
    LoadReported,
    RecordRead,
    SendFailed,
    Started,
    Stored,
    Swapped,
    Trained,
    Woke,
)
from tramfl.circulation.phases import Copy, Deciding, Gathering, Shipping, Storing, Training
from tramfl.notation import Decision, Ledger

FIRST = first_record("run", 0, "w0", (0, 1, 2), labels=1)


def test_a_node_is_left_out_for_twice_as_many_rounds_each_time() -> None:
    state = State(0, 1e6, Limits())
    lasts = []
    for _ in range(11):
        state = failed(state, 2, 10)
        lasts.append(sum(2 in left_out(state, round_, 0.0) for round_ in range(10, 2000)))
    assert lasts == [1, 2, 4, 8, 16, 32, 64, 128, 256, MOST_ROUNDS, MOST_ROUNDS]
    assert failed(state, 0, 10) == state, "a node does not leave itself out"


def test_a_round_of_the_node_clears_it_once_another_node_has_it() -> None:
    seen = Versioned(replace(FIRST, holder=2), 4)
    state = failed(State(0, 1e6, Limits(), seen=seen), 2, 0)
    ledger = Ledger((3,), 1.0, 1)
    committed = replace(seen.record, ledger=ledger)
    assert cleared(state, committed).backoff == state.backoff, "what it committed may be worth nothing"
    done = replace(committed, safe=replace(FIRST.safe, round=1, ledger=ledger))
    assert cleared(state, done).backoff == {}
    assert cleared(state, replace(done, epoch=2)).backoff == state.backoff
    assert cleared(replace(state, seen=Versioned(FIRST, 4)), done).backoff == state.backoff


class Holder:
    """Node 0 of three holds the model, and plans to send it to node 2 whenever node 2 reports."""

    def __init__(self) -> None:
        self.register = MemoryRegister(FIRST)
        self.state = State(0, 1e6, Limits())
        self.sends, self.copies_fail = True, False
        self.asked: list[tuple[int, ...]] = []
        self.failures = 0
        self.tell(Started(0.0, (Copy("w0", 0, 1),)))
        self.tell(RecordRead(0.0, 1, self.register.read()))

    def tell(self, event: Event) -> None:
        self.state, commands = advance(self.state, event)
        for command in commands:
            self.carry_out(command)

    def carry_out(self, command: object) -> None:
        if isinstance(command, AskLoads):
            self.asked.append(command.nodes)
        elif isinstance(command, SendModel) and self.fails(command):
            self.failures += 1
            self.tell(SendFailed(1.0, command.ticket))
        elif isinstance(command, SendModel):  # a background copy
            self.tell(Acknowledged(1.0, command.ticket))
        elif isinstance(command, Swap):
            versioned = self.register.swap(command.revision, command.record)
            assert versioned is not None
            self.tell(Swapped(1.0, command.ticket, versioned))

    def fails(self, command: SendModel) -> bool:
        return command.offer.assignment is not None or (self.copies_fail and command.to == 2)

    def play(self) -> None:
        """One step of the round in hand."""
        phase = self.state.phase
        if isinstance(phase, Gathering):
            for node in sorted(self.asked[-1]):
                self.tell(LoadReported(1.0, phase.ticket, node, 1e9, 1e6 * (1 + node), None))
            phase = self.state.phase
            to = 2 if self.sends and 2 in self.asked[-1] else 0
            decision = Decision("test", to, (1,), 1.0, 1.0 if to else 0.0, 0.0, "because")
            assert isinstance(phase, Deciding)
            self.tell(Decided(1.0, phase.ticket, decision))
        elif isinstance(phase, Shipping):
            self.tell(Woke(1.0, phase.ticket))
        elif isinstance(phase, Training):
            self.tell(Trained(1.0, phase.ticket, f"w{self.register.read().record.round + 1}", 1.0))
        elif isinstance(phase, Storing):
            record = self.register.read().record
            self.tell(Stored(1.0, phase.ticket, Copy(phase.digest, record.round + 1, record.epoch)))


def test_a_black_hole_fails_seven_times_in_a_hundred_rounds_not_a_hundred_times() -> None:
    holder = Holder()
    for _ in range(1000):
        if holder.register.read().record.round < 100:
            holder.play()
    assert holder.register.read().record.round == 100
    assert holder.failures == 7  # in rounds 1, 2, 4, 8, 16, 32 and 64


def test_on_a_real_clock_a_node_that_fails_again_is_left_out_for_longer_than_it_cost() -> None:
    state = State(0, 1e6, Limits(), counts_overhead=True)
    at, pauses = 100.0, []
    for _ in range(5):
        state = failed(state, 2, 10, at, lost_seconds=5.0)
        pauses.append(max(0.0, state.backoff[2].until_seconds - at))
        assert 2 in left_out(state, 10**6, at + pauses[-1] - 0.001) or not pauses[-1]
        assert 2 not in left_out(state, 10**6, at + pauses[-1])
    assert pauses == [0.0, 20.0, 40.0, 80.0, 160.0]
    in_virtual_time = failed(failed(State(0, 1e6, Limits()), 2, 10, at, 5.0), 2, 10, at, 5.0)
    assert left_out(in_virtual_time, 12, at) == frozenset()


def test_a_node_with_the_best_link_that_does_not_take_background_copies_is_sent_one_and_no_more() -> None:
    holder = Holder()
    holder.copies_fail, holder.sends = True, False
    for _ in range(1000):
        if holder.register.read().record.round < 100:
            holder.play()
    assert holder.register.read().record.round == 100
    assert holder.failures == 1
    assert holder.register.read().record.safe.copies == (0, 1)
