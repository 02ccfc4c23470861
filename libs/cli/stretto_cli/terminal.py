"""Texts on a terminal: control characters of pods, which a terminal obeys, are shown and not sent.

A terminal without UTF-8 gets the nearest characters that it has.
"""

from __future__ import annotations

import codecs
import io
import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_C0 = frozenset(range(0x20)) - set(map(ord, "\t\n"))
_OTHERS = frozenset((0x7F, *range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)))
"""Delete, the control characters C1, and those that change the direction of a text."""
_PICTURES = {code: chr(0x2400 + code) for code in _C0} | {code: "\N{REPLACEMENT CHARACTER}" for code in _OTHERS}
_ESCAPES = {code: f"\\u{code:04x}" for code in _OTHERS}


_NEAREST = str.maketrans(
    {
        **dict.fromkeys("–—−", "-"),
        **dict.fromkeys("█▇▆▅", "#"),
        **dict.fromkeys("▄▃▂▁", "_"),
        **dict.fromkeys("░", "."),
        **dict.fromkeys("│┃", "|"),
        **dict.fromkeys("─━", "-"),
        **dict.fromkeys("╭╮╰╯┌┐└┘├┤┼", "+"),
        **{"…": "...", "×": "x", "→": "->", "←": "<-", "✓": "ok", "✗": "x", "●": "*", "’": "'", "“": '"', "”": '"'},
    }
)
"""Texts that stand for characters on a terminal that has no place for these."""
NEAREST = "stretto-nearest"
"""Name of the handler of such characters, for streams."""


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    told = error.object[error.start : error.end].translate(_NEAREST)
    return told.encode("ascii", "backslashreplace").decode("ascii"), error.end


codecs.register_error(NEAREST, _nearest)


def write_to_any_terminal() -> None:
    """Let the standard streams write every text, whatever encoding they have. No text ever fails a command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=NEAREST)


class Terminal(Console):
    """A console that shows the control characters of a text instead of sending them."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable: texts have pictures for control characters, and no links."""
        for segment in super().render(renderable, options):
            style = segment.style.update_link(None) if segment.style else None
            yield segment if segment.control else Segment(segment.text.translate(_PICTURES), style)


def json_text(value: Any, indent: int | None) -> str:
    """Return a document as JSON without any control character, which JSON itself asks of the first 32 only."""
    is_whole = codecs.lookup(getattr(sys.stdout, "encoding", None) or "utf-8").name == "utf-8"
    return json.dumps(value, indent=indent, ensure_ascii=not is_whole).translate(_ESCAPES)
