"""As whom a connection presents itself, and whom it believes to be the server."""

from __future__ import annotations

import base64
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import SecretStr

from stretto_bus.faults import IdentityFault

Claims = dict[str, Any]

_TOKEN = re.compile(r"BEGIN NATS USER JWT-+\s+(\S+)\s")
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
    found = _TOKEN.search(credentials)
    if found is None:
        raise IdentityFault("not a credentials file: a NATS user JWT and the seed of an nkey, each between its marks")
    return found[1]


def redacted(url: str) -> str:
    """Where ``url`` leads, or several separated by commas, without what stands before the last @ of each: the user and
    a password, in which not everybody escapes what separates parts of a URL."""
    return ",".join(_USER.sub(r"\1", each) for each in _BETWEEN.split(url))


@dataclass(frozen=True, slots=True)
class Login:
    """``credentials``: a file of credentials, read again at every connecting, so that it can be replaced. Without, a
    password, or nothing. ``ca``: a file of certificates of who may vouch for the server; none: the system's.
    """

    user: str | None = None
    password: SecretStr | None = None
    credentials: Path | None = None
    ca: Path | None = None

    def name(self) -> str | None:
        """The user's; of credentials, the one that they are of. Raises IdentityFault: the file cannot be used."""
        if self.credentials is None:
            return self.user
        try:
            return str(claims_of(token_of(self.credentials.read_text()))["name"])
        except (OSError, ValueError, IdentityFault) as error:
            raise IdentityFault(
                f"STRETTO_NATS_CREDENTIALS={self.credentials}: {error}; `python -m stretto_runtime keys` makes them"
            ) from None

    def options(self) -> Mapping[str, Any]:
        """For nats-py. Raises IdentityFault: a file cannot be used."""
        found: dict[str, Any] = {}
        if self.credentials is not None:
            found["user_credentials"] = str(self.credentials)
        elif self.password is not None:
            found |= {"user": self.user, "password": self.password.get_secret_value()}
        if self.ca is not None:
            try:
                found["tls"] = ssl.create_default_context(cafile=self.ca)
            except (OSError, ssl.SSLError) as error:
                raise IdentityFault(f"STRETTO_NATS_CA={self.ca}: {error}; give a file of certificates (PEM)") from None
        return found

    def __str__(self) -> str:
        return repr(self.user) if self.credentials is None else str(self.credentials)
