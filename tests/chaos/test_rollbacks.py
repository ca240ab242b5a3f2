"""A run of real sites that is taken back again and again, and goes on each time."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.scenes import UNWANTED, digits
from tests.conftest import Cli
from tests.runtime.federations import LocalFederation

TIMES = 10


def test_a_run_is_rolled_back_ten_times_in_a_row_and_goes_on_each_time(tmp_path: Path, cli: Cli) -> None:
    networks = {"PYTHONPATH": str(Path(__file__).parent / "onsite")}
    with LocalFederation(tmp_path / "f", digits(), 3, environment=networks, settings={"kept_every": 2}) as sites:
        sites.begin()
        sites.wait_for_round(8)
        for time in range(TIMES):
            sites.order("pause")
            before = sites.rest()
            # To the oldest version and to the newest in turns.
            version = before.versions[0 if time % 2 else -1]
            done = cli("rollback", sites.federation, version.round)
            assert done.code == 0, done
            many = before.round - version.round
            assert f"; {many} round{' was' if many == 1 else 's were'} dropped, and stay" in done.out
            after = sites.rest()
            assert after.epoch == before.epoch + 1
            assert (after.weights.digest, after.ledger) == (version.digest, version.ledger)
            sites.order("resume")
            sites.wait_for_round(version.round + 6)
        assert sites.record.epoch == 1 + TIMES, "no site was taken for dead, or had lost its weights"
        assert not [e for name in sites.names for e in sites.events(name) if e["event"] in UNWANTED]
