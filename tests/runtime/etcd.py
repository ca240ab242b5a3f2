"""An etcd cluster for tests and benchmarks: real members on this machine, each a process to kill or to freeze.

    with EtcdCluster(folder, tls=True) as cluster:
        register = EtcdRegister(cluster.settings(), "federation", node="a", lease_seconds=2)
        cluster.kill(cluster.leader())

Members keep their data in `folder`, listen on free ports, sync to disk as in earnest, and hold elections quickly.
Only processes that the cluster started are ended, by their id; the machine's own etcd service is never spoken to.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.system_parts import TIED, require
from tramfl.runtime.operator.ports import free_ports
from tramfl.runtime.settings import RegisterSettings

HEARTBEAT_MS = 100
ELECTION_MS = 1000
"""etcd's own defaults: with less, a busy machine has elections of which no test knows. A dead leader is replaced
after 1 to 2 s; etcd makes no lease shorter than 1.5 times this, in whole seconds."""
STARTING_SECONDS = 180.0
Key = ec.EllipticCurvePrivateKey


class EtcdCluster:
    """Some members of one cluster, by number.

    `hosts` are the addresses they listen on, `prefixes` what comes before `etcd` in each member's command (such as
    `ip netns exec NAME`). With `tls`, clients and members must trust `authority`; with `client_certificates` as
    well, clients must show `certificate` and `key`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        members: int = 3,
        tls: bool = False,
        client_certificates: bool = False,
        hosts: Sequence[str] | None = None,
        prefixes: Sequence[Sequence[str]] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self._program = require("etcd")
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self._hosts = tuple(hosts or ("127.0.0.1",) * members)
        self._prefixes = tuple(prefixes or ((),) * members)
        self._options = tuple(options)
        self._tls = tls
        self._client_certificates = client_certificates
        self._scheme = "https" if tls else "http"
        ports = free_ports(2 * members)
        self._client_ports, self._peer_ports = ports[:members], ports[members:]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * members
        self.authority = folder / "ca.crt"
        self.certificate, self.key = folder / "etcd.crt", folder / "etcd.key"
        if tls:
            write_certificates(folder, self._hosts)

    def __enter__(self) -> EtcdCluster:
        """Start every member and wait until they agree on a leader."""
        try:
            self.start(*self.numbers)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def numbers(self) -> range:
        """The members."""
        return range(len(self._hosts))

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Where clients reach each member."""
        return tuple(f"{self._scheme}://{h}:{p}" for h, p in zip(self._hosts, self._client_ports, strict=True))

    def settings(self, **changes: Any) -> RegisterSettings:
        """How a register reaches the cluster."""
        settings: dict[str, Any] = {"kind": "etcd", "endpoints": self.endpoints}
        if self._tls:
            settings["authorities"] = str(self.authority)
        if self._client_certificates:
            settings |= {"certificate": str(self.certificate), "key": str(self.key)}
        return RegisterSettings(**settings | changes)

    def pid(self, member: int) -> int:
        """The process of a member that runs."""
        process = self._processes[member]
        assert process is not None, f"member {member} does not run"
        return process.pid

    def start(self, *members: int) -> None:
        """Start members, for the first time or again, and wait until each answers (which takes a majority)."""
        self.launch(*members)
        for member in members:
            self.wait_until_healthy(member)

    def launch(self, *members: int) -> None:
        """Start members and do not wait."""
        for member in members:
            assert self._processes[member] is None, f"member {member} runs already"
            with (self.folder / f"m{member}.log").open("ab") as log:
                self._processes[member] = subprocess.Popen(
                    [*TIED, *self._command(member)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # A member that was started from a shell in the background would ignore interrupts; in a session
                    # of its own it also does not hear those meant for the tests.
                    start_new_session=True,
                )

    def kill(self, *members: int) -> None:
        """End members at once, as a power cut does."""
        for member in members:
            self._end(member, signal.SIGKILL)

    def terminate(self, *members: int) -> None:
        """End members in an orderly way."""
        for member in members:
            self._end(member, signal.SIGTERM)

    def stop(self, *members: int) -> None:
        """Freeze members: their connections stay, and nothing answers."""
        for member in members:
            os.kill(self.pid(member), signal.SIGSTOP)

    def cont(self, *members: int) -> None:
        """Let frozen members go on."""
        for member in members:
            os.kill(self.pid(member), signal.SIGCONT)

    def restart(self, *members: int) -> None:
        """Kill those of the members that run, and start them all."""
        self.kill(*(m for m in members if self._processes[m] is not None))
        self.start(*members)

    def heal(self) -> None:
        """Every member runs again and answers."""
        self.cont(*(m for m in self.numbers if self._processes[m] is not None))
        self.launch(*(m for m in self.numbers if self._processes[m] is None))
        for member in self.numbers:
            self.wait_until_healthy(member)

    def end(self) -> None:
        """End every member."""
        for member in self.numbers:
            if self._processes[member] is not None:
                self._end(member, signal.SIGKILL)

    def leader(self) -> int:
        """The member that leads, once there is one."""
        deadline = time.monotonic() + STARTING_SECONDS
        while time.monotonic() < deadline:
            for member in self.numbers:
                status = self._status(member) if self._processes[member] is not None else {}
                if status.get("leader", "0") == status.get("header", {}).get("member_id", "none"):
                    return member
            time.sleep(0.05)
        raise AssertionError(f"no leader; see the logs in {self.folder}")

    def followers(self) -> tuple[int, ...]:
        """The members that do not lead."""
        leader = self.leader()
        return tuple(m for m in self.numbers if m != leader)

    def wait_until_healthy(self, member: int) -> None:
        """Until a member is one of a majority that has a leader."""
        deadline = time.monotonic() + STARTING_SECONDS
        while time.monotonic() < deadline:
            process = self._processes[member]
            if process is not None and process.poll() is not None:
                raise AssertionError(f"member {member} ended by itself:\n{self._log(member)}")
            if self._is_healthy(member):
                return
            time.sleep(0.05)
        raise AssertionError(f"member {member} is not healthy:\n{self._log(member)}")

    def ask(self, path: str, body: dict[str, Any], member: int = 0, token: str | None = None) -> httpx.Response:
        """Ask a member something through its gateway, apart from any register."""
        headers = {} if token is None else {"Authorization": token}
        with self._client() as client:
            return client.post(f"{self.endpoints[member]}/v3/{path}", json=body, headers=headers, timeout=60)

    def _command(self, member: int) -> list[str]:
        peers = [f"{self._scheme}://{h}:{p}" for h, p in zip(self._hosts, self._peer_ports, strict=True)]
        secure = {
            "--cert-file": self.certificate,
            "--key-file": self.key,
            "--peer-cert-file": self.certificate,
            "--peer-key-file": self.key,
            "--peer-trusted-ca-file": self.authority,
        }
        options: dict[str, object] = {
            "--name": f"m{member}",
            "--data-dir": self.folder / f"m{member}",
            "--listen-client-urls": self.endpoints[member],
            "--advertise-client-urls": self.endpoints[member],
            "--listen-peer-urls": peers[member],
            "--initial-advertise-peer-urls": peers[member],
            "--initial-cluster": ",".join(f"m{m}={peer}" for m, peer in enumerate(peers)),
            "--initial-cluster-state": "new",
            "--heartbeat-interval": HEARTBEAT_MS,
            "--election-timeout": ELECTION_MS,
            **(secure if self._tls else {}),
        }
        flags = ["--peer-client-cert-auth"] if self._tls else []
        # To name an authority for clients is to demand certificates of them.
        flags += ["--client-cert-auth", "--trusted-ca-file", str(self.authority)] if self._client_certificates else []
        words = [word for option, value in options.items() for word in (option, str(value))]
        return [*self._prefixes[member], self._program, *words, *flags, *self._options]

    def _end(self, member: int, how: signal.Signals) -> None:
        process = self._processes[member]
        assert process is not None, f"member {member} does not run"
        process.send_signal(how)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)  # one that is frozen hears nothing but a kill
        process.wait(timeout=STARTING_SECONDS)
        self._processes[member] = None

    def _is_healthy(self, member: int) -> bool:
        with contextlib.suppress(httpx.HTTPError, ValueError), self._client() as client:
            answer = client.get(f"{self.endpoints[member]}/health", timeout=5)
            return answer.status_code == httpx.codes.OK and answer.json().get("health") in ("true", True)
        return False

    def _status(self, member: int) -> dict[str, Any]:
        with contextlib.suppress(httpx.HTTPError, ValueError), self._client() as client:
            url = f"{self.endpoints[member]}/v3/maintenance/status"
            status: dict[str, Any] = client.post(url, json={}, timeout=5).json()
            return status
        return {}

    def _client(self) -> httpx.Client:
        verify: ssl.SSLContext | bool = False
        if self._tls:
            verify = ssl.create_default_context(cafile=str(self.authority))
            if self._client_certificates:
                verify.load_cert_chain(self.certificate, self.key)
        return httpx.Client(verify=verify, trust_env=False)

    def _log(self, member: int) -> str:
        lines = (self.folder / f"m{member}.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-20:])


def write_certificates(folder: Path, hosts: Iterable[str]) -> None:
    """A private authority (`ca.crt`) and one certificate (`etcd.crt`, `etcd.key`) for all members and clients."""
    authority, issuer = ec.generate_private_key(ec.SECP256R1()), _name("etcd authority")
    basic = x509.BasicConstraints(ca=True, path_length=None)
    (folder / "ca.crt").write_bytes(
        _pem(_builder(issuer, issuer, authority).add_extension(basic, critical=True).sign(authority, hashes.SHA256()))
    )
    key = ec.generate_private_key(ec.SECP256R1())
    addresses = [x509.IPAddress(ipaddress.ip_address(host)) for host in sorted({*hosts, "127.0.0.1", "::1"})]
    # A member's gateway is a client of the member itself: without CLIENT_AUTH it answers 503.
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = (
        _builder(_name("etcd"), issuer, key)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost"), *addresses]), critical=False)
        .add_extension(usages, critical=False)
        .sign(authority, hashes.SHA256())
    )
    (folder / "etcd.crt").write_bytes(_pem(certificate))
    (folder / "etcd.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: Key) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
