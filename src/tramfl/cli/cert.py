"""`tramfl cert`: issue, renew, rotate, revoke and show the certificates of a federation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tramfl.cli.federations import FEDERATION_FILE, operator, run
from tramfl.cli.members import FileOption
from tramfl.cli.options import Format, FormatOption
from tramfl.notation import BadInput
from tramfl.runtime.settings import OPERATOR

if TYPE_CHECKING:
    from tramfl.runtime.operator.certifying import CertificateFile

app = typer.Typer(help="Issue, renew, rotate, revoke and show certificates of a federation.", no_args_is_help=True)

SOON_DAYS = 30
"""Time to renew."""

FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The federation's folder, as tramfl init wrote it, with ca.key in it.")
]
DaysOption = Annotated[int, typer.Option(min=1, max=3650, help="How long the certificate lasts.")]


@app.command()
def issue(
    folder: FolderArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new site's name.")],
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where the others reach it; its certificate names the host."),
    ] = None,
    days: DaysOption = 365,
    format_: FormatOption = Format.text,
) -> None:
    """Make the folder of one more site, and print what to do with it.

    The site is in the federation.toml of its own folder; the files of the other sites stay as they are.
    """
    from tramfl.runtime.operator import certifying

    issued = certifying.issue_site(folder, name, address, days)
    if format_ is Format.json:
        print(msgspec.json.format(msgspec.json.encode(issued), indent=2).decode())
        return
    print(f"Copy {issued.folder}/ to site {name}.")
    if issued.missing:
        print(f"Put there too what [register] in federation.toml names and {folder} does not have:", *issued.missing)
    if issued.add:
        print(f"Make it a member of the run with: tramfl members add {name} {issued.address or 'HOST:PORT'}")
        print(f"Before the first run, add these lines to every federation.toml instead:\n\n{issued.add}")


@app.command()
def renew(
    folder: FolderArgument,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help=f"Sites, or {OPERATOR!r} for your own certificate.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every site, and the operator.")] = False,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Make a new key too, which then must be copied.")
    ] = False,
    days: DaysOption = 365,
    format_: FormatOption = Format.text,
) -> None:
    """Make certificates last longer. The key stays the same, so that no secret has to be copied again."""
    from tramfl.runtime.operator import certifying

    wanted = certifying.known_names(folder) if all_ else tuple(dict.fromkeys(names or ()))
    if not wanted:
        raise BadInput("name the sites whose certificates to renew, or add --all.")
    copy = [str(path) for path in certifying.renew(folder, wanted, days, new_key=new_key)]
    if format_ is Format.json:
        print(json.dumps({"renewed": wanted, "copy": copy}, indent=2))
        return
    print(f"Renewed for {days} days: {', '.join(wanted)}.")
    if copy:
        print("Copy to its site, in place of the old; it counts from the next connection on:", *copy, sep="\n  ")


@app.command()
def rotate(
    folder: FolderArgument,
    finish: Annotated[
        bool, typer.Option("--finish", help="Trust the new authority alone, and delete the old one.")
    ] = False,
    format_: FormatOption = Format.text,
) -> None:
    """Put a new authority in the place of the old one, while the run goes on and no site is restarted.

    First both are trusted. Then renew every certificate (tramfl cert renew DIR --all), and copy each to its site.
    With --finish the old authority is dropped.
    """
    from tramfl.runtime.operator import certifying

    done = certifying.finish_rotation(folder) if finish else certifying.begin_rotation(folder)
    copy = [str(path) for path in done]
    if format_ is Format.json:
        print(json.dumps({"finished": finish, "copy": copy}, indent=2))
        return
    print("Copy to its site, in place of the old; it counts after a second:", *copy, sep="\n  ")
    if finish:
        print("The old authority is deleted here; its certificates are refused where the new ca.crt is.")
    else:
        print(f"Once every site has it: tramfl cert renew {folder} --all, and copy each site.crt to its site.")
        print(f"At last: tramfl cert rotate {folder} --finish")


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"A site, or {OPERATOR!r} for your own certificate.")],
    file: FileOption = FEDERATION_FILE,
    format_: FormatOption = Format.text,
) -> None:
    """Have every site refuse the certificates that were issued to NAME until now, open connections included.

    Sites that answer refuse them at once, others as soon as they read the register. Needs ca.key beside FILE.
    """
    from tramfl.runtime.operator import certifying

    async def work() -> str:
        async with operator(file, insecure=False) as hand:
            return await certifying.revoke(hand, file.absolute().parent, name)

    message = run(work)
    print(json.dumps({"done": True, "message": message}) if format_ is Format.json else message)


@app.command()
def show(
    place: Annotated[Path, typer.Argument(metavar="FILE_OR_DIR", help="A certificate, or a folder of them.")],
    format_: FormatOption = Format.text,
) -> None:
    """Show certificates, until when they are valid, and whether keys and authority fit; exit code 1 if not."""
    from tramfl.runtime.operator import certifying

    shown = certifying.inspect(place)
    if format_ is Format.json:
        print(msgspec.json.format(msgspec.json.encode(shown)).decode())
    else:
        _print(shown)
    if any(each.problems for each in shown):
        raise typer.Exit(1)


def _print(shown: list[CertificateFile]) -> None:
    rows = [("certificate", "for", "valid until", "days left", "key", "SHA-256")]
    for each in _distinct(shown):
        days = f"{each.days_left:.0f}" + (" (renew)" if 0 <= each.days_left < SOON_DAYS else "")
        key = {True: "fits", False: "wrong", None: "not here"}[each.key_fits]
        name = f"{each.name} (authority)" if each.authority else each.name
        rows.append((each.path, name, each.not_after[:10], days, key, _grouped(each.fingerprint)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        # A table that wraps would cut paths; these are to be copied.
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    for each in shown:
        for problem in each.problems:
            print(f"{each.path}: {problem}")


def _distinct(shown: list[CertificateFile]) -> Iterator[CertificateFile]:
    """Every site's folder has the authority's certificate; once is enough to look at."""
    seen: set[str] = set()
    for each in shown:
        if not (each.authority and each.fingerprint in seen):
            yield each
        seen.add(each.fingerprint)


def _grouped(fingerprint: str) -> str:
    """The first sixteen digits, enough to compare by eye; --format json has all of them."""
    return " ".join(fingerprint[at : at + 4] for at in range(0, 16, 4)) + " ..."
