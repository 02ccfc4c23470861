"""Subjects of NATS: which ones a pattern matches, and who has subscribed to one.

What was found out about a subject is kept: a history asks the same again some hundred thousand times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import Generic, TypeVar

T = TypeVar("T")
KNOWN_MOST = 1 << 14
"""Subjects whose subscribers are kept."""


@lru_cache(maxsize=1 << 17)
def matches(pattern: str, subject: str) -> bool:
    """Return whether a pattern, with ``*`` for one token and ``>`` for all that follow, matches a subject."""
    wanted, there = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(there) <= len(wanted):
            return False
    elif len(there) != len(wanted):
        return False
    return all(token in ("*", found) and found for token, found in zip(wanted, there, strict=False))


class Filter:
    """A filter of several patterns; without any it takes everything."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._exact, self._below, self._others, self._begins = _sorted(tuple(patterns) or (">",))

    def takes(self, subject: str) -> bool:
        """Return whether one of the patterns matches."""
        if subject in self._exact or subject.startswith(self._below):
            return True
        return subject.startswith(self._begins) and any(matches(pattern, subject) for pattern in self._others)


@lru_cache(maxsize=1 << 11)
def _sorted(patterns: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the subjects among patterns, what stands before a ``>`` alone, the other patterns, and how these begin."""
    below = tuple(each[:-1] for each in patterns if each.endswith(">") and "*" not in each)
    others = tuple(each for each in patterns if "*" in each)
    exact = frozenset(each for each in patterns if "*" not in each and not each.endswith(">"))
    return exact, below, others, tuple(each.partition("*")[0] for each in others)


class Interest(Generic[T]):
    """Subscribers, found by subject: exact ones, those of all below a subject, and the others by their first token."""

    def __init__(self) -> None:
        self._exact: dict[str, list[T]] = defaultdict(list)
        self._below: dict[str, list[T]] = defaultdict(list)
        self._others: dict[str, dict[tuple[str, T], None]] = defaultdict(dict)
        self._found: dict[str, list[T]] = {}
        """Subject -> its subscribers, since the last change"""

    def add(self, pattern: str, who: T) -> None:
        """Note a subscription."""
        self._forget(pattern)
        if "*" not in pattern and ">" not in pattern:
            self._exact[pattern].append(who)
        elif pattern.endswith(".>") and "*" not in pattern:
            self._below[pattern[:-2]].append(who)
        else:
            self._others[pattern.partition(".")[0]][pattern, who] = None

    def remove(self, pattern: str, who: T) -> None:
        """Forget a subscription."""
        self._forget(pattern)
        for table, key in ((self._exact, pattern), (self._below, pattern[:-2])):
            if who in table.get(key, ()):
                table[key].remove(who)
                if not table[key]:
                    del table[key]
                return
        self._others[pattern.partition(".")[0]].pop((pattern, who), None)

    def _forget(self, pattern: str) -> None:
        """Forget what was found of the subjects of a pattern."""
        if "*" in pattern or ">" in pattern:
            self._found.clear()
        else:
            self._found.pop(pattern, None)

    def of(self, subject: str) -> list[T]:
        """Return the subscribers of a subject."""
        found = self._found.get(subject)
        if found is None:
            if len(self._found) >= KNOWN_MOST:
                self._found.clear()
            found = self._found[subject] = self._look_for(subject)
        return found

    def _look_for(self, subject: str) -> list[T]:
        found = [*self._exact.get(subject, ())]
        at = subject.find(".") if self._below else -1
        while at >= 0:
            found += self._below.get(subject[:at], ())
            at = subject.find(".", at + 1)
        for first in (subject.partition(".")[0], "*"):
            found += [who for pattern, who in self._others.get(first, ()) if matches(pattern, subject)]
        return found
