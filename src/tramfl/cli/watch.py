"""`tramfl watch`: a run in the browser, while it goes on and afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tramfl.cli.federations import InsecureOption, quiet_grpc, runtime
from tramfl.notation import BadInput
from tramfl.reporting.dashboard import FolderSource, serve
from tramfl.reporting.dashboard.server import LOOPBACK


def watch(
    what: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|FEDERATION.toml",
            help="A run's folder, whether it goes on or has ended, or a real federation.",
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but this machine's own needs the token in the URL.")
    ] = LOOPBACK,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file with the secret in the URL (default: drawn at random where one is needed)."),
    ] = None,
    insecure: InsecureOption = False,
) -> None:
    """Watch a run in the browser: the model on its way between the sites, live or as a replay."""

    token = _token(token_file) if token_file is not None else None

    def announce(url: str) -> None:
        print(f"Watch {what} at {url}\nPress Ctrl-C to stop watching; the run goes on.", flush=True)

    if what.suffix != ".toml":
        serve(FolderSource(what), host, port, token, announce)
        return
    quiet_grpc()
    runtime()
    from tramfl.runtime.operator.watching import FederationSource

    with FederationSource(what, insecure) as source:
        serve(source, host, port, token, announce)


def _token(file: Path) -> str:
    """The secret in a file: in the arguments of a process every user of the machine could read it."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise BadInput(f"--token-file {file} cannot be read: {reason}.") from None
