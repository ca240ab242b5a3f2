"""How well a site's predictors foresee the next round's load, each as a ratio to the error of `last`.

    python benchmarks/predictors.py [--quick]

Two errors: mean absolute, and mean absolute logarithm (predicted times are quotients); then the mean absolute
percentage error of each predictor on each kind of load. No clock is read: the figures are the same on every machine.
Exit code 1 says that the goal is missed: on every kind of load the default predictor is at most 2 % worse than the
better of `last` and `ewma`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable

import numpy as np

from tramfl.config import LoadModel
from tramfl.scheduling.predictors import DEFAULT, predictor_named, predictor_names
from tramfl.simulation.loads import load_source

ROUNDS, SKIPPED = 1000, 5
"""The first rounds are not judged: there, nobody knows anything yet."""
NOISE = 0.1
"""Of steps and rhythm: the standard deviation of the logarithm of one observation."""
SLACK = 1.02


def uniform(seed: int) -> list[float]:
    return _simulated("uniform", seed)


def lasting(seed: int) -> list[float]:
    return _simulated("ar1", seed)


def _simulated(kind: str, seed: int) -> list[float]:
    model = LoadModel(kind=kind, memory=0.9, flops=1.0)  # type: ignore[arg-type]
    source = load_source(model, 1, seed)
    return [source.at(k).flops[0] for k in range(1, ROUNDS + 1)]


def steps(seed: int) -> list[float]:
    """A job comes or goes every hundred rounds."""
    rng = np.random.default_rng((1, seed))
    level = np.repeat(rng.uniform(0.1, 1.0, ROUNDS // 100), 100)
    return list(level * np.exp(NOISE * rng.standard_normal(ROUNDS)))


def daily(seed: int) -> list[float]:
    """Busy by day and free by night, 200 rounds a day."""
    rng = np.random.default_rng((2, seed))
    phase = 2 * math.pi * (np.arange(ROUNDS) / 200 + rng.random())
    return list((0.55 + 0.4 * np.sin(phase)) * np.exp(NOISE * rng.standard_normal(ROUNDS)))


def _process(kind: str, **keys: float) -> Callable[[int], list[float]]:
    """A kind of load that the simulation has, in slots."""

    def values(seed: int) -> list[float]:
        source = load_source(LoadModel(kind=kind, clock="slot", flops=1.0, **keys), 1, seed)  # type: ignore[arg-type]
        return [source.at(k).flops[0] for k in range(1, ROUNDS + 1)]

    return values


LOADS: dict[str, Callable[[int], list[float]]] = {
    "uniform, the paper's": uniform,
    "ar1, memory 0.9": lasting,
    "steps": steps,
    "daily rhythm": daily,
    "ar1, memory 0.99": _process("ar1", memory=0.99),
    "day and night": _process("daily"),
    "bursts": _process("bursts"),
}


def errors(name: str, values: list[float]) -> tuple[float, float, float]:
    """Summed absolute error, absolute logarithm of the quotient, and absolute error relative to the value."""
    predictor = predictor_named(name)
    plain = logarithmic = relative = 0.0
    for number, value in enumerate(values):
        predicted = predictor.predict()
        if number >= SKIPPED and predicted is not None:
            plain += abs(value - predicted)
            logarithmic += abs(math.log(value / predicted))
            relative += abs(value - predicted) / value
        predictor.update(value)
    return plain, logarithmic, relative


def compare(seeds: int) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Both errors of each predictor on each load, relative to `last`, and the mean absolute percentage error."""
    found: dict[str, dict[str, tuple[float, float, float]]] = {}
    for load, make in LOADS.items():
        series = [make(seed) for seed in range(seeds)]
        sums = {name: np.sum([errors(name, values) for values in series], axis=0) for name in predictor_names()}
        judged = seeds * (ROUNDS - SKIPPED)
        found[load] = {
            name: (float(q[0]), float(q[1]), 100 * float(sums[name][2]) / judged)
            for name in sums
            for q in [sums[name] / sums["last"]]
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer seeds")
    found = compare(5 if parser.parse_args().quick else 30)
    print("error relative to `last`: absolute / logarithmic")
    print(f"{'':22}", *(f"{name:>15}" for name in predictor_names()))
    missed = False
    for load, ratios in found.items():
        print(f"{load:22}", *(f"{plain:>7.3f} /{log:>6.3f}" for plain, log, _ in ratios.values()))
        for error in range(2):
            missed |= ratios[DEFAULT][error] > SLACK * min(1.0, ratios["ewma"][error])
    print("\nmean absolute percentage error")
    for load, ratios in found.items():
        print(f"{load:22}", *(f"{percent:>13.1f} %" for _, _, percent in ratios.values()))
    print(f"\ngoal, `{DEFAULT}` at most 2 % worse than the better of `last` and `ewma` everywhere:", end=" ")
    print("missed" if missed else "met")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
