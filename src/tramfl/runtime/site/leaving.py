"""A site that ends makes another one the holder first: nobody waits for its lease, and no round is lost."""

from __future__ import annotations

import asyncio

from tramfl.circulation.changes import HandOver
from tramfl.circulation.custody import Record
from tramfl.circulation.phases import Offer
from tramfl.notation import NodeId
from tramfl.runtime.site.driver import Driver
from tramfl.runtime.site.member import Member
from tramfl.runtime.site.services import Services
from tramfl.runtime.transport import Refusal, Unreachable
from tramfl.runtime.wire import Consignment, Order


async def hand_on(member: Member, driver: Driver, services: Services) -> None:
    """Where this site, whose driver has ended, holds the model, make another site that takes it the holder.

    Raises Silent or LeaseLost.
    """
    refused: set[NodeId] = {member.me}
    while True:
        standing = await member.register.look()
        versioned, others = standing.versioned, standing.alive - refused
        if versioned is None or versioned.record.holder != member.me or versioned.record.status == "stopped":
            return
        record = versioned.record
        if not others or driver.run != record.run:
            return
        to = max(others, key=lambda n: (n in record.weights.copies, services.bandwidth(n) or 0.0, -n))
        try:
            await _copy_to(to, record, member, driver, services)
        except (Refusal, Unreachable, OSError) as error:
            member.log("not-sent", peer=member.names[to], reason=str(error) or "it took too long")
            refused.add(to)
            continue
        handed = HandOver(record.epoch, record.round, record.weights.digest, to).applied(record, member.me)
        assert handed is not None
        if await member.register.swap(versioned.revision, handed) is not None:
            member.log("handed-on", peer=member.names[to])
            return


async def _copy_to(to: NodeId, record: Record, member: Member, driver: Driver, services: Services) -> None:
    """Send the newest weights to another site; a site that has them already only confirms it."""
    digest, limits = record.weights.digest, member.federation.limits
    path = driver.store.path(digest)
    if path is None:
        raise Unreachable(f"the weights {digest} are not on disk")
    # A site that is gone fails this call at once; a transfer would be retried for long.
    await member.peers.order(to, Order("look"), limits.load_reply)
    bandwidth = services.bandwidth(to)
    predicted = driver.state.model_bits / bandwidth if bandwidth is not None else 0.0
    # The driver has ended and issues no more tickets.
    offer = Offer(record.epoch, record.round, digest, driver.state.ticket + 1, None)
    async with asyncio.timeout(limits.overdue_after(predicted, 0)):
        await services.send(to, Consignment(record.run, offer, path.stat().st_size), path, lambda _: None)
