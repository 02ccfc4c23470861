"""Callers and their rights: viewers read their team's jobs, observers all; submitters also submit and change their own
jobs, admins change all jobs.

A caller presents the gateway's own token (an admin), a token of the file, or a token of the OpenID issuer.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import structlog
from stretto_bus.faults import Fault
from stretto_messages.base import DEFAULT_TEAM
from stretto_messages.gateway import CallerRole
from stretto_runtime.access.tokens import ALL_TEAMS, ROLES, TokenEntry, digest_of, read_tokens
from stretto_runtime.process.connections import network_of
from stretto_wire.rest.views import JobView

from ..problems import Problem
from .buckets import Buckets

REFUSALS_PER_S, REFUSALS_BURST = 0.5, 20
"""Rate of requests without a valid token, per address."""
log = structlog.get_logger("stretto.gateway")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller. Names of tokens have no colon; other names begin with their kind, e.g. ``oidc:``."""

    name: str
    role: CallerRole
    team: str = DEFAULT_TEAM
    expires_at_s: float | None = field(default=None, compare=False)
    """When the token expires, in seconds since 1970-01-01 UTC; None: never."""

    @property
    def reads_all(self) -> bool:
        """Return whether the caller may read the jobs of all teams."""
        return self.role in ALL_TEAMS

    def reads(self, team: str) -> bool:
        """Return whether the caller may read the team's jobs."""
        return self.reads_all or team == self.team


ANYBODY = Caller("anonymous", "admin")
"""The caller of a gateway that is configured to accept everybody."""
OWN = Caller("admin", "admin")
"""The caller that has the gateway's own token."""


class Issuer(Protocol):
    """An issuer of tokens (:mod:`stretto_gateway.access.oidc`)."""

    async def caller(self, token: str) -> Caller: ...


class Watched(Generic[T]):
    """The content of a file, read again once the file has changed; a file that cannot be read changes nothing."""

    def __init__(self, path: Path, read: Callable[[Path], T]) -> None:
        """Read the file. Raises what ``read`` raises."""
        self._path, self._read = path, read
        self._stamp = self._stamped()
        self._content = read(path)

    def __call__(self) -> T:
        """Return the content as it is now."""
        if (stamp := self._stamped()) != self._stamp:
            self._stamp = stamp
            try:
                self._content = self._read(self._path)
            except (Fault, OSError) as error:
                log.error("a file of tokens cannot be read; what was known stays valid", error=str(error))
        return self._content

    def _stamped(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


class TokenFile:
    """The tokens of a file."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises SettingsFault."""
        self._known = Watched(path, lambda file: {entry.sha256: entry for entry in read_tokens(file)})

    def entry(self, token: str) -> TokenEntry | None:
        """Return the file's entry of a token, or None."""
        return self._known().get(digest_of(token))


class Access:
    """Authenticates callers and limits their rate.

    ``own`` returns the gateway's own token, which may change; empty: everybody is accepted. ``clock`` is monotonic.
    """

    def __init__(
        self,
        own: Callable[[], str],
        file: TokenFile,
        issuer: Issuer | None,
        rates: Buckets,
        clock: Callable[[], float],
    ) -> None:
        self._own = own
        self._file = file
        self._issuer = issuer
        self._rates = rates
        self._refusals = Buckets(REFUSALS_PER_S, REFUSALS_BURST)
        self._clock = clock

    @property
    def is_open(self) -> bool:
        """Return whether everybody is accepted, without a token."""
        return not self._own()

    async def admit(self, bearer: str | None, address: str) -> Caller:
        """Return the caller of a request. Raises Problem: 401, 403 or 503 for a caller that is not accepted, 429 after
        too many requests."""
        network = network_of(address)
        try:
            caller = await self._caller(bearer)
        except Problem as problem:
            if problem.status == 401:  # only refused requests count here: valid callers may share the address
                self._slow_down(self._refusals.take(network, self._clock()), network)
            raise
        key = network if self.is_open else caller.name
        self._slow_down(self._rates.take(key, self._clock()), key)
        return caller

    async def holds(self, bearer: str | None) -> bool:
        """Return whether a token is still valid: neither revoked nor expired.

        An issuer that cannot be reached revokes nothing.
        """
        try:
            await self._caller(bearer)
        except Problem as problem:
            return problem.status not in (401, 403)
        return True

    async def _caller(self, bearer: str | None) -> Caller:
        if self.is_open:
            return ANYBODY
        if not bearer:
            raise unauthorized("a bearer token is required", "absent", "Bearer")
        if hmac.compare_digest(bearer.encode(errors="replace"), self._own().encode()):
            return OWN
        if self._issuer is not None and bearer.count(".") == 2:
            return await self._issuer.caller(bearer)
        entry = self._file.entry(bearer)
        if entry is None:
            raise unauthorized("the bearer token is not one of this gateway", "Bearer …", "Bearer")
        if entry.expired(datetime.now(UTC)):
            raise unauthorized(
                f"the token {entry.name} expired at {entry.expires_at}", "Bearer …", 'Bearer error="invalid_token"'
            )
        expires_at_s = entry.expires_at.timestamp() if entry.expires_at else None
        return Caller(entry.name, entry.role, entry.team, expires_at_s)

    @staticmethod
    def _slow_down(wait_s: float, who: str) -> None:
        if wait_s > 0:
            seconds = ceil(wait_s)
            raise Problem(
                429,
                "too-many-requests",
                f"{who} sends too many requests",
                field="rate",
                value=who,
                remedy=f"ask again in {seconds} s",
                headers={"Retry-After": str(seconds)},
            )


def unauthorized(detail: str, value: str, challenge: str) -> Problem:
    """Make the Problem 401 with the challenge of RFC 6750."""
    return Problem(
        401,
        "unauthorized",
        detail,
        field="Authorization",
        value=value,
        remedy="send `Authorization: Bearer <token>`; `stretto up` keeps its own in gateway.token of its folder, "
        "`stretto token create` makes others",
        headers={"WWW-Authenticate": challenge},
    )


def require(caller: Caller, role: CallerRole) -> None:
    """Require at least ``role``. Raises Problem 403."""
    if ROLES.index(caller.role) < ROLES.index(role):
        raise Problem(
            403,
            "forbidden",
            f"{caller.name} is a {caller.role}, who may only read",
            field="role",
            value=caller.role,
            remedy=f"a token of the role {role}, as `stretto token create` makes",
        )


def require_own(caller: Caller, view: JobView) -> None:
    """Require that the caller submitted the job or is an admin. Raises Problem 403."""
    if caller.role != "admin" and view.submitted_by != caller.name:
        detail = f"{view.name} was submitted by {view.submitted_by}, not by {caller.name}"
        raise Problem(
            403, "not-yours", detail, field="job", value=view.name, remedy="only its submitter and admins may change it"
        )
