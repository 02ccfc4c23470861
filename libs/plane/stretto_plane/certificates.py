"""The certificate of a job, made from 32 secret bytes: the same bytes wherever and whenever it is made.

The certificate is one of Ed25519 (RFC 8410) that signs itself, with fixed serial number, name and validity: only its
public key and its signature vary. Peers compare the whole certificate, so nothing else in it is ever looked at.
"""

from __future__ import annotations

from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stretto-plane")])
_NOT_BEFORE = datetime(2020, 1, 1, tzinfo=UTC)
_NOT_AFTER = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""End of validity that RFC 5280 gives to a certificate without one: a key ends with its job."""


def pem_of(seed: bytes) -> bytes:
    """Return private key and certificate of a seed as PEM."""
    key = Ed25519PrivateKey.from_private_bytes(seed)
    builder = x509.CertificateBuilder(_NAME, _NAME, key.public_key(), 1, _NOT_BEFORE, _NOT_AFTER)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private + builder.sign(key, None).public_bytes(Encoding.PEM)


def der_of(pem: bytes) -> tuple[bytes, bytes]:
    """Return private key and certificate of a PEM text as DER. Raises ValueError: it has not both, or of two keys."""
    try:
        key, certificate = load_pem_private_key(pem, None), x509.load_pem_x509_certificate(pem)
        is_of_key = key.public_key() == certificate.public_key()
    except (TypeError, UnsupportedAlgorithm) as error:  # an encrypted key, a foreign kind of key
        raise ValueError from error
    if not is_of_key:
        raise ValueError
    return key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()), certificate.public_bytes(Encoding.DER)
