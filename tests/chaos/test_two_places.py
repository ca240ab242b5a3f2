"""One identity at two places: both say so, and `status` does."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.runtime.federations import LocalFederation
from tests.runtime.site.test_members import SCENARIO, ended_with
from tramfl.runtime.operator.ports import free_ports


def test_one_site_at_two_places_is_named_by_both_and_by_status(tmp_path: Path) -> None:
    with LocalFederation(tmp_path / "f", SCENARIO, 3) as federation:
        federation.start()
        federation.ready()
        second = tmp_path / "second"
        shutil.copytree(federation.site_folder("a"), second, ignore=shutil.ignore_patterns("state"))
        # The register's path is relative to federation.toml.
        there = f'federation = "{federation.site_folder("a") / "federation.toml"}"'
        text = (second / "site.toml").read_text().replace('federation = "federation.toml"', there)
        (second / "site.toml").write_text(f'{text}listen = "127.0.0.1:{free_ports(1)[0]}"\n')
        log = tmp_path / "second.log"
        with LocalFederation.process("node", str(second / "site.toml"), log=log):
            ended_with(federation, "a", "another process of site 'a' at ")
            assert str(second / "state") in (federation.site_folder("a") / "log.jsonl").read_text()
            federation.wait("name of the first place", lambda: "two-places" in log.read_text())
            assert str(federation.site_folder("a") / "state") in log.read_text()
            # At the address of the site nobody answers now: the other sites say what they saw.
            sentence = federation.shown("both places in the status", lambda status: next(iter(status.twins), None))
            assert sentence.startswith("Site a was started at two places, as ")
            assert str(federation.site_folder("a") / "state") in sentence
            assert str(second / "state") in sentence
