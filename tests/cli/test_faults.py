from __future__ import annotations

import re

import pytest

from tests.conftest import Cli
from tramfl.cli import faults


def test_five_schedules_without_a_violation_exit_with_0(cli: Cli) -> None:
    done = cli("faults", "--schedules", 5)
    assert (done.code, done.out) == (0, "5 schedules played from seed 0 on, 0 with a violation of an invariant.\n")


class _AtOnce:
    """Plays in this process, where a test can plant a failure."""

    def __init__(self, *_: object, **__: object) -> None:
        self.map = lambda function, items, chunksize: map(function, items)

    def __enter__(self) -> _AtOnce:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_a_violation_is_printed_with_how_to_play_it_again_and_exits_with_1(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "ProcessPoolExecutor", _AtOnce)
    monkeypatch.setattr(faults, "try_schedule", lambda seed: "two holders" if seed == 8 else None)
    done = cli("faults", "--schedules", 3, "--seed", 7)
    assert done.code == 1
    assert re.search(r"two holders\n  play it again: tramfl faults --schedules 1 --seed 8", done.out)
    assert "3 schedules played from seed 7 on, 1 with a violation" in done.out
