"""A job with a program: its ledger, behind the dispatcher's documents, and the buses of its workers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ledger_bus import LedgerBus
from stretto.errors import CallRefused
from stretto_core.dispatcher.events import JobOpened, LedgerMark, LedgerRestored, ReturnAsked
from stretto_core.dispatcher.source import DataSpec, LedgerError
from stretto_core.machine import Tick
from stretto_dispatcher import document
from stretto_messages.actuator import PodExited
from stretto_messages.dispatcher import MarkLedgerReply, ReturnLedger

SAMPLES, BATCH_SIZE, EVERY = 1_000, 10, 7


class Job(LedgerBus):
    """A ledger, behind the dispatcher's documents."""

    def __init__(self, folder: Path, data: str = "", *, returns: bool = True, shard_batches: int = 2) -> None:
        super().__init__()
        self.ledger = type(self.ledger)()
        self.tell(
            JobOpened(
                "j",
                DataSpec(SAMPLES, BATCH_SIZE, shard_batches, name=data),
                2,
                runs_program=not returns,
                returns=returns,
            )
        )
        self.folder, self.workers = folder, 0
        self.repeated: list[int] = []

    def call(self, request: Any, reply: Any, timeout_s: float) -> Any:
        if isinstance(request, ReturnLedger):
            books = LedgerRestored(document.read(request.ledger), request.checkpoint)
            request = ReturnAsked(request.job, request.pod, books)
        try:
            found = self.tell(request)
        except LedgerError as error:
            raise CallRefused(str(error)) from error
        if isinstance(found, LedgerMark):
            return MarkLedgerReply(
                job=found.job, answer="ok", ledger=document.written(found.book), samples_done=found.samples_done
            )
        return found

    def new_pod(self) -> str:
        self.workers += 1
        return f"worker-{self.workers}"

    def expired(self, pod: str) -> None:
        """Give the shard of a worker back that was not heard for too long, as the next tick does."""
        worker = self.ledger.state.workers[pod]
        worker.heard_at_s = worker.moved_at_s = -1e6
        self.tell(Tick())

    def exited(self, pod: str) -> None:
        self.tell(PodExited(job="j", pod=pod, role="worker", reason="killed", exit_code=137))

    @property
    def done(self) -> int:
        return self.ledger.state.book.samples_done  # type: ignore[union-attr]


class PodOf:
    """The bus of one worker."""

    def __init__(self, job: Job, pod: str) -> None:
        self._job, self.job, self.pod = job, "j", pod

    def request_id(self, kind: Any) -> str:
        return f"{self.pod}.{self._job.request_id(kind)}"

    def call(self, request: Any, reply: Any, timeout_s: float) -> Any:
        return self._job.call(request, reply, timeout_s)


def stored(folder: Path) -> Counter[int]:
    """Return the parameters of a checkpoint."""
    told = json.loads((folder / "parameters.json").read_text())
    return Counter({int(sample): count for sample, count in told.items()})
