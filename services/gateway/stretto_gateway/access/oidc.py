"""OpenID Connect: the caller that a JSON Web Token of the configured issuer names.

The issuer's public keys are fetched when first needed, when they are old, and when a token names an unknown key, but at
most every ``RETRY_S``: no sender of tokens can make the gateway ask the issuer more often.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import jwt
import structlog
from stretto_messages.base import DEFAULT_TEAM, JOB_PATTERN
from stretto_messages.gateway import CallerRole
from stretto_runtime.access.tokens import ROLES
from stretto_runtime.process.faults import SettingsFault

from ..problems import Problem
from ..settings import GatewaySettings
from .callers import Caller, unauthorized

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
KEY_TYPES = frozenset({"RSA", "EC", "OKP"})
"""Types of public keys. A shared key is refused: whoever can read it could sign with it."""
LEEWAY_S = 30.0
REFRESH_S = 300.0
RETRY_S = 10.0
STALE_S = 24 * 3600.0
"""Keys that could not be refreshed for this long are no longer trusted."""
FETCH_S = 5.0
NAME_MOST = 200
"""Number of characters that a name has at most, as everywhere in events."""
log = structlog.get_logger("stretto.gateway")


class Issuer:
    """The configured issuer of tokens, and its public keys."""

    def __init__(self, settings: GatewaySettings, clock: Callable[[], float]) -> None:
        """Check the settings. Raises SettingsFault for invalid ones. ``clock`` is monotonic."""
        self.issuer = settings.oidc_issuer or ""
        if not settings.oidc_audience:
            raise SettingsFault(
                "STRETTO_GATEWAY_OIDC_ISSUER without STRETTO_GATEWAY_OIDC_AUDIENCE: a token that the issuer made for "
                "another service would be accepted; set the audience of the tokens for this gateway"
            )
        for variable, url in (("OIDC_ISSUER", self.issuer), ("OIDC_JWKS_URL", settings.oidc_jwks_url)):
            if url and not _trusted(url):
                raise SettingsFault(f"STRETTO_GATEWAY_{variable}={url} is refused: give a URL with https")
        self._settings = settings
        self._clock = clock
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._fetched_s = self._tried_s = float("-inf")
        self._fetching = asyncio.Lock()
        self._background: asyncio.Task[None] | None = None

    async def caller(self, token: str) -> Caller:
        """Return the caller that a token names. Raises Problem: 401 for an invalid token, 403 without a role, 503
        without keys."""
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
            raise unauthorized(f"the token is refused: {error}", "Bearer …", 'Bearer error="invalid_token"') from error
        claim = self._settings.oidc_name_claim
        name = f"oidc:{claims[claim]}"
        if len(name) > NAME_MOST:  # if long names were cut, two of them could become one
            detail = f"the token is refused: its claim {claim} is longer than {NAME_MOST - len('oidc:')} characters"
            raise unauthorized(detail, "Bearer …", 'Bearer error="invalid_token"')
        return Caller(name, self._role(claims), self._team(claims), float(claims["exp"]))

    def _role(self, claims: dict[str, Any]) -> CallerRole:
        """Return the highest role that the claim names, directly or through the settings' map."""
        found = _claimed(claims, self._settings.oidc_role_claim)
        values = found.split() if isinstance(found, str) else found if isinstance(found, list) else []
        meant = self._settings.oidc_roles
        held = {
            meant.get(each, each if not meant else None) for each in cast(list[Any], values) if isinstance(each, str)
        }
        for role in reversed(ROLES):
            if role in held:
                return role
        wanted = ", ".join(meant or ROLES)
        claim = self._settings.oidc_role_claim
        raise Problem(
            403,
            "no-role",
            f"the token's claim {claim} names no role of the gateway",
            field=claim,
            value=values,
            remedy=f"ask the issuer for one of {wanted}",
        )

    def _team(self, claims: dict[str, Any]) -> str:
        """Return the team that the claim names; the default team if no claim is configured.

        A token without the configured claim is refused: in the default team its bearer would read others' jobs.
        """
        claim = self._settings.oidc_team_claim
        if not claim:
            return DEFAULT_TEAM
        team = _claimed(claims, claim)
        if isinstance(team, str) and re.fullmatch(JOB_PATTERN, team):
            return team
        raise Problem(
            403,
            "no-team",
            f"the token's claim {claim} names no team",
            field=claim,
            value=team,
            remedy="ask the issuer for a team: at most 63 lower-case letters, digits or hyphens",
        )

    async def _key(self, kid: str | None) -> jwt.PyJWK:
        async with self._fetching:
            now = self._clock()
            wanted = now - self._fetched_s > REFRESH_S or kid not in self._keys
            if wanted and now - self._tried_s > RETRY_S:
                failing, self._tried_s = self._tried_s > self._fetched_s, now
                fetching = self._background = asyncio.create_task(self._fetch())
                if not (failing and kid in self._keys):  # an absent issuer delays no caller whose key is known
                    await fetching
            if now - self._fetched_s > STALE_S:
                raise Problem(
                    503,
                    "no-keys",
                    f"the keys of {self.issuer} cannot be fetched",
                    field="Authorization",
                    remedy="try again in some seconds; the gateway's log has the reason",
                    headers={"Retry-After": str(int(RETRY_S))},
                )
        if kid not in self._keys:
            raise jwt.InvalidKeyError(f"its key {kid!r} is not one of the issuer's")
        return self._keys[kid]

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(FETCH_S), httpx.AsyncClient(timeout=FETCH_S, follow_redirects=False) as http:
                url = self._settings.oidc_jwks_url or await self._discovered(http)
                found = (await http.get(url)).raise_for_status().json()["keys"]
            usable = [each for each in found if _usable(each)]
            keys = jwt.PyJWKSet.from_dict({"keys": usable}).keys if usable else []  # PyJWKSet skips unknown kinds
        except (httpx.HTTPError, httpx.InvalidURL, jwt.PyJWTError, OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the issuer's keys cannot be fetched", issuer=self.issuer, error=str(error) or repr(error))
            return
        self._keys = {key.key_id: key for key in keys}
        self._fetched_s = self._clock()

    async def _discovered(self, http: httpx.AsyncClient) -> str:
        """Return the URL of the issuer's keys (OpenID Connect Discovery 1.0, section 4)."""
        found = (
            (await http.get(f"{self.issuer.rstrip('/')}/.well-known/openid-configuration")).raise_for_status().json()
        )
        if found["issuer"] != self.issuer:
            raise ValueError(f"its document names the issuer {found['issuer']!r}")
        if not _trusted(found["jwks_uri"]):
            raise ValueError(f"its jwks_uri {found['jwks_uri']!r} is not https")
        return found["jwks_uri"]


def _claimed(claims: dict[str, Any], path: str) -> Any:
    """Return the claim at a path whose dots separate nested objects, or None."""
    found: Any = claims
    for part in path.split("."):
        found = cast(dict[str, Any], found).get(part) if isinstance(found, dict) else None
    return found


def _trusted(url: str) -> bool:
    """Return whether nobody in between can change the answer from ``url``."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost"))


def _usable(key: Any) -> bool:
    return isinstance(key, dict) and key.get("kty") in KEY_TYPES and key.get("use", "sig") == "sig"
