"""Where processes come from that work beside this one."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext


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
