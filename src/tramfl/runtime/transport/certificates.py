"""Who a site is: a private authority, one certificate a site, and what preflight checks of them.

A site's name is both the common name and a DNS name of its certificate, so that TLS checks a peer by its name in the
federation, wherever its address leads. Every certificate serves both ways: a site calls and is called.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from tramfl.notation import BadInput
from tramfl.record import write_atomically

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as missing:
    raise BadInput(f"certificates need {missing.name}: install it with pip install 'tramfl[runtime]'.") from None

_UNREADABLE = (
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    UnsupportedAlgorithm,
)
"""What cryptography raises for certificates that it does not read, beside ValueError."""
CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
KNOWN_CERTIFICATES = 256
"""How many callers' certificates a reader keeps as read."""
AUTHORITY_DAYS = 3650
SITE_DAYS = 365
SKEW = timedelta(hours=1)
"""A certificate is valid from this long before its issue, since the clocks of sites differ."""
_DAY = timedelta(days=1)
_ORGANISATION = "tramfl authority"
"""Keeps an authority's subject apart from that of a site with the same name, which would look self-signed."""


class CertificateInfo(Struct, frozen=True, kw_only=True):
    """What a certificate says."""

    name: str
    """The common name."""
    names: tuple[str, ...]
    """Every host name and address it is good for."""
    issuer: str
    """The common name of who issued it."""
    serial: str
    """In hexadecimal digits, as openssl shows it."""
    not_before: datetime
    not_after: datetime
    issued: float
    """When it was issued, in seconds since 1970."""
    fingerprint: str
    """SHA-256 of the certificate, in hexadecimal digits."""
    days_left: float
    """Negative once it has expired."""
    authority: bool
    """Whether it may issue others."""


@dataclass(frozen=True)
class Issued:
    """A certificate and the key that belongs to it."""

    certificate_pem: bytes
    key_pem: bytes

    def save(self, certificate: Path, key: Path) -> None:
        """Write both; the key first and for its owner alone, so that no certificate is without its key."""
        write_private(key, self.key_pem)
        write_atomically(certificate, self.certificate_pem)


