"""How sites talk: gRPC with mutual TLS on one port, without generated code. serving.py answers, calling.py asks,
pouring.py sends models, docking.py receives them, probing.py tries a link.

Six methods. Load, Probe and Carry are for sites; Order, Rows and Model for the operator too:

    Load     AskLoad -> Load
    Probe    frames of up to 128 KiB -> an empty message for each, to learn the bandwidth
    Carry    Consignment, then (after Proceed) frames of 8 bytes offset and up to 1 MiB
             -> Proceed(offset) | Refused, then Proceed(offset) for what has arrived, then Accepted | Refused
    Order    Order -> OrderResult
    Rows     AskRows -> Rows, in as many messages as they take
    Model    AskModel -> 8 bytes size, then chunks

Without credentials the caller's name is the metadata `tramfl-site`, unchecked: every process of the machine is
trusted, so it works on loopback only.
"""

from tramfl.runtime.transport.calling import Distrusted, NotAccepted, Peers, Unreachable
from tramfl.runtime.transport.credentials import Credentials
from tramfl.runtime.transport.host import Host
from tramfl.runtime.transport.links import Refusal
from tramfl.runtime.transport.pouring import TransferRefused
from tramfl.runtime.transport.probing import Busy
from tramfl.runtime.transport.serving import Server

__all__ = [
    "Busy",
    "Credentials",
    "Distrusted",
    "Host",
    "NotAccepted",
    "Peers",
    "Refusal",
    "Server",
    "TransferRefused",
    "Unreachable",
]
