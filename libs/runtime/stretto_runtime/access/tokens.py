"""The file of the gateway's tokens, with their roles. It holds the SHA-256 of each token; a token is shown once.

A file of its own holds the gateway's own token itself, for commands on its machine.

A token has 256 random bits, so nobody can guess it from a plain digest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import tempfile
from collections.abc import Generator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, get_args

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)
from stretto_messages.base import DEFAULT_TEAM, JOB_PATTERN
from stretto_messages.gateway import CallerRole

from stretto_runtime.process.faults import SettingsFault

ROLES: tuple[CallerRole, ...] = get_args(CallerRole)
ALL_TEAMS: frozenset[CallerRole] = frozenset({"observer", "admin"})
"""Roles that read the jobs of all teams; the others read their own team's."""
FILE, OWN_FILE = "gateway.tokens.json", "gateway.token"
PREFIX = "stretto_"
"""Beginning of each token, by which scanners for leaked secrets recognise it."""
NAME_PATTERN = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
TeamName = Annotated[str, StringConstraints(pattern=JOB_PATTERN)]
TAKEN = frozenset({"admin", "anonymous"})
"""Names that the gateway gives to callers without a name."""


def _free(name: str) -> str:
    if name in TAKEN:
        raise ValueError(f"{name} is a name of the gateway's own")
    return name


class TokenEntry(BaseModel):
    """One token. ``name`` is its holder; changes made with it are recorded under that name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, StringConstraints(pattern=NAME_PATTERN), AfterValidator(_free)]
    role: CallerRole
    team: TeamName = DEFAULT_TEAM
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    created_at: AwareDatetime
    expires_at: AwareDatetime | None = None

    def expired(self, now: datetime) -> bool:
        return self.expires_at is not None and now >= self.expires_at


_ENTRIES = TypeAdapter(tuple[TokenEntry, ...])


def digest_of(token: str) -> str:
    """The digest that is kept of a token."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def fresh() -> str:
    """Return a new token."""
    return PREFIX + secrets.token_urlsafe(32)


def make_own(path: Path) -> None:
    """Make the file of the gateway's own token, unless there is one already. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():  # written whole before it has its name: nobody sees half a token
        draft = _draft(path, f"{fresh()}\n".encode())
        with contextlib.suppress(FileExistsError):  # another replica was faster
            os.link(draft, path)
        os.unlink(draft)


def renew_own(path: Path) -> None:
    """Put a new token in the place of the gateway's own, in the same file. Raises OSError."""
    os.replace(_draft(path, f"{fresh()}\n".encode()), path)


def _draft(path: Path, content: bytes) -> str:
    """Write a file beside ``path`` that only its owner reads; returns its name."""
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    return draft


def issue(
    name: str, role: CallerRole, now: datetime, expires_at: datetime | None = None, team: str = DEFAULT_TEAM
) -> tuple[str, TokenEntry]:
    """A new token and its entry. Raises SettingsFault: the name or the team is not allowed."""
    token = fresh()
    try:
        entry = TokenEntry(
            name=name, role=role, team=team, sha256=digest_of(token), created_at=now, expires_at=expires_at
        )
    except ValidationError as error:
        if error.errors()[0]["loc"] == ("team",):
            remedy = "give at most 63 lower-case letters, digits or hyphens"
            raise SettingsFault(f"team {team!r} is refused: {remedy}") from None
        raise SettingsFault(
            f"name {name!r} is refused: give at most 63 lower-case letters, digits, dots, hyphens or underscores, and "
            f"none of {', '.join(sorted(TAKEN))}"
        ) from None
    return token, entry


@contextlib.contextmanager
def changing(path: Path) -> Generator[None]:
    """Serialise changes of the file: inside, nobody else reads it in order to write it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:  # the file itself is replaced
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_tokens(path: Path) -> tuple[TokenEntry, ...]:
    """Every entry; none if there is no file.

    Raises:
        SettingsFault: the file cannot be read, or an entry is refused.
    """
    try:
        entries = _ENTRIES.validate_json(path.read_bytes())
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise SettingsFault(f"cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "(document)"
        raise SettingsFault(f"{path}: {where}: {first['msg']}; make entries with `stretto token create`") from None
    names = [entry.name for entry in entries]
    if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
        raise SettingsFault(f"{path}: {twice} is there twice: remove one of the two")
    return entries


def write_tokens(path: Path, entries: Sequence[TokenEntry]) -> None:
    """Write all entries, whole or not at all, readable by the owner only; call it within ``changing``."""
    os.replace(_draft(path, _ENTRIES.dump_json(tuple(entries), indent=2, exclude_none=True) + b"\n"), path)
