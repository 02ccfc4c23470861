"""The simulated server and the real one, side by side: each behaviour that the client relies on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from simulated_contract import CONTRACTS, OF_CLUSTERS, Contract
from stretto_bus.bus import Bus
from stretto_installation.server import EmbeddedServer
from stretto_testing.simulation import URL, Simulation


@pytest.mark.parametrize("contract", [*CONTRACTS, *OF_CLUSTERS], ids=lambda contract: contract.__name__)
def test_the_simulated_server_keeps(contract: Contract) -> None:
    async def kept() -> None:
        bus = await Bus.connect(URL)
        await contract(bus, contract.__name__)
        await bus.close()

    for seed in range(2):
        with Simulation(seed) as simulation:
            simulation.server.is_clustered = contract in OF_CLUSTERS
            simulation.run(kept())


async def test_the_real_server_keeps_all(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, secured=False)
    await server.start()
    try:
        buses = [await Bus.connect(server.url) for _ in CONTRACTS]
        names = [contract.__name__ for contract in CONTRACTS]
        async with asyncio.TaskGroup() as group:
            for contract, bus, name in zip(CONTRACTS, buses, names, strict=True):
                group.create_task(contract(bus, name), name=name)
        for bus in buses:
            await bus.close()
    finally:
        server.kill()
