"""Structs are learnt before threads use them.

msgspec works out how to decode a struct when it first meets the class, and runs Python code meanwhile. A second
thread that decodes the same class just then finds it half done, and the process ends with a segmentation fault
(msgspec 0.22). A site's register has several threads, and all of them read the first record of a run at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

_learnt: set[type[msgspec.Struct]] = set()


def learn_structs() -> None:
    """Have msgspec learn every struct of this package that is loaded by now; call it before threads start."""
    for kind in set(_below(msgspec.Struct)) - _learnt:
        if kind.__module__.startswith("tramfl."):
            _learnt.add(kind)
            try:
                msgspec.msgpack.Decoder(kind)
            except (NameError, TypeError):
                continue  # it has a field that cannot be decoded, so nobody decodes it


def _below(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for inner in kind.__subclasses__():
        yield inner
        yield from _below(inner)
