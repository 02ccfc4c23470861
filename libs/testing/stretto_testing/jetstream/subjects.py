"""Subjects of NATS: which ones a pattern matches, and who has subscribed to one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import Generic, TypeVar

T = TypeVar("T")
ANY_TOKEN, ANY_TOKENS = r"[^.]+", r".+"


@lru_cache(maxsize=1 << 14)
def _expression(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return the expression of patterns with ``*`` for one token and ``>`` for all that follow."""
    tokens = {"*": ANY_TOKEN, ">": ANY_TOKENS}
    texts = [r"\.".join(tokens.get(token) or re.escape(token) for token in each.split(".")) for each in patterns]
    return re.compile("|".join(texts), re.DOTALL)


def matches(pattern: str, subject: str) -> bool:
    """Return whether a pattern matches a subject."""
    return _expression((pattern,)).fullmatch(subject) is not None


class Filter:
    """A filter of several patterns; without any it takes everything."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._expression = _expression(tuple(patterns) or (">",))

    def takes(self, subject: str) -> bool:
        """Return whether one of the patterns matches."""
        return self._expression.fullmatch(subject) is not None


class Interest(Generic[T]):
    """Subscribers, found by subject: exact ones, those of all below a subject, and the others by their first token."""

    def __init__(self) -> None:
        self._exact: dict[str, list[T]] = defaultdict(list)
        self._below: dict[str, list[T]] = defaultdict(list)
        self._others: dict[str, dict[tuple[str, T], None]] = defaultdict(dict)

    def add(self, pattern: str, who: T) -> None:
        """Note a subscription."""
        if "*" not in pattern and ">" not in pattern:
            self._exact[pattern].append(who)
        elif pattern.endswith(".>") and "*" not in pattern:
            self._below[pattern[:-2]].append(who)
        else:
            self._others[pattern.partition(".")[0]][pattern, who] = None

    def remove(self, pattern: str, who: T) -> None:
        """Forget a subscription."""
        for table, key in ((self._exact, pattern), (self._below, pattern[:-2])):
            if who in table.get(key, ()):
                table[key].remove(who)
                if not table[key]:
                    del table[key]
                return
        self._others[pattern.partition(".")[0]].pop((pattern, who), None)

    def of(self, subject: str) -> list[T]:
        """Return the subscribers of a subject."""
        found = [*self._exact.get(subject, ())]
        at = subject.find(".") if self._below else -1
        while at >= 0:
            found += self._below.get(subject[:at], ())
            at = subject.find(".", at + 1)
        for first in (subject.partition(".")[0], "*"):
            found += [who for pattern, who in self._others.get(first, ()) if matches(pattern, subject)]
        return found
