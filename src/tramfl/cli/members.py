"""`tramfl members`: list the members of a federation, add one and remove one, while the run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from tramfl.cli.federations import FEDERATION_FILE, InsecureOption, operator, run
from tramfl.cli.options import Format, FormatOption
from tramfl.notation import BadInput

FileOption = Annotated[
    Path, typer.Option("--federation", metavar="FILE", help="federation.toml, beside the operator's certificate.")
]


def members(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FEDERATION | add NAME ADDRESS | remove NAME]", help="federation.toml, or the change."
        ),
    ] = None,
    file: FileOption = FEDERATION_FILE,
    insecure: InsecureOption = False,
    format: FormatOption = Format.text,
) -> None:
    """List the members of a federation, add one, or remove one. The run goes on, and no site is restarted.

    A new member starts with the folder that tramfl cert issue makes. A removed member hands the model on if it holds
    it, and ends; what it trained stays in the model and in the ledger, and its labels leave the balance.
    """
    match what or []:
        case ["add", name, address]:
            _change("add-member", name, address, file, insecure, format)
        case ["remove", name]:
            _change("remove-member", name, "", file, insecure, format)
        case []:
            _list(file, insecure, format)
        case [place] if place not in ("add", "remove"):
            _list(Path(place), insecure, format)
        case _:
            raise BadInput("write tramfl members FEDERATION, members add NAME ADDRESS, or members remove NAME.")


def _change(what: str, name: str, address: str, file: Path, insecure: bool, format_: Format) -> None:
    async def work() -> str:
        from tramfl.runtime.wire import Order

        async with operator(file, insecure) as hand:
            return await hand.order(Order(what, site=name, address=address))  # type: ignore[arg-type]

    message = run(work)
    print(json.dumps({"done": True, "message": message}) if format_ is Format.json else message)


def _list(file: Path, insecure: bool, format_: Format) -> None:
    async def work() -> list[dict[str, object]]:
        async with operator(file, insecure) as hand:
            found = await hand.status()
        return [
            {
                "number": number,
                "name": s.site,
                "address": s.address,
                "member": s.member,
                "alive": s.alive,
                "revoked": s.revoked,
            }
            for number, s in enumerate(found.sites)
        ]

    listed = run(work)
    if format_ is Format.json:
        print(msgspec.json.format(msgspec.json.encode(listed), indent=2).decode())
        return
    table = Table("number", "site", "address", "member", "alive", "certificate")
    for one in listed:
        here, alive = ("yes" if one[key] else "no" for key in ("member", "alive"))
        shown = "revoked" if one["revoked"] else ""
        table.add_row(str(one["number"]), str(one["name"]), str(one["address"]) or "-", here, alive, shown)
    Console(highlight=False).print(table)
