"""How a connection presents itself, and which servers it believes."""

from __future__ import annotations

import base64
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from nats.aio.client import RawCredentials
from pydantic import SecretStr

from stretto_bus.faults import IdentityFault

Claims = dict[str, Any]

_TOKEN = re.compile(r"BEGIN NATS USER JWT-+\s+(\S+)\s")
_SEED = re.compile(r"BEGIN USER NKEY SEED-+\s+(\S+)\s")
_BETWEEN = re.compile(r",(?=[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
_USER = re.compile(r"^([a-z][a-z0-9+.-]*://)?.*@", re.IGNORECASE | re.DOTALL)


def claims_of(token: str) -> Claims:
    """The claims of a token, unproven: ``Key.has_signed`` proves them. Raises IdentityFault."""
    try:
        body = token.split(".")[1]
        return cast(Claims, json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))))
    except (IndexError, ValueError):
        raise IdentityFault("not a token: three parts separated by dots, of which the second is JSON") from None


def token_of(credentials: str) -> str:
    """The token in the text of a credentials file. Raises IdentityFault."""
    return _part_of(_TOKEN, credentials)


def seed_of(credentials: str) -> str:
    """The seed of the key in the text of a credentials file. Raises IdentityFault."""
    return _part_of(_SEED, credentials)


def _part_of(mark: re.Pattern[str], credentials: str) -> str:
    found = mark.search(credentials)
    if found is None:
        raise IdentityFault("not a credentials file: a NATS user JWT and the seed of an nkey, each between its marks")
    return found[1]


def redacted(url: str) -> str:
    """``url``, or several separated by commas, without user and password.

    Everything before the last @ of each goes: not everybody escapes the separators in a password.
    """
    return ",".join(_USER.sub(r"\1", each) for each in _BETWEEN.split(url))


class Presents(Protocol):
    """How a connection presents itself: ``Login``, or ``RenewableLogin`` of a pod."""

    def name(self) -> str | None:
        """The user's name."""
        ...

    def options(self) -> Mapping[str, Any]:
        """Options of nats-py, which reads the credentials again whenever it connects."""
        ...


@dataclass(frozen=True, slots=True)
class Login:
    """A user of the bus.

    ``credentials`` is a file, read again whenever the connection is made, so that it can be replaced. Without it a
    ``password`` counts, or nothing. ``ca`` is a file of certificates that may vouch for the server; None: the system's.
    """

    user: str | None = None
    password: SecretStr | None = None
    credentials: Path | None = None
    ca: Path | None = None

    def name(self) -> str | None:
        """The user's name, from the credentials if there are some. Raises IdentityFault: the file cannot be used."""
        if self.credentials is None:
            return self.user
        try:
            return str(claims_of(token_of(self.credentials.read_text()))["name"])
        except (OSError, ValueError, IdentityFault) as error:
            raise IdentityFault(
                f"STRETTO_NATS_CREDENTIALS={self.credentials}: {error}; "
                "`python -m stretto_installation keys` makes them"
            ) from None

    def options(self) -> Mapping[str, Any]:
        """Options of nats-py. Raises IdentityFault: a file cannot be used."""
        found: dict[str, Any] = {}
        if self.credentials is not None:
            found["user_credentials"] = str(self.credentials)
        elif self.password is not None:
            found |= {"user": self.user, "password": self.password.get_secret_value()}
        return found | tls_options(self.ca)

    def __str__(self) -> str:
        return repr(self.user) if self.credentials is None else str(self.credentials)


class RenewableLogin:
    """Credentials that end, and are renewed while the process runs.

    Renewal replaces the token, which is no secret; the key stays where it is. Without credentials it never ends.

    Raises:
        IdentityFault: the text is not that of a credentials file, or ``ca`` cannot be used.
    """

    def __init__(self, credentials: str = "", ca: Path | None = None) -> None:
        self.token = ""
        self.began_s, self.ends_s = 0.0, float("inf")
        self._text = RawCredentials(credentials)
        self._tls = tls_options(ca)
        if credentials:
            self._learn(token_of(credentials))

    def name(self) -> str | None:
        """The user's name, None without credentials."""
        return str(claims_of(self.token).get("name")) if self.token else None

    def options(self) -> Mapping[str, Any]:
        """Options of nats-py."""
        found: dict[str, Any] = {"user_credentials": self._text} if self.token else {}
        return found | self._tls

    def prolong(self, token: str) -> None:
        """Present ``token`` from the next connecting on. Raises IdentityFault: it is no token that ends."""
        before = self.token
        self._learn(token)
        self._text.data = self._text.data.replace(before, token)

    def _learn(self, token: str) -> None:
        claims = claims_of(token)
        try:
            self.began_s, self.ends_s = float(claims["iat"]), float(claims.get("exp", "inf"))
        except (LookupError, TypeError, ValueError, AttributeError):
            raise IdentityFault("not a token of a user: its claims do not say when it begins and ends") from None
        self.token = token


def tls_options(ca: Path | None) -> dict[str, Any]:
    """The option of nats-py for certificates of one's own authority. Raises IdentityFault."""
    if ca is None:
        return {}
    try:
        return {"tls": ssl.create_default_context(cafile=ca)}
    except OSError as error:
        raise IdentityFault(f"STRETTO_NATS_CA={ca}: {error}; give a file of certificates (PEM)") from None
