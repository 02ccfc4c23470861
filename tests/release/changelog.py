"""The changelog, as Keep a Changelog 1.1 has it: a section a release, newest first, changes by their kind."""

from __future__ import annotations

import re
from datetime import date

from tests.release.versions import ROOT, ReleaseRefused

CHANGELOG = ROOT / "CHANGELOG.md"
UNRELEASED = "Unreleased"
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
HEADING = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<day>\d{4}-\d{2}-\d{2}))?$", re.MULTILINE)


def sections(text: str) -> dict[str, tuple[str, str]]:
    """Return version -> (day of release, its changes); the day of ``Unreleased`` is empty."""
    headings = list(HEADING.finditer(text))
    ends = [*(each.start() for each in headings[1:]), len(text)]
    return {
        heading["name"]: (heading["day"] or "", text[heading.end() : end].strip())
        for heading, end in zip(headings, ends, strict=True)
    }


def released(text: str, version: str, day: date) -> str:
    """Return the text with what was unreleased as the section of ``version``.

    Raises ReleaseRefused where there is nothing to release, or the version was released before.
    """
    found = sections(text)
    if version in found:
        raise ReleaseRefused(f"VERSION={version} is in CHANGELOG.md already: choose the next one")
    if not found.get(UNRELEASED, ("", ""))[1]:
        raise ReleaseRefused(f"CHANGELOG.md states nothing under [{UNRELEASED}]: write what users get")
    return text.replace(f"## [{UNRELEASED}]", f"## [{UNRELEASED}]\n\n## [{version}] - {day:%Y-%m-%d}", 1)


def notes(text: str, version: str) -> str:
    """Return the changes of a released version. Raises ReleaseRefused for an unknown one, or one without a day."""
    day, changes = sections(text).get(version, ("", ""))
    if not day:
        raise ReleaseRefused(
            f"CHANGELOG.md has no section [{version}] with its day: run `make release VERSION={version}`"
        )
    return changes
