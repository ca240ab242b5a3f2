"""A member poisons the model, and is found out: real sites in one process, with real training and real tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec.structs import replace

from tests.runtime.hostile import SCENARIO, BenchInThread
from tests.runtime.sites import played
from tests.runtime.together import Together
from tramfl.config import Acceptance, Evaluation
from tramfl.record import Row, read_audit, read_rows
from tramfl.runtime.operator.collecting import pull
from tramfl.runtime.training.workshop import Job, JobResult, NewWeights, TrainOn
from tramfl.runtime.weights.store import file_digest
from tramfl.runtime.wire import Order

POISONER, GOOD = "c", 0.7
RUN = replace(SCENARIO, policy="variance-first", evaluation=Evaluation(every=1))


class Poisoned(BenchInThread):
    """The workshop of a site that hands on three times the opposite of what it trained, once `on` is set."""

    on = False

    def _done(self, request: Job) -> JobResult:
        made = super()._done(request)
        if not (self.on and self._build.name == POISONER and isinstance(request, TrainOn)):
            return made
        assert isinstance(made, NewWeights)
        file = Path(request.to)
        content = file.read_bytes()
        begin = 8 + int.from_bytes(content[:8], "little")
        poison = -3 * np.frombuffer(content[begin:], np.float32)
        file.write_bytes(content[:begin] + poison.tobytes())
        return replace(made, digest=file_digest(file))


def measured(rows: list[Row]) -> list[tuple[Row, float]]:
    return [(row, row.test_accuracy) for row in rows if row.test_accuracy is not None]


def scored(sites: Together, since: int = 0) -> list[float]:
    """The accuracies that sites have measured of rounds after `since`."""
    lines = [line for name in sites.names for line in sites.events(name, "scored")]
    return [line["test_accuracy"] for line in lines if line["round"] > since]


async def rows_at_rest(sites: Together, out: Path) -> list[Row]:
    await sites.hand.order(Order("pause"))
    await sites.status(lambda seen: seen.rests)
    await pull(sites.hand, out, overwrite=False)
    return list(read_rows(out / "rounds.jsonl"))


@played
async def test_poisoned_weights_are_found_by_their_tests_traced_rolled_back_and_their_author_drained(
    tmp_path: Path,
) -> None:
    Poisoned.on = False
    together = Together(
        tmp_path / "f", lease_seconds=60.0, scenario=RUN, workshop=Poisoned, kept_every=1, kept_versions=100
    )
    async with together.begun() as sites:
        await sites.until(lambda: any(accuracy > GOOD for accuracy in scored(sites)))
        clean = (await sites.record()).round
        Poisoned.on = True
        await sites.until(lambda: any(accuracy < GOOD / 2 for accuracy in scored(sites, clean)))
        rows = await rows_at_rest(sites, tmp_path / "bad")
        before = (await sites.record()).epoch
        # The tests lead to a round, and the trail from its weights to a site.
        first = next(row for row, accuracy in measured(rows) if row.round > clean and accuracy < GOOD / 2)
        (bad,) = {
            entry
            for entry in read_audit(tmp_path / "bad" / "audit.jsonl")
            if entry.what == "committed" and entry.round == first.round
        }
        assert bad.author == POISONER
        assert len(bad.noted_by) >= 2

        record = await sites.record()
        version = max((each for each in record.versions if each.round < bad.round), key=lambda each: each.round)
        await sites.hand.order_site(bad.author, Order("drain"))
        await sites.hand.order(Order("rollback", round=version.round))
        await sites.hand.order(Order("resume"))
        await sites.record(version.round + 8)
        rows = await rows_at_rest(sites, tmp_path / "good")
        again = [row for row in rows if row.epoch > before]
        assert again
        assert sites.names.index(POISONER) not in {row.node for row in again}
        worst = min(accuracy for row, accuracy in measured(rows) if row.round > version.round)
        assert worst > GOOD / 2, "no row of the run is of poisoned weights any more"
        assert measured(rows)[-1][1] > GOOD - 0.1
        gone = [e for e in read_audit(tmp_path / "good" / "audit.jsonl") if e.digest == bad.digest and e.counts_not]
        assert {entry.author for entry in gone} == {POISONER}


@played
async def test_poisoned_weights_are_refused_by_receivers_that_check_them_and_the_run_goes_on(tmp_path: Path) -> None:
    Poisoned.on = False
    run = replace(RUN, accept=Acceptance(max_loss_ratio=2.0, arrivals=True))
    async with Together(tmp_path / "f", lease_seconds=60.0, scenario=run, workshop=Poisoned).begun(9) as sites:
        Poisoned.on = True
        # Its own site accepted them: it lies to itself. Nobody else trains on them.
        await sites.until(lambda: all(sites.events(name, "not-accepted") for name in ("a", "b")))
        await pull(sites.hand, tmp_path / "out", overwrite=False)
        refused = [entry for entry in read_audit(tmp_path / "out" / "audit.jsonl") if entry.what == "refused"]
        assert {entry.author for entry in refused} == {POISONER}
        assert {name for entry in refused for name in entry.noted_by} <= {"a", "b"}
        made = {e.digest for e in read_audit(tmp_path / "out" / "audit.jsonl") if e.author == POISONER}
        assert {entry.digest for entry in refused} <= made
        # It gives the model up: the others go on from what they took in last, and leave it out for longer each time.
        before = await sites.record()
        await sites.status(lambda seen: seen.record is not None and seen.record.safe.round >= before.safe.round + 12)
        await sites.status(
            lambda seen: any(POISONER in site.report.left_out for site in seen.sites if site.report is not None)
        )
