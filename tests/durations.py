"""Durations of ``make test`` by file: ``make durations`` records them in ``DURATIONS.md``, beside this file.

The recorded seconds of a file are the sum over its tests, with their fixtures. Conftest sorts the longest files first,
so that no worker begins a long file when the others are done. A house test bounds files and tests.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

TABLE = Path(__file__).with_name("DURATIONS.md")
FILE_MAX_S, TEST_MAX_S = 40.0, 15.0
"""A file or a test that takes longer needs its cause in the table."""
EXPLAINED = 40
"""The slowest files, all of which have their cause in the table."""
HEAD = f"""\
# Durations of `make test`

Written by `make durations`, on two cores; the causes are written by hand and kept. A file may take {FILE_MAX_S:.0f} s
and a test {TEST_MAX_S:.0f} s (`tests/test_house.py`). The {EXPLAINED} slowest files have their cause here, and so has
whatever takes longer than that.

| file | tests | seconds | longest test | seconds | cause |
| --- | ---: | ---: | --- | ---: | --- |
"""
ROW = re.compile(r"^\| `(\S+)` \| (\d+) \| ([\d.]+) \| `(.+?)` \| ([\d.]+) \| (.*?) ?\|$", re.MULTILINE)


class Row(NamedTuple):
    """A file of tests, the seconds that all of its tests take, and its longest test."""

    file: str
    tests: int
    seconds: float
    longest: str
    longest_s: float
    cause: str

    @property
    def is_long(self) -> bool:
        """Return whether file or longest test are above their bound."""
        return self.seconds > FILE_MAX_S or self.longest_s > TEST_MAX_S


@cache
def rows() -> list[Row]:
    """Return the rows of the table, the slowest file first."""
    found = ROW.findall(TABLE.read_text()) if TABLE.exists() else []
    return [Row(file, int(n), float(s), longest, float(most), cause) for file, n, s, longest, most, cause in found]


@cache
def seconds_of(file: str) -> float:
    """Return the recorded seconds of a file; of one that is not recorded, as many as a file may take."""
    return next((row.seconds for row in rows() if row.file == file), FILE_MAX_S)


class Recorder:
    """Adds up the durations of a run, and writes the table at its end if every test passed."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == 0:
            TABLE.write_text(written(self._seconds))


def written(seconds: dict[str, float]) -> str:
    """Return the table of these seconds by test, with the causes that stand in the present one."""
    causes = {row.file: row.cause for row in rows()}
    by_file: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for test, took_s in seconds.items():
        file, _, name = test.partition("::")
        by_file[file][name.replace("|", "/")] = took_s
    lines: list[tuple[float, str]] = []
    for file, tests in by_file.items():
        longest, whole_s = max(tests, key=lambda name: tests[name]), sum(tests.values())
        figures = f"{len(tests)} | {whole_s:.1f} | `{longest}` | {tests[longest]:.1f}"
        lines.append((whole_s, f"| `{file}` | {figures} | {causes.get(file, '')} |\n"))
    return HEAD + "".join(line for _, line in sorted(lines, reverse=True))
