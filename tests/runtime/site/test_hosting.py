"""What a site takes in from a member that does not hold, or says what cannot be: real sites in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.runtime.hostile import SCENARIO
from tests.runtime.sites import SECONDS, ignore, played
from tests.runtime.together import Together
from tramfl.circulation.phases import Assignment, Offer
from tramfl.notation import Decision, Loads
from tramfl.runtime.operator import founding
from tramfl.runtime.operator.operating import site_credentials
from tramfl.runtime.roster import Roster
from tramfl.runtime.settings import read_site
from tramfl.runtime.transport import Peers, TransferRefused
from tramfl.runtime.wire import AskLoad, Consignment, Order


@played
async def test_a_model_comes_from_the_records_holder_for_the_records_round_and_with_numbers_that_can_be(
    tmp_path: Path,
) -> None:
    async with Together(tmp_path / "f", lease_seconds=60.0).begun() as sites:
        await sites.hand.order(Order("pause"))
        # A site that has not read the newest record yet takes the holder before for the holder.
        status = await sites.status(
            lambda seen: seen.rests and {site.revision for site in seen.sites} == {seen.revision}
        )
        record = status.record
        assert record is not None
        assert record.holder is not None
        holder = record.holder
        to, third = (node for node in range(3) if node != holder)
        state = founding.site_folder(sites.folder, sites.names[to]) / "state"
        model = next(
            (state.parent.parent / sites.names[holder] / "state").rglob(f"*{record.weights.digest}.safetensors")
        )
        stored = {path.name for path in (state / "runs").rglob("*")}
        decision = Decision("mine", to, (1,) * 10, 1.0, 1.0, 0.0, "because")
        assignment = Assignment(holder, decision, Loads((1e9,) * 4, (1e8,) * 4), 0.0)
        right = Offer(record.epoch, record.round, record.weights.digest, 1, assignment)

        async def refused(by: int, offer: Offer, why: str, sent_at: float | None = None) -> None:
            site = read_site(founding.site_folder(sites.folder, sites.names[by]) / founding.SITE_FILE)
            peers = Peers(Roster(site.federation), sites.names[by], site_credentials(site, False))
            with pytest.raises(TransferRefused, match=why):
                await peers.send(to, Consignment("run-1", offer, model.stat().st_size, sent_at), model, ignore)
            await peers.close()

        def assigned(**change: Any) -> Offer:
            return replace(right, assignment=replace(assignment, **change))

        # A member that does not hold decides no round, whatever it brings, and leaves no copy.
        name = sites.names[third]
        await refused(third, assigned(holder=third), f"{name} does not hold the model in epoch {record.epoch}")
        await refused(third, replace(right, assignment=None), f"{name} does not hold the model")
        # The holder offers what the record has.
        for epoch, round_, digest in (
            (record.epoch + 1, record.round, right.digest),
            (record.epoch, 1 << 52, right.digest),
            (record.epoch, record.round + 1, right.digest),
            (record.epoch, record.round, "f" * 64),
        ):
            offer = replace(right, epoch=epoch, round=round_, digest=digest)
            await refused(holder, offer, "in epoch|the record is not at round")
        # And its numbers are those of this site, and can be.
        await refused(holder, assigned(lost_seconds=5e6), "the last round ended")
        await refused(holder, assigned(lost_seconds=float("nan")), "range|finite|number")
        await refused(holder, right, "the last round ended", sent_at=record.weights.since - 5e6)
        for moment in (float("nan"), float("inf"), -1.0):
            await refused(holder, right, "is no moment to send weights at", sent_at=moment)
        await refused(holder, assigned(decision=replace(decision, node=third)), "for another site")
        await refused(holder, assigned(decision=replace(decision, samples=(1,) * 9)), "9 labels, and this site 10")
        await refused(holder, assigned(decision=replace(decision, samples=(1 << 40,) * 10)), "samples")
        assert {path.name for path in (state / "runs").rglob("*")} == stored
        assert (await sites.record()) == record


@played
async def test_a_site_learns_the_link_from_another_by_hops_and_not_by_copies(tmp_path: Path) -> None:
    """A copy stops for hops and probes: a link would seem half as fast as it is."""
    scenario = replace(SCENARIO, policy="time-first")
    async with Together(tmp_path / "f", sites=2, lease_seconds=60.0, scenario=scenario).begun(rounds=6) as sites:
        await sites.hand.order(Order("pause"))
        status = await sites.status(lambda seen: seen.rests)
        record = status.record
        assert record is not None
        hops = {(row.holder, row.node) for row in await sites.hand.rows(status)}
        for asks, answers in ((0, 1), (1, 0)):
            site = read_site(founding.site_folder(sites.folder, sites.names[asks]) / founding.SITE_FILE)
            peers = Peers(Roster(site.federation), sites.names[asks], site_credentials(site, False))
            load = await peers.load(answers, AskLoad(record.run, record.round + 1), SECONDS)
            await peers.close()
            assert load.bandwidth is None or (asks, answers) in hops
