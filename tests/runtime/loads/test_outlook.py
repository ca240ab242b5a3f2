"""What a site says of its loads' past: as in simulation, and the same after a restart."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tramfl.config import LoadModel
from tramfl.draws import deciding
from tramfl.notation import Ledger, Loads, ModelCost, Outlook
from tramfl.runtime.loads.compute import ComputeMeter
from tramfl.runtime.loads.history import History
from tramfl.runtime.loads.links import LinkMeter
from tramfl.runtime.loads.outlook import outlook_of
from tramfl.scheduling.policy import PolicySettings, policy_named
from tramfl.simulation.foresight import Foresight
from tramfl.simulation.load_clock import SlotClock
from tramfl.simulation.loads import load_source

SITES = ("a", "b", "c")
COST = ModelCost(1e6, 8e6)
IDLE = 1e12
"""FLOPS of a machine on which nothing else runs."""


def meters() -> tuple[ComputeMeter, LinkMeter]:
    compute = ComputeMeter(COST.flops_per_sample, "last")
    compute.calibrated(IDLE)
    return compute, LinkMeter("last", model_bits=COST.model_bits)


def observed(site: int, slots: int, clock: SlotClock) -> tuple[ComputeMeter, LinkMeter]:
    """The meters of a site that saw its loads in every slot of a simulation."""
    compute, links = meters()
    for slot in range(1, slots + 1):
        loads = clock.loads(slot)
        compute.available(IDLE / loads.flops[site] - 1, float(slot))
        for other, name in enumerate(SITES):
            if other != site:
                links.moved(name, "to", COST.model_bits, COST.model_bits / loads.bandwidth[site][other], float(slot))
    return compute, links


def close(one: Outlook | None, other: Outlook | None) -> bool:
    """Whether two outlooks are the same but for rounding."""
    assert one is not None
    assert other is not None
    assert [h is None for h in one.links] == [h is None for h in other.links]
    mine, others = ([o.compute, *(h for h in o.links if h is not None)] for o in (one, other))
    tables = [[[h.now, h.mean, h.spread, h.persistence, h.most] for h in found] for found in (mine, others)]
    return one.step_seconds == pytest.approx(other.step_seconds) and bool(
        np.allclose(tables[0], tables[1], rtol=1e-9)
    )


@pytest.mark.parametrize("seed", range(5))
def test_sites_that_saw_the_loads_of_a_simulation_say_and_decide_the_same(seed: int) -> None:
    # Others can keep all cores busy at most, which halves the speed: no load is below half of an idle machine.
    model = LoadModel(kind="ar1", clock="slot", prediction="last", flops=IDLE, compute_share=(0.55, 1.0))
    clock = SlotClock(load_source(model, len(SITES), seed), COST, model.slot_seconds)
    foresight = Foresight(clock, model, COST, len(SITES), seed, usual_samples=100, looks_ahead=True)
    slots = 40
    simulated, expected = foresight.reports(0, 1, float(slots))
    sites = [observed(site, slots, clock) for site in range(len(SITES))]
    found = [outlook_of(*site, SITES, number) for number, site in enumerate(sites)]
    assert all(close(one, other) for one, other in zip(found, expected, strict=True))
    policy = policy_named("express", PolicySettings())
    held = np.array([[4000, 50], [50, 3000], [2000, 2000]])

    def decided(loads: Loads) -> tuple[int | None, tuple[int, ...]]:
        ledger = Ledger((900, 950), 20.0, 7, 0)
        decision = policy.decide(ledger, loads, held, 0, COST, deciding(seed, 8))
        assert "with the round expected after it" in decision.reason
        return decision.node, decision.samples

    real = [compute.expected() for compute, _ in sites]
    bandwidth = [math.inf, *(sites[0][1].past(name)[1] for name in SITES[1:])]
    as_simulated = Loads(tuple(simulated.flops), tuple(simulated.bandwidth[0]), tuple(expected))
    assert decided(Loads(tuple(real), tuple(bandwidth), tuple(found))) == decided(as_simulated)


def test_a_restarted_site_says_the_same_of_its_past(tmp_path: Path) -> None:
    model = LoadModel(kind="ar1", clock="slot", flops=IDLE, compute_share=(0.55, 1.0))
    before = observed(0, 30, SlotClock(load_source(model, len(SITES), 1), COST, 1.0))
    after = meters()
    History(tmp_path / "history.json").save(*before)
    History(tmp_path / "history.json").restore(*after)
    assert close(outlook_of(*after, SITES, 0), outlook_of(*before, SITES, 0))


def test_a_site_says_nothing_of_a_past_that_it_does_not_have() -> None:
    compute, links = meters()
    compute.available(0.2, 10.0)
    assert outlook_of(compute, links, SITES, 0) is None
    compute.available(0.2, 12.0)
    found = outlook_of(compute, links, SITES, 0)
    assert found is not None
    assert found.step_seconds == 2.0
    assert found.links == (None, None, None)


def test_a_link_seen_less_often_than_the_machine_lasts_longer_from_step_to_step() -> None:
    def link(every: float) -> float:
        compute, links = meters()
        for k in range(50):
            compute.available(0.2, float(k))
            links.moved("b", "to", COST.model_bits, 1 + 0.5 * math.sin(k), every * k)
        found = outlook_of(compute, links, SITES, 0)
        assert found is not None
        assert found.links[1] is not None
        return found.links[1].persistence

    assert 0 < link(1.0) < 1
    assert link(4.0) == pytest.approx(link(1.0) ** 0.25)


def test_one_long_pause_hardly_changes_the_step() -> None:
    compute, links = meters()
    for at in (0.0, 1.0, 2.0, 3602.0, *(3602.0 + k for k in range(1, 20))):
        compute.available(0.2, at)
    found = outlook_of(compute, links, SITES, 0)
    assert found is not None
    assert found.step_seconds < 1.1


def test_what_is_said_of_the_past_is_what_was_observed() -> None:
    compute, links = meters()
    for k, busy in enumerate((0.0, 1.0, 0.0, 1.0)):
        compute.available(busy, float(k))
    found = outlook_of(compute, links, SITES, 2)
    assert found is not None
    assert (found.compute.now, found.compute.most) == (IDLE / 2, IDLE)
    assert found.compute.mean == pytest.approx(IDLE * math.sqrt(0.5), rel=0.02)
    assert found.compute.persistence == 0
