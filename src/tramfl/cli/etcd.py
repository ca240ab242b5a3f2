"""`tramfl etcd`: an etcd user for each site, with the narrowest role, and the end of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tramfl.cli.federations import run, runtime
from tramfl.cli.options import Format, FormatOption

app = typer.Typer(help="Give each site an etcd user of its own, or take it away.", no_args_is_help=True)

FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The federation's folder, as tramfl init wrote it.")
]
RootOption = Annotated[
    Path, typer.Option("--root-password", metavar="FILE", help="A file with the password of etcd's user root.")
]


@app.command()
def users(
    folder: FolderArgument,
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Sites; all if none is named.")] = None,
    root: RootOption = Path("etcd-root.password"),
    format_: FormatOption = Format.text,
) -> None:
    """Make an etcd user, role and password for each site, and write them into its folder.

    A site may read its federation's keys, and write its own lease, the record and the rounds; nothing else.
    """
    runtime()
    from tramfl.runtime.operator import certifying, etcd_users
    from tramfl.runtime.settings import OPERATOR, read_federation

    federation = read_federation(folder / "federation.toml")
    wanted = list(dict.fromkeys(names or [name for name in certifying.known_names(folder) if name != OPERATOR]))
    made = run(lambda: etcd_users.make_users(folder, federation, wanted, root))
    copy = [str(path) for path in made]
    if format_ is Format.json:
        print(json.dumps({"users": wanted, "copy": copy}, indent=2))
        return
    print(f"Each of these has an etcd user of its own: {', '.join(wanted)}.")
    print("Copy to its site, then start the site again:", *copy, sep="\n  ")


@app.command()
def remove(
    folder: FolderArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The site.")],
    root: RootOption = Path("etcd-root.password"),
    format_: FormatOption = Format.text,
) -> None:
    """Delete a site's etcd user and role: etcd refuses the site at once, also where it is signed in."""
    runtime()
    from tramfl.runtime.operator import etcd_users
    from tramfl.runtime.settings import read_federation

    federation = read_federation(folder / "federation.toml")
    run(lambda: etcd_users.remove_user(federation, name, root))
    message = f"etcd refuses {name} from now on."
    print(json.dumps({"done": True, "message": message}) if format_ is Format.json else message)
