"""Subjects of NATS: which ones a pattern matches, and who has subscribed to one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Generic, TypeVar

T = TypeVar("T")


@lru_cache(maxsize=1 << 16)
def matches(pattern: str, subject: str) -> bool:
    """Return whether ``pattern``, with ``*`` for one token and ``>`` for all that follow, matches ``subject``."""
    if pattern == subject:
        return True
    wanted, tokens = pattern.split("."), subject.split(".")
    for at, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > at
        if at >= len(tokens) or (token not in ("*", tokens[at])):
            return False
    return len(wanted) == len(tokens)


class Filter:
    """A filter of several patterns, which remembers its answer for each subject."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [*patterns]
        self._known: dict[str, bool] = {}

    def takes(self, subject: str) -> bool:
        """Return whether one of the patterns matches; no pattern at all matches everything."""
        known = self._known.get(subject)
        if known is None:
            known = not self._patterns or any(matches(each, subject) for each in self._patterns)
            self._known[subject] = known
        return known


class Interest(Generic[T]):
    """Subscribers, found by subject. Patterns that end in ``.>`` and have no ``*`` are found by their head."""

    def __init__(self) -> None:
        self._exact: dict[str, list[T]] = defaultdict(list)
        self._below: dict[str, list[T]] = defaultdict(list)
        self._others: list[tuple[str, T]] = []

    def add(self, pattern: str, who: T) -> None:
        """Note a subscription."""
        if "*" not in pattern and ">" not in pattern:
            self._exact[pattern].append(who)
        elif pattern.endswith(".>") and "*" not in pattern:
            self._below[pattern[:-2]].append(who)
        else:
            self._others.append((pattern, who))

    def remove(self, pattern: str, who: T) -> None:
        """Forget a subscription."""
        for table, key in ((self._exact, pattern), (self._below, pattern[:-2])):
            if who in table.get(key, ()):
                table[key].remove(who)
                if not table[key]:
                    del table[key]
                return
        self._others = [each for each in self._others if each != (pattern, who)]

    def of(self, subject: str) -> Iterator[T]:
        """Yield the subscribers of a subject."""
        yield from self._exact.get(subject, ())
        if self._below:
            at = subject.find(".")
            while at >= 0:
                yield from self._below.get(subject[:at], ())
                at = subject.find(".", at + 1)
        for pattern, who in self._others:
            if matches(pattern, subject):
                yield who
