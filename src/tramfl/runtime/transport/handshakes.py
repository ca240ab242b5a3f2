"""Connections that fail before anyone has said who they are: wrong authority, expired, no certificate, no TLS.

gRPC's core rejects them and reports them only in its own log, on file descriptor 2, in lines such as

    I1116 00:38:01.310316    7208 ssl_transport_security.cc:2563] Handshake failed with error SSL_ERROR_SSL: error:...

so they are picked up there. The line does not name the peer, which has not proved any name. A site that refuses the
certificate of a site it calls leaves the same lines. Warnings and errors about anything else are logged, too, so that
a site's log has JSON lines alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable

CORE_LINE = re.compile(rb"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w.]+:\d+\] (.*)")
FAILURE = "Handshake failed with"
NOISE = (b"is not suitable for production", b"All log messages before absl::InitializeLog()")
"""What the core says because we ask for its log."""
REASONS = {
    "certificate has expired": "the certificate has expired",
    "certificate is not yet valid": "the certificate is not valid yet; is a clock wrong?",
    "certificate signature failure": "the certificate is not of this federation's authority",
    "CERTIFICATE_VERIFY_FAILED": "the certificate is not of this federation's authority",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no certificate was shown",
    "WRONG_VERSION_NUMBER": "this was not TLS",
    "HTTP_REQUEST": "this was not TLS",
    "HTTPS_PROXY_REQUEST": "this was not TLS",
}
BURST = 20
"""This many lines in BURST_SECONDS are logged one by one; of more, only the first line after them has the number."""
BURST_SECONDS = 10.0
MOST_LINE_BYTES = 1 << 16


def watch(log: Callable[..., None]) -> Callable[[], None]:
    """Log failed handshakes from now on as `refused`, other warnings as `grpc`; call what is returned to end that.

    From here on descriptor 2 is a pipe; what is written to it besides goes where it went before. `log` is called from
    a thread. There is nothing to pick up where the environment variable GRPC_VERBOSITY was ERROR or NONE when this
    process imported gRPC; it should be unset.
    """
    sys.stderr.flush()
    before = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    thread = threading.Thread(target=_follow, args=(reading, before, log), name="handshakes", daemon=True)
    thread.start()
    python_stderr = sys.stderr
    # The last error message of this process must not depend on a thread.
    sys.stderr = open(os.dup(before), "w", buffering=1, errors="backslashreplace")  # noqa: SIM115

    def end() -> None:
        sys.stderr = python_stderr
        os.dup2(before, 2)  # closes the pipe, and with it the thread, unless a child still has it
        thread.join(1.0)

    return end


def reason_in(line: str) -> str | None:
    """Why a handshake failed, if this line of the core's log is about one."""
    if FAILURE not in line:
        return None
    return next((reason for sign, reason in REASONS.items() if sign in line), line[:300])


def _follow(reading: int, before: int, log: Callable[..., None]) -> None:
    refused = _Valve(lambda reason: log("refused", peer="?", what="connection", reason=reason), "handshakes failed")
    warned = _Valve(lambda reason: log("grpc", reason=reason), "warnings of gRPC")
    rest = b""
    while block := os.read(reading, MOST_LINE_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            _sort(line, before, refused, warned)
        if len(rest) > MOST_LINE_BYTES or not CORE_LINE.match(rest):
            # An incomplete line of other code, perhaps a prompt, is passed on without waiting for its end.
            _pass_on(before, rest)
            rest = b""


def _sort(line: bytes, before: int, refused: _Valve, warned: _Valve) -> None:
    if any(noise in line for noise in NOISE):
        return
    core = CORE_LINE.match(line)
    if core is None:
        _pass_on(before, line + b"\n")
        return
    text = core[1].decode("utf-8", "replace")
    if (reason := reason_in(text)) is not None:
        refused.tell(reason, time.monotonic())
    elif not line.startswith(b"I"):
        warned.tell(text[:300], time.monotonic())


def _pass_on(before: int, text: bytes) -> None:
    """Drop what cannot be written: writers would block for ever, since this thread is the only reader."""
    with contextlib.suppress(OSError):
        os.write(before, text)


class _Valve:
    """Lets a few lines through and counts the others: a port scan must not fill the log."""

    def __init__(self, log: Callable[[str], None], what: str) -> None:
        self._write, self._what = log, what
        self._since = float("-inf")
        self._count = 0

    def tell(self, reason: str, at: float) -> None:
        """Log this, unless there was much just now."""
        if at - self._since > BURST_SECONDS:
            unsaid, self._since, self._count = max(0, self._count - BURST), at, 0
            if unsaid:
                self._write(f"{unsaid} more {self._what}")
        self._count += 1
        if self._count <= BURST:
            self._write(reason)
