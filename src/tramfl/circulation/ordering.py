"""Orders: pause, resume, stop and roll back the run, add and remove members.

Any node can be asked, whatever its phase: an order has a ticket of its own and goes beside the node's other work, as
a background copy does. The node reads the record, so that it answers what is true now. Where the record is not yet as
ordered, the node swaps the change in, and tries again on the newer record while others are faster. Where the change
does not fit the record, the answer is the record as it is: a stopped run stays stopped, and one member stays.

When the register is silent, a swap may or may not have been made. An operator gets that as the answer. A persistent
order (the end of a run) is put to the register again until it answers.
"""

from __future__ import annotations

from msgspec.structs import replace

from tramfl.circulation.commands import AnswerOrder, Command, Nudge, ReadRecord, Swap, Wake
from tramfl.circulation.custody import Record
from tramfl.circulation.events import Ordered, RecordRead, RegisterSilent, Swapped, SwapRefused, Woke
from tramfl.circulation.phases import Ordering, State
from tramfl.circulation.recovery import learn
from tramfl.circulation.steps import Step, issue


def ordered(state: State, event: Ordered) -> Step:
    """Read the record, to see what the order would change."""
    state, ticket = issue(state)
    order = Ordering(ticket, event.order, event.change, event.persistent)
    return replace(state, orders=(*state.orders, order)), (ReadRecord(ticket),)


def put(state: State, event: RecordRead | SwapRefused) -> Step:
    """Answer where the record is as ordered, or cannot be; else swap the change in."""
    state, news = learn(state, event.versioned, event.at)
    order, seen = _order(state, event.ticket), state.seen
    assert seen is not None
    change = replace(order.change, epoch=seen.record.epoch)
    record = change.applied(seen.record, state.me)
    if record is None:
        state, commands = _answer(state, order, seen.record)
        return state, (*news, *commands)
    state, ticket = issue(state)
    state = _with(state, order, replace(order, ticket=ticket))
    return state, (*news, Swap(ticket, seen.revision, record, change.epoch))


def done(state: State, event: Swapped) -> Step:
    """Answer, and let the holder know."""
    state, news = learn(state, event.versioned, event.at)
    order, record = _order(state, event.ticket), event.versioned.record
    state, commands = _answer(state, order, record)
    nudge = () if record.holder in (None, state.me) else (Nudge(record.holder),)
    return state, (*news, *commands, *nudge)


def in_doubt(state: State, event: RegisterSilent) -> Step:
    """Answer that the order may have been carried out or not; a persistent order is tried again later."""
    order = _order(state, event.ticket)
    if not order.persistent:
        return _answer(state, order, None)
    state, ticket = issue(state)
    return _with(state, order, replace(order, ticket=ticket)), (Wake(ticket, state.limits.register_retry),)


def again(state: State, event: Woke) -> Step:
    """Read the record again."""
    order = _order(state, event.ticket)
    state, ticket = issue(state)
    return _with(state, order, replace(order, ticket=ticket)), (ReadRecord(ticket),)


def _order(state: State, ticket: int) -> Ordering:
    (order,) = (order for order in state.orders if order.ticket == ticket)
    return order


def _with(state: State, order: Ordering, *instead: Ordering) -> State:
    return replace(state, orders=(*(o for o in state.orders if o != order), *instead))


def _answer(state: State, order: Ordering, record: Record | None) -> Step:
    commands: tuple[Command, ...] = (AnswerOrder(order.order, record),)
    return _with(state, order), commands
