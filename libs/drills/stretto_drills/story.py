"""Progress of a long command: lines with the seconds since its start."""

from __future__ import annotations

import sys
import time

from rich.console import Console


class Story:
    """Prints progress with the seconds since the start. ``quiet``: on stderr, since stdout is for JSON."""

    def __init__(self, quiet: bool) -> None:
        stream = sys.stderr if quiet else sys.stdout
        self.console = Console(file=stream, highlight=False, soft_wrap=True, width=None if stream.isatty() else 160)
        self._began_s = time.monotonic()

    def tell(self, text: str, style: str = "") -> None:
        self.console.print(f"[dim]{self.elapsed_s:6.1f} s[/dim]  ", end="")
        self.console.print(text, style=style)

    def act(self, number: int, of: int, title: str) -> None:
        self.chapter(f"Act {number} of {of}: {title}")

    def chapter(self, text: str) -> None:
        self.console.print()
        self.tell(f"[bold]{text}[/bold]")

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s
