"""A worker's pushes: one at a time, in order, in a thread. The pull of a batch to come may go with a push."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from stretto_parameters import Claim

from ..engine.client import Parameters, PushResult
from ..engine.layout import KeyBatch
from ..engine.pulling import Along, Pulled
from ..errors import OwnershipUnknown, ServerLost
from .computing import RETRY_S
from .gradient_sum import GradientSum

log = logging.getLogger("stretto.worker")


class Push(NamedTuple):
    """Gradients of batches, the samples of a lease that these are, and the books of the lease.

    pays: nothing of this worker follows for a while.
    """

    claim: Claim
    waiting: GradientSum
    pays: bool
    generation: int | None
    lineage: int | None


class Pusher:
    """The pushes of one worker, for one thread. A push that is due is sent once it is known which pull goes along."""

    def __init__(self, parameters: Parameters, keep_going: Callable[[], bool]) -> None:
        self._parameters, self._keep_going = parameters, keep_going
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pusher")
        self._due: Push | None = None
        self._sent: Future[PushResult | None] | None = None

    def due(self, push: Push) -> None:
        """Take a push, once the one before has ended."""
        assert self._due is None, "one push at a time"
        self._due = push

    def send(self, along: Along | None = None) -> None:
        """Send the push that is due, if one is."""
        push, self._due = self._due, None
        if push is not None:
            self._sent = self._thread.submit(self._push, push, along)

    def send_before(self, *awaited: Future[Any] | None) -> None:
        """Send the push that is due unless all of these are there: a push does not wait for them."""
        if not all(each is not None and each.done() for each in awaited):
            self.send()

    def pull_along(self, keys: KeyBatch, is_fresh: bool = False) -> Future[Pulled] | None:
        """Send the push that is due with this pull; None if none is due, or if the pull is better by itself."""
        along = self._parameters.pull_along(keys, is_fresh) if self._due is not None else None
        self.send(along)
        return None if along is None else along.future

    def result(self) -> PushResult | None:
        """Wait for the end of the last push, and raise what it raises; None if training is to stop before."""
        self.send()
        assert self._sent is not None
        return self._sent.result()

    def _push(self, push: Push, along: Along | None) -> PushResult | None:
        """Push until every column has the batches (records make repetition harmless); None if training is to stop."""
        shard, attempt, start, stop = push.claim
        keys, gradients = push.waiting.total()
        brought = along
        with along or contextlib.nullcontext():
            while True:
                try:
                    return self._parameters.push(
                        keys,
                        gradients.rows,
                        gradients.dense,
                        shard=shard,
                        attempt=attempt,
                        start=start,
                        stop=stop,
                        row_squares=gradients.row_squares,
                        dense_squares=gradients.dense_squares,
                        state_delta=gradients.state_delta if len(gradients.state_delta) else None,
                        generation=push.generation,
                        lineage=push.lineage,
                        pays=push.pays,
                        batches=len(push.waiting),
                        along=brought,
                    )
                except (ServerLost, OwnershipUnknown) as error:
                    log.warning("push: %s", error)
                    brought = None  # other servers may have the columns by the next try: the pull finds them by itself
                if not self._keep_going():
                    return None
                time.sleep(RETRY_S)

    def close(self) -> None:
        """Begin nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
