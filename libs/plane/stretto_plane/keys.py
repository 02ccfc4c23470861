"""The key of a job: a private key and its certificate, and what both sides derive from them."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from .errors import PlaneError

SEED_BYTES = 32
PEM_BYTES_MAX = 16 << 10
# Keys are derived by one HMAC-SHA256 of what they are for, under a secret of full entropy. HKDF (RFC 5869) puts a byte
# behind the message, and so gives other keys: an upgraded actuator would lock its new pods out of the jobs that run.
_FOR_JOBS = b"stretto plane 1: key of job "
_FOR_PROOFS = b"stretto plane 1: proofs"
_REMEDY = "give the file that STRETTO_PLANE_KEY names, as the actuator has laid it"


@dataclass(frozen=True, slots=True)
class Key:
    """The key that all processes of a job have, and nobody else. It never shows its content."""

    pem: bytes = field(repr=False)
    """Private key and certificate: the content of the key file."""
    certificate: bytes = field(repr=False, compare=False)
    """Certificate as DER: what a peer has to show in TLS."""
    _proofs: bytes = field(repr=False, compare=False)

    @classmethod
    def of(cls, pem: bytes) -> Key:
        """Take the content of a key file. Raises PlaneError, which does not show it."""
        from .certificates import der_of  # 30 ms, and only who has a key needs it

        try:
            if len(pem) > PEM_BYTES_MAX:
                raise ValueError
            private, certificate = der_of(pem)
        except ValueError:
            raise PlaneError(
                f"key of {len(pem)} bytes is refused: it has no private key and certificate; {_REMEDY}"
            ) from None
        return cls(pem, certificate, hmac.digest(private, _FOR_PROOFS, hashlib.sha256))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Key:
        """Read a key file. Raises PlaneError."""
        try:
            with Path(path).open("rb") as file:
                content = file.read(PEM_BYTES_MAX + 1)
        except OSError as error:
            raise PlaneError(f"key file {os.fspath(path)} cannot be read ({error.strerror}); {_REMEDY}") from None
        try:
            return cls.of(content)
        except PlaneError as error:
            raise PlaneError(f"key file {os.fspath(path)}: {error}") from None

    @classmethod
    def random(cls) -> Key:
        """Make a new key."""
        return cls._of_seed(secrets.token_bytes(SEED_BYTES))

    @classmethod
    def derive(cls, secret: bytes, job: str) -> Key:
        """Return the key of a job: the same for the same secret, and of no use to find another job's.

        Raises PlaneError.
        """
        if len(secret) < SEED_BYTES:
            raise PlaneError(f"secret of {len(secret)} bytes is refused: give at least {SEED_BYTES} random bytes")
        return cls._of_seed(hmac.digest(secret, _FOR_JOBS + job.encode(), hashlib.sha256))

    @classmethod
    def _of_seed(cls, seed: bytes) -> Key:
        from .certificates import pem_of

        return cls.of(pem_of(seed))

    def proof(self, role: bytes, nonces: bytes) -> bytes:
        """Return 32 bytes that only a holder of this key can compute for these nonces."""
        return hmac.digest(self._proofs, role + nonces, hashlib.sha256)
