"""A holder whose work every other node refuses gives the model up; one that some node follows does not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.circulation.test_recovery import RECORD, W5, W7, Node
from tramfl.circulation.changes import Resign
from tramfl.circulation.commands import AskLoads, SendModel, Swap, Wake
from tramfl.circulation.custody import Versioned
from tramfl.circulation.events import Decided, HolderLost, LoadReported, RecordSeen, SendFailed, Swapped, Woke
from tramfl.circulation.holding import gather
from tramfl.circulation.phases import Attempt, Following, Gathering, StandingBy, Swapping
from tramfl.notation import Decision

GONE = replace(RECORD, holder=None, weights=replace(RECORD.weights, copies=()))


def sent_to(node: Node, to: int) -> int:
    """All nodes that were asked report, and the model is on its way to one of them; the ticket of the transfer."""
    assert isinstance(node.state.phase, Gathering)
    (ask,) = (command for command in node.commands if isinstance(command, AskLoads))
    for each in ask.nodes:
        node.tell(LoadReported(81.0, ask.ticket, each, 1e9, 1e6, None))
    node.tell(Decided(81.0, node.ticket, Decision("test", to, (1,), 1.0, 1.0, 0.0, "because")))
    assert any(isinstance(command, SendModel) and command.to == to for command in node.commands)
    return node.ticket


def refused(*receivers: int, reasons: tuple[bool, ...] = ()) -> Node:
    node = Node(0, W5, W7)
    for to, not_accepted in zip(receivers, reasons or (True,) * len(receivers), strict=True):
        node.tell(SendFailed(82.0, sent_to(node, to), not_accepted))
    return node


def test_a_holder_that_all_others_refuse_resigns_and_does_not_take_over_with_what_they_refused() -> None:
    node = refused(1, 2)
    phase = node.state.phase
    assert isinstance(phase, Swapping)
    assert isinstance(phase.change, Resign)
    (swap,) = (command for command in node.commands if isinstance(command, Swap))
    assert swap.record == GONE
    assert GONE.safe.copies == (0, 1), "it keeps the safe weights"
    node.tell(Swapped(83.0, swap.ticket, Versioned(GONE, 21)))
    assert isinstance(node.state.phase, Following)
    node.tell(HolderLost(83.0, Versioned(GONE, 21)))
    assert isinstance(node.state.phase, StandingBy)
    (wake,) = (command for command in node.commands if isinstance(command, Wake))
    assert wake.seconds == 2 * node.state.limits.takeover_grace, "the others go first"
    node.tell(Woke(85.0, wake.ticket))
    (swap,) = (command for command in node.commands if isinstance(command, Swap))
    assert swap.record.weights.digest == "w5", "it goes on from safe weights where no other node does"


@pytest.mark.parametrize(
    ("receivers", "reasons"), [((1,), (True,)), ((1, 2), (True, False)), ((1, 2), (False, False))]
)
def test_a_holder_goes_on_while_a_node_has_not_refused_its_work(
    receivers: tuple[int, ...], reasons: tuple[bool, ...]
) -> None:
    assert isinstance(refused(*receivers, reasons=reasons).state.phase, Gathering)


def test_safe_weights_are_not_given_up() -> None:
    safe = replace(RECORD.safe, round=7, digest="w7", copies=(0, 1), ledger=RECORD.ledger)
    record = replace(RECORD, weights=replace(RECORD.weights, copies=(0, 1)), safe=safe)
    node = Node(0, W7, now=Versioned(record, 20))
    for to in (1, 2):
        node.tell(SendFailed(82.0, sent_to(node, to), True))
    assert isinstance(node.state.phase, Gathering)


def test_doubts_end_when_work_of_the_holder_has_become_safe() -> None:
    node = refused(1)
    assert node.state.doubted_by == {1}
    paused = replace(RECORD, status="paused")
    node.tell(RecordSeen(83.0, Versioned(paused, 21)))
    assert node.state.doubted_by == {1}
    safe = replace(RECORD.safe, round=6, digest="w6", copies=(0, 2), ledger=replace(RECORD.ledger, round=6))
    node.tell(RecordSeen(84.0, Versioned(replace(paused, safe=safe), 22)))
    assert node.state.doubted_by == frozenset()


def test_a_holder_that_resigned_is_left_out_by_the_others_for_longer_each_time() -> None:
    node = Node(1, W5)
    for failures in (1, 2, 3):
        node.tell(RecordSeen(80.0, Versioned(GONE, 20 + 2 * failures)))
        assert node.state.backoff[0].failures == failures
        node.tell(RecordSeen(80.0, Versioned(replace(RECORD, epoch=1), 21 + 2 * failures)))


def test_a_holder_that_may_train_no_further_asks_all_again_but_those_that_refused() -> None:
    node = Node(0, W5, W7)
    assert node.state.limits.unsafe_rounds == 3
    node.state = replace(node.state, limits=replace(node.state.limits, unsafe_rounds=2))
    node.tell(SendFailed(82.0, sent_to(node, 1), True))
    node.tell(SendFailed(83.0, sent_to(node, 2), False))  # node 2 cannot be reached, and is left out for a round
    state = node.state
    assert set(state.backoff) == {1, 2}
    (ask,) = (command for command in gather(state, Attempt(84.0))[1] if isinstance(command, AskLoads))
    assert set(ask.nodes) == {0, 2}, "no round ends the back-off of node 2"
    freely = replace(state, limits=replace(state.limits, unsafe_rounds=9))
    (ask,) = (command for command in gather(freely, Attempt(84.0))[1] if isinstance(command, AskLoads))
    assert set(ask.nodes) == {0}
