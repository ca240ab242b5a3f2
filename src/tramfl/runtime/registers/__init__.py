"""Where the record lives: who holds the model, which sites are alive, and the rows of committed rounds.

One contract (`Register`), a SQLite file for sites on one machine, and etcd for sites on many. `opening.open_register`
gives the one that a federation names; it is not imported here, since only it needs an HTTP client.
"""

from tramfl.runtime.registers.checked import CheckedRegister
from tramfl.runtime.registers.contract import ABSENT, AGREEMENT, LeaseLost, LeaseTaken, Register, Silent, Standing

__all__ = ["ABSENT", "AGREEMENT", "CheckedRegister", "LeaseLost", "LeaseTaken", "Register", "Silent", "Standing"]
