"""The tables of the machine: which events fit which phase, and which do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, get_args

import pytest
from msgspec.structs import replace

from tramfl.circulation import IllegalEvent, Limits, State, advance, machine
from tramfl.circulation.commands import (
    Command,
    Store,
    Swap,
)
from tramfl.circulation.custody import MemoryRegister, Record, Weights, first_record
from tramfl.circulation.events import (
    Acknowledged,
    Answer,
    Decided,
    Event,
    HolderLost,
    LeaveOrdered,
    LoadMissing,
    LoadReported,
    RecordRead,
    RecordSeen,
    RegisterSilent,
    Rejected,
    SendFailed,
    SendSlowed,
    Started,
    Stored,
    StoreFailed,
    Swapped,
    SwapRefused,
    Trained,
    TrainingFailed,
    Woke,
)
from tramfl.circulation.phases import (
    Copy,
    Deciding,
    Following,
    Gathering,
    Halted,
    HandingOn,
    Joining,
    Leaving,
    Left,
    Phase,
    Sending,
    Shipping,
    StandingBy,
    Storing,
    Swapping,
    Training,
    Waiting,
)
from tramfl.notation import Decision

C = TypeVar("C", bound=Command)

LIMITS = Limits(load_reply=2.0, patience=4.0, slack=5.0)
W0 = Copy("w0", 0, 1)


class Node:
    """One machine, and what it asked for last."""

    def __init__(self, me: int, register: MemoryRegister, disk: tuple[Copy, ...] = (W0,)) -> None:
        self.register = register
        self.state = State(me, 1e6, LIMITS, counts_overhead=True)
        self.commands: tuple[Command, ...] = ()
        self.tell(Started(0.0, disk))

    def tell(self, *events: Event) -> Node:
        for event in events:
            self.state, self.commands = advance(self.state, event)
        return self

    @property
    def ticket(self) -> int:
        return int(getattr(self.state.phase, "ticket", self.state.ticket))

    def asked(self, kind: type[C]) -> C:
        (command,) = (c for c in self.commands if isinstance(c, kind))
        return command

    def join(self, at: float = 0.0) -> Node:
        return self.tell(RecordRead(at, self.ticket, self.register.read()))

    def hear(self, *nodes: int, at: float = 0.0) -> Node:
        for node in nodes:
            self.tell(LoadReported(at, self.ticket, node, 1e9 + node, math.inf if node == self.state.me else 1e6))
        return self

    def decide(self, node: int | None, at: float = 0.0) -> Node:
        return self.tell(Decided(at, self.ticket, decision(node)))

    def swap(self, at: float) -> Node:
        """Put what was asked for to the register, as a calm world does."""
        swap = self.asked(Swap)
        after = self.register.swap(swap.revision, swap.record)
        assert after is not None
        return self.tell(Swapped(at, swap.ticket, after))

    def trained(self, digest: str, at: float) -> Node:
        return self.tell(Trained(at, self.ticket, digest, 10.0))

    def stored(self, at: float) -> Node:
        store = self.asked(Store)
        return self.tell(Stored(at, store.ticket, store.copy))

    @property
    def record(self) -> Record:
        return self.register.read().record


def register(status: str = "running") -> MemoryRegister:
    record = first_record("run", 0, "w0", (0, 1, 2), labels=2)
    return MemoryRegister(replace(record, status=status))


def decision(node: int | None, transfer_seconds: float = 2.0) -> Decision:
    if node is None:
        return Decision("by hand", None, (0, 0), 0.0, 0.0, 1.0, "Nobody trains.")
    return Decision("by hand", node, (3, 4), 10.0, 0.0 if node == 0 else transfer_seconds, 0.0, "It is there.")


def holder() -> Node:
    """Node 0, which holds the model and asks everyone for loads."""
    return Node(0, register()).join()


def set_status(node: Node, status: str, at: float = 0.0) -> Node:
    """The operator pauses or resumes the run, and the node hears of it."""
    now = node.register.read()
    after = node.register.swap(now.revision, replace(now.record, status=status))
    assert after is not None
    return node.tell(RecordSeen(at, after))


# Events that do not fit.


def _standing_by() -> Node:
    """Node 1, which has the safe weights but not the newest, and no holder."""
    at = register()
    now = at.read()
    after = at.swap(now.revision, replace(now.record, weights=replace(now.record.weights, digest="w1", copies=(0,))))
    assert after is not None
    return Node(1, at).join().tell(HolderLost(1.0, after))


def _shipping() -> Node:
    """Node 0, which was to train on, and has more rounds alone than may be."""
    at = register()
    now = at.read()
    rounds = replace(now.record.ledger, round=LIMITS.unsafe_rounds)
    assert at.swap(now.revision, replace(now.record, weights=Weights("w1", (0,)), ledger=rounds)) is not None
    return Node(0, at, (W0, Copy("w1", 3, 1))).join().hear(0, 1, 2).decide(0)


PHASES: dict[type, Callable[[], Node]] = {
    Joining: lambda: Node(0, register()),
    Following: lambda: Node(1, register()).join(),
    Halted: lambda: Node(0, register("paused")).join(),
    StandingBy: _standing_by,
    Gathering: holder,
    Deciding: lambda: holder().hear(0, 1, 2),
    Shipping: _shipping,
    Waiting: lambda: holder().hear(0, 1, 2).decide(None),
    Sending: lambda: holder().hear(0, 1, 2).decide(1),
    Training: lambda: holder().hear(0, 1, 2).decide(0),
    Storing: lambda: holder().hear(0, 1, 2).decide(0).trained("w1", 10.0),
    Swapping: lambda: holder().hear(0, 1, 2).decide(0).trained("w1", 10.0).stored(10.0),
    Leaving: lambda: holder().tell(LeaveOrdered(0.0)).join(),
    HandingOn: lambda: holder().tell(LeaveOrdered(0.0)).join().hear(1),
    Left: lambda: Node(1, register()).join().tell(LeaveOrdered(0.0)).join(),
}

_FITS: dict[type, set[type]] = {
    Joining: {RecordRead, RegisterSilent, Woke},
    Following: set(),
    Halted: set(),
    StandingBy: {Woke},
    Gathering: {LoadReported, LoadMissing, Woke},
    Deciding: {Decided},
    Shipping: {Woke},
    Waiting: {Woke},
    Sending: {Acknowledged, SendFailed, SendSlowed, Woke},
    Training: {Trained, Rejected, TrainingFailed, Woke},
    Storing: {Stored, StoreFailed, Woke},
    Swapping: {Swapped, SwapRefused, RegisterSilent, RecordRead, Woke},
    Leaving: {LoadReported, LoadMissing, Woke},
    HandingOn: {Acknowledged, SendFailed, Woke},
    Left: set(),
}

ANSWERS: dict[type, Callable[[int], Answer]] = {
    LoadReported: lambda t: LoadReported(20.0, t, 1, 1e9, 1e6),
    LoadMissing: lambda t: LoadMissing(20.0, t, 1),
    Decided: lambda t: Decided(20.0, t, decision(None)),
    Woke: lambda t: Woke(20.0, t),
    Acknowledged: lambda t: Acknowledged(20.0, t),
    SendFailed: lambda t: SendFailed(20.0, t),
    SendSlowed: lambda t: SendSlowed(20.0, t, 1e3),
    Trained: lambda t: Trained(20.0, t, "w9", 1.0),
    Rejected: lambda t: Rejected(20.0, t, "w9", 1.0),
    TrainingFailed: lambda t: TrainingFailed(20.0, t),
    Stored: lambda t: Stored(20.0, t, W0),
    StoreFailed: lambda t: StoreFailed(20.0, t),
    RecordRead: lambda t: RecordRead(20.0, t, register().read()),
    Swapped: lambda t: Swapped(20.0, t, register().read()),
    SwapRefused: lambda t: SwapRefused(20.0, t, register().read()),
    RegisterSilent: lambda t: RegisterSilent(20.0, t),
}

_EVERY_CASE = [(phase, answer) for phase in PHASES for answer in ANSWERS]


@pytest.mark.parametrize("phase", PHASES)
def test_the_table_of_phases_is_in_the_phase_it_says(phase: type) -> None:
    assert type(PHASES[phase]().state.phase) is phase


@pytest.mark.parametrize(
    ("phase", "answer"),
    [(p, a) for p, a in _EVERY_CASE if a not in _FITS[p] and p not in (Following, Halted, Left)],
)
def test_an_answer_that_does_not_fit_the_phase_is_an_error_that_names_both(phase: type, answer: type) -> None:
    node = PHASES[phase]()
    with pytest.raises(IllegalEvent, match=rf"{answer.__name__}\(.* cannot happen in {phase.__name__}\("):
        node.tell(ANSWERS[answer](node.ticket))


@pytest.mark.parametrize(("phase", "answer"), [(p, a) for p, a in _EVERY_CASE if p is not Left])
def test_an_answer_to_a_command_never_given_is_an_error(phase: type, answer: type) -> None:
    node = PHASES[phase]()
    with pytest.raises(IllegalEvent):
        node.tell(ANSWERS[answer](node.state.ticket + 1))


@pytest.mark.parametrize(("phase", "answer"), _EVERY_CASE)
def test_an_answer_to_a_command_that_no_longer_matters_changes_nothing(phase: type, answer: type) -> None:
    node = PHASES[phase]()
    before = node.state
    node.tell(ANSWERS[answer](0))
    assert (node.state, node.commands) == (before, ())


@pytest.mark.parametrize(("phase", "answer"), [(p, a) for p in PHASES for a in sorted(_FITS[p], key=str)])
def test_an_answer_that_fits_is_never_an_error(phase: type, answer: type) -> None:
    node = PHASES[phase]()
    node.tell(ANSWERS[answer](node.ticket))


def test_every_phase_is_in_the_table_of_this_file() -> None:
    assert set(PHASES) == set(get_args(Phase))


def test_a_step_that_the_tables_do_not_have_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    table: dict[Any, Any] = machine.PHASES
    monkeypatch.setitem(table, (Deciding, Decided), table[Deciding, Decided]._replace(leads_to=(Waiting,)))
    node = holder().hear(0, 1, 2)
    with pytest.raises(machine.IllegalStep, match=r"Decided\(.* leads from Deciding\(.* to Training\("):
        node.decide(0)
