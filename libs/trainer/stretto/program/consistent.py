"""Level 2: parameters and ledger go back to a checkpoint together.

A checkpoint pairs the parameters of a step barrier with the ledger's mark of the same instant. The worker tells the
ledger how far its shard is, marks the ledger, and tells it once more: if its lease is the same at both times, no other
worker has returned the ledger in between, and the mark is of these parameters.
"""

from __future__ import annotations

import os
import threading
from typing import TypeVar

from stretto_messages.base import Message
from stretto_messages.dispatcher import MarkLedger, MarkLedgerReply, ReturnLedger, ReturnLedgerReply

from ..agent import CHECKPOINT, DONE, LEAVE, LOAD, REFUSED, RESTORED, SAVE, SAVED, UNSAVED
from ..errors import BusError, CallRefused, DataError
from ..pod.bus import PodBus
from ..pod.process import Pod
from ..worker.leases import Leases
from .batches import AGAIN_S, LEFT, Batches
from .kept import KeptCheckpoint, KeptCheckpoints

STORE_VARIABLE = "STRETTO_PROGRAM_STORE"
"""Variable of a pod with the address of its job's folder in the store, for checkpoints of a program."""
TIMEOUT_S = 3.0
Reply = TypeVar("Reply", bound=Message)


class Consistent:
    """Checkpoints of one program, which asks from one thread at a time."""

    def __init__(
        self, bus: PodBus, leases: Leases, batches: Batches, kept: KeptCheckpoints, leaving: threading.Event
    ) -> None:
        self._bus, self._leases, self._batches, self._kept, self._leaving = bus, leases, batches, kept, leaving
        self._last: KeptCheckpoint | None = None
        self._is_loaded = False
        """True once the program has asked for the parameters of the last checkpoint."""
        self._mark: MarkLedgerReply | None = None
        """The ledger of the checkpoint that the program saves now."""

    def begin(self) -> None:
        """Return the ledger to the last checkpoint, before the program begins. Raises DataError."""
        self._kept.clear()
        last = self._kept.last()
        if last is None:
            mark = self._marked()
            if mark.samples_done:
                raise DataError(
                    f"{mark.samples_done} samples are trained, and no checkpoint of this job is in its store any more: "
                    "their parameters are lost; submit the job again under another name"
                )
            last = self._kept.beginning(mark.ledger)
        else:
            self._return(last)
        self._last = last

    def _return(self, to: KeptCheckpoint) -> None:
        """Return the ledger, once the dispatcher has the books of the job. Raises DataError: it refuses these books."""
        while True:
            request = ReturnLedger(
                job=self._bus.job,
                pod=self._bus.pod,
                request_id=self._bus.request_id(ReturnLedger),
                checkpoint=to.name,
                ledger=to.ledger,
            )
            try:
                if self._asked(request, ReturnLedgerReply).answer == "ok":
                    return
            except CallRefused as error:
                raise DataError(str(error)) from error
            if self._leaving.wait(AGAIN_S):
                raise BusError("the worker is to leave, and the dispatcher has no open books of its job")

    def answer(self, request: str) -> str:
        """Return the answer to a request of the program about checkpoints."""
        if request == RESTORED:
            return self._restored()
        if request == CHECKPOINT:
            return self._checkpoint()
        if request == SAVED and self._mark is not None:
            mark, self._mark = self._mark, None
            try:
                self._last = self._kept.complete(mark.ledger, mark.samples_done)
            except OSError as error:
                return f"{REFUSED} the checkpoint cannot be stored: {error}; make room, or end the job"
            return f"{DONE} {self._last.name}"
        if request == UNSAVED:
            self._mark = None
            self._kept.drop()
            return DONE
        return f"{REFUSED} {request}: there is no such request now"

    @property
    def refusal(self) -> str:
        """Why the program gets no batch; empty: it may have one."""
        return "" if self._is_loaded else self.to_load

    @property
    def to_load(self) -> str:
        """Why a program gets no batch that has not loaded parameters; empty: there are none."""
        if self._last is None or self._last.parameters is None:
            return ""
        return f"call stretto.agent.restored(load) before samples(): the job goes on from {self._last.name}"

    def _restored(self) -> str:
        if self._batches.ended or self._leases.shard is not None:  # the books would not go back with the parameters
            return f"{REFUSED} a batch was taken already: call restored once, before the loop over samples()"
        self._is_loaded = True
        last = self._last
        return f"{LOAD} {last.parameters}" if last is not None and last.parameters is not None else DONE

    def _checkpoint(self) -> str:
        batches = self._batches
        if batches.lost:
            return LEAVE
        if batches.is_left:
            return f"{REFUSED} {LEFT}"
        batches.passed()
        if not batches.ended and self._leases.shard is None:
            return f"{REFUSED} no batch was taken yet: call checkpoint in the loop over samples(), or after it"
        if not self._is_held():
            return LEAVE
        mark = self._marked()
        if not self._is_held():
            return LEAVE
        self._mark = mark
        try:
            return f"{SAVE} {self._kept.begin()}"
        except OSError as error:
            return f"{REFUSED} no folder for the checkpoint can be made: {error}"

    def _is_held(self) -> bool:
        """Tell the ledger how far the shard is; False: the lease is another worker's, and so are its parameters."""
        while not self._batches.ended:
            answer = self._leases.beat()
            if answer == "ok":
                return True
            if answer:  # also to a pod that is taken for dead, whose shard another one has
                self._batches.lost = True
                return False
            if self._leaving.wait(AGAIN_S):
                return False
        return True

    def _marked(self) -> MarkLedgerReply:
        while True:
            request = MarkLedger(job=self._bus.job, request_id=self._bus.request_id(MarkLedger))
            mark = self._asked(request, MarkLedgerReply)
            if mark.answer == "ok":
                return mark
            if self._leaving.wait(AGAIN_S):
                raise BusError("the worker is to leave, and the dispatcher has no books of its job yet")

    def _asked(self, request: Message, reply: type[Reply]) -> Reply:
        """Ask the dispatcher until it answers."""
        while True:
            try:
                return self._bus.call(request, reply, timeout_s=TIMEOUT_S)
            except BusError:
                if self._leaving.wait(AGAIN_S):
                    raise


def consistent_of(pod: Pod, leases: Leases, batches: Batches, leaving: threading.Event) -> Consistent:
    """Return the checkpoints of the pod's program. Raises DataError: its store is no folder."""
    kept = KeptCheckpoints(os.environ.get(STORE_VARIABLE, ""), pod.settings.job, pod.settings.pod)
    return Consistent(pod.bus, leases, batches, kept, leaving)
