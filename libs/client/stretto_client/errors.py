"""Errors of the client. Each names the failure, the value and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class ClientError(Exception):
    """A failure; every error of the client is one."""


class NotRunning(ClientError):
    """No gateway answers where the client looked."""


class Unreachable(ClientError):
    """The gateway was found, and the connection to it failed."""


class NotReady(ClientError, TimeoutError):
    """The awaited state was not reached in time."""


class Unusable(ClientError, ValueError):
    """An argument cannot be used, or an answer cannot be read."""


class PackageMissing(ClientError, ImportError):
    """A method needs a package that is not installed."""

    def __init__(self, package: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install {package}", name=package)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a request. ``line`` and ``column``: place in a file as sent, from 1; or None."""

    field: str
    value: str
    remedy: str
    line: int | None = None
    column: int | None = None


class Refused(ClientError):
    """The gateway refused or failed a request.

    ``kind``: name of the problem, by which programs tell problems apart. ``page``: address of the page about it.
    ``field``, ``value`` and ``remedy`` belong to the first of the ``findings``. ``count``: number of all findings, also
    of the ones that the answer leaves out.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        findings: Sequence[Finding] = (),
        count: int = 1,
        page: str = "",
    ) -> None:
        self.status, self.kind, self.detail, self.page = status, kind, detail, page
        self.findings, self.count = tuple(findings) or (Finding("", "", ""),), count
        super().__init__(detail)

    @property
    def field(self) -> str:
        """Return the field, header or parameter in error."""
        return self.findings[0].field

    @property
    def value(self) -> str:
        """Return the value found there, shortened."""
        return self.findings[0].value

    @property
    def remedy(self) -> str:
        """Return an acceptable value, or the next step."""
        return self.findings[0].remedy

    def __str__(self) -> str:
        lines = [f"{self.detail} ({self.kind}, HTTP {self.status})"]
        if len(self.findings) == 1 and self.remedy not in self.detail:
            lines.append(f"  remedy: {self.remedy}")
        elif len(self.findings) > 1:
            lines += [f"  {_place(one)}{one.field} = {one.value}: {one.remedy}" for one in self.findings]
        if self.count > len(self.findings):
            lines.append(f"  … and {self.count - len(self.findings)} more")
        return "\n".join([*lines, *([f"  more: {self.page}"] if self.page else [])])


def _place(finding: Finding) -> str:
    return f"line {finding.line}, column {finding.column}: " if finding.line else ""
