"""The round machine: what one node does, as a pure function of what it knows and what happens.

`advance(state, event) -> (state, commands)`. Nothing here reads a clock, draws a number, opens a file or a
socket; a carrier (virtual time, or a real site) carries the commands out and reports back with events.
"""

from tramfl.circulation.machine import IllegalEvent, advance
from tramfl.circulation.phases import Limits, State

__all__ = ["IllegalEvent", "Limits", "State", "advance"]
