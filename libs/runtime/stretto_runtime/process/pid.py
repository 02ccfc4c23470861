"""Process identity that survives pid reuse: boot id and start tick.

The start is counted in ticks since the boot, not in the time of day: ``/proc`` derives that from a clock that may be
stepped, and a living process would seem to have begun at another time than the recorded one.
"""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple


class ProcessIdentity(NamedTuple):
    """``boot`` is the id of the boot; ``ticks`` of 10 ms (SC_CLK_TCK) since then order its processes."""

    boot: str
    ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The identity of the running process ``pid``, or None."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = Path(f"/proc/{pid}/stat").read_text()
            fields = text[text.rindex(")") + 2 :].split()  # the name, in brackets, may contain anything
            return cls(_boot(), int(fields[19]))
        return None

    @classmethod
    def parse(cls, value: Any) -> ProcessIdentity | None:
        """The identity that a file holds; None if the value is none."""
        match value:
            case [str(boot), int(ticks)]:
                return cls(boot, ticks)
            case _:
                return None

    def precedes(self, other: ProcessIdentity | None) -> bool:
        """Return whether ``other`` may be a descendant: of the same boot, and not older."""
        return other is not None and other.boot == self.boot and other.ticks >= self.ticks


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
