"""``stretto audit-log``: export who changed what, and prove that no entry was changed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from stretto_wire.contract.audit_log import verify as verified
from stretto_wire.errors import WireError

from ...command import command
from ...errors import CliError
from ...options import DEFAULT_FOLDER, FolderOption, OutputForm, OutputOption, TokenOption, UrlOption, answer, connect

VerifyOption = Annotated[bool, typer.Option("--verify", help="Check the chain instead of printing the entries.")]


@command("Jobs", "stretto audit-log --verify")
def audit_log(
    verify: VerifyOption = False,
    folder: FolderOption = DEFAULT_FOLDER,
    url: UrlOption = None,
    token: TokenOption = None,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Print the audit log, as JSON lines whatever --output says, oldest first. Needs an admin's token.

    Each line has the SHA-256 of the line before. With --verify the chain is checked, and exit status 0 means that no
    entry between the first and the last was changed, added or removed. Keep the last hash elsewhere: entries that were
    cut off at the end leave no trace in the chain itself.
    """
    with connect(folder, url, token) as gateway:
        lines = gateway.audit_log().splitlines()
    if not verify:
        sys.stdout.buffer.write(b"".join(line + b"\n" for line in lines))  # no encoding may change what is hashed
        return
    try:
        found = verified(lines)
    except WireError as error:
        raise CliError(f"the audit log is not whole: {error}") from None
    begin = "from the installation's first" if found.first else "from the oldest that is kept"
    text = f"{found.entries} entries, {begin} on, are whole; the last has the hash {found.last_hash or '-'}"
    answer(output, {"entries": found.entries, "first": found.first, "last_hash": found.last_hash}, lambda: text)
