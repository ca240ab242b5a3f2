"""What the commands of real federations share: options, one event loop, and the extra they need."""

from __future__ import annotations

import asyncio
import contextlib
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


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a command's work on an event loop."""
    return asyncio.run(work())


@contextlib.asynccontextmanager
async def operator(path: Path, insecure: bool) -> AsyncIterator[Operator]:
    """The operator that a file makes one."""
    found = runtime().operator_from(path, insecure)
    try:
        yield found
    finally:
        await found.close()


def runtime() -> Any:
    """`tramfl.runtime.operator.operating`, or one sentence about the extra it needs."""
    try:
        from tramfl.runtime.operator import operating
    except ImportError as error:
        raise BadInput(f"real sites need {error.name}: install it with pip install 'tramfl[runtime]'.") from None
    return operating
