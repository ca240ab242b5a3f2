"""What a peer can make a site write: one prepared run, whatever it asks."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.runtime.registers.stories import LONG, story
from tests.runtime.sites import Log, write_model
from tramfl.circulation.custody import Versioned, first_record
from tramfl.notation import BadInput, ModelCost
from tramfl.runtime.registers import Silent
from tramfl.runtime.registers.sqlite import SqliteRegister
from tramfl.runtime.site.lease import keep_lease
from tramfl.runtime.site.model import LocalModel
from tramfl.runtime.site.participation import Participation
from tramfl.runtime.training import Built
from tramfl.runtime.weights import Manifest, References, WeightStore


def site(folder: Path) -> tuple[Any, LocalModel]:
    """A participation of a site whose run has ended, and its model."""
    initial = folder / "initial.safetensors"
    digest = write_model(initial, b"weights")
    built = Built(("x",), (5,), ModelCost(1.0, 8.0), 1e9)
    model = LocalModel(built, initial, digest, Manifest.of(initial), References(folder / "references", None))
    found: Any = Participation(SimpleNamespace(folder=folder), model, *[SimpleNamespace()] * 4)  # type: ignore[arg-type]
    return found, model


def driver_of(run: str, status: str, digest: str) -> Any:
    record: Any = first_record(run, 0, digest, (0,), 1)
    record = type(record)(**{f: getattr(record, f) for f in record.__struct_fields__} | {"status": status})
    return SimpleNamespace(run=run, state=SimpleNamespace(seen=Versioned(record, 3)))


def test_a_hundred_orders_to_prepare_leave_one_folder_and_the_last_runs_weights(tmp_path: Path) -> None:
    participation, model = site(tmp_path)
    last = WeightStore(tmp_path / "runs" / "last")
    model.put_initial(last)
    participation.driver = driver_of("last", "stopped", model.initial_digest)
    for number in range(100):
        participation.prepare(f"run-{number}")
    assert [path.name for path in (tmp_path / "next").iterdir()] == ["run-99"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["last"]
    assert WeightStore(tmp_path / "runs" / "last").path(model.initial_digest) is not None


@pytest.mark.parametrize("status", ["running", "paused"])
def test_nothing_is_prepared_while_a_run_goes_on_nor_for_a_run_that_has_begun(tmp_path: Path, status: str) -> None:
    participation, model = site(tmp_path)
    participation.driver = driver_of("now", status, model.initial_digest)
    for run in ("now", "another"):
        with pytest.raises(BadInput, match=f"run now is {status}"):
            participation.prepare(run)
    participation.driver = driver_of("now", "stopped", model.initial_digest)
    with pytest.raises(BadInput, match="run now is stopped"):
        participation.prepare("now")
    assert not (tmp_path / "next").exists()


def test_a_run_begins_with_what_was_prepared_or_with_first_weights_made_again(tmp_path: Path) -> None:
    participation, model = site(tmp_path)
    participation.prepare("run-1")
    record = first_record("run-1", 0, model.initial_digest, (0,), 1)
    assert participation._opened(record).path(model.initial_digest) is not None
    assert not (tmp_path / "next" / "run-1").exists()
    # Another order to prepare has deleted what this run began with.
    other = first_record("run-2", 0, model.initial_digest, (0,), 1)
    assert participation._opened(other).path(model.initial_digest) is not None


@story
async def test_a_machine_that_cannot_be_read_for_a_moment_does_not_end_the_site() -> None:
    log, read = Log(), []

    class Enough(Exception):
        pass

    def renewed() -> None:
        read.append(1)
        if len(read) == 3:
            raise Enough
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def done() -> None:
        pass

    member: Any = SimpleNamespace(
        register=SimpleNamespace(join=done, renew=done), log=log, lease_seconds=0.03, site=None
    )
    with pytest.raises(Enough):
        await keep_lease(member, renewed, lambda place: None)
    assert [line["reason"] for line in log.lines] == ["Too many open files"] * 2


@story
async def test_a_register_that_cannot_be_opened_for_want_of_descriptors_is_only_silent(tmp_path: Path) -> None:
    register = SqliteRegister(tmp_path / "register.sqlite", "a", LONG, 5.0)
    await register.join()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    second = SqliteRegister(tmp_path / "register.sqlite", "b", LONG, 5.0)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        with pytest.raises(Silent):
            await second.join()
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await second.join()
    await second.close()
    await register.close()
