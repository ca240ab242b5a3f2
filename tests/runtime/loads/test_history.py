from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tramfl.runtime.loads.compute import ComputeMeter
from tramfl.runtime.loads.history import History, HistoryWarning, Memory
from tramfl.runtime.loads.links import LinkMeter
from tramfl.runtime.loads.series import KEPT
from tramfl.scheduling.predictors import predictor_names

NAMES = pytest.mark.parametrize("name", predictor_names())
M = 1e6
"""FLOPs a sample."""


def meters(name: str = "blend") -> tuple[ComputeMeter, LinkMeter]:
    compute = ComputeMeter(M, name)
    compute.calibrated(7e9)
    return compute, LinkMeter(name)


def used(compute: ComputeMeter, links: LinkMeter, rounds: int = 20) -> None:
    for k in range(rounds):
        compute.available(0.1 * (k % 5))
        compute.trained(100 + k, 0.1 + 0.01 * (k % 3), 0.2)
        links.probed("b", 1e8, 0.01, k)
        links.moved("b", "to", 1e7, 0.3 + 0.01 * (k % 4), k, 0.02)


@NAMES
def test_a_restarted_site_predicts_what_it_would_have_without_the_restart(name: str, tmp_path: Path) -> None:
    history = History(tmp_path / "state/history.json")
    before, after = meters(name), meters(name)
    used(*before)
    history.save(*before)
    History(tmp_path / "state/history.json").restore(*after)
    assert after[0].available(0.3) == pytest.approx(before[0].available(0.3))
    assert after[1].bandwidth("b") == pytest.approx(before[1].bandwidth("b"), rel=1e-3)


def test_after_a_restart_every_link_is_due_for_a_probe(tmp_path: Path) -> None:
    before, after = meters(), meters()
    used(*before)
    History(tmp_path / "history.json").save(*before)
    History(tmp_path / "history.json").restore(*after)
    assert after[1].is_due("b", 0.0)


def test_another_models_speed_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    before = meters()
    used(*before)
    History(tmp_path / "history.json").save(*before)
    compute = ComputeMeter(2 * M, "last")
    compute.calibrated(7e9)
    History(tmp_path / "history.json").restore(compute, LinkMeter("last"))
    assert compute.memory().full == ()
    assert compute.memory().busy == before[0].memory().busy


def test_without_a_file_a_site_begins_anew(tmp_path: Path) -> None:
    compute, links = meters()
    History(tmp_path / "history.json").restore(compute, links)
    assert compute.available(0.0) == pytest.approx(7e9)


def test_the_file_stays_small_however_long_a_site_runs(tmp_path: Path) -> None:
    compute, links = meters("last")
    used(compute, links, rounds=5 * KEPT)
    History(tmp_path / "history.json").save(compute, links)
    memory = msgspec.json.decode((tmp_path / "history.json").read_bytes(), type=Memory)
    assert memory.compute is not None
    assert len(memory.compute.full) == len(memory.compute.busy) == len(memory.links.to["b"].transfers) == KEPT
    assert (tmp_path / "history.json").stat().st_size < 20_000


GOOD = msgspec.json.encode(Memory())


@given(
    st.binary(max_size=100)
    | st.sampled_from(
        [
            b"",
            b"[]",
            b"null",
            b'{"version": 2}',
            b'{"compute": {"flops_per_sample": -1}}',
            b'{"compute": {"flops_per_sample": 1, "full": [1e999]}}',
            b'{"links": {"to": {"b": {"transfers": [0]}}}}',
            b'{"links": {"to": {"b": {"transfers": ["fast"]}}}}',
            b"[" * 100_000,
            GOOD[:-1],
        ]
    )
)
def test_a_damaged_file_is_set_aside_and_logged_and_stops_nothing(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.json"
        path.write_bytes(content)
        logged: list[tuple[str, dict[str, Any]]] = []
        compute, links = meters()
        History(path, lambda event, **fields: logged.append((event, fields))).restore(compute, links)
        assert compute.available(0.0) == pytest.approx(7e9)
        assert [event for event, _ in logged] == ["damaged"]
        assert not path.exists()
        assert (Path(folder) / "history.json.damaged").read_bytes() == content


def test_without_a_log_a_damaged_file_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "history.json").write_text("{")
    with pytest.warns(HistoryWarning, match=r"history\.json: damaged"):
        History(tmp_path / "history.json").restore(*meters())


def test_a_history_that_cannot_be_read_or_written_is_logged_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "history.json").mkdir()
    (tmp_path / "file").write_text("")
    logged: list[str] = []
    History(tmp_path / "history.json", lambda event, **_: logged.append(event)).restore(*meters())
    History(tmp_path / "file/history.json", lambda event, **_: logged.append(event)).save(*meters())
    assert logged == ["history-unreadable", "history-not-kept"]


def test_keep_writes_at_most_every_half_minute(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    history, (compute, links) = History(path), meters()
    written = []
    for at in (0.0, 10.0, 29.0, 31.0, 40.0):
        path.unlink(missing_ok=True)
        history.keep(compute, links, at)
        written.append(path.exists())
    assert written == [True, False, False, True, False]
