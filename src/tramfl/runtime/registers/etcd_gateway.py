"""Asking etcd through its JSON gateway: several members, TLS, users.

What matters here is what a failure says. A connection that could not be opened says that nothing was asked: another
member may be asked instead. An answer that is late, broken or 5xx says nothing at all, and what may have been done
must not be asked for again: the caller gets `Silent` and reads the record before it acts. Only 4xx is a refusal.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tramfl.notation import BadInput
from tramfl.runtime.registers.contract import Silent
from tramfl.runtime.settings import RegisterSettings

Json = dict[str, Any]
Password = Callable[[], str]
"""Reads the user's password, anew whenever the user signs in; BadInput where it cannot."""

BROKEN = (httpx.HTTPError, OSError)
"""httpx does not wrap TLS errors after the handshake, such as that of a rejected certificate."""
TOKEN_FAULTS = ("invalid auth token", "revision of auth store is old", "user name is empty")
"""etcd's messages for a token that has expired, was lost in a restart, or is older than a change of users."""

SIZE_FAULTS = ("request is too large", "message larger than max")
"""etcd's message for a request that is too large; its limit is 1.5 MiB by default."""

NO_MAJORITY = "no member of etcd that is one of a majority answers"
"""A member that has lost the others answers nobody."""


class Unreached(Exception):
    """No connection was made, so nothing was requested."""


class Ambiguous(Exception):
    """The request may have been sent, and may have been carried out."""


class RefusedByEtcd(Exception):
    """The request was sent and not carried out."""


def text(value: str | bytes) -> str:
    """Bytes as the gateway writes them."""
    return b64encode(value.encode() if isinstance(value, str) else value).decode()


def content(value: str) -> bytes:
    """Bytes as the gateway wrote them."""
    return b64decode(value)


