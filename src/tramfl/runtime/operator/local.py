"""The sites of a federation as processes on this machine, with certificates and the SQLite register."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tramfl.config import Scenario
from tramfl.runtime.operator import founding
from tramfl.runtime.operator.ports import free_ports
from tramfl.runtime.settings import RegisterSettings, SiteEntry

END_SECONDS = 10.0
"""A site that takes longer to end is killed."""


class LocalSites:
    """One process per site, started and ended together."""

    def __init__(
        self, place: Path, scenario: Scenario, sites: int, data_dir: Path | None, command: Sequence[str]
    ) -> None:
        """Write the federation's files to `place`; `command` is what runs a site, given its file."""
        self.names = [chr(ord("a") + n) if sites <= 26 else f"s{n + 1}" for n in range(sites)]
        self._command = command
        entries = tuple(
            SiteEntry(name=name, address=f"127.0.0.1:{port}")
            for name, port in zip(self.names, free_ports(sites), strict=True)
        )
        run = founding.run_for(scenario, sites)
        founding.found(founding.NewFederation(name="up", site=entries, register=RegisterSettings(), run=run), place)
        self.federation = place / founding.FEDERATION_FILE
        self._files = {name: founding.site_folder(place, name) / founding.SITE_FILE for name in self.names}
        for file in self._files.values():
            # Sites on one machine share its cores.
            extra = [f"threads = {max(1, (os.cpu_count() or 1) // sites)}"]
            extra.append(f"app_folder = {json.dumps(str(Path.cwd()))}")
            if data_dir is not None:
                extra.append(f"data_dir = {json.dumps(str(data_dir.absolute()))}")
            file.write_text(file.read_text() + "\n".join(extra) + "\n")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> LocalSites:
        for name, file in self._files.items():
            with (file.parent / "log.jsonl").open("wb") as log:
                self.processes[name] = subprocess.Popen(
                    [*self._command, str(file), "--with-parent"],
                    stdin=subprocess.PIPE,  # closes when this process ends for any reason: then the sites end too
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # an interrupt goes to this process, which then ends the sites
                )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGCONT)
        for process in self.processes.values():
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def dead(self) -> list[str]:
        """Sites whose process has ended."""
        return [name for name, process in self.processes.items() if process.poll() is not None]

    def last_words(self, name: str) -> str:
        """The last line of a site's log."""
        lines = (self._files[name].parent / "log.jsonl").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "its log is empty"
