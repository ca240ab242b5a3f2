"""O3, the samples per second of the whole run, and the "S* or 0" rule.

    O3(S) = (S + S_total) / (T_round + T_total + 1)

On S >= 1, O3 is monotone in S, so P3 is solved at an end: S*, the most that P4 allows, or 0, to wait
for H seconds. A skipped round sends nothing: its T_round is H alone.
"""

from __future__ import annotations

from tramfl.notation import Ledger


def samples_per_second(samples: int, round_seconds: float, ledger: Ledger) -> float:
    """O3: samples over seconds of the whole run after a round with `samples` that took `round_seconds`."""
    return (samples + ledger.samples) / (round_seconds + ledger.seconds + 1.0)


def worth_training(samples: int, score: float, score_of_waiting: float) -> bool:
    """The rule: S* if O3(S*) >= O3(0), else 0; and nothing to train is never worth it."""
    return samples >= 1 and score >= score_of_waiting