class Gateway:
    """The members of one etcd cluster; one at a time is asked, another when it fails."""

    def __init__(self, settings: RegisterSettings, password: Password | None = None) -> None:
        self._endpoints = tuple(_checked(endpoint) for endpoint in settings.endpoints)
        self._timeout = settings.timeout_seconds
        self._user = settings.user
        self._password = password
        self._token: str | None = None
        self._signing_in = asyncio.Lock()
        self._current = 0
        self._has_answered = False
        # Proxies from the environment are for the web, not for a register.
        self._client = httpx.AsyncClient(
            verify=_trust(settings), trust_env=False, limits=httpx.Limits(keepalive_expiry=60)
        )

    async def ask(self, path: str, body: Json, repeatable: bool) -> Json:
        """The answer of a member. What is not repeatable is sent once at most. Raises Silent or BadInput."""
        if self._client.is_closed:
            raise Silent("the register is closed")
        try:
            async with asyncio.timeout(self._timeout):
                return await self._ask_around(path, body, repeatable)
        except TimeoutError:
            self._turn_from(self._endpoints[self._current])
            raise Silent(f"{NO_MAJORITY} within {self._timeout:g} s") from None

    async def listen(self, path: str, body: Json) -> AsyncGenerator[Json, None]:
        """A stream of answers of one member, until it ends; one that has been silent for a minute counts as ended."""
        endpoint = self._endpoints[self._current]
        timeout = httpx.Timeout(self._timeout, read=60)
        try:
            await self._sign_in_if_needed(endpoint, self._timeout)
            # A member without a quorum must end the stream, not stay silent.
            headers = {**self._headers(), "Grpc-Metadata-hasleader": "true"}
            url = f"{endpoint}/v3/{path}"
            async with self._client.stream("POST", url, json=body, headers=headers, timeout=timeout) as response:
                if response.status_code != httpx.codes.OK:
                    self._token = None  # an old token is the likeliest reason, and a new one costs little
                    return
                async for line in response.aiter_lines():
                    yield msgspec.json.decode(line)
        except (*BROKEN, msgspec.DecodeError, Unreached, Ambiguous, RefusedByEtcd):
            self._turn_from(endpoint)

    async def close(self) -> None:
        """End all connections."""
        await self._client.aclose()

    async def _ask_around(self, path: str, body: Json, repeatable: bool) -> Json:
        deadline = time.monotonic() + self._timeout
        reasons: list[Exception] = []
        for others in reversed(range(len(self._endpoints))):
            endpoint, left = self._endpoints[self._current], max(0.001, deadline - time.monotonic())
            # Half of the remaining time for each but the last: a member that hangs must leave time for the others.
            patience = left / 2 if others else left
            try:
                return await self._ask_signed_in(endpoint, path, body, patience, patience if repeatable else left)
            except Unreached as error:
                reasons.append(error)
            except Ambiguous as error:
                reasons.append(error)
                if not repeatable:
                    self._turn_from(endpoint)
                    break
            except RefusedByEtcd as error:
                if not self._has_answered or any(fault in str(error) for fault in SIZE_FAULTS):
                    raise BadInput(f"etcd at {endpoint} refuses what is asked of it: {error}.") from None
                reasons.append(error)
                break
            self._turn_from(endpoint)
        raise self._failure(reasons)

    async def _ask_signed_in(self, endpoint: str, path: str, body: Json, connect: float, read: float) -> Json:
        await self._sign_in_if_needed(endpoint, connect)
        token = self._token
        try:
            return await self._post(endpoint, path, body, connect, read)
        except RefusedByEtcd as error:
            if self._user is None or not any(fault in str(error) for fault in TOKEN_FAULTS):
                raise
        if self._token == token:
            self._token = None
        await self._sign_in_if_needed(endpoint, connect)
        return await self._post(endpoint, path, body, connect, read)

    async def _sign_in_if_needed(self, endpoint: str, patience: float) -> None:
        if self._user is None or self._token is not None:
            return
        async with self._signing_in:
            if self._token is None:
                try:
                    credentials = {"name": self._user, "password": self._password() if self._password else ""}
                    answer = await self._post(endpoint, "auth/authenticate", credentials, patience, patience)
                except BadInput as error:
                    raise Unreached(str(error)) from error  # it may be replaced at this moment
                except Ambiguous as error:
                    raise Unreached(str(error)) from error  # only the login failed: the request itself was not sent
                self._token = str(answer.get("token", ""))

    async def _post(self, endpoint: str, path: str, body: Json, connect: float, read: float) -> Json:
        timeout = httpx.Timeout(read, connect=connect, pool=connect)
        try:
            response = await self._client.post(
                f"{endpoint}/v3/{path}", json=body, headers=self._headers(), timeout=timeout
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise Unreached(_says(endpoint, error)) from error
        except BROKEN as error:
            raise Ambiguous(_says(endpoint, error)) from error
        return self._judged(endpoint, path, response)

    def _judged(self, endpoint: str, path: str, response: httpx.Response) -> Json:
        status = response.status_code
        if status == httpx.codes.OK:
            try:
                answer: Json = msgspec.json.decode(response.content, type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise Ambiguous(f"{endpoint} gave an answer that is not JSON: {error}") from error
            # etcd grants leases without permission; only access to the keys shows that the user may work.
            self._has_answered = self._has_answered or path.startswith("kv/")
            return answer
        message = _message(response)
        # The gateway answers 408 for a cancelled call, which may have been carried out.
        if 400 <= status < 500 and status != httpx.codes.REQUEST_TIMEOUT:
            raise RefusedByEtcd(message)
        raise Ambiguous(f"{endpoint}: {message}")

    def _headers(self) -> dict[str, str]:
        return {} if self._token is None else {"Authorization": self._token}

    def _turn_from(self, endpoint: str) -> None:
        """Use another member from now on, unless a parallel call has switched already."""
        if self._endpoints[self._current] == endpoint:
            self._current = (self._current + 1) % len(self._endpoints)

    def _failure(self, reasons: list[Exception]) -> Exception:
        """Silent; but where etcd has never answered and TLS is what fails, a mistake in the settings."""
        if not self._has_answered:
            for reason in reasons:
                if fault := _tls_fault(reason):
                    return BadInput(
                        f"etcd cannot be spoken to ({fault}): check the register's endpoints, authorities, "
                        "certificate and key."
                    )
        # Where only one side uses TLS, or a certificate is missing, etcd may just close the connection.
        hint = "; it has never answered: check http or https, and whether it asks for a certificate"
        hint = "" if self._has_answered else hint
        why = "; ".join(str(reason) for reason in reasons) + hint
        refused = any(isinstance(reason, RefusedByEtcd) for reason in reasons)
        return Silent(why if refused else f"{NO_MAJORITY}: {why}")


def _says(endpoint: str, error: Exception) -> str:
    return f"{endpoint}: {str(error) or type(error).__name__}"


def _message(response: httpx.Response) -> str:
    """What etcd says of an error, in one line."""
    try:
        said = msgspec.json.decode(response.content, type=dict[str, Any])
        message = str(said.get("message") or said.get("error") or said)
    except msgspec.DecodeError:
        message = response.text
    return f"{' '.join(message.split())[:300].rstrip('.')} (HTTP {response.status_code})"


def _tls_fault(error: BaseException | None) -> str | None:
    """What is wrong with TLS, not with the line, if that is what an error comes from."""
    while error is not None:
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return str(getattr(error, "verify_message", "") or error.reason or error)
        error = error.__cause__ or error.__context__
    return None


def _checked(endpoint: str) -> str:
    try:
        url = httpx.URL(endpoint)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host or url.path not in ("", "/") or url.query:
        raise BadInput(f"register.endpoints has {endpoint!r}; write it as https://host:2379.")
    return endpoint.rstrip("/")


def _trust(settings: RegisterSettings) -> ssl.SSLContext:
    """The authorities to trust, and the certificate to present."""
    if (settings.certificate is None) != (settings.key is None):
        raise BadInput("register.certificate and register.key belong together; give both or neither.")
    context = _believing(settings.authorities)
    if settings.certificate is not None and settings.key is not None:
        _readable(settings.certificate, "certificate")
        _readable(settings.key, "key")
        try:
            context.load_cert_chain(settings.certificate, settings.key)
        except (ssl.SSLError, OSError) as error:
            raise BadInput(
                f"register.certificate {settings.certificate} and register.key {settings.key} are no pair: {error}."
            ) from None
    return context


def _believing(authorities: str | None) -> ssl.SSLContext:
    if authorities is None:
        return ssl.create_default_context()
    _readable(authorities, "authorities")
    try:
        return ssl.create_default_context(cafile=authorities)
    except (ssl.SSLError, OSError) as error:
        raise BadInput(f"register.authorities names {authorities}, which holds no certificates: {error}.") from None


def _readable(path: str, key: str) -> None:
    try:
        Path(path).read_bytes()
    except OSError as error:
        raise BadInput(f"register.{key} names {path}, which cannot be read: {error.strerror}.") from None
