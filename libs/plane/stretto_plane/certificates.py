"""The certificate of a job, derived from 32 secret bytes: the same bytes wherever and whenever it is derived.

A certificate of Ed25519 (RFC 8410) that signs itself, with fixed serial number, name and validity: only its public key
and its signature vary. Peers pin it, so nothing else in it is ever looked at. Its few fields are written as DER here,
since the signature needs PyNaCl, which the issuing side has anyway.
"""

from __future__ import annotations

import base64
import textwrap

SEED_BYTES = 32

_SEQUENCE, _SET, _INTEGER, _BITS, _OCTETS, _OBJECT_ID = 0x30, 0x31, 0x02, 0x03, 0x04, 0x06
_BOOLEAN, _TEXT, _UTC_TIME, _TIME, _VERSION, _EXTENSIONS = 0x01, 0x0C, 0x17, 0x18, 0xA0, 0xA3
_ED25519 = bytes.fromhex("2b6570")  # 1.3.101.112
_COMMON_NAME = bytes.fromhex("550403")  # 2.5.4.3
_BASIC_CONSTRAINTS = bytes.fromhex("551d13")  # 2.5.29.19
_NAME = b"stretto-plane"
_NOT_BEFORE = b"200101000000Z"
_NOT_AFTER = b"99991231235959Z"
"""End of validity that RFC 5280 gives to a certificate without one: a key ends with its job."""


def pem_of(seed: bytes) -> bytes:
    """Return private key and certificate of a seed as PEM. Needs PyNaCl, the extra ``issuing``."""
    from nacl.signing import SigningKey

    signing = SigningKey(seed)
    signed = _to_be_signed(bytes(signing.verify_key))
    certificate = _der(_SEQUENCE, signed, _algorithm(), _der(_BITS, b"\0", signing.sign(signed).signature))
    private = _der(_SEQUENCE, _der(_INTEGER, b"\0"), _algorithm(), _der(_OCTETS, _der(_OCTETS, seed)))
    return _pem("PRIVATE KEY", private) + _pem("CERTIFICATE", certificate)


def _to_be_signed(public: bytes) -> bytes:
    name = _der(_SEQUENCE, _der(_SET, _der(_SEQUENCE, _der(_OBJECT_ID, _COMMON_NAME), _der(_TEXT, _NAME))))
    authority = _der(_OCTETS, _der(_SEQUENCE, _der(_BOOLEAN, b"\xff")))  # what signs itself is an authority
    constraints = _der(_SEQUENCE, _der(_OBJECT_ID, _BASIC_CONSTRAINTS), _der(_BOOLEAN, b"\xff"), authority)
    return _der(
        _SEQUENCE,
        _der(_VERSION, _der(_INTEGER, b"\2")),
        _der(_INTEGER, b"\1"),  # serial number
        _algorithm(),
        name,
        _der(_SEQUENCE, _der(_UTC_TIME, _NOT_BEFORE), _der(_TIME, _NOT_AFTER)),
        name,
        _der(_SEQUENCE, _algorithm(), _der(_BITS, b"\0", public)),
        _der(_EXTENSIONS, _der(_SEQUENCE, constraints)),
    )


def _algorithm() -> bytes:
    return _der(_SEQUENCE, _der(_OBJECT_ID, _ED25519))


def _der(tag: int, *contents: bytes) -> bytes:
    content = b"".join(contents)
    size = len(content)
    if size < 0x80:
        length = bytes([size])
    else:
        digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
        length = bytes([0x80 | len(digits)]) + digits
    return bytes([tag]) + length + content


def _pem(label: str, der: bytes) -> bytes:
    lines = textwrap.wrap(base64.b64encode(der).decode(), 64)
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""]).encode()
