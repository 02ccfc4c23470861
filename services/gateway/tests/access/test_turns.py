"""Turns: a caller's burst delays only the caller."""

from __future__ import annotations

import asyncio

from stretto_gateway.access.turns import Turns

BURST = 50


def test_a_burst_of_one_caller_delays_nobody_else() -> None:
    async def ask() -> None:
        turns, begun, over = Turns(), list[str](), asyncio.Event()

        async def question(caller: str) -> None:
            async with turns.turn(caller):
                begun.append(caller)
                await over.wait()

        burst = [asyncio.create_task(question("eve")) for _ in range(BURST)]
        other = asyncio.create_task(question("ada"))
        async with asyncio.timeout(60):
            while "ada" not in begun:
                await asyncio.sleep(0)
        assert begun == ["eve", "ada"]
        burst[BURST // 2].cancel()
        over.set()
        await asyncio.gather(*burst, other, return_exceptions=True)
        assert begun.count("eve") == BURST - 1
        assert not turns.callers, "nothing is kept of callers that do not ask"

    asyncio.run(ask())
