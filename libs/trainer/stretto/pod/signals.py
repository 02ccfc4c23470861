"""The signals by which a pod, and each process of it, is asked to end."""

from __future__ import annotations

import signal
import threading
from types import FrameType


def leave_on_signals(leaving: threading.Event) -> None:
    """Set ``leaving`` on SIGTERM and SIGINT."""

    def asked(number: int, _: FrameType | None) -> None:
        # a thread sets the event: the handler may have interrupted the holder of the lock that the event needs
        threading.Thread(target=leaving.set, daemon=True).start()

    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGINT, asked)
