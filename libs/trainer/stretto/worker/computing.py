"""A worker's steps: computed here, or behind the rows by the next stage; and what is pulled for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future

from stretto_parameters import Claim

from ..engine.client import Parameters
from ..engine.layout import KeyBatch
from ..engine.pulling import Pulled
from ..errors import OwnershipUnknown, ServerLost
from ..model.program import Gradients, Program
from ..model.reading import Prepared
from ..stages.rows import RowsStage

log = logging.getLogger("stretto.worker")

RETRY_S = 0.2


class Stopping(Exception):
    """Training is to stop within a step."""


class Computing:
    """The steps of one worker. ``stage``: others compute what is behind the rows; None: all is computed here."""

    def __init__(
        self, program: Program, parameters: Parameters, stage: RowsStage | None, keep_going: Callable[[], bool]
    ) -> None:
        self._program, self._parameters, self._stage, self._keep_going = program, parameters, stage, keep_going

    @property
    def is_alone(self) -> bool:
        """True if all is computed here."""
        return self._stage is None

    @property
    def asks(self) -> bool:
        """True if others are asked to compute the next step."""
        return self._stage is not None and self._stage.is_followed

    def begin_pull(self, keys: KeyBatch, is_fresh: bool = False) -> Future[Pulled]:
        """Pull for a step, as far as it is computed here."""
        if self.asks:
            return self._parameters.begin_pull(keys, rows_alone=True)
        return self._parameters.begin_pull(keys, is_fresh)

    def pulled(self, pull: Future[Pulled], keys: KeyBatch) -> Pulled:
        """Return what was pulled, repeating the pull while a server is away. Raises Stopping."""
        while True:
            try:
                return pull.result()
            except (ServerLost, OwnershipUnknown) as error:
                log.warning("pull: %s", error)
            if not self._keep_going():
                raise Stopping
            time.sleep(RETRY_S)
            pull = self.begin_pull(keys, is_fresh=True)

    def step(
        self,
        claim: Claim,
        generation: int | None,
        lineage: int | None,
        pulled: Pulled,
        ready: Prepared,
        is_fresh: bool,
    ) -> Gradients:
        """Return the gradients of a batch, or that others have pushed them. is_fresh: others pull for it, too.

        Raises Stopping, ModelRefused, and the errors of the batch or its lease that another stage finds.
        """
        if self._stage is None:
            return self._program.step(pulled.rows, ready.keys, pulled.dense, pulled.state, ready.batch)
        while True:
            try:
                return self._stage.step(claim, generation, lineage, pulled, ready, is_fresh)
            except (ServerLost, OwnershipUnknown) as error:
                log.warning("step: %s", error)
            if not self._keep_going():
                raise Stopping
            time.sleep(RETRY_S)
