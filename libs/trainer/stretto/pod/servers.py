"""The addresses of a job's parameter servers and data workers, as the actuator names them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from stretto_messages.actuator import GetServers, GetServersReply
from stretto_messages.values import DataWorker, GroupMember, ParameterServer

from ..errors import BusError
from .bus import PodBus

log = logging.getLogger("stretto.pod")

_ASK_EVERY_S = 1.0
_LIST_AGAIN_S = 0.2


def listed(bus: PodBus) -> GetServersReply | None:
    """Return what the actuator lists for this pod; None if it does not answer, or does not know the pod."""
    request = GetServers(job=bus.job, pod=bus.pod, request_id=bus.request_id(GetServers))
    try:
        reply = bus.call(request, GetServersReply, timeout_s=5.0)
    except BusError as error:
        log.warning("%s", error)
        return None
    return reply if reply.answer == "ok" else None


class ServerList:
    """The newest list of servers. Thread-safe: events, requests and the training thread use it.

    ``use_data_workers`` is called with the addresses of the data workers whenever there are newer ones, ``use_group``
    with the workers that average dense gradients.
    """

    def __init__(
        self,
        bus: PodBus,
        use_data_workers: Callable[[Collection[str]], None] = lambda _: None,
        use_group: Callable[[Collection[GroupMember]], None] = lambda _: None,
    ) -> None:
        self._bus = bus
        self._use_data_workers, self._use_group = use_data_workers, use_group
        self._group_version = 0
        self._data_version = 0
        self._telling = threading.Lock()
        """Held while pods are passed on: without it, a thread could pass an older list on after a newer one."""
        self._lock = threading.Lock()
        self._addresses: dict[int, str] = {}
        self._version = 0
        self._asking = ThreadPoolExecutor(1, thread_name_prefix="servers")
        self._asked_s = 0.0

    def known(self) -> dict[int, str]:
        """Return index -> address, as far as known, without waiting.

        It is called whenever a push meets a bucket that is moving. Changes arrive as events; in case one was missed,
        the actuator is also asked, in a thread.
        """
        with self._lock:
            now = time.monotonic()
            ask = now - self._asked_s > _ASK_EVERY_S
            if ask:
                self._asked_s = now
            addresses = dict(self._addresses)
        if ask:
            self._asking.submit(self.ask)
        return addresses

    def wait_for(self, version: int, leaving: threading.Event) -> bool:
        """Wait until the known list has this version, or a later one; False if the pod is to leave meanwhile."""
        while self._version < version:
            self.ask()
            if self._version < version and leaving.wait(_LIST_AGAIN_S):
                return False
        return True

    def ask(self) -> dict[int, str]:
        """Ask the actuator; return the addresses known so far if it does not answer."""
        if (reply := listed(self._bus)) is not None:
            self.take(reply.version, reply.servers)
            self.take_data_workers(reply.data_version, reply.data_workers)
            self.take_group(reply.group_version, reply.group)
        with self._lock:
            return dict(self._addresses)

    def take_data_workers(self, version: int, data_workers: tuple[DataWorker, ...]) -> None:
        """Use these data workers unless they are older than the known ones."""
        with self._telling:
            if version <= self._data_version:
                return
            self._data_version = version
            self._use_data_workers([each.address for each in data_workers])

    def take_group(self, version: int, workers: tuple[GroupMember, ...]) -> None:
        """Use this group unless it is older than the known one."""
        with self._telling:
            if version > self._group_version:
                self._group_version = version
                self._use_group(workers)

    def take(self, version: int, servers: tuple[ParameterServer, ...]) -> bool:
        """Use this list unless it is older than the known one; True if it is used."""
        with self._lock:
            if version < self._version:
                return False
            self._version = version
            self._addresses = {server.index: server.address for server in servers}
            return True
