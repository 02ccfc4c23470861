"""The list of parameter servers and data workers, which events and requests change at the same time."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any, cast

from stretto.pod.servers import ServerList
from stretto_messages.values import DataWorker

NO_BUS = cast(Any, None)
LATER_S = 0.3
"""Time in which the newer list would be passed on, if nothing held it up."""


def test_of_two_lists_of_data_workers_the_newer_one_is_passed_on_last() -> None:
    """Method: the newer one comes in another thread while the older one is being passed on."""
    used: list[Collection[str]] = []
    threads: list[threading.Thread] = []

    def use(addresses: Collection[str]) -> None:
        if not threads:
            newer = DataWorker(index=1, address="unix:/newer")
            threads.append(threading.Thread(target=servers.take_data_workers, args=(2, (newer,))))
            threads[0].start()
            threads[0].join(LATER_S)
        used.append(addresses)

    servers = ServerList(NO_BUS, use)
    servers.take_data_workers(1, (DataWorker(index=0, address="unix:/older"),))
    threads[0].join()
    assert used == [["unix:/older"], ["unix:/newer"]]
