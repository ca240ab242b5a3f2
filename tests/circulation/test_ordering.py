"""Pause, resume and stop: any node can be asked, in any phase, and answers what is true."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.circulation.test_machine import Node, holder, register
from tramfl.circulation.changes import SetStatus
from tramfl.circulation.commands import AnswerOrder, AskLoads, Command, Nudge, ReadRecord, Swap, Wake
from tramfl.circulation.custody import Status
from tramfl.circulation.events import Ordered, RecordRead, RegisterSilent, Swapped, SwapRefused, Woke
from tramfl.circulation.phases import Following, Gathering, Halted, Training


class Order:
    """An order under way at a node, whose questions to the register are answered by hand."""

    def __init__(self, node: Node, status: Status, *, persistent: bool = False) -> None:
        self.node = node
        node.tell(Ordered(1.0, 7, SetStatus(0, status), persistent))

    def one(self, kind: type[Command]) -> Command:
        (command,) = (c for c in self.node.commands if isinstance(c, kind))
        return command

    def read(self) -> Order:
        ask = self.one(ReadRecord)
        assert isinstance(ask, ReadRecord)
        self.node.tell(RecordRead(1.0, ask.ticket, self.node.register.read()))
        return self

    def swap(self) -> Order:
        self.node.swap(1.0)
        return self

    def silent(self) -> Order:
        (asked,) = (c for c in self.node.commands if isinstance(c, ReadRecord | Swap))
        self.node.tell(RegisterSilent(2.0, asked.ticket))
        return self

    @property
    def answer(self) -> AnswerOrder:
        answer = self.one(AnswerOrder)
        assert isinstance(answer, AnswerOrder)
        return answer


def follower(status: str = "running") -> Node:
    return Node(1, register(status)).join()


def test_a_node_that_does_not_hold_pauses_the_run_and_lets_the_holder_know() -> None:
    order = Order(follower(), "paused").read().swap()
    assert order.node.record.status == "paused"
    assert order.answer == AnswerOrder(7, order.node.record)
    assert order.one(Nudge) == Nudge(0)
    assert isinstance(order.node.state.phase, Following)
    assert order.node.state.orders == ()


def test_a_holder_that_pauses_the_run_halts_itself() -> None:
    order = Order(holder(), "paused").read().swap()
    assert isinstance(order.node.state.phase, Halted)
    assert not any(isinstance(c, Nudge) for c in order.node.commands)


def test_a_holder_that_resumes_the_run_goes_on_itself() -> None:
    order = Order(Node(0, register("paused")).join(), "running").read().swap()
    assert isinstance(order.node.state.phase, Gathering)
    assert isinstance(order.one(AskLoads), AskLoads)


def test_an_order_goes_beside_the_round_in_hand() -> None:
    order = Order(holder().hear(0, 1, 2).decide(0), "stopped").read().swap()
    assert isinstance(order.node.state.phase, Training)
    order.node.trained("w1", 10.0).stored(10.0).swap(10.0)
    assert order.node.record.round == 1
    assert isinstance(order.node.state.phase, Halted)


@pytest.mark.parametrize(("status", "wanted"), [("paused", "paused"), ("stopped", "running"), ("stopped", "paused")])
def test_where_nothing_is_left_to_change_the_answer_is_the_record(status: str, wanted: Status) -> None:
    order = Order(follower(status), wanted).read()
    assert order.answer == AnswerOrder(7, order.node.record)
    assert not any(isinstance(c, Swap) for c in order.node.commands)


def test_an_order_that_was_overtaken_is_put_to_the_newer_record() -> None:
    node = follower()
    order = Order(node, "paused").read()
    swap = order.one(Swap)
    assert isinstance(swap, Swap)
    now = node.register.read()
    moved = node.register.swap(now.revision, replace(now.record, epoch=2, holder=2))
    assert moved is not None
    node.tell(SwapRefused(2.0, swap.ticket, moved))
    order.swap()
    assert (node.record.epoch, node.record.holder, node.record.status) == (2, 2, "paused")
    assert order.one(Nudge) == Nudge(2)


def test_an_operator_learns_that_nobody_knows_where_the_register_is_silent() -> None:
    assert Order(follower(), "paused").silent().answer == AnswerOrder(7, None)
    order = Order(follower(), "paused").read().silent()
    assert order.answer == AnswerOrder(7, None)
    assert order.node.state.orders == ()


@pytest.mark.parametrize("landed", [True, False])
def test_a_persistent_order_is_tried_until_the_register_answers(landed: bool) -> None:
    order = Order(follower(), "stopped", persistent=True).read()
    node, swap = order.node, order.one(Swap)
    assert isinstance(swap, Swap)
    if landed:
        node.register.swap(swap.revision, swap.record)
    order.silent()
    for _ in range(3):
        wake = order.one(Wake)
        assert isinstance(wake, Wake)
        assert wake.seconds == node.state.limits.register_retry
        node.tell(Woke(3.0, wake.ticket))
        order.silent()
    wake = order.one(Wake)
    assert isinstance(wake, Wake)
    node.tell(Woke(4.0, wake.ticket))
    order.read()
    if not landed:
        order.swap()
    assert node.record.status == "stopped"
    assert order.answer == AnswerOrder(7, node.record)


def test_two_orders_at_once_are_answered_one_by_one() -> None:
    node = follower().tell(Ordered(1.0, 1, SetStatus(0, "paused")))
    (first,) = (c for c in node.commands if isinstance(c, ReadRecord))
    node.tell(Ordered(1.0, 2, SetStatus(0, "stopped")))
    (second,) = (c for c in node.commands if isinstance(c, ReadRecord))
    swaps = []
    for ask in (first, second):
        node.tell(RecordRead(1.0, ask.ticket, node.register.read()))
        swaps.append(next(c for c in node.commands if isinstance(c, Swap)))
    made = node.register.swap(swaps[1].revision, swaps[1].record)
    assert made is not None
    node.tell(Swapped(2.0, swaps[1].ticket, made))
    assert AnswerOrder(2, made.record) in node.commands
    node.tell(SwapRefused(2.0, swaps[0].ticket, made))
    assert node.commands == (AnswerOrder(1, made.record),)
    assert made.record.status == "stopped"


def test_an_order_to_a_node_that_just_starts_waits_for_nothing_but_its_own_answer() -> None:
    node = Node(1, register())
    order = Order(node, "paused").read().swap()
    assert order.answer.record is not None
    node.join()
    assert isinstance(node.state.phase, Following)


def test_news_that_an_order_brings_are_acted_on() -> None:
    node = follower()
    now = node.register.read()
    node.register.swap(now.revision, replace(now.record, holder=1))
    Order(node, "running").read()
    assert isinstance(node.state.phase, Gathering), "the record names this node, and no other news of it will come"


def test_a_change_of_status_is_made_under_an_epoch_and_never_from_stopped() -> None:
    record = register().read().record
    assert SetStatus(2, "paused").applied(record, 0) is None
    stopped = SetStatus(1, "stopped").applied(record, 0)
    assert stopped == replace(record, status="stopped")
    assert SetStatus(1, "running").applied(stopped, 0) is None
