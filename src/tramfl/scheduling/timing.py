"""How long a round takes, eqs. (3)-(6).

T_comp  = M (L . X) / r_i
T_comm  = D_M / b_ij, and 0 where the model stays
T_idle  = H where nobody trains
T_round = T_comp + T_comm + T_idle
"""

from __future__ import annotations

from tramfl.notation import ModelCost


def compute_seconds(samples: int, cost: ModelCost, flops: float) -> float:
    """T_comp = M (L . X) / r: the time to train `samples` at `flops` FLOPS."""
    return cost.flops_per_sample * samples / flops


def transfer_seconds(cost: ModelCost, bandwidth: float) -> float:
    """T_comm = D_M / b: the time to send the model at `bandwidth` bit/s; 0 to oneself, where b is infinite."""
    return cost.model_bits / bandwidth


def idle_seconds(samples: int, wait_seconds: float) -> float:
    """T_idle = H if fewer than one sample is trained, else 0."""
    return wait_seconds if samples < 1 else 0.0
