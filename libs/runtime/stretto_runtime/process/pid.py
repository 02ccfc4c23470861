"""Who a process is, although ids are used again.

The boot of the machine and the tick in which it began: not the time of day, which ``/proc`` tells relative to a clock
that may be stepped, so that a living process seems to have begun at another time than was written down.
"""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple


class ProcessIdentity(NamedTuple):
    """``boot``: its id. ``ticks``: of 10 ms since then (SC_CLK_TCK); of two of one boot the later began later."""

    boot: str
    ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Of the process that has this id now; None if there is none."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = Path(f"/proc/{pid}/stat").read_text()
            fields = text[text.rindex(")") + 2 :].split()  # its name, in brackets, may contain anything
            return cls(_boot(), int(fields[19]))
        return None

    @classmethod
    def told(cls, value: Any) -> ProcessIdentity | None:
        """What stands in a file: None if it is nothing of the kind."""
        match value:
            case [str(boot), int(ticks)]:
                return cls(boot, ticks)
            case _:
                return None

    def precedes(self, other: ProcessIdentity | None) -> bool:
        """Whether ``other`` may be its descendant: of the same boot, and not older."""
        return other is not None and other.boot == self.boot and other.ticks >= self.ticks


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
