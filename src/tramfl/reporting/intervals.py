"""How sure a mean over seeds is: 95 % confidence intervals, and differences between policies on equal seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_Z = statistics.NormalDist().inv_cdf(0.975)
_SMALL = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139)
"""The 97.5 % quantile of Student's t with 1 to 10 degrees of freedom."""


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; above 10 degrees of freedom by Fisher's expansion, right to 5 digits."""
    if freedom <= len(_SMALL):
        return _SMALL[freedom - 1]
    z, n = _Z, float(freedom)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


def mean_of(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return math.fsum(values) / len(values) if values else None


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % confidence interval of the mean, by Student's t; None below two values."""
    if len(values) < 2:
        return None
    return t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
