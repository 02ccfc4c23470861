"""The error of the wire protocol: refused field, its value, and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from pydantic import ValidationError

from .findings import MOST, Finding, Marks, finding, findings_of


class WireError(ValueError):
    """A message, subject or specification that violates the wire protocol.

    ``findings`` holds the first :data:`MOST` findings; ``count`` is the number of all. ``field`` (dotted path),
    ``value`` and ``remedy`` (an acceptable value) are those of the first finding. All texts are short and printable,
    so that they fit a header, a log line or a terminal.
    """

    def __init__(self, field: str, value: Any, remedy: str) -> None:
        self._set([finding((field,), value, remedy)])

    @classmethod
    def collected(cls, findings: Sequence[Finding]) -> Self:
        """Return one error that holds one or more findings."""
        made = cls.__new__(cls)
        made._set(findings)
        return made

    @classmethod
    def of(
        cls,
        error: ValidationError,
        where: str = "",
        model: type[Any] | None = None,
        marks: Marks | None = None,
        document: object = None,
    ) -> Self:
        """Return all findings of a pydantic error; with ``model``, remedies describe its fields.

        ``document``: what was checked, if parts of it were filled in for the check.
        """
        return cls.collected(findings_of(error.errors(include_url=False), model, marks, where, document))

    def _set(self, findings: Sequence[Finding]) -> None:
        first = findings[0]
        self.findings = tuple(findings[:MOST])
        self.count = len(findings)
        self.field, self.value, self.remedy = first.field, first.value, first.remedy
        more = f" (and {self.count - 1} more)" if self.count > 1 else ""
        ValueError.__init__(self, f"{first}{more}")
