"""``stretto token``: create, list, renew and revoke tokens of the gateway."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from stretto_client.documents import Documents
from stretto_client.errors import NotRunning, Refused
from stretto_messages.base import DEFAULT_TEAM
from stretto_messages.gateway import CallerRole
from stretto_runtime import SettingsFault
from stretto_runtime.access.tokens import (
    FILE,
    OWN_FILE,
    TokenEntry,
    changing,
    issue,
    read_tokens,
    renew_own,
    write_tokens,
)

from ...command import CommandGroup
from ...errors import BadInput, translated
from ...options import DEFAULT_FOLDER, FolderOption, OutputForm, OutputOption, answer, console, located

GROUP = CommandGroup(__name__, "token", "Installation", "Create, list, renew and revoke tokens for the gateway.")
FileOption = Annotated[Path | None, typer.Option("--file", help=f"File of the tokens. Default: {FILE} in the folder.")]
OWN, UNAUTHORIZED = "admin", 401
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Who will use the token. Shown in the audit trail with every change.")
]


@GROUP.command("stretto token create ci --role submitter --days 90")
def create(
    name: NameArgument,
    role: Annotated[
        CallerRole,
        typer.Option(
            help="Role: viewer reads its team's jobs, observer those of all teams; submitter also changes its own "
            "jobs; admin reads and changes everything."
        ),
    ] = "viewer",
    team: Annotated[
        str, typer.Option(help="Team of the token's jobs. A viewer or submitter reads its own team's jobs only.")
    ] = DEFAULT_TEAM,
    days: Annotated[
        float | None,
        typer.Option(min=0.001, max=36500, help="Days until the token expires. Default: it never expires."),
    ] = None,
    file: FileOption = None,
    output: OutputOption = OutputForm.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
) -> None:
    """Create a token and print it. It is printed only once: the file keeps its SHA-256. It is valid at once.

    For a gateway elsewhere, write a file with --file and give that gateway the file as STRETTO_GATEWAY_TOKENS_FILE.
    """
    path = file or folder / FILE
    now = _now()
    with changing(path):
        known = _known(path)
        if name in [entry.name for entry in known]:
            raise BadInput(f"{name} has a token already; `stretto token revoke {name}` revokes it")
        try:
            token, entry = issue(name, role, now, None if days is None else now + timedelta(days=days), team)
        except SettingsFault as fault:
            raise BadInput(str(fault)) from None
        write_tokens(path, (*known, entry))
    answer(output, {"token": token, **_shown(entry)}, lambda: token)


@GROUP.command("stretto token list -o json", name="list")
def show(
    file: FileOption = None, output: OutputOption = OutputForm.TABLE, folder: FolderOption = DEFAULT_FOLDER
) -> None:
    """List the tokens: name, role, team, and when they expire."""
    known = _known(file or folder / FILE)

    def table() -> Table:
        shown = Table("name", "role", "team", "created", "expires")
        for entry in known:
            expires = f"{entry.expires_at:%Y-%m-%d %H:%M}" if entry.expires_at else "never"
            shown.add_row(entry.name, entry.role, entry.team, f"{entry.created_at:%Y-%m-%d %H:%M}", expires)
        return shown

    answer(output, [_shown(entry) for entry in known], table)


@GROUP.command("stretto token renew")
def renew(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Whose token. Default: the gateway's own, an admin's.")
    ] = None,
    file: FileOption = None,
    output: OutputOption = OutputForm.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
) -> None:
    """Replace a token. The gateway refuses the old one at once, and ends the event streams of it within two seconds.

    Without NAME it is the gateway's own, gateway.token in the folder, where commands find the new one; `stretto
    console` signs a browser in again. With NAME it is one of the file: role, team and end stay, the new one is printed.
    """
    if name is None:
        _renew_own(folder)
        text = "the gateway has a new token of its own; `stretto console` signs a browser in again"
        answer(output, {"renewed": OWN}, lambda: text)
        return
    path = file or folder / FILE
    with changing(path):
        known = _known(path)
        old = _entry_of(name, known, path)
        token, entry = issue(name, old.role, _now(), old.expires_at, old.team)
        write_tokens(path, [entry if each is old else each for each in known])
    answer(output, {"token": token, **_shown(entry)}, lambda: token)


def _renew_own(folder: Path) -> None:
    path = folder / OWN_FILE
    if not path.is_file():
        raise BadInput(f"{path} is missing: the gateway makes it when it starts, unless it gets its token elsewhere")
    renew_own(path)
    with translated(), contextlib.suppress(NotRunning), Documents(located(folder, None, None)) as gateway:
        try:
            gateway.status()
        except Refused as refused:
            if refused.status != UNAUTHORIZED:
                raise
            raise BadInput(
                f"the gateway does not read {path}: it was given its own token by STRETTO_GATEWAY_TOKEN or "
                "STRETTO_GATEWAY_TOKEN_FILE; change it there"
            ) from None


@GROUP.command("stretto token revoke ci")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose token is revoked.")],
    file: FileOption = None,
    output: OutputOption = OutputForm.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
) -> None:
    """Revoke a token. The gateway refuses it at once, and ends the event streams it opened within two seconds."""
    path = file or folder / FILE
    with changing(path):
        known = _known(path)
        revoked = _entry_of(name, known, path)
        write_tokens(path, [entry for entry in known if entry is not revoked])
    answer(output, {"revoked": name}, lambda: console.print(f"{name} has no token any more"))


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _entry_of(name: str, known: Sequence[TokenEntry], path: Path) -> TokenEntry:
    for entry in known:
        if entry.name == name:
            return entry
    raise BadInput(f"{path} holds no token of {name}; it has {', '.join(entry.name for entry in known) or 'none'}")


def _known(path: Path) -> tuple[TokenEntry, ...]:
    try:
        return read_tokens(path)
    except SettingsFault as fault:
        raise BadInput(str(fault)) from None


def _shown(entry: TokenEntry) -> dict[str, Any]:
    return entry.model_dump(mode="json", exclude={"sha256"}, exclude_none=True)
