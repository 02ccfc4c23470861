"""The installation's list of volumes: which sources jobs may name, and which of them they may write.

An entry is ``<kind>:<source>``, with ``:write`` after it where pods may write, and ``=<submitter>`` where only that
submitter's jobs may name it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from ..jobspec.pod_files import KINDS, SourceKind, VolumeSpec, checked_folder

WRITE = ":write"
_ENTRY = re.compile(rf"(?P<kind>{'|'.join(KINDS)}):(?P<source>[^=:*]+\*?)(?P<write>{WRITE})?(=(?P<owner>.+))?")
_FORM = "claim:NAME, docker_volume:NAME or folder:/PATH, with :write and =SUBMITTER after it if wanted"


@dataclass(frozen=True, slots=True)
class VolumeEntry:
    """One entry of the list. ``owner`` empty: any submitter."""

    kind: SourceKind
    source: str
    is_writable: bool
    owner: str

    @classmethod
    def parse(cls, text: str) -> VolumeEntry:
        """Read an entry. Raises ValueError, with the remedy."""
        found = _ENTRY.fullmatch(text)
        if found is None:
            raise ValueError(f"{_FORM}, instead of {text}")
        made = cls(cast(SourceKind, found["kind"]), found["source"], bool(found["write"]), found["owner"] or "")
        if made.kind == "folder":
            made._check_folder(text)
        elif not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*\*?", made.source):
            raise ValueError(
                f"{made.kind}:ads-* or each name, instead of {text}: the installation's own are there, too"
            )
        return made

    def _check_folder(self, text: str) -> None:
        try:
            checked_folder(self.source.removesuffix("/*"))
        except ValueError:
            remedy = "folder:/srv/data, or folder:/srv/data/* for the folders below"
            raise ValueError(f"{remedy}, instead of {text}") from None
        if self.source.endswith("*") and self.is_writable:
            raise ValueError(f"each folder that pods may write, instead of {text}: in one, a pod could link to another")

    def covers(self, volume: VolumeSpec, submitter: str | None) -> bool:
        """Return True if a job of ``submitter`` (None: not known) may have the volume by this entry."""
        if volume.kind != self.kind or (volume.writable and not self.is_writable):
            return False
        if self.owner and submitter not in (None, self.owner):
            return False
        if volume.source == self.source:
            return True
        return self.source.endswith("*") and volume.source.startswith(self.source[:-1])


def volumes_allow(entries: Sequence[str], volume: VolumeSpec, submitter: str | None) -> bool:
    """Return True if one of the entries gives the volume to a job of ``submitter`` (None: not known).

    Nothing within a folder that pods may write is given: they may have put a link there that leads elsewhere.
    """
    parsed = [VolumeEntry.parse(entry) for entry in entries]
    written = (entry.source for entry in parsed if entry.kind == "folder" and entry.is_writable)
    if volume.kind == "folder" and any(volume.source.startswith(f"{folder}/") for folder in written):
        return False
    return any(entry.covers(volume, submitter) for entry in parsed)


def shown(volume: VolumeSpec) -> str:
    """Return a volume as entries of the list are written."""
    return f"{volume.kind}:{volume.source}{WRITE if volume.writable else ''}"


def checked_volumes(text: str) -> str:
    """Return the setting if each entry, after a comma, can be read. Raises ValueError, with the remedy."""
    for entry in (part.strip() for part in text.split(",") if part.strip()):
        VolumeEntry.parse(entry)
    return text
