"""One error base: what was refused, with which value, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from pydantic import BaseModel, ValidationError

from .findings import MOST, Finding, Marks, finding, findings_of


class WireError(ValueError):
    """A message, subject or specification that is not of the wire protocol.

    ``findings`` are what is wrong, at most :data:`MOST` of them, ``count`` of them in all; ``field`` is the dotted
    path of the first, ``value`` what stood there, ``remedy`` what would be accepted. All are short and printable
    whatever arrived, so that they can stand in a header, a log line or a terminal.
    """

    def __init__(self, field: str, value: Any, remedy: str) -> None:
        self._tell([finding((field,), value, remedy)])

    @classmethod
    def collected(cls, findings: Sequence[Finding]) -> Self:
        """One error of one or more findings."""
        made = cls.__new__(cls)
        made._tell(findings)
        return made

    @classmethod
    def of(
        cls,
        error: ValidationError,
        where: str = "",
        model: type[BaseModel] | None = None,
        marks: Marks | None = None,
    ) -> Self:
        """All findings of a pydantic error, in words of ours; with ``model``, told what its fields take."""
        return cls.collected(findings_of(error.errors(include_url=False), model, marks, where))

    def _tell(self, findings: Sequence[Finding]) -> None:
        first = findings[0]
        self.findings = tuple(findings[:MOST])
        self.count = len(findings)
        self.field, self.value, self.remedy = first.field, first.value, first.remedy
        more = f" (and {self.count - 1} more)" if self.count > 1 else ""
        ValueError.__init__(self, f"{first}{more}")
