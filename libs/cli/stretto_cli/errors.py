"""Errors of the command; each has its exit status."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from stretto_client.errors import ClientError, Refused, Unusable
from stretto_installation.errors import InstallationError, UnusableOption, sentence_of


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


_OF_INPUT = frozenset({400, 404, 409, 413, 415, 422})
"""Statuses of answers to requests that cannot be used."""


def of_client(error: ClientError) -> CliError:
    """Turn an error of the client into a sentence."""
    if isinstance(error, Unusable):
        return BadInput(str(error))
    if not isinstance(error, Refused):
        return CliError(str(error))
    kind = BadInput if error.status in _OF_INPUT else CliError
    if error.kind in ("bad-job", "bad-request") or error.count > 1:
        return kind("refused by the gateway", [asdict(one) for one in error.findings], error.count)
    remedy = f"\n  remedy: {error.remedy}" if error.remedy not in error.detail else ""  # a finding's detail has it
    page = f"\n  more: {error.page}" if error.page else ""
    return kind(error.detail + remedy + page)


@contextmanager
def translated() -> Generator[None]:
    """Turn errors of the client within the block into errors of the command."""
    try:
        yield
    except ClientError as error:
        raise of_client(error) from error


def of_installation(error: InstallationError) -> CliError:
    """Turn an error about an installation into an error of the command."""
    return (BadInput if isinstance(error, UnusableOption) else CliError)(str(error))


def of_system(error: OSError, option: str = "--folder") -> CliError:
    """Turn an error of the operating system into a sentence. ``option``: the option that names the place."""
    return CliError(sentence_of(error, option))
