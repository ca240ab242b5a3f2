"""`tramfl node`: be one site of a federation, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tramfl.cli.federations import InsecureOption, need_linux, run, runtime
from tramfl.notation import BadInput
from tramfl.references import look_only_in

if TYPE_CHECKING:
    from tramfl.runtime.journal import Journal
    from tramfl.runtime.settings import SiteSettings
    from tramfl.runtime.transport import Credentials


ENDINGS = (signal.SIGINT, signal.SIGTERM)
"""The first of these is a request to end in good order; a second one ends at once, and is as safe as any kill."""


class BrokenSite(OSError):
    """A site cannot go on; what is on its disk stays good."""


def node(
    file: Annotated[Path, typer.Argument(metavar="SITE.toml", help="The site's file.")],
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve Prometheus metrics on this port of loopback, or with the site's certificate on an address.",
        ),
    ] = None,
    insecure: InsecureOption = False,
    with_parent: Annotated[
        bool, typer.Option("--with-parent", hidden=True, help="End when standard input does.")
    ] = False,
) -> None:
    """Be a site: answer the others, train when it is this site's turn, take over when the holder is lost.

    The log goes to standard error, one JSON line an event.
    """
    from tramfl.runtime.journal import Journal

    need_linux()
    from tramfl.runtime.settings import read_site
    from tramfl.runtime.transport import handshakes

    site = read_site(file)
    look_only_in(site.app_folder)
    _raise_file_limit()
    with os.fdopen(os.dup(2), "wb", buffering=0) as out:
        log = Journal(site.file.site, out)
        # Before gRPC starts: its core reports rejected connections only in its own log.
        end = handshakes.watch(log)
        try:
            operating = runtime()
            credentials = operating.site_credentials(site, insecure)
            run(lambda: _be(site, credentials, log, metrics, with_parent))
        finally:
            end()


def _raise_file_limit() -> None:
    """As many open files as the system allows: every connection is one, a stranger's too."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _be(
    site: SiteSettings, credentials: Credentials | None, log: Journal, metrics: str | None, with_parent: bool
) -> None:
    from tramfl.runtime.registers.opening import open_register
    from tramfl.runtime.site import run_site

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        stop.set()
        for number in ENDINGS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in ENDINGS:
        loop.add_signal_handler(number, end)
    if with_parent:
        threading.Thread(target=_outlived, args=(loop, stop), daemon=True).start()
    register = open_register(site.federation, site.file.site, site.place)
    try:
        await run_site(site, register, credentials, log, stop, metrics)
    except BadInput:
        raise
    except Exception as error:  # the log has the whole story, as one line
        raise BrokenSite(f"site {site.file.site} ended: {type(error).__name__}: {error}") from None


def _outlived(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    # Not through sys.stdin: a thread that waits in there keeps the interpreter from ending.
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(stop.set)
