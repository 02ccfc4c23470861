"""As whom a connection presents itself, and whom it believes to be the server."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from stretto_runtime.faults import IdentityFault
from stretto_runtime.identity import claims_of, parts_of

_BETWEEN = re.compile(r",(?=[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
_USER = re.compile(r"^([a-z][a-z0-9+.-]*://)?.*@", re.IGNORECASE | re.DOTALL)


def shown(url: str) -> str:
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
            token, _ = parts_of(self.credentials.read_text())
            return str(claims_of(token)["name"])
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
