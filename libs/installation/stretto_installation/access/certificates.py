"""Certificates for one's own server, from an authority that nobody else trusts.

They are for development and closed networks. If there is an authority already, use its certificates.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stretto_bus.faults import IdentityFault
from stretto_runtime.process.health_warnings import ending

if TYPE_CHECKING:
    from cryptography import x509

AUTHORITY_DAYS = 3650
SERVER_DAYS = 365


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files (PEM) of a server's certificate and key, and of its authority."""

    file: Path
    key_file: Path
    ca: Path


class Pair(NamedTuple):
    """PEM texts."""

    certificate: str
    key: str


def authority(now: float) -> Pair:
    """Make an authority. Raises IdentityFault: the library for it is not installed."""
    return _signed("Stretto", None, [], now, AUTHORITY_DAYS)


def issue(by: Pair, hosts: Sequence[str], now: float) -> Pair:
    """Issue a server's certificate for names and addresses; valid for both sides of connections between servers."""
    return _signed(hosts[0], by, hosts, now, SERVER_DAYS)


def usable(certificate: str, by: str, hosts: Sequence[str], now: float) -> bool:
    """Return whether ``by`` signed the certificate, for all of ``hosts``, and it does not end soon."""
    _need()
    from cryptography import exceptions, x509

    try:
        found, authority = (x509.load_pem_x509_certificate(text.encode()) for text in (certificate, by))
        found.verify_directly_issued_by(authority)
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, exceptions.InvalidSignature, x509.ExtensionNotFound):
        return False
    return set(_alternatives(hosts)) <= set(names) and not ending(found.not_valid_after_utc.timestamp(), now)


def end_of(certificate: str) -> float:
    """The end of a certificate, in seconds since the epoch. Raises IdentityFault: it is none."""
    _need()
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc.timestamp()
    except ValueError:
        raise IdentityFault("not a certificate (PEM)") from None


def _signed(name: str, by: Pair | None, hosts: Sequence[str], now: float, days: int) -> Pair:
    _need()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    signer: ec.EllipticCurvePrivateKey = key
    begin = datetime.fromtimestamp(now, UTC) - timedelta(hours=1)
    if by is not None:
        issuer = x509.load_pem_x509_certificate(by.certificate.encode()).subject
        loaded = serialization.load_pem_private_key(by.key.encode(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        signer = loaded
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=0 if by is None else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(_usage(authority=by is None), critical=True)
    )
    if by is not None:
        both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = builder.add_extension(both, critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName(_alternatives(hosts)), critical=False)
    certificate = builder.sign(signer, hashes.SHA256())
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain).decode()
    return Pair(certificate.public_bytes(pem).decode(), text)


def _usage(authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    never = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
         "decipher_only"), False
    )  # fmt: skip
    return x509.KeyUsage(digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, **never)


def _alternatives(hosts: Sequence[str]) -> list[x509.GeneralName]:
    from cryptography import x509

    found: list[x509.GeneralName] = []
    for host in hosts:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            try:
                found.append(x509.DNSName(host))
            except ValueError:
                raise IdentityFault(f"--tls {host!r}: a host name in ASCII, or an address") from None
    return found


def _need() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise IdentityFault(
            "certificates are made by the package cryptography: install stretto-installation[tls]"
        ) from None
