"""The ``__main__`` of a process on the bus: settings from the environment, work until a signal, one-line faults."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from stretto_bus.faults import Fault

from stretto_runtime.process.telemetry import configure_logs
from stretto_runtime.settings import Settings

S = TypeVar("S", bound=Settings)
Work = Callable[[S, asyncio.Event], Coroutine[Any, Any, None]]
"""The work with the settings, until the event is set by SIGTERM or SIGINT"""


def execute(
    name: str,
    settings_type: type[S],
    work: Work[S],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run ``work`` under the settings of component ``name``. Raises SystemExit with the fault."""

    async def until_signal(settings: S) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await work(settings, stop)

    try:
        settings = settings_type.load(name)
        configure_logs(name, settings.log_level)
        with asyncio.Runner(loop_factory=loop_factory) as loop:
            loop.run(until_signal(settings))
    except Fault as fault:
        raise SystemExit(f"{name}: {fault}") from None
