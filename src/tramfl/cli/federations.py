"""What the commands of real federations share: options, one event loop, and the extra they need."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tramfl.notation import BadInput

if TYPE_CHECKING:
    from tramfl.runtime.operator.operating import Operator

T = TypeVar("T")

FederationArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="federation.toml, beside the operator's certificate, or a site.toml.")
]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="No certificates: everybody is trusted; on loopback only.")
]
FEDERATION_FILE = Path("federation.toml")
LINUX = ("fdatasync", "preadv", "RWF_NOWAIT")
"""What a site needs of its system, beside locks on files, and only Linux has all of."""
POSIX = ("statvfs", "O_CLOEXEC")
"""What the operator's commands need; Linux and macOS have it."""


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a command's work on an event loop."""
    return asyncio.run(work())


def quiet_grpc() -> None:
    """Keep lines of gRPC's core off standard error: what they are about is in the command's sentences.

    To be called before gRPC is imported.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


@contextlib.asynccontextmanager
async def operator(path: Path, insecure: bool) -> AsyncIterator[Operator]:
    """The operator that a file makes one."""
    quiet_grpc()
    found = runtime().operator_from(path, insecure)
    try:
        yield found
    finally:
        await found.close()


def need_linux() -> None:
    """BadInput where a real site cannot run."""
    if not all(hasattr(os, part) for part in LINUX):
        raise BadInput(
            f"a real site needs Linux, and this is {platform.system()}; simulation works here: tramfl run."
        )


def runtime() -> Any:
    """`tramfl.runtime.operator.operating`, or one sentence about the system or the extra it needs."""
    if not all(hasattr(os, part) for part in POSIX):
        raise BadInput(f"a federation is operated from Linux or macOS, and this is {platform.system()}.")
    try:
        from tramfl.runtime.operator import operating
    except ImportError as error:
        raise BadInput(f"real sites need {error.name}: install it with pip install 'tramfl[runtime]'.") from None
    return operating
