"""Table I of the paper: virtual seconds to reach two accuracies; None where it prints a dash."""

from __future__ import annotations

LAYOUTS = ("3", "5", "10", "5-uneven")
TARGETS = {"mnist": (0.7, 0.9), "cifar10": (0.6, 0.8)}

_Times = tuple[float | None, float | None, float | None, float | None]
_MNIST: dict[str, tuple[_Times, _Times]] = {
    "load-aware": ((15.69, 27.05, 16.38, 5.09), (31.07, 43.13, 25.42, 11.91)),
    "random": ((12.46, None, None, 42.21), (46.25, None, None, 85.93)),
    "time-first": ((38.33, 54.58, 73.31, 34.80), (47.77, None, None, None)),
    "variance-first": ((24.92, None, 106.35, None), (64.78, None, 171.36, None)),
}
_CIFAR10: dict[str, tuple[_Times, _Times]] = {
    "load-aware": ((160.46, 150.40, 110.44, 73.72), (217.44, 611.65, 273.68, 180.00)),
    "random": ((226.04, 483.60, 523.45, 259.37), (330.55, 1619.09, 1224.85, 746.89)),
    "time-first": ((314.51, 295.29, 320.97, 390.45), (652.10, 835.27, 638.37, None)),
    "variance-first": ((306.80, 842.46, 550.04, 232.59), (608.28, None, None, 961.27)),
}
_TABLE = {"mnist": _MNIST, "cifar10": _CIFAR10}

POLICIES = tuple(_MNIST)


def paper_seconds(dataset: str, layout: str, policy: str, target: float) -> float | None:
    """What Table I says, or None for a dash or for what is not in it."""
    if dataset not in _TABLE or target not in TARGETS[dataset] or policy not in POLICIES or layout not in LAYOUTS:
        return None
    return _TABLE[dataset][policy][TARGETS[dataset].index(target)][LAYOUTS.index(layout)]
