"""Keeping this site's lease: a site whose lease runs out counts as gone, and its model is taken over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tramfl.runtime.registers.contract import LeaseLost, Silent
from tramfl.runtime.site.member import Member


async def keep_lease(member: Member, renewed: Callable[[], object]) -> None:
    """Take the lease and renew it three times per lease, for ever; `renewed` is called after each time."""
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
        except Silent as error:
            log("register-silent", reason=str(error))
            await asyncio.sleep(lease / 10)
            continue
        renewed()
        await asyncio.sleep(lease / 3)
