"""The rows of a parameter server that find no room in its memory: where they may go, and what the services are told."""

from __future__ import annotations

import math
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from stretto_parameters import LogDamaged

from ..engine import LockedStore, ParameterServer, Spill
from ..errors import CheckpointError
from ..pod.process import PodSettings, give_back_freed_memory, resident_bytes

_MEMORY_SHARE = 0.98
"""Share of the pod's limit; eviction begins at nine tenths of what that leaves for rows."""
_SHORT, _GIVE_BACK_S = 0.8, 10.0
"""Share of the budget from which freed memory is given back, which is before rows are evicted, and the time between two
times: each takes some milliseconds of a core. Measured under chaos, a server of 92 MiB had kept 25 MiB of it."""
_CHECKSUM_S = 20.0
"""Seconds that a request waits for a checksum: less than the time within which it has to be answered."""
_DISK_SHARE = 0.8
"""Share of the free disk that a server may take, as it is when the server starts. Taste."""


class Checksum:
    """The checksum of a server's rows, which takes long where many are cold: requests that come meanwhile share it."""

    def __init__(self, on_damage: Callable[[str], None]) -> None:
        self._on_damage = on_damage
        self._lock = threading.Lock()
        self._summing: tuple[Future[int], tuple[LockedStore, int, bytes]] | None = None
        """The checksum that is being taken, and of what: a life of the server, its updates and columns."""

    def of(self, store: LockedStore) -> str:
        """Return the checksum. Raises CheckpointError if it takes longer than a request may: ask again."""
        with self._lock:
            of = store, store.stats().updates, store.own().tobytes()
            if self._summing is None or self._summing[1] != of:
                self._summing = Future(), of
                threading.Thread(target=self._sum, args=(self._summing[0], store), name="checksum", daemon=True).start()
            summing = self._summing[0]
        try:
            return f"{summing.result(_CHECKSUM_S):016x}"
        except TimeoutError:
            raise CheckpointError("the checksum of all rows, cold ones among them, is being taken: ask again") from None
        finally:
            with self._lock:
                if summing.done() and self._summing is not None and self._summing[0] is summing:
                    self._summing = None  # told once: rows may come without an update, as by a move

    def _sum(self, summing: Future[int], store: LockedStore) -> None:
        try:
            summing.set_result(store.checksum())
        except LogDamaged as error:
            self._on_damage(str(error))
            summing.set_exception(error)
        except Exception as error:  # whoever asked is told
            summing.set_exception(error)


class ColdRows:
    """The cold rows of a pod's server, by the settings of the job. memory_limit_bytes: returns the pod's limit now."""

    def __init__(
        self,
        settings: PodSettings,
        memory_limit_bytes: Callable[[], int],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = settings.spec.resources.ps
        self._warms = settings.spec.rows.warm == "bf16"
        self._folder = settings.pod_folder or Path(tempfile.gettempdir())
        self._memory_limit_bytes = memory_limit_bytes
        self._clock_s = clock_s
        self._gave_back_s = -math.inf
        self._told = (0, 0)

    def spill(self) -> Spill | None:
        """Return where rows go that find no room in memory; None: the job wants them nowhere."""
        if self._limits.spill == "never":
            return Spill(None, 0, self._budget_bytes, warms=True) if self._warms else None
        most_bytes = int(_DISK_SHARE * shutil.disk_usage(self._folder).free)
        bytes_max = min(most_bytes, self._limits.spill_limit or most_bytes)
        return Spill(self._folder / "cold-rows", bytes_max, self._budget_bytes, warms=self._warms)

    def _budget_bytes(self, used_bytes: int) -> int:
        """Return what rows, entries and indices may take: rows go only for memory that something else really needs."""
        budget_bytes, now_s = self._left_bytes(used_bytes), self._clock_s()
        if used_bytes > _SHORT * budget_bytes and now_s - self._gave_back_s >= _GIVE_BACK_S:
            self._gave_back_s = now_s
            give_back_freed_memory()
            budget_bytes = self._left_bytes(used_bytes)
        return budget_bytes

    def _left_bytes(self, used_bytes: int) -> int:
        """Return the limit, less what the process has beside rows, entries and indices."""
        beside_bytes = max(0, resident_bytes() - used_bytes)
        return max(0, int(_MEMORY_SHARE * self._memory_limit_bytes()) - beside_bytes)

    def told(self, server: ParameterServer) -> dict[str, Any]:
        """Return the fields of a report that are about hot and cold rows."""
        store, eviction = server.store, server.eviction
        if store.pulls is None or eviction is None:
            return {}
        if store.unlocked.tiers is None:
            return {"spill_fault": store.spill_fault}
        counts = store.unlocked.tiers.counts()
        before, self._told = self._told, (store.pulls.rows, store.pulls.rows_read)
        # a server counts from 0 in each of its lives
        pulled, read = (max(0, now - last) for now, last in zip(self._told, before, strict=True))
        return {
            "cold_rows": min(counts.cold_rows, store.categories()),  # a bucket that moves away still has its rows
            "log_bytes": counts.log_bytes,
            "warm_rows": min(counts.warm_rows, store.categories()),
            "warm_bytes": counts.warm_bytes,
            "disk_free_bytes": shutil.disk_usage(self._folder).free,
            "rows_pulled": pulled,
            "rows_read": read,
            "disk_reads_per_s": eviction.disk_reads_per_s,
            "miss_ratios": store.pulls.miss_ratios(store.categories()),
            "spill_fault": eviction.fault,
        }
