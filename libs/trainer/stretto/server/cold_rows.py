"""The rows of a parameter server that find no room in its memory: where they may go, and what the services are told."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..engine import ParameterServer, Spill
from ..pod.process import PodSettings, resident_bytes

_MEMORY_SHARE = 0.98
"""Share of the pod's limit; eviction begins at nine tenths of what that leaves for rows."""
_DISK_SHARE = 0.8
"""Share of the free disk that a server may take, as it is when the server starts. Taste."""


class ColdRows:
    """The cold rows of a pod's server, by the settings of the job. memory_limit_bytes: returns the pod's limit now."""

    def __init__(self, settings: PodSettings, memory_limit_bytes: Callable[[], int]) -> None:
        self._limits = settings.spec.resources.ps
        self._folder = settings.pod_folder or Path(tempfile.gettempdir())
        self._memory_limit_bytes = memory_limit_bytes
        self._told = (0, 0)

    def spill(self) -> Spill | None:
        """Return where rows go that find no room in memory; None: the job wants them nowhere."""
        if self._limits.spill == "never":
            return None
        most_bytes = int(_DISK_SHARE * shutil.disk_usage(self._folder).free)
        return Spill(
            self._folder / "cold-rows", min(most_bytes, self._limits.spill_limit or most_bytes), self._budget_bytes
        )

    def _budget_bytes(self, used_bytes: int) -> int:
        """Return what rows, entries and indices may take: the limit, less what the process has beside them."""
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
        before, self._told = self._told, (store.pulls.rows, counts.rows_read)
        pulled, read = (max(0, now - last) for now, last in zip(self._told, before, strict=True))  # 0: a new life
        return {
            "cold_rows": min(counts.cold_rows, store.categories()),  # a bucket that moves away still has its rows
            "log_bytes": counts.log_bytes,
            "disk_free_bytes": shutil.disk_usage(self._folder).free,
            "rows_pulled": pulled,
            "rows_read": read,
            "disk_reads_per_s": eviction.disk_reads_per_s,
            "miss_ratios": store.pulls.miss_ratios(store.categories()),
            "spill_fault": eviction.fault,
        }
