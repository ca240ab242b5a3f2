"""Figures for Prometheus, as text over HTTP on loopback, or over HTTPS on an address: `tramfl node --metrics`."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from types import TracebackType

from tramfl.hosts import is_loopback
from tramfl.notation import BadInput
from tramfl.runtime.settings import host_and_port
from tramfl.runtime.site.member import Member
from tramfl.runtime.site.report import Reporter
from tramfl.runtime.transport import Credentials

LOOPBACK = "127.0.0.1"
_REQUEST_BYTES = 8192
_REQUEST_SECONDS = 5.0


class Metrics:
    """Serves the figures of one site."""

    def __init__(
        self, reporter: Reporter, member: Member, address: tuple[str, int], credentials: Credentials | None
    ) -> None:
        """Beyond loopback the figures are served over TLS, with the site's certificate."""
        self._reporter, self._member, self._address = reporter, member, address
        self._tls = None if is_loopback(address[0]) else _tls(address[0], credentials)
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Metrics:
        try:
            host, port = self._address
            self._server = await asyncio.start_server(self._serve, host, port, limit=_REQUEST_BYTES, ssl=self._tls)
        except OSError as error:
            raise BadInput(f"--metrics {host}:{port}: the address cannot be used ({error.strerror}).") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            async with asyncio.timeout(_REQUEST_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                found = request.startswith(b"GET /metrics ")
                body = self.text().encode() if found else b"see /metrics\n"
                status = b"200 OK" if found else b"404 Not Found"
                writer.write(
                    b"HTTP/1.1 " + status + b"\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    b"Connection: close\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
                )
                await writer.drain()
        writer.close()

    def text(self) -> str:
        """The figures, in Prometheus' text format."""
        report, record = self._reporter.report(), self._reporter.record
        lines = [
            *_gauge("tramfl_site_flops", "FLOPS this site can spare.", report.flops or 0.0),
            *_gauge("tramfl_site_copies", "Weights on this site's disk.", len(report.copies)),
            *_gauge("tramfl_site_incarnation", "How often this site was started.", report.incarnation),
        ]
        if record is not None:
            lines += [
                *_gauge("tramfl_running", "Whether the run is running.", int(record.status == "running")),
                *_gauge("tramfl_round", "Rounds done.", record.round),
                *_gauge("tramfl_epoch", "Grows with every takeover.", record.epoch),
                *_gauge("tramfl_safe_round", "The newest round that two sites have on disk.", record.safe.round),
                *_gauge("tramfl_samples", "Samples trained.", record.ledger.samples),
                *_gauge(
                    "tramfl_seconds", "Training, transfer, waiting and lost time, T_total.", record.ledger.seconds
                ),
                *_gauge("tramfl_label_variance", "Held below V.", record.ledger.label_variance),
                *_gauge(
                    "tramfl_is_holder", "Whether this site holds the model.", int(record.holder == self._member.me)
                ),
            ]
        lines += ["# HELP tramfl_events_total Lines of the log, by event.", "# TYPE tramfl_events_total counter"]
        counts = sorted(self._member.log.counts.items())
        lines += [f'tramfl_events_total{{event="{name}"}} {count}' for name, count in counts]
        return "\n".join(lines) + "\n"


def metrics_address(text: str) -> tuple[str, int]:
    """`PORT` of loopback, or `HOST:PORT`."""
    if text.isascii() and text.isdecimal():
        text = f"{LOOPBACK}:{text}"
    return host_and_port(text, "--metrics")


def _tls(host: str, credentials: Credentials | None) -> ssl.SSLContext:
    if credentials is None or credentials.files is None:
        raise BadInput(f"--metrics on {host} needs the site's certificate; without it only loopback will do.")
    _, certificate, key = credentials.files
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context


def _gauge(name: str, about: str, value: float) -> tuple[str, str, str]:
    return f"# HELP {name} {about}", f"# TYPE {name} gauge", f"{name} {value!r}"
