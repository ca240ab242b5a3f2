"""`tramfl up` with sites that are killed, a register that is silent, and an interrupt."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from tests.conftest import Process, ended, wait_until_gone
from tests.runtime.federations import unreadable
from tramfl.record import read_rows


def test_a_killed_site_and_a_silent_register_are_reported_and_an_interrupt_leaves_no_process_behind(
    tmp_path: Path, process: Process
) -> None:
    up = process(
        *("up", "digits-3", "--sites", 3, "--rounds", 100_000, "--target", "1.0", "--keep", tmp_path / "street"),
        *("--set", "budget.samples=100000000", "--out", tmp_path / "real"),
    )
    assert up.stderr is not None
    line = up.stderr.readline()
    pids = [int(pid) for pid in re.findall(r"[abc] (\d+)", line)]
    assert len(pids) == 3, line
    assert "begins" in up.stderr.readline()
    os.kill(pids[1], signal.SIGKILL)
    for line in up.stderr:
        if "site b is gone" in line:
            break
    else:
        raise AssertionError("no line says that site b is gone")
    assert any(re.match("round [1-9]", line) for line in up.stderr)
    with unreadable(tmp_path / "street" / "register.sqlite"):
        assert any("the rounds cannot be read at the moment" in line for line in up.stderr)
    # The run goes on without the site, however long that takes on a busy machine.
    matches = (re.match(r"round ([\d,]+)", line) for line in up.stderr)
    rounds = (int(match[1].replace(",", "")) for match in matches if match)
    first = next(rounds)
    assert any(later > first for later in rounds)
    up.send_signal(signal.SIGINT)
    done = ended(up)
    assert done.code == 1, done
    for pid in pids:
        wait_until_gone(pid)
    assert len(list(read_rows(tmp_path / "real" / "rounds.jsonl"))) > 0
