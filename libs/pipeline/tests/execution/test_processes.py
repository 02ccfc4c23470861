"""The processes of lanes: none is left when they are closed."""

from __future__ import annotations

import subprocess
import threading
import time
from typing import Any

import pytest
from stretto_pipeline.execution.feed import Feed
from stretto_pipeline.execution.processes import Processes, Settings

WAIT_S = 60.0


def test_a_process_that_was_about_to_start_does_not_outlive_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: the close comes while the process is being started, before anybody can see it."""
    started: list[subprocess.Popen[str]] = []
    starting, closed = threading.Event(), threading.Event()

    class Slow(subprocess.Popen[str]):
        def __init__(self, argv: list[str], **options: Any) -> None:
            super().__init__(["sleep", "60"], **options)
            started.append(self)
            starting.set()
            assert closed.wait(WAIT_S)

    monkeypatch.setattr(subprocess, "Popen", Slow)
    processes = Processes(1, Feed(1, print), Settings("none", {}, [], {}), print)
    assert starting.wait(WAIT_S)
    processes.close()
    closed.set()
    try:
        deadline_s = time.monotonic() + WAIT_S
        while started[0].poll() is None:
            assert time.monotonic() < deadline_s, "it goes on"
            time.sleep(0.02)
    finally:
        started[0].kill()
        started[0].wait()
