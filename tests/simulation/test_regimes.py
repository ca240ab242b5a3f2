"""The kinds of load on which policies are compared."""

from __future__ import annotations

from tramfl.simulation.regimes import REGIMES, in_every_regime
from tramfl.simulation.scenarios import scenario_named


def test_a_regime_changes_the_loads_and_nothing_else() -> None:
    scenario = scenario_named("cifar10-3")
    found = in_every_regime(scenario)
    assert len({variant.name for variant in found}) == len(REGIMES)
    for variant in found:
        assert variant.budget == scenario.budget
        assert variant.loads.flops == scenario.loads.flops
    assert found[0].loads == scenario.loads, "the first is the paper's"
