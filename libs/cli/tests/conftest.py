"""A real installation of nats, redis and gateway (no other service), once for all tests of the package."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from stretto_bus import Client
from stretto_cli import embedded
from stretto_cli.main import app
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))  # the helpers beside the tests: importlib mode leaves them off the path


@dataclass
class Installed:
    """An installation, and the command pointed at it."""

    folder: Path
    installation: embedded.Installation

    def stretto(self, *arguments: str, input: str | None = None) -> Any:
        return CliRunner().invoke(app, [*arguments, "--folder", str(self.folder)], input=input)

    def publish(self, *messages: Any) -> None:
        async def publish() -> None:
            client = await Client.connect(*self.installation.operator())
            for message in messages:
                await client.publish(message)
            await client.close()

        asyncio.run(publish())


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("installed")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STRETTO_")}
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def call(make: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(make(), loop).result(60)

    patch = pytest.MonkeyPatch()
    patch.setattr(embedded, "SERVICES", ("gateway",))
    installation = embedded.Installation(embedded.Plan(folder), environment)
    try:
        call(installation.up)
        yield Installed(folder, installation)
    finally:
        call(installation.down)
        patch.undo()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
