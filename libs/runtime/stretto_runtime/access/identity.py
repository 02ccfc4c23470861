"""Identities on the bus: NATS' JSON web tokens (version 2), each signed by the nkey of its issuer.

An operator signs for accounts, an account for its users. The server knows the operator's public key and no secret.
A key that the account PODS has bound to a scope signs for pods: whatever it signs has only the rights of the scope's
template, for the job and pod that the token is tagged with.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets

import nkeys
from nacl.exceptions import BadSignatureError
from pydantic import TypeAdapter, ValidationError
from stretto_bus.faults import IdentityFault
from stretto_bus.login import Claims, claims_of, seed_of, token_of
from stretto_messages.base import JobId, PodId

OPERATOR_KEY: int = nkeys.PREFIX_BYTE_OPERATOR
ACCOUNT_KEY: int = nkeys.PREFIX_BYTE_ACCOUNT
USER_KEY: int = nkeys.PREFIX_BYTE_USER

JOB: TypeAdapter[str] = TypeAdapter(JobId)
POD: TypeAdapter[str] = TypeAdapter(PodId)
_PODS_TAG = "pods:"
CREDENTIALS = (
    "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
    "-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
)


class Key:
    """An nkey: a pair of Ed25519 keys whose text names their purpose."""

    def __init__(self, seed: str) -> None:
        try:
            kind, raw = nkeys.decode_seed(bytearray(seed.encode()))
            if nkeys.encode_seed(bytes(raw), kind).decode() != seed:  # decoding does not verify the checksum
                raise ValueError
            self._pair = nkeys.from_seed(bytearray(seed.encode()))
            self.public = bytes(self._pair.public_key).decode()
        except Exception:  # nkeys raises all kinds of errors; the seed itself must not be shown
            raise IdentityFault("not the seed of an nkey: 58 capital letters and digits that begin with S") from None
        self.seed = seed

    @classmethod
    def new(cls, kind: int) -> Key:
        return cls(nkeys.encode_seed(secrets.token_bytes(32), kind).decode())

    def __repr__(self) -> str:
        return f"Key({self.public})"

    def sign(self, subject: str, name: str, nats: Claims, now: float, expires_s: float | None = None) -> str:
        """A token for the public key ``subject``, with its ``name`` and the claims ``nats``, signed by this key."""
        claims: Claims = {"iat": int(now), "iss": self.public, "name": name, "sub": subject, "nats": nats}
        if expires_s is not None:
            claims["exp"] = int(expires_s)
        digest = hashlib.sha256(json.dumps(claims, sort_keys=True).encode()).digest()
        claims["jti"] = base64.b32encode(digest).rstrip(b"=").decode()
        signed = f"{_encoded({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_encoded(claims)}"
        return f"{signed}.{_base64(self._pair.sign(signed.encode()))}"

    def has_signed(self, token: str) -> bool:
        signed, _, signature = token.rpartition(".")
        try:
            return bool(self._pair.verify(signed.encode(), _from_base64(signature)))
        except (nkeys.ErrInvalidSignature, BadSignatureError, ValueError):
            return False


def credentials(token: str, key: Key) -> str:
    """The text of a credentials file."""
    return CREDENTIALS.format(jwt=token, seed=key.seed)


def parts_of(text: str) -> tuple[str, Key]:
    """The token and the key in a credentials file. Raises IdentityFault."""
    return token_of(text), Key(seed_of(text))


def pods_tag(account: str) -> str:
    """The tag that names the account of pods in the token of the user that signs for them."""
    return f"{_PODS_TAG}{account}"


def pods_account_of(token: str) -> str:
    """Return the public key of the account of pods, which the actuator's own token names. Raises IdentityFault."""
    for tag in claims_of(token)["nats"].get("tags", ()):
        if tag.startswith(_PODS_TAG):
            return str(tag.removeprefix(_PODS_TAG))
    raise IdentityFault("the token does not name the account of pods; `python -m stretto_installation keys` adds it")


def mint(signing_key: Key, account: str, job: str, pod: str, now: float, life_s: float) -> str:
    """Credentials of one pod for ``life_s`` seconds; ``account`` is the public key of the account of the signing key.

    Raises:
        IdentityFault: a name that is no single token of a subject.
    """
    key = Key.new(USER_KEY)
    return credentials(_pod_token(signing_key, key.public, account, job, pod, now + life_s, now), key)


def renew(signing_key: Key, token: str, job: str, pod: str, now: float, life_s: float) -> str:
    """Extend a pod's token. It is no secret: without the pod's key it is worthless.

    Raises:
        IdentityFault: not a token of this pod that the signing key has signed and that has not ended yet.
    """
    if not signing_key.has_signed(token):
        raise IdentityFault("the token was not signed by the key of the pods")
    claims = claims_of(token)
    if sorted(claims["nats"]["tags"]) != sorted(_tags(job, pod)):
        raise IdentityFault(f"the token belongs to {claims['nats']['tags']}, not to {pod} of {job}")
    if claims["exp"] <= now:
        raise IdentityFault(f"the token of {pod} of {job} ended {now - claims['exp']:.0f} s ago")
    return _pod_token(signing_key, claims["sub"], claims["nats"]["issuer_account"], job, pod, now + life_s, now)


def _pod_token(signing_key: Key, user: str, account: str, job: str, pod: str, expires_s: float, now: float) -> str:
    claims = {"type": "user", "version": 2, "issuer_account": account, "tags": _tags(job, pod)}
    return signing_key.sign(user, f"{job}/{pod}", claims, now, expires_s)


def _tags(job: str, pod: str) -> list[str]:
    """Tags of a pod's token. The server copies them into subjects, wildcards included: only names are allowed."""
    try:
        JOB.validate_python(job)
        POD.validate_python(pod)
    except ValidationError:
        raise IdentityFault(f"{job!r} and {pod!r}: not the names of a job and of one of its pods") from None
    return [f"job:{job}", f"pod:{pod}"]


def _encoded(claims: Claims) -> str:
    return _base64(json.dumps(claims, separators=(",", ":")).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _from_base64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
