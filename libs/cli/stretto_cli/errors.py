"""Errors of the command; each has its exit status."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import Any


class CliError(Exception):
    """A failure: exit status 1. The text names the failure, the value and the remedy.

    ``errors``: the single findings as in the gateway's problems (field, value, remedy, line, column); ``count``: their
    full number.
    """

    status = 1
    one_line = False
    """Print the text alone, even where programs expect a document."""

    def __init__(self, text: str, errors: Sequence[dict[str, Any]] = (), count: int | None = None) -> None:
        self.text, self.errors = text, tuple(errors)
        self.count = len(self.errors) if count is None else count
        super().__init__("\n".join(self._lines()))

    def document(self) -> dict[str, Any]:
        """Return the error as a document for programs."""
        error = {"status": self.status, "message": self.text, "count": self.count, "errors": list(self.errors)}
        return {"error": error}

    def _lines(self) -> Iterator[str]:
        yield self.text if self.count < 2 else f"{self.text}, {self.count} things are wrong"
        for one in self.errors:
            place = f"line {one['line']}, column {one['column']}: " if one.get("line") else ""
            yield f"  {place}{one['field']} = {one['value']}: {one['remedy']}"
        if self.count > len(self.errors):
            yield f"  … and {self.count - len(self.errors)} more"


class BadInput(CliError):
    """The user's input cannot be used: exit status 2."""

    status = 2


class NotRunning(CliError):
    """No installation or gateway runs where the command looked."""


def of_system(error: OSError, option: str = "--folder") -> CliError:
    """Turn an error of the operating system into a sentence. ``option``: the option that names the place."""
    home = ", or HOME," if option == "--folder" else ""
    remedies = {
        errno.ENOSPC: f"make room, or choose another {option}",
        errno.EDQUOT: f"make room, or choose another {option}",
        errno.ENOENT: f"choose a {option} that can be created",
        errno.EROFS: f"choose a {option}{home} that is writable",
        errno.EACCES: f"choose a {option} that is yours",
        errno.EPERM: f"choose a {option} that is yours",
        errno.ENOTDIR: f"choose a {option} that is not below a file",
        errno.EEXIST: f"choose a {option} that is not a file",
        errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    }
    place = f"{error.filename}: " if error.filename else ""
    remedy = remedies.get(error.errno or 0, "see the logs in the folder, if there are any")
    return CliError(f"{place}{error.strerror or type(error).__name__}; {remedy}")
