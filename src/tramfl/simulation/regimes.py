"""Kinds of load on which policies are compared: from the paper's draws to loads that last."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from tramfl.config import LoadModel, Scenario


@dataclass(frozen=True)
class Regime:
    """One kind of load."""

    name: str
    about: str
    """What is special about it, in a few words."""
    loads: LoadModel
    lasting: bool = True
    """Whether a load is like the one before."""
    seed_seconds: float = 0.0
    """trace: how far apart in the trace two seeds begin."""

    def applied(self, scenario: Scenario) -> Scenario:
        """The scenario with these loads; what a node and a link have when idle stays the scenario's."""
        loads = replace(
            self.loads,
            flops=scenario.loads.flops,
            bandwidth=scenario.loads.bandwidth,
            compute_share=scenario.loads.compute_share,
            bandwidth_share=scenario.loads.bandwidth_share,
            trace_offset=self.loads.trace_offset + self.seed_seconds * scenario.seed,
        )
        return replace(scenario, loads=loads)


REGIMES = (
    Regime("independent", "a new draw every round, the paper's", LoadModel(), lasting=False),
    Regime("ar1-0.9", "AR(1) from round to round, memory 0.9", LoadModel(kind="ar1", memory=0.9)),
    Regime("ar1-0.99", "AR(1) from round to round, memory 0.99", LoadModel(kind="ar1", memory=0.99)),
    Regime("heterogeneous", "constant, every node and link another", LoadModel(kind="heterogeneous")),
    Regime("slots", "AR(1) in slots of 1 s, loads known", LoadModel(kind="ar1", clock="slot")),
    Regime("slots-blend", "the same, predicted by blend", LoadModel(kind="ar1", clock="slot", prediction="blend")),
    Regime("bursts", "on for 10 s, off for 20 s on average", LoadModel(kind="bursts", clock="slot")),
)
"""Those that need no file."""


def in_every_regime(scenario: Scenario) -> list[Scenario]:
    """The scenario on every kind of load that needs no file; the name of each ends in the regime's."""
    return [replace(regime.applied(scenario), name=f"{scenario.name},{regime.name}") for regime in REGIMES]


def trace_regime(path: str, seed_seconds: float = 61.0) -> Regime:
    """Loads from a CSV trace; every seed begins at another second of it."""
    loads = LoadModel(kind="trace", clock="slot", trace=path)
    return Regime("trace", "a recorded trace, loads known", loads, seed_seconds=seed_seconds)