class Authority:
    """Issues the certificates of one federation. Its key never leaves the operator."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate, self._key = certificate, key

    @classmethod
    def create(cls, name: str, days: float = AUTHORITY_DAYS, now: datetime | None = None) -> Authority:
        """A new authority."""
        now = now or datetime.now(UTC)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANISATION),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = (
            _builder(subject, subject, key.public_key(), now - SKEW, now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(identifier, critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """The authority whose certificate and key lie in `folder`."""
        certificate = _certificate(_read(folder / CA_CERTIFICATE), str(folder / CA_CERTIFICATE))
        key = _private_key(_read(folder / CA_KEY), str(folder / CA_KEY))
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise BadInput(f"{folder / CA_KEY} is not the key of {folder / CA_CERTIFICATE}.")
        if not _may_issue(certificate):
            raise BadInput(f"{folder / CA_CERTIFICATE} is not the certificate of an authority.")
        return cls(certificate, key)

    def save(self, folder: Path, stem: str = "ca") -> None:
        """Write certificate and key to `folder`, the key for its owner alone."""
        folder.mkdir(parents=True, exist_ok=True)
        Issued(self.certificate_pem, _key_pem(self._key)).save(folder / f"{stem}.crt", folder / f"{stem}.key")

    @property
    def certificate_pem(self) -> bytes:
        """The certificate by which sites recognise each other."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def name(self) -> str:
        """The authority's common name."""
        return _common_name(self._certificate.subject)

    def issue(
        self, name: str, hosts: Iterable[str] = (), days: float = SITE_DAYS, now: datetime | None = None
    ) -> Issued:
        """A certificate for `name`, also good for `hosts` (names or addresses), with a new key."""
        key = ec.generate_private_key(ec.SECP256R1())
        return Issued(self._certify(name, hosts, key.public_key(), days, now), _key_pem(key))

    def renew(
        self,
        certificate_pem: bytes,
        hosts: Iterable[str] | None = None,
        days: float = SITE_DAYS,
        now: datetime | None = None,
        former: bytes = b"",
    ) -> bytes:
        """A later certificate for the same name and key: no secret has to travel. Without `hosts`, those it has.

        `former` are certificates of authorities in whose place this one came: what they issued is renewed too.
        """
        key = _certificate(certificate_pem, "the certificate to renew").public_key()
        ours = issued_by(certificate_pem, self.certificate_pem + former)
        if not ours or not isinstance(key, ec.EllipticCurvePublicKey):
            raise BadInput("the certificate to renew is not of this authority.")
        info = describe(certificate_pem)
        return self._certify(info.name, info.names if hosts is None else hosts, key, days, now)

    def sign(self, content: bytes) -> bytes:
        """The authority's signature of something else than a certificate; `content` begins with what it is for."""
        return self._key.sign(content, ec.ECDSA(hashes.SHA256()))

    def _certify(
        self, name: str, hosts: Iterable[str], key: ec.EllipticCurvePublicKey, days: float, now: datetime | None
    ) -> bytes:
        now = now or datetime.now(UTC)
        end = self._certificate.not_valid_after_utc
        if now > end:
            raise BadInput(f"the authority expired on {_date(end)}; make a new one.")
        # A certificate is not valid after the end of its authority.
        until = min(now + timedelta(days=days), end)
        above = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _builder(subject, self._certificate.subject, key, now - SKEW, until)
            .add_extension(x509.SubjectAlternativeName(_general_names((name, *hosts))), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(above), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def describe(pem: bytes, now: datetime | None = None, source: str = "this") -> CertificateInfo:
    """What the first certificate in `pem` says; `source` is what an error calls it."""
    found = _certificate(pem, source)
    until = found.not_valid_after_utc
    return CertificateInfo(
        name=_common_name(found.subject),
        names=_names(found),
        issuer=_common_name(found.issuer),
        serial=f"{found.serial_number:x}",
        not_before=found.not_valid_before_utc,
        not_after=until,
        issued=_issued(found),
        fingerprint=found.fingerprint(hashes.SHA256()).hex(),
        days_left=(until - (now or datetime.now(UTC))) / _DAY,
        authority=_may_issue(found),
    )


def signed_by(content: bytes, signature: bytes, authorities_pem: bytes) -> bool:
    """Whether one of the authorities signed the content."""
    return any(_has_signed(above, content, signature) for above in _authorities(authorities_pem, "ca.crt"))


def sign(key_pem: bytes, content: bytes) -> bytes:
    """The signature of a site's key."""
    key = _signing_key(key_pem)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadInput("the key of the site's certificate cannot sign: use one on an elliptic curve.")
    return key.sign(content, ec.ECDSA(hashes.SHA256()))


@lru_cache(4)
def _signing_key(key_pem: bytes) -> PrivateKeyTypes:
    return _private_key(key_pem, "the key of the site's certificate")


def signature_fits(certificate_pem: bytes, signature: bytes, content: bytes) -> bool:
    """Whether the key of a certificate signed the content."""
    return _has_signed(_read_certificate(certificate_pem), content, signature)


@lru_cache(256)
def _read_certificate(pem: bytes) -> x509.Certificate:
    return _certificate(pem, "the writer's certificate")


class Caller(NamedTuple):
    """What a caller's certificate proves."""

    name: str
    issued: float
    """When the certificate was issued, in seconds since 1970."""


def caller_in(pem: bytes, known: Iterable[str], authorities_pem: bytes) -> Caller:
    """The one name of `known` that the certificate of a caller proves; BadInput where it proves none, or several.

    The subject alternative names count. The common name counts only in a certificate without any.
    """
    found = _certificate(pem, "what the caller shows")
    if not issued_by(pem, authorities_pem, "ca.crt"):
        raise BadInput("the caller's certificate is of an authority that is trusted no more.")
    common = [str(name.value) for name in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    names = _names(found)
    if any("\0" in name for name in (*common, *names)):
        raise BadInput("the caller's certificate has a name with a NUL in it.")
    if len(common) > 1:
        raise BadInput("the caller's certificate has several common names.")
    proved: list[str] = sorted({*(names or common)}.intersection(known))
    if len(proved) > 1:
        raise BadInput(f"the caller's certificate is for several sites: {', '.join(proved)}.")
    if not proved:
        shown = (*names, *common)[0] if (*names, *common) else ""
        raise BadInput(f"{shown[:80]!r} is no site of this federation.")
    return Caller(proved[0], _issued(found))


def key_fits(certificate_pem: bytes, key_pem: bytes, source: str = "this") -> bool:
    """Whether the key belongs to the certificate."""
    return _private_key(key_pem, source).public_key() == _certificate(certificate_pem, source).public_key()


def issued_by(certificate_pem: bytes, authorities_pem: bytes, source: str = "this") -> bool:
    """Whether one of the authorities issued the certificate: names and signature."""
    certificate = _certificate(certificate_pem, source)
    return any(_signed(certificate, above) for above in _authorities(authorities_pem, source))


def unfit(
    certificate_pem: bytes,
    key_pem: bytes,
    authorities_pem: bytes,
    name: str,
    hosts: Sequence[str] = (),
    now: datetime | None = None,
    sources: tuple[str, str, str] = ("the certificate", "the certificate's key", "ca.crt"),
) -> list[str]:
    """Why this certificate cannot be used for `name` at `hosts`, one sentence each; empty where it can.

    `sources` is what errors call certificate, key and authorities.
    """
    info = describe(certificate_pem, now, sources[0])
    found: list[str] = []
    if not key_fits(certificate_pem, key_pem, sources[1]):
        found.append("The key does not belong to the certificate.")
    if not isinstance(_private_key(key_pem, sources[1]), ec.EllipticCurvePrivateKey):
        found.append("The key is not on an elliptic curve, as those that sign records and rows must be.")
    if not issued_by(certificate_pem, authorities_pem, sources[2]):
        found.append("None of the authorities issued the certificate.")
    if (wrong := out_of_date(info, now)) is not None:
        found.append(wrong)
    if info.authority:
        found.append("The certificate is an authority's, not a site's.")
    if info.name != name:
        found.append(f"The certificate is for {info.name!r}, not for {name!r}.")
    elif missing := [host for host in (name, *map(_plain, hosts)) if host not in info.names]:
        found.append(f"The certificate does not name {', '.join(missing)}.")
    return found


def out_of_date(info: CertificateInfo, now: datetime | None = None) -> str | None:
    """A sentence where the certificate is not valid now."""
    now = now or datetime.now(UTC)
    if now > info.not_after:
        return f"The certificate of {info.name!r} expired on {_date(info.not_after)}."
    if now < info.not_before:
        return f"The certificate of {info.name!r} is not valid before {_date(info.not_before)}: is the clock right?"
    return None


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all; not even briefly is it open to others."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, since: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for host in dict.fromkeys(hosts):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not host.isascii():
                raise BadInput(f"{host!r} is no name for a certificate; write it in its ASCII form.") from None
            found.append(x509.DNSName(host))
    return found


def _plain(host: str) -> str:
    """A host as `_names` gives it: one address can be written in many ways."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    hosts = names.get_values_for_type(x509.DNSName)
    return (*hosts, *(str(address) for address in names.get_values_for_type(x509.IPAddress)))


def _may_issue(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _authorities(pem: bytes, source: str) -> list[x509.Certificate]:
    try:
        return [found for found in x509.load_pem_x509_certificates(pem) if _may_issue(found)]
    except ValueError:
        raise BadInput(f"{source}: the authorities are no certificates in PEM form.") from None


def _has_signed(above: x509.Certificate, content: bytes, signature: bytes) -> bool:
    key = above.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def _issued(certificate: x509.Certificate) -> float:
    return (certificate.not_valid_before_utc + SKEW).timestamp()


def _signed(certificate: x509.Certificate, above: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(above)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def _certificate(pem: bytes, source: str) -> x509.Certificate:
    try:
        found = x509.load_pem_x509_certificate(pem)
        found.extensions  # noqa: B018 - read now, so that what is wrong in them shows here
    except (ValueError, TypeError, *_UNREADABLE):
        raise BadInput(f"{source} is no certificate in PEM form.") from None
    return found


def _private_key(pem: bytes, source: str) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except TypeError:
        raise BadInput(f"{source} is a key with a password; use one without.") from None
    except ValueError:
        raise BadInput(f"{source} is no private key in PEM form.") from None


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None


def _date(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
