"""The black box: the last events of a node, and what the machine makes of them when they are played again.

The machine is pure, so its state before the first of these events, and the events, are all there is to keep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from tramfl.circulation.events import AnyEvent, Event
from tramfl.circulation.machine import advance
from tramfl.circulation.phases import State
from tramfl.notation import BadInput

KEPT_EVENTS = 500
FORMAT = 1
"""Of a tape; a tape of another format is rejected."""


class Tape(Struct, frozen=True):
    """What happened at a node before something broke."""

    format: int
    site: str
    run: str
    broke: str
    """The error, as the site saw it."""
    before: State | None
    """The state before the first event; None where there was no event."""
    events: tuple[AnyEvent, ...]


class Recorder:
    """Keeps the last events of a node."""

    def __init__(self, kept: int = KEPT_EVENTS) -> None:
        # A state is frozen and shares its parts with the next: keeping one per event costs little.
        self._steps: deque[tuple[State, Event]] = deque(maxlen=kept)

    def note(self, state: State, event: Event) -> None:
        """`event` is about to happen to a node in `state`."""
        self._steps.append((state, event))

    def tape(self, site: str, run: str, broke: str) -> Tape:
        """What was kept."""
        before = self._steps[0][0] if self._steps else None
        return Tape(FORMAT, site, run, broke, before, tuple(event for _, event in self._steps))  # type: ignore[misc]


def encode(tape: Tape) -> bytes:
    """A tape as the content of a file."""
    return msgspec.msgpack.encode(tape)


def decode(content: bytes, name: str) -> Tape:
    """The tape in a file of this name; raises BadInput."""
    try:
        tape = msgspec.msgpack.decode(content, type=Tape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{name} is no black box of a site: {error}.") from None
    if tape.format != FORMAT:
        raise BadInput(f"{name} has format {tape.format} and this version reads {FORMAT}; use the site's version.")
    return tape


def replayed(tape: Tape) -> Iterator[str]:
    """What the machine does with the events, one line per event and command, up to where it breaks."""
    state = tape.before
    yield f"site {tape.site}, run {tape.run}: {len(tape.events)} events before it broke with"
    yield f"  {tape.broke}"
    if state is None:
        return
    began = tape.events[0].at
    yield f"before the first event: {state.phase!r}"
    for number, event in enumerate(tape.events, start=1):
        phase = type(state.phase).__name__
        try:
            state, commands = advance(state, event)
        except Exception as error:
            yield f"{number:4} {event.at - began:+10.3f} s  {phase}: {event!r}"
            yield f"     the machine breaks here: {type(error).__name__}: {error}"
            return
        after = type(state.phase).__name__
        step = phase if after == phase else f"{phase} -> {after}"
        yield f"{number:4} {event.at - began:+10.3f} s  {step}: {event!r}"
        yield from (f"                         {command!r}" for command in commands)
    yield "the machine itself did not break: the site did, while it carried out the last commands or an earlier one."
