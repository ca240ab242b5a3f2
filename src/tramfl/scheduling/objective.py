"""O3, the samples per second of the whole run, and the "S* or 0" rule.

    O3(S) = (S + S_total) / (T_round + T_total + 1)

On S >= 1, O3 is monotone in S, so P3 is solved at an end: S*, the most that P4 allows, or 0, to wait
for H seconds. A skipped round sends nothing: its T_round is H alone.
"""

from __future__ import annotations

from tramfl.scheduling.timing import Amount


def samples_per_second(samples: Amount, round_seconds: Amount, before: int, passed: float) -> Amount:
    """O3 after a round of `samples` in `round_seconds`, where `before` samples took `passed` seconds."""
    return (samples + before) / (round_seconds + passed + 1.0)


def worth_training(samples: int, score: float, score_of_waiting: float) -> bool:
    """The rule: S* if O3(S*) >= O3(0), else 0; and nothing to train is never worth it."""
    return samples >= 1 and score >= score_of_waiting
