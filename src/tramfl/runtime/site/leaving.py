"""A site that is told to end makes another one the holder first: nobody waits for its lease, and no round is lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tramfl.circulation.changes import HandOver
from tramfl.circulation.custody import Record
from tramfl.circulation.phases import Offer
from tramfl.notation import NodeId
from tramfl.runtime.site.driver import Driver
from tramfl.runtime.transport import Refusal, Unreachable
from tramfl.runtime.wire import Consignment, Order

if TYPE_CHECKING:
    from tramfl.runtime.site.node import Node


async def hand_on(node: Node) -> None:
    """Where `node`, whose driver has ended, holds the model, make a site that takes it the holder.

    Raises Silent or LeaseLost.
    """
    refused: set[NodeId] = {node.me}
    while True:
        standing = await node.register.look()
        versioned, others = standing.versioned, standing.alive - refused
        if versioned is None or versioned.record.holder != node.me or versioned.record.status == "stopped":
            return
        record = versioned.record
        if not others or node.driver is None or node.driver.run != record.run:
            return
        to = max(others, key=lambda n: (n in record.weights.copies, node.bandwidth(n) or 0.0, -n))
        try:
            await _copy_to(node, to, record, node.driver)
        except (Refusal, Unreachable, OSError) as error:
            node.log("not-sent", to=node.names[to], reason=str(error) or "it took too long")
            refused.add(to)
            continue
        handed = HandOver(record.epoch, record.round, record.weights.digest, to).applied(record, node.me)
        assert handed is not None
        if await node.register.swap(versioned.revision, handed) is not None:
            node.log("handed-on", to=node.names[to])
            return


async def _copy_to(node: Node, to: NodeId, record: Record, driver: Driver) -> None:
    """Have the newest weights at another site; where they are there already, this is only a question."""
    digest, limits = record.weights.digest, node.federation.limits
    path = driver.store.path(digest)
    if path is None:
        raise Unreachable(f"the weights {digest} are not on disk")
    # Whoever is gone is known at once; a transfer would be tried again and again.
    await node.peers.order(to, Order("look"), limits.load_reply)
    bandwidth = node.bandwidth(to)
    predicted = node.cost.model_bits / bandwidth if bandwidth is not None else 0.0
    # The driver has ended: it gives out no more tickets.
    offer = Offer(record.epoch, record.round, digest, driver.state.ticket + 1, None)
    async with asyncio.timeout(limits.overdue_after(predicted, 0)):
        await node.send(to, Consignment(record.run, offer, path.stat().st_size), path, lambda _: None)
