"""URLs of stores in one spelling, so that a URL which looks allowed is the one that is opened.

Everything that readers understand differently is refused instead of guessed: percent escapes, user info, wildcards
(fsspec expands them, also in a removal), chained protocols, ``.`` and ``..``.
"""

from __future__ import annotations

import re

REMEDY = (
    "a plain URL such as s3://bucket/folder or file:///folder: without user info, percent escapes, wildcards, queries, "
    "chained protocols (::) and the parts . and .."
)
_URL = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/]*))?(/.*)?")
_PLACE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(:[0-9]{1,5})?")
_REFUSED_IN_PATHS = frozenset('%?#*[]{}\\"<>|^`~')
_LOCAL = ("", "file", "local")


def canonical(url: str) -> str:
    """Return ``url`` in its one spelling: scheme and host in lower case, single slashes, none at the end.

    A path without a scheme is one of the local file system.

    Raises:
        ValueError: the URL has parts that two readers may understand differently; the text is the remedy.
    """
    found = _URL.fullmatch(url)
    if found is None or not url.isprintable() or "::" in url:
        raise ValueError(REMEDY)
    scheme, place, path = ((part or "") for part in found.groups())
    parts = [part for part in path.split("/") if part]
    if any(part in (".", "..") for part in parts) or _REFUSED_IN_PATHS & {*path}:
        raise ValueError(REMEDY)
    if scheme.lower() in _LOCAL:
        if place or not path:  # file://etc/passwd has etc as its host; some readers take it for a folder
            raise ValueError(REMEDY)
        return f"file:///{'/'.join(parts)}"
    if not _PLACE.fullmatch(place):
        raise ValueError(REMEDY)
    return "/".join((f"{scheme.lower()}://{place.lower()}", *parts))


def within(url: str, folder: str) -> bool:
    """Return True if ``url`` is strictly below ``folder``; a URL that has no canonical spelling is below none."""
    try:
        return canonical(url).startswith(f"{canonical(folder).rstrip('/')}/")
    except ValueError:
        return False
