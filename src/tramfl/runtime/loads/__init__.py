"""What a site can spare: its speed of training and the bandwidth to its peers, measured, kept and predicted."""

from tramfl.runtime.loads.meters import Meters
from tramfl.runtime.loads.probe import Machine

__all__ = ["Machine", "Meters"]
