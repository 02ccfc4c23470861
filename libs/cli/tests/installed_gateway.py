"""A real installation of nats, redis and gateway (no other service), and job files for it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from asking import RUNNER
from stretto_bus import Client
from stretto_cli.main import app
from stretto_installation.one_machine import supervisor
from stretto_installation.one_machine.programs import StartOptions
from stretto_installation.one_machine.supervisor import Installation
from stretto_messages.arbiter import PlanDecided
from stretto_messages.values import Alternative, Interval, Plan

PLAN = Plan(workers=1, ps=1, worker_cpu_cores=0.5, ps_cpu_cores=0.5, worker_memory_bytes=2**30, ps_memory_bytes=2**30)


@dataclass
class Installed:
    """An installation, and the command pointed at it."""

    folder: Path
    installation: Installation

    def stretto(self, *arguments: str, input: str | None = None) -> Any:
        return RUNNER.invoke(app, [*arguments, "--folder", str(self.folder)], input=input)

    def elsewhere(self) -> list[str]:
        """Return the options by which a command on another machine reaches the gateway."""
        found = json.loads((self.folder / "run" / "gateway.json").read_text())
        token = (self.folder / "gateway.token").read_text().strip()
        return ["--url", f"http://{found['host']}:{found['port']}", "--token", token]

    def publish(self, *messages: Any) -> None:
        async def publish() -> None:
            client = await Client.connect(*self.installation.operator())
            for message in messages:
                await client.publish(message)
            await client.close()

        asyncio.run(publish())


@contextmanager
def installed_gateway(folder: Path) -> Iterator[Installed]:
    """Run the installation in ``folder`` in a thread."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STRETTO_")}
    environment["STRETTO_GATEWAY_CALL_TIMEOUT_S"] = "1"  # no service is there that could answer
    environment["STRETTO_GATEWAY_CODE_IS_HERE"] = "false"  # nobody trains these jobs
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def call(make: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(make(), loop).result(60)

    patch = pytest.MonkeyPatch()
    patch.setattr(supervisor, "SERVICES", ("gateway",))
    installation = Installation(StartOptions(folder), environment)
    try:
        call(installation.up)
        yield Installed(folder, installation)
    finally:
        call(installation.down)
        patch.undo()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)


def write_spec(folder: Path, name: str | None = None, **more: object) -> tuple[str, str]:
    name = name or f"job-{uuid.uuid4().hex[:12]}"
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"name": name, "model": {"entry": "m:M"}, "dataset": {"samples": 1000}, **more}))
    return name, str(file)


def decided(job: str, version: int, plan: Plan, previous: Plan | None) -> PlanDecided:
    return PlanDecided(
        job=job, version=version, kind="improve" if previous else "warm-start", plan=plan, previous=previous,
        throughput=180.0, throughput_interval=Interval(low=150.0, high=210.0), throughput_before=100.0,
        cost_per_hour=0.06, reasons=("a reason with [brackets] in it",), algorithm="weighted-greedy",
        free_cpu_cores=1.0, free_memory_bytes=2**30,
        alternatives=(
            Alternative(plan=PLAN, throughput=90.0, cost_per_hour=0.1, efficiency=0.2, why_not="too dear"),
        ),
    )  # fmt: skip
