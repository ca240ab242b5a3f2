"""How long a round takes, eqs. (3)-(6).

T_comp  = M (L . X) / r_i
T_comm  = D_M / b_ij, and 0 where the model stays
T_idle  = H where nobody trains: `Round.skip` has it
T_round = T_comp + T_comm + T_idle
"""

from __future__ import annotations

from typing import TypeVar

from tramfl.notation import ModelCost, Reals

Amount = TypeVar("Amount", float, Reals)
"""One node's number, or those of many nodes."""


def compute_seconds(samples: Amount, cost: ModelCost, flops: Amount) -> Amount:
    """T_comp = M (L . X) / r: the time to train `samples` at `flops` FLOPS."""
    return cost.flops_per_sample * samples / flops


def transfer_seconds(cost: ModelCost, bandwidth: Amount) -> Amount:
    """T_comm = D_M / b: the time to send the model at `bandwidth` bit/s; 0 to oneself, where b is infinite."""
    return cost.model_bits / bandwidth
