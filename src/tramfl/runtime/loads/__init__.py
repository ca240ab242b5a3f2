"""What a site can spare: its speed of training and the bandwidth to its peers, measured, kept and predicted.

`Meters` is all of it; the parts are compute.py (r_i), links.py (b_ij), machine.py (what others use) and history.py.
`PeerClocks` is how far the clocks of other sites differ from this site's.
"""

from tramfl.runtime.loads.clocks import PeerClocks
from tramfl.runtime.loads.meters import Meters

__all__ = ["Meters", "PeerClocks"]
