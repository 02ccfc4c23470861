"""Who calls, and what they may: viewers read, submitters also submit and change what they submitted, admins all.

A caller comes with one of: the gateway's own token (an admin), a token of the file, a token of the OpenID issuer.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Protocol

import structlog
from stretto_bus.faults import Fault
from stretto_runtime.access.tokens import ROLES, Role, TokenEntry, digest_of, read_tokens

from .buckets import Buckets
from .problems import Problem
from .views import JobView

LOOK_S = 1.0
"""a change of the file of tokens is seen after so long"""
REFUSALS_PER_S, REFUSALS_BURST = 0.5, 20
"""of one address without a good token"""
ADDRESS_MOST = 100
"""characters: what a proxy passes on as an address may be anything"""
log = structlog.get_logger("stretto.gateway")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is let in. Names of tokens have no colon; those of other ways begin with one that says the way."""

    name: str
    role: Role


ANYBODY = Caller("anonymous", "admin")
"""of a gateway that was told to let everybody in"""
OWN = Caller("admin", "admin")
"""who has the gateway's own token"""


class Issuer(Protocol):
    """Who vouches for others (:mod:`stretto_gateway.oidc`)."""

    async def caller(self, token: str) -> Caller: ...


class TokenFile:
    """The tokens of a file, read again when it changes; a file that cannot be read changes nothing."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """Raises SettingsFault. ``clock`` is monotonic."""
        self._path = path
        self._clock = clock
        self._looked_s = clock()
        self._stamp = self._stamped()
        self._known = {entry.sha256: entry for entry in read_tokens(path)}

    def entry(self, token: str) -> TokenEntry | None:
        """What the file says of a token."""
        if self._clock() - self._looked_s > LOOK_S:
            self._looked_s = self._clock()
            self._read_again()
        return self._known.get(digest_of(token))

    def _read_again(self) -> None:
        if (stamp := self._stamped()) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._known = {entry.sha256: entry for entry in read_tokens(self._path)}
        except Fault as fault:
            log.error("the file of tokens is passed over; those known hold", fault=str(fault))

    def _stamped(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


class Access:
    """Lets callers in, each at their rate. ``token``: the gateway's own; empty: everybody is let in."""

    def __init__(
        self, token: str, file: TokenFile, issuer: Issuer | None, rates: Buckets, clock: Callable[[], float]
    ) -> None:
        self._token = token
        self._file = file
        self._issuer = issuer
        self._rates = rates
        self._refusals = Buckets(REFUSALS_PER_S, REFUSALS_BURST)
        self._clock = clock

    async def admit(self, bearer: str | None, address: str) -> Caller:
        """Raises Problem: 401, 403 or 503 for who is not let in, 429 for who asks too often."""
        network = network_of(address)
        try:
            caller = await self._caller(bearer)
        except Problem as problem:
            if problem.status == 401:  # only who is refused is slowed down: others may come by the same address
                self._slow_down(self._refusals.take(network, self._clock()), network)
            raise
        key = caller.name if self._token else network
        self._slow_down(self._rates.take(key, self._clock()), key)
        return caller

    async def holds(self, bearer: str | None) -> bool:
        """Whether who was let in with it would be now: it may have been revoked, or have expired. An issuer that cannot
        be asked revokes nothing."""
        try:
            await self._caller(bearer)
        except Problem as problem:
            return problem.status not in (401, 403)
        return True

    async def _caller(self, bearer: str | None) -> Caller:
        if not self._token:
            return ANYBODY
        if not bearer:
            raise not_let_in("a bearer token is required", "absent", "Bearer")
        if hmac.compare_digest(bearer.encode(errors="replace"), self._token.encode()):
            return OWN
        if self._issuer is not None and bearer.count(".") == 2:
            return await self._issuer.caller(bearer)
        entry = self._file.entry(bearer)
        if entry is None:
            raise not_let_in("the bearer token is not one of this gateway", "Bearer …", "Bearer")
        if entry.expired(datetime.now(UTC)):
            raise not_let_in(f"the token {entry.name} expired at {entry.expires_at}", "Bearer …",
                             'Bearer error="invalid_token"')  # fmt: skip
        return Caller(entry.name, entry.role)

    @staticmethod
    def _slow_down(wait_s: float, who: str) -> None:
        if wait_s > 0:
            seconds = ceil(wait_s)
            raise Problem(429, "too-many-requests", f"{who} asks too often", field="rate", value=who,
                          remedy=f"ask again in {seconds} s", headers={"Retry-After": str(seconds)})  # fmt: skip


def not_let_in(detail: str, value: str, challenge: str) -> Problem:
    """401, with the challenge of RFC 6750."""
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


def network_of(address: str) -> str:
    """What one party holds of an address: all of IPv4's, and of IPv6's the network that it was given."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:ADDRESS_MOST]
    if isinstance(found, ipaddress.IPv6Address):
        return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
    return address


def require(caller: Caller, role: Role) -> None:
    """Raises Problem 403 for a caller of a lesser role."""
    if ROLES.index(caller.role) < ROLES.index(role):
        raise Problem(403, "forbidden", f"{caller.name} is a {caller.role}, who may only read", field="role",
                      value=caller.role, remedy=f"a token of the role {role}, as `stretto token` makes")  # fmt: skip


def require_own(caller: Caller, view: JobView) -> None:
    """Raises Problem 403 for who did not submit the job and is no admin."""
    if caller.role != "admin" and view.submitted_by != caller.name:
        told = f"{view.name} was submitted by {view.submitted_by}, not by {caller.name}"
        raise Problem(403, "not-yours", told, field="job", value=view.name,
                      remedy="who submitted it may change it, and every admin")  # fmt: skip
