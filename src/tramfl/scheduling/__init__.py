"""Who trains next, and on what: the paper's equations, its exact solver and the policies, in pure NumPy.

Nothing here reads a clock, draws a number, opens a file or a socket: generators arrive as arguments.
"""

from tramfl.scheduling.policy import Policy, PolicySettings, policy_named, policy_names
from tramfl.scheduling.water_level import Allotment, largest_allotment
from tramfl.scheduling.weighing import BasePolicy, Round

__all__ = [
    "Allotment",
    "BasePolicy",
    "Policy",
    "PolicySettings",
    "Round",
    "largest_allotment",
    "policy_named",
    "policy_names",
]
