"""What sites say and cannot say: loads that nobody can use, lists that differ, logs that cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from tramfl.notation import Ledger, Loads, ModelCost
from tramfl.runtime.site import asking
from tramfl.runtime.wire import Load
from tramfl.scheduling.policy import policy_named
from tramfl.simulation.scenarios import scenario_named

SCENARIO = scenario_named("digits-3")


def test_what_a_site_may_say_it_holds_is_what_the_scheduler_can_count() -> None:
    for labels in (2, 10, 1000):
        most = asking.MOST_HELD // labels
        assert asking.wrong_with(Load(1e12, None, (most,) * labels), 1e6, labels, 1) is None
        assert "it holds" in str(asking.wrong_with(Load(1e12, None, (most + 1,) * labels), 1e6, labels, 1))
        for name in ("load-aware", "random", "time-first", "variance-first", "tram"):
            for loads in (Loads((1e12,), (1e6,)), Loads((1.0,), (1.0,))):
                policy_named(name).decide(
                    Ledger.empty(labels), loads, np.full((1, labels), most), 0, ModelCost(1e9, 1e9),
                    np.random.default_rng(0),
                )  # fmt: skip
    assert asking.wrong_with(Load(1e-300, None, (1, 1)), 1e6, 2, 1) == "1e-300 FLOPS"
    assert asking.wrong_with(Load(1e12, None, (1, 1)), 1e-300, 2, 1) == "1e-300 bit/s"


def test_what_cannot_be_logged_any_more_holds_nobody_up() -> None:
    code = (
        "import os\n"
        "from tramfl.runtime.transport.handshakes import watch\n"
        "end = watch(lambda *_, **__: None)\n"
        "for _ in range(500):\n"
        "    os.write(2, b'x' * 1000 + b'\\n')\n"
        "end()\n"
        "print('done')\n"
    )
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=full, timeout=300, check=True, env=os.environ
        )
    assert done.stdout == b"done\n"
