"""Keeping this site's lease: a site whose lease runs out counts as gone, and its model is taken over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tramfl.notation import BadInput
from tramfl.runtime.registers import LeaseLost, LeaseTaken, Silent
from tramfl.runtime.site.member import Member

ONE_EACH = "Run one process per site, or give the other site a name of its own."


def superseded(member: Member, place: str = "") -> BadInput:
    """Why this process must end: two processes of one site would contradict each other."""
    at = f" at {place}" if place else ""
    return BadInput(
        f"another process of site {member.site.file.site!r}{at} has joined the federation since; this one ends."
        f" {ONE_EACH}"
    )


async def keep_lease(member: Member, renewed: Callable[[], object], twin: Callable[[str], object]) -> None:
    """Take the lease and renew it three times per lease, for ever; `renewed` is called after each time.

    `twin` is called with the place of another process of this site whose lease still ran when this one took it.
    Raises BadInput where a later process of this site has joined.
    """
    register, log, lease = member.register, member.log, member.lease_seconds
    joined = False
    while True:
        try:
            if joined:
                await register.renew()
            else:
                other = await register.join()
                if other is not None:
                    log("two-places", place=other)
                    twin(other)
                joined = True
        except LeaseLost:
            log("lease-lost")
            joined = False
            continue
        except LeaseTaken as taken:
            raise superseded(member, str(taken)) from None
        except Silent as error:
            log("register-silent", reason=str(error))
            await asyncio.sleep(lease / 10)
            continue
        try:
            renewed()
        except OSError as error:  # too many open files, for example: it passes
            log("not-read", reason=str(error.strerror or error))
        await asyncio.sleep(lease / 3)
