"""As whom a pod presents itself to the bus: credentials that the actuator gave it, for a while.

Prolonging them changes the token, which is no secret; the key stays where it is.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
from pathlib import Path
from typing import Any

import nats.errors
from nats.aio.client import Client, RawCredentials

from .errors import PodError

_TOKEN = re.compile(r"BEGIN NATS USER JWT-+\s+(\S+)\s")


class Identity:
    """``credentials`` and ``ca``: the files that STRETTO_NATS_CREDENTIALS and STRETTO_NATS_CA name.

    Raises:
        PodError: a file cannot be used.
    """

    def __init__(self, credentials: Path | None = None, ca: Path | None = None) -> None:
        self.token = ""
        self.began_s, self.ends_s = 0.0, float("inf")
        self._text = RawCredentials("")
        self._tls: ssl.SSLContext | None = None
        if credentials is not None:
            try:
                text = credentials.read_text()
                self._text = RawCredentials(text)
                self._learn(_TOKEN.findall(text)[0])
            except (OSError, ValueError, LookupError) as error:
                what = error.strerror if isinstance(error, OSError) else "no credentials"
                raise PodError(f"STRETTO_NATS_CREDENTIALS = {credentials}: {what}; the actuator writes them") from None
        if ca is not None:
            try:
                self._tls = ssl.create_default_context(cafile=ca)
            except OSError as error:
                raise PodError(f"STRETTO_NATS_CA = {ca}: {error}; a file of certificates (PEM)") from None

    def options(self) -> dict[str, Any]:
        """For nats-py, which asks the credentials again at every connecting."""
        found: dict[str, Any] = {"user_credentials": self._text} if self.token else {}
        return {**found, "tls": self._tls} if self._tls is not None else found

    def prolong(self, token: str) -> None:
        """Present ``token`` from the next connecting on."""
        before = self.token
        self._learn(token)
        self._text.data = self._text.data.replace(before, token)

    def _learn(self, token: str) -> None:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        self.token, self.began_s, self.ends_s = token, float(claims["iat"]), float(claims.get("exp", "inf"))


class Connection(Client):
    """Comes back whatever the server said before it hung up; asked for TLS, talks to nobody without."""

    async def _process_err(self, err_msg: str) -> None:
        error = nats.errors.Error(f"nats: {err_msg.strip(chr(39))}")
        await self._error_cb(error)
        if "permissions violation" not in err_msg.lower():
            await self._process_op_err(error)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        wanted = "tls" in self.options or any(server.uri.scheme == "tls" for server in self._server_pool)
        if initial_connection and wanted and not info.get("tls_required"):
            raise nats.errors.Error("nats: the server offers no TLS")
        await super()._process_info(info, initial_connection)
