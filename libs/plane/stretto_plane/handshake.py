"""Mutual authentication by a common key, on every connection: both sides prove that they have it, neither shows it.

1. The client sends a nonce.
2. The server sends a nonce, and its proof for both nonces.
3. The client verifies that and sends its own proof for both.
4. The server verifies that and says whether it serves this connection.

Proofs are HMAC-SHA256 under a key that is used for nothing else. They name their side, so that none can be sent back to
its author; and since each side has a fresh nonce in it, none can be used twice.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from enum import IntEnum

from .errors import AccessRefused
from .keys import Key
from .transports import Link

MAGIC = b"STPL"
VERSION = 1
NONCE_BYTES = 32
PROOF_BYTES = 32
ENCRYPTION_REMEDY = "set encryption (STRETTO_PLANE_ENCRYPTED) to the same on both sides"

_HELLO = struct.Struct(f"<4sH10x{NONCE_BYTES}s")
_CHALLENGE = struct.Struct(f"<4sHB9x{NONCE_BYTES}s{PROOF_BYTES}s")
_VERDICT = struct.Struct("<B31x")
_NO_NONCE = bytes(NONCE_BYTES)
_NO_PROOF = bytes(PROOF_BYTES)


class Verdict(IntEnum):
    """The server's answer to a client."""

    ADMITTED = 0
    OTHER_VERSION = 1
    ENCRYPTED = 2
    NOT_ENCRYPTED = 3
    FULL = 4


REASONS = {
    Verdict.OTHER_VERSION: "it speaks another version of the plane; run the same release on both sides",
    Verdict.ENCRYPTED: f"it asks for encryption; {ENCRYPTION_REMEDY}",
    Verdict.NOT_ENCRYPTED: f"it has no encryption; {ENCRYPTION_REMEDY}",
    Verdict.FULL: "it serves as many connections as connections_max allows; close some or raise that",
}


def greet(link: Link, key: Key, deadline_s: float) -> None:
    """Authenticate both sides, as client. Raises AccessRefused, and what a link raises."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    link.send([_HELLO.pack(MAGIC, VERSION, nonce)], deadline_s)
    magic, _, verdict, other, proof = _CHALLENGE.unpack(_received(link, _CHALLENGE.size, deadline_s))
    if magic != MAGIC:
        raise AccessRefused("it does not speak Stretto's plane; give the address of a listener")
    _raise_unless_admitted(verdict)
    if not hmac.compare_digest(proof, key.proof(b"server", nonce + other)):
        raise AccessRefused("it has another key; give both sides the key of the same job")
    link.send([key.proof(b"client", nonce + other)], deadline_s)
    (verdict,) = _VERDICT.unpack(_received(link, _VERDICT.size, deadline_s))
    _raise_unless_admitted(verdict)


def challenge(link: Link, key: Key, deadline_s: float) -> None:
    """Authenticate both sides, as server, up to the verdict. Raises AccessRefused, and what a link raises."""
    magic, version, other = _HELLO.unpack(_received(link, _HELLO.size, deadline_s))
    if magic != MAGIC:
        raise AccessRefused("it does not speak Stretto's plane")
    if version != VERSION:
        refuse(link, Verdict.OTHER_VERSION, deadline_s)
        raise AccessRefused(f"it speaks version {version} of the plane, not {VERSION}")
    nonce = secrets.token_bytes(NONCE_BYTES)
    link.send([_CHALLENGE.pack(MAGIC, VERSION, 0, nonce, key.proof(b"server", other + nonce))], deadline_s)
    if not hmac.compare_digest(_received(link, PROOF_BYTES, deadline_s), key.proof(b"client", other + nonce)):
        raise AccessRefused("it has another key")


def refuse(link: Link, verdict: Verdict, deadline_s: float) -> None:
    """Tell a client before any proof why it is not served."""
    link.send([_CHALLENGE.pack(MAGIC, VERSION, verdict, _NO_NONCE, _NO_PROOF)], deadline_s)


def decide(link: Link, verdict: Verdict, deadline_s: float) -> None:
    """Tell an authenticated client whether it is served."""
    link.send([_VERDICT.pack(verdict)], deadline_s)


def _received(link: Link, size_bytes: int, deadline_s: float) -> bytearray:
    received = bytearray(size_bytes)
    link.receive_into(memoryview(received), deadline_s)
    return received


def _raise_unless_admitted(code: int) -> None:
    if code != Verdict.ADMITTED:
        known = code in set(Verdict)
        raise AccessRefused(REASONS[Verdict(code)] if known else f"it gives reason {code}; run the same release")
