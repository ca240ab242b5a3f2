"""Keeping this site's lease: a site whose lease runs out counts as gone, and its model is taken over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tramfl.notation import BadInput
from tramfl.runtime.registers import LeaseLost, LeaseTaken, Silent
from tramfl.runtime.site.member import Member


def superseded(member: Member) -> BadInput:
    """Why this process must end: two processes of one site would contradict each other."""
    return BadInput(
        f"another process of site {member.site.file.site!r} has joined the federation since; this one ends."
        " Run one process per site, or give the other site a name of its own."
    )


async def keep_lease(member: Member, renewed: Callable[[], object]) -> None:
    """Take the lease and renew it three times per lease, for ever; `renewed` is called after each time.

    Raises BadInput where a later process of this site has joined.
    """
    register, log, lease = member.register, member.log, member.lease_seconds
    joined = False
    while True:
        try:
            if joined:
                await register.renew()
            else:
                await register.join()
                joined = True
        except LeaseLost:
            log("lease-lost")
            joined = False
            continue
        except LeaseTaken:
            raise superseded(member) from None
        except Silent as error:
            log("register-silent", reason=str(error))
            await asyncio.sleep(lease / 10)
            continue
        renewed()
        await asyncio.sleep(lease / 3)
