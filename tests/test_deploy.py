"""The files in deploy/ say what is true of the program, and the tools they are for accept them."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Cli
from tramfl.hosts import is_loopback
from tramfl.runtime.log_events import EVENTS
from tramfl.runtime.registers.opening import open_register
from tramfl.runtime.settings import SiteSettings, read_site
from tramfl.runtime.site import metrics

DEPLOY = Path(__file__).parent.parent / "deploy"
RULES = DEPLOY / "prometheus" / "tramfl.rules.yml"
DASHBOARD = DEPLOY / "grafana" / "tramfl.json"


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.mark.parametrize("file", [RULES, DASHBOARD], ids=["alerts", "dashboard"])
def test_alerts_and_dashboard_use_figures_and_events_that_sites_have(file: Path) -> None:
    text = file.read_text()
    known = set(re.findall(r"\"(tramfl_\w+)\"", Path(metrics.__file__).read_text())) | {"tramfl_events_total"}
    assert set(re.findall(r"\btramfl_\w+", text)) <= known
    events = {e for found in re.findall(r"event=~?\\?\"([a-z|-]+)", text) for e in found.split("|")}
    assert events
    assert events <= EVENTS.keys()


def test_the_dashboard_is_whole() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 8
    assert all(panel["targets"][0]["expr"] for panel in panels)


def test_prometheus_accepts_the_alerts() -> None:
    done = subprocess.run([program("promtool"), "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "systemd" / "tramfl@.service").read_text()
    # The environment that the unit expects is not here: another program stands in its place.
    (tmp_path / "tramfl@.service").write_text(unit.replace("/opt/tramfl/bin/tramfl", sys.executable))
    done = subprocess.run(
        [program("systemd-analyze"), "verify", "--man=no", f"{tmp_path}/tramfl@north.service"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "tramfl@" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


def test_the_compose_file_has_a_service_for_every_site_that_its_command_writes_and_they_accept_its_etcd(
    cli: Cli, tmp_path: Path
) -> None:
    text = (DEPLOY / "container" / "compose.yaml").read_text()
    (command,) = re.findall(r"^#   tramfl (init .*)$", text, re.MULTILINE)
    assert command in (DEPLOY.parent / "docs" / "operations.md").read_text()
    assert cli(*shlex.split(command)).code == 0
    folders = re.findall(r"\.\./\.\./(trial/sites/\w+):/site", text)
    assert sorted(folders) == sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("trial/sites/*"))

    async def opened(site: SiteSettings) -> None:
        await open_register(site.federation, site.file.site).close()

    for folder in folders:
        site = read_site(tmp_path / folder / "site.toml")
        asyncio.run(opened(site))  # an etcd in plain text, and not on loopback, is refused
        assert is_loopback(site.listen.rpartition(":")[0])
    assert 'network_mode: "service:etcd"' in text, "one loopback for all of them"


def test_the_image_is_built_by_the_script_and_copies_only_files_that_are_there() -> None:
    lines = (DEPLOY / "container" / "Containerfile").read_text().splitlines()
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    assert all((DEPLOY.parent / name).exists() for name in copied), copied
    assert "RUN sh /src/deploy/container/install.sh" in lines
    subprocess.run(["sh", "-n", DEPLOY / "container" / "install.sh"], check=True)
