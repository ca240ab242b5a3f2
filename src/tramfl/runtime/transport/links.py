"""What both ends of a connection share: how messages are coded and how large they may be."""

from __future__ import annotations

import re
from typing import TypeVar

import grpc
import msgspec
from msgspec import Struct

from tramfl.runtime.wire import PROTOCOL
from tramfl.version import __version__

SERVICE = f"tramfl.v{PROTOCOL}.Site"
"""Its name has the protocol's number: sites of different protocols never take each other's messages for their own."""
SITE_KEY = "tramfl-site"
"""Metadata that names the speaker where there is no TLS to prove it."""
SMALL_BYTES = 256 << 10
"""Messages other than chunks; an assignment that weighs 100 sites takes some 20 KB."""
MESSAGE_BYTES = 4 << 20
"""gRPC itself ends a call with a larger message; what is smaller and still too large is refused, and logged, here."""
KEEPALIVE_SECONDS = 10
"""A peer that neither sends nor answers for this long ..."""
KEEPALIVE_GRACE_SECONDS = 20
"""... and does not answer a ping within this time is gone: stopped, or behind a cut cable. On a slow link a ping
waits behind megabytes of weights, so this is not less."""
WINDOW_BYTES = 4 << 20
"""How far a sender may be ahead of what the receiver has read: 800 Mbit/s over a link of 40 ms there and back."""

OTHER_SERVICE = re.compile(r"tramfl(\.v\d{1,9})?\.Site")
"""The service of any version; the first versions had no protocol number in its name."""
SAME_VERSION = "all sites of a federation, and its operator, need the same minor version of tramfl"

T = TypeVar("T")


class Refusal(Exception):
    """The peer, or this site, will not do what was asked; the message says why."""

    def __init__(self, reason: str, code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION) -> None:
        super().__init__(reason)
        self.code = code


def options(*more: tuple[str, object]) -> list[tuple[str, object]]:
    """gRPC's settings for either end."""
    return [
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        ("grpc.max_send_message_length", MESSAGE_BYTES),
        ("grpc.max_metadata_size", 16 << 10),
        ("grpc.absolute_max_metadata_size", 32 << 10),
        ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_GRACE_SECONDS * 1000),
        # Without this setting gRPC waits a minute for a ping, in spite of the keepalive's timeout.
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_GRACE_SECONDS * 1000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_frame_size", 1 << 20),
        # A fixed window: gRPC's own estimate grows it to tens of megabytes where the receiver's disk is slow.
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.enable_retries", 0),
        *more,
    ]


def encode(message: Struct) -> bytes:
    """A message as it travels."""
    return msgspec.msgpack.encode(message)


def decode(content: bytes, kind: type[T], most: int = SMALL_BYTES) -> T:
    """A message that came. Raises Refusal if it is none of this kind."""
    if len(content) > most:
        raise Refusal(f"a message of {len(content)} bytes is too large", grpc.StatusCode.INVALID_ARGUMENT)
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        name = getattr(kind, "__name__", "reply")
        raise Refusal(f"this is no {name}: {str(error)[:200]}", grpc.StatusCode.INVALID_ARGUMENT) from None


def other_protocol(path: str) -> str | None:
    """Why a call of the method at `path` is not for this site, if it is one of another protocol of tramfl's."""
    service = path.removeprefix("/").rpartition("/")[0]
    if service == SERVICE or not OTHER_SERVICE.fullmatch(service):
        return None
    return f"the caller speaks {service}, and this site, with tramfl {__version__}, {SERVICE}; {SAME_VERSION}"


def not_understood(site: str) -> str:
    """Why a call that `site` has no method for failed: it is of another version."""
    return f"{site} does not speak {SERVICE}, as tramfl {__version__} here does; {SAME_VERSION}"


def method(name: str) -> str:
    """A method's full name."""
    return f"/{SERVICE}/{name}"
