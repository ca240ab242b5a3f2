"""Where processes come from that work beside this one."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from types import ModuleType


def workers_with(*modules: str) -> BaseContext:
    """Processes that have these modules imported already.

    On Linux each is a copy of one process that imports them once: PyTorch alone takes seconds. That process starts
    with the first worker, and has the modules asked for then. It has no threads, so a copy of it inherits no lock.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    return context


@contextmanager
def no_interrupt() -> Iterator[None]:
    """An interrupt waits until the block ends, here and in processes that start in it, until they are ready."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def without_script() -> Iterator[None]:
    """Processes that start inside do not run the caller's script again, as Python has them do: it would start more.

    What workers do is in modules, so they need nothing of the script.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
