"""A hostile member among honest sites, a few hundred actions; `make fuzz` plays a hundred thousand."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.runtime.hostile import besieged


def test_a_hostile_member_ends_no_site_and_changes_no_committed_round(
    tmp_path: Path,
) -> None:
    # Without stalls: each costs the run a deadline of seconds.
    siege, _ = asyncio.run(besieged(tmp_path, 1, 300, usual_seconds=0.5, stalls=0.0))
    assert siege.usual > 0
    assert siege.done["offers"] > 20
    assert siege.done["writes_bad_record"] == 1
