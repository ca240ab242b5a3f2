"""A member puts a record that cannot be right into the shared register: real sites in one process, and repair."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from msgspec.structs import replace

from tests.runtime.sites import played
from tests.runtime.together import Together
from tramfl.runtime.operator import founding
from tramfl.runtime.operator.operating import site_credentials
from tramfl.runtime.registers.records import Records
from tramfl.runtime.settings import read_site
from tramfl.runtime.transport.sealing import SiteSeal
from tramfl.runtime.wire import Order


async def overwrite(sites: Together, author: str) -> None:
    """Put a record of an impossible epoch, with the author's own signature, in the place of the present one."""
    record = await sites.record()
    credentials = site_credentials(read_site(founding.site_folder(sites.folder, author) / founding.SITE_FILE), False)
    assert credentials is not None
    records = Records()
    records.seal = SiteSeal(author, credentials)
    with sqlite3.connect(sites.folder / "register.sqlite", timeout=60) as register:
        (revision,) = register.execute("SELECT revision FROM record").fetchone()
        content = records.content(replace(record, epoch=0), revision)
        register.execute("UPDATE record SET revision = ?, content = ?", (revision + 1, content))
    register.close()


@played
async def test_a_record_that_cannot_be_right_ends_no_site_keeps_none_from_starting_and_is_repaired(
    tmp_path: Path,
) -> None:
    async with Together(tmp_path / "f", lease_seconds=60.0).begun() as sites:
        await sites.hand.order(Order("pause"))
        good = (await sites.status(lambda seen: seen.rests)).record
        assert good is not None
        await overwrite(sites, "c")
        await sites.until(lambda: all(sites.events(name, "record-ignored") for name in sites.names))
        assert not any(task.done() for task in sites.tasks.values()), "no site has ended"
        await sites.restart("a")
        assert await sites.record() == good, "the last good record stands"
        assert str(good.round) in await sites.hand.repair()
        await sites.hand.order(Order("resume"))
        await sites.record(good.round + 3)
        assert not any(task.done() for task in sites.tasks.values())
