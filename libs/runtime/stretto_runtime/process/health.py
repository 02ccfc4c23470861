"""``/healthz``: alive and connected; ``/readyz``: every partition it should own is live; ``/metrics``: Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from stretto_bus.tasks import end

from .connections import Connections, bounded
from .listeners import BACKLOG, at_port, handed

CONNECTIONS_MOST = 64
"""Connections at once; a further one closes the oldest, so that a flood neither keeps probes out nor uses up files."""
HEADERS_S = 10.0
WRITE_AGAIN_S = 1.0


class Server(uvicorn.Server):
    """A server of uvicorn without its signal handlers and without its ten wake-ups a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stop = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._stop.wait()

    def stop(self) -> None:
        self.should_exit = True
        self._stop.set()


class Health:
    """The three endpoints of one service, on loopback by default."""

    def __init__(self, service: str, folder: Path, report: Callable[[], dict[str, Any]], metrics: Callable[[], bytes]):
        self._path = folder / "run" / f"{service}.json"
        self._service = service
        self._server: Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None

        async def healthz(request: Request) -> Response:
            state = report()
            return JSONResponse(state, 200 if state["connected"] else 503)

        async def readyz(request: Request) -> Response:
            state = report()
            return JSONResponse(state, 200 if state["ready"] else 503)

        async def exposition(request: Request) -> Response:
            return Response(metrics(), media_type="text/plain; version=0.0.4")

        # Starlette alone: FastAPI would add to the start and the memory of every service
        self.app = Starlette(
            routes=[Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", exposition)]
        )

    async def start(self, host: str, port: int, descriptor: int | None = None) -> int:
        """Listen, at the socket with this descriptor if a parent has opened one.

        Returns the port, which is also written to ``run/<service>.json``. Raises OSError, SettingsFault.
        """
        own = descriptor is None
        listener = at_port(host, port) if own else handed(descriptor, "STRETTO_HEALTH_LISTENER")
        host, bound = listener.getsockname()[:2]
        config = uvicorn.Config(
            self.app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            date_header=False,
            backlog=BACKLOG,
            http=bounded(Connections(CONNECTIONS_MOST, CONNECTIONS_MOST), HEADERS_S),
        )
        self._server = Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        body = {"service": self._service, "pid": os.getpid(), "host": host, "port": bound}
        try:
            await asyncio.to_thread(self._write, json.dumps(body))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._writing = asyncio.create_task(self._write_later(json.dumps(body)))
        return bound

    async def stop(self) -> None:
        if self._writing is not None:
            await end(self._writing)
        if self._server is not None and self._task is not None:
            self._server.stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._task
        with contextlib.suppress(FileNotFoundError, ValueError):
            if json.loads(self._path.read_text())["pid"] == os.getpid():
                self._path.unlink()

    async def _write_later(self, text: str) -> None:
        """Write once the disk has room: it may be this service that makes it."""
        while True:
            await asyncio.sleep(WRITE_AGAIN_S)
            with contextlib.suppress(OSError):
                return await asyncio.to_thread(self._write, text)

    def _write(self, text: str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(f".{os.getpid()}")
        draft.write_text(text)
        draft.replace(self._path)
