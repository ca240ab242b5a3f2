from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.runtime.sites import Authority
from tramfl.notation import BadInput
from tramfl.runtime.operator.ports import free_ports
from tramfl.runtime.site.metrics import Metrics, metrics_address
from tramfl.runtime.transport import Credentials

REPORT = SimpleNamespace(flops=1e9, copies=(), incarnation=1)
REPORTER = cast(Any, SimpleNamespace(report=lambda: REPORT, record=None))
MEMBER = cast(Any, SimpleNamespace(log=SimpleNamespace(counts={"refused": 3}), me=0))


def test_an_address_is_a_port_of_loopback_or_a_host_and_a_port() -> None:
    assert metrics_address("9401") == ("127.0.0.1", 9401)
    assert metrics_address("[::]:9401") == ("::", 9401)
    with pytest.raises(BadInput, match=r"--metrics is '10\.0\.0\.7'; write host:port"):
        metrics_address("10.0.0.7")


def test_beyond_loopback_there_are_no_metrics_without_a_certificate() -> None:
    with pytest.raises(BadInput, match=r"--metrics on 0\.0\.0\.0 needs the site's certificate"):
        Metrics(REPORTER, MEMBER, ("0.0.0.0", 9401), None)


def test_beyond_loopback_metrics_are_served_with_the_sites_certificate(tmp_path: Path) -> None:
    authority = Authority()
    issued = authority.issue("ash")
    files = tmp_path / "ca.crt", tmp_path / "site.crt", tmp_path / "site.key"
    for path, content in zip(files, issued.now, strict=True):
        path.write_bytes(content)
    port = free_ports(1)[0]

    async def scraped() -> bytes:
        trust = ssl.create_default_context(cafile=str(files[0]))
        async with Metrics(REPORTER, MEMBER, ("0.0.0.0", port), Credentials.from_files(*files)):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=trust, server_hostname="ash", limit=1 << 20
            )
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: ash\r\n\r\n")
            found = await reader.read()
            writer.close()
        return found

    found = asyncio.run(scraped())
    assert found.startswith(b"HTTP/1.1 200 OK")
    assert b'tramfl_events_total{event="refused"} 3' in found
