"""What learning draws for: each purpose has a stream of its own (`tramfl.draws`)."""

from __future__ import annotations

from enum import IntEnum


class Purpose(IntEnum):
    """What a stream of random numbers is for; streams of different purpose are independent."""

    POOL = 1
    """The order in which a node goes through a label's samples: node, label, pass."""
    ORDER = 2
    """The order of an allotment in training: round, node."""
    DROPOUT = 3
    """What the network draws while it trains: round, node."""
    DIVIDE = 4
    """Which node gets which samples."""
    INITIAL = 5
    """The network's first weights."""
    TEST_ORDER = 6
    """The order in which test samples are looked at."""
    TEST_SUBSET = 7
    """Which test samples are used, where not all are."""
    READING = 8
    """What the user's data draws while it is read: round, node."""
    OWN_DATA = 9
    """What the user's code draws while it makes data."""
    TRANSIT = 10
    """How weights are rounded where they are coded: round."""
    SHARED = 11
    """Which samples are shared by all nodes."""
    DISTIL = 12
    """The order of the shared samples, and what the network draws on them: round, node."""
