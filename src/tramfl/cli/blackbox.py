"""`tramfl blackbox`: play the last events of a site that broke through the round machine again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tramfl.circulation.blackbox import decode, replayed
from tramfl.notation import BadInput


def blackbox(
    file: Annotated[Path, typer.Argument(help="blackbox-*.msgpack in the state folder of the site that broke.")],
) -> None:
    """Play the last events of a site that broke again: each step, the commands it gave, and where it broke."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}.") from None
    for line in replayed(decode(content, str(file))):
        print(line)
