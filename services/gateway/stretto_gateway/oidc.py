"""OpenID Connect: who a JSON Web Token of the configured issuer says that its bearer is.

The issuer's public keys are fetched when first needed, again when they are old, and when a token names one that is not
known: at most every ``RETRY_S``, whatever tokens are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import jwt
import structlog
from stretto_runtime.access.tokens import ROLES, Role
from stretto_runtime.process.faults import SettingsFault

from .callers import Caller, not_let_in
from .problems import Problem
from .settings import GatewaySettings

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
KEY_TYPES = frozenset({"RSA", "EC", "OKP"})
"""public keys only: who can read a shared key could sign with it"""
LEEWAY_S = 30.0
REFRESH_S = 300.0
RETRY_S = 10.0
STALE_S = 24 * 3600.0
"""keys that could not be fetched anew for so long are not believed any more"""
FETCH_S = 5.0
NAME_MOST = 200
"""characters, as of every name in an event"""
log = structlog.get_logger("stretto.gateway")


class Issuer:
    """The issuer of the settings."""

    def __init__(self, settings: GatewaySettings, clock: Callable[[], float]) -> None:
        """Raises SettingsFault for settings that cannot be. ``clock`` is monotonic."""
        self.issuer = settings.oidc_issuer or ""
        if not settings.oidc_audience:
            raise SettingsFault(
                "STRETTO_GATEWAY_OIDC_ISSUER without STRETTO_GATEWAY_OIDC_AUDIENCE: a token that the issuer gave for "
                "another service would be let in; set the audience that tokens for this gateway have"
            )
        for variable, url in (("OIDC_ISSUER", self.issuer), ("OIDC_JWKS_URL", settings.oidc_jwks_url)):
            if url and not _trusted(url):
                raise SettingsFault(f"STRETTO_GATEWAY_{variable}={url} is refused: give a URL with https")
        self._settings = settings
        self._clock = clock
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._fetched_s = self._tried_s = float("-inf")
        self._fetching = asyncio.Lock()
        self._beside: asyncio.Task[None] | None = None

    async def caller(self, token: str) -> Caller:
        """Raises Problem: 401 for a token that is not good, 403 without a role, 503 while no keys can be had."""
        try:
            header = jwt.get_unverified_header(token)
            key = await self._key(header.get("kid"))
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self._settings.oidc_audience,
                issuer=self.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", self._settings.oidc_name_claim]},
            )
        except jwt.PyJWTError as error:
            raise not_let_in(f"the token is refused: {error}", "Bearer …", 'Bearer error="invalid_token"') from error
        claim = self._settings.oidc_name_claim
        name = f"oidc:{claims[claim]}"
        if len(name) > NAME_MOST:  # cut off, two of them could become one
            told = f"the token is refused: its claim {claim} is longer than {NAME_MOST - len('oidc:')} characters"
            raise not_let_in(told, "Bearer …", 'Bearer error="invalid_token"')
        return Caller(name, self._role(claims))

    def _role(self, claims: dict[str, Any]) -> Role:
        """The highest that the claim names, as it stands there or as the settings translate it."""
        found: Any = claims
        for part in self._settings.oidc_role_claim.split("."):
            found = cast(dict[str, Any], found).get(part) if isinstance(found, dict) else None
        told = found.split() if isinstance(found, str) else found if isinstance(found, list) else []
        meant = self._settings.oidc_roles
        held = {meant.get(each, each if not meant else None) for each in cast(list[Any], told) if isinstance(each, str)}
        for role in reversed(ROLES):
            if role in held:
                return role
        wanted = ", ".join(meant or ROLES)
        claim = self._settings.oidc_role_claim
        raise Problem(403, "no-role", f"the token's claim {claim} names no role of the gateway", field=claim,
                      value=told, remedy=f"ask the issuer for one of {wanted}")  # fmt: skip

    async def _key(self, kid: str | None) -> jwt.PyJWK:
        async with self._fetching:
            now = self._clock()
            wanted = now - self._fetched_s > REFRESH_S or kid not in self._keys
            if wanted and now - self._tried_s > RETRY_S:
                failing, self._tried_s = self._tried_s > self._fetched_s, now
                fetching = self._beside = asyncio.create_task(self._fetch())
                if not (failing and kid in self._keys):  # nobody waits again and again for an issuer that is away
                    await fetching
            if now - self._fetched_s > STALE_S:
                raise Problem(503, "no-keys", f"the keys of {self.issuer} cannot be fetched", field="Authorization",
                              remedy="try again in some seconds; the gateway's log has the reason",
                              headers={"Retry-After": str(int(RETRY_S))})  # fmt: skip
        if kid not in self._keys:
            raise jwt.InvalidKeyError(f"its key {kid!r} is not one of the issuer's")
        return self._keys[kid]

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(FETCH_S), httpx.AsyncClient(timeout=FETCH_S, follow_redirects=False) as http:
                url = self._settings.oidc_jwks_url or await self._discovered(http)
                found = (await http.get(url)).raise_for_status().json()["keys"]
            usable = [each for each in found if _usable(each)]
            keys = jwt.PyJWKSet.from_dict({"keys": usable}).keys if usable else []  # passes over what it does not know
        except (httpx.HTTPError, httpx.InvalidURL, jwt.PyJWTError, OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the issuer's keys cannot be fetched", issuer=self.issuer, error=str(error) or repr(error))
            return
        self._keys = {key.key_id: key for key in keys}
        self._fetched_s = self._clock()

    async def _discovered(self, http: httpx.AsyncClient) -> str:
        """Where the issuer says that its keys are (OpenID Connect Discovery 1.0, section 4)."""
        found = (
            (await http.get(f"{self.issuer.rstrip('/')}/.well-known/openid-configuration")).raise_for_status().json()
        )
        if found["issuer"] != self.issuer:
            raise ValueError(f"its document is of the issuer {found['issuer']!r}")
        if not _trusted(found["jwks_uri"]):
            raise ValueError(f"its jwks_uri {found['jwks_uri']!r} is not https")
        return found["jwks_uri"]


def _trusted(url: str) -> bool:
    """Whether nobody on the way can change what is fetched there."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost"))


def _usable(key: Any) -> bool:
    return isinstance(key, dict) and key.get("kty") in KEY_TYPES and key.get("use", "sig") == "sig"
