"""`tramfl preflight`: look for what would keep a site from taking part, before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from tramfl.cli.federations import InsecureOption, need_linux, quiet_grpc, run, runtime
from tramfl.cli.options import Format, FormatOption


def preflight(
    file: Annotated[Path, typer.Argument(metavar="SITE.toml", help="The site's file.")],
    insecure: InsecureOption = False,
    format: FormatOption = Format.text,
) -> None:
    """Check certificates, port, register, model and data, disk, and that every peer answers; print what to fix."""
    need_linux()
    quiet_grpc()
    runtime()
    from tramfl.runtime.operator import preflight as checks
    from tramfl.runtime.settings import read_site

    site = read_site(file)
    console = Console(highlight=False, markup=False, soft_wrap=True)

    async def work() -> list[Any]:
        findings = []
        async for finding in checks.preflight(site, insecure):
            findings.append(finding)
            if format is Format.text:
                console.print(f"{'ok  ' if finding.good else 'FIX '} {finding.check}: {finding.message}")
        return findings

    findings = run(work)
    good = all(finding.good for finding in findings)
    if format is Format.json:
        whole = {"site": site.file.site, "ready": good, "findings": findings}
        print(msgspec.json.format(msgspec.json.encode(whole), indent=2).decode())
    elif good:
        console.print(f"Site {site.file.site} is ready: tramfl node {file}")
    if not good:
        raise typer.Exit(1)
