"""The key of a job: a private key and its certificate, and what both sides derive from them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from .certificates import SEED_BYTES, pem_of
from .errors import PlaneError

PEM_BYTES_MAX = 16 << 10
_PEM = re.compile(rb"-----BEGIN ([A-Z ]+)-----\s+([A-Za-z0-9+/=\s]+)-----END \1-----")
_FOR_JOBS = b"stretto plane 1: key of job "
_FOR_PROOFS = b"stretto plane 1: proofs"
_REMEDY = "give the file that STRETTO_PLANE_KEY names, as the actuator has laid it"


@dataclass(frozen=True, slots=True)
class Key:
    """The key that all processes of a job have, and nobody else. It never shows its content."""

    pem: bytes = field(repr=False)
    """Private key and certificate: the content of the key file."""
    _proofs: bytes = field(repr=False, compare=False)
    _certificate: bytes = field(repr=False, compare=False)

    @classmethod
    def of(cls, pem: bytes) -> Key:
        """Take the content of a key file. Raises PlaneError, which does not show it."""
        blocks = {label: body for label, body in _PEM.findall(pem)} if len(pem) <= PEM_BYTES_MAX else {}
        try:
            private, certificate = (base64.b64decode(blocks[label]) for label in (b"PRIVATE KEY", b"CERTIFICATE"))
        except (KeyError, binascii.Error):
            raise PlaneError(
                f"key of {len(pem)} bytes is refused: it has no private key and certificate; {_REMEDY}"
            ) from None
        return cls(pem, hmac.digest(private, _FOR_PROOFS, hashlib.sha256), certificate)

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
        """Make a new key. Needs PyNaCl, the extra ``issuing``."""
        return cls.of(pem_of(secrets.token_bytes(SEED_BYTES)))

    @classmethod
    def derive(cls, secret: bytes, job: str) -> Key:
        """Return the key of a job: the same for the same secret, and of no use to find another job's.

        Needs PyNaCl, the extra ``issuing``. Raises PlaneError.
        """
        if len(secret) < SEED_BYTES:
            raise PlaneError(f"secret of {len(secret)} bytes is refused: give at least {SEED_BYTES} random bytes")
        return cls.of(pem_of(hmac.digest(secret, _FOR_JOBS + job.encode(), hashlib.sha256)))

    def proof(self, role: bytes, nonces: bytes) -> bytes:
        """Return 32 bytes that only a holder of this key can compute for these nonces."""
        return hmac.digest(self._proofs, role + nonces, hashlib.sha256)

    def context(self, server: bool) -> ssl.SSLContext:
        """Return a context of TLS 1.3 in which both sides show the job's certificate, and accept no other."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self._certificate)
        descriptor = os.memfd_create("stretto-plane", os.MFD_CLOEXEC)  # OpenSSL reads keys from files only
        try:
            os.write(descriptor, self.pem)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        if server:
            context.num_tickets = 0  # nobody resumes a session
        return context

    def pinned(self, link: ssl.SSLSocket) -> bool:
        """Return True if the other side has shown this very certificate."""
        return link.getpeercert(binary_form=True) == self._certificate
