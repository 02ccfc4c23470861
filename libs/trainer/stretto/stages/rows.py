"""Stage 0 has the rows: it pulls them, and asks the next stage for everything behind them, and for all pushes."""

from __future__ import annotations

import contextlib
import logging

import numpy as np
from stretto_parameters import Claim

from ..engine.client import Parameters, check_books
from ..engine.pulling import Pulled
from ..model.program import Gradients
from ..model.reading import Prepared
from ..parts import FIRST_LAYER, NOTHING, Given, Part, Returned
from .asking import NextStage
from .messages import Asked, OtherBooks

log = logging.getLogger("stretto.stages")


class RowsStage:
    """A worker's steps behind the rows, which others compute. Only one thread at a time may use it.

    A step that nobody else computes is computed here: it is slower at most, and waits for nobody. ``behind``: all
    layers behind the rows.
    """

    def __init__(self, parameters: Parameters, following: NextStage, behind: Part) -> None:
        self._parameters, self._following, self._behind = parameters, following, behind

    @property
    def is_followed(self) -> bool:
        """True while the next stage has a member to ask."""
        return self._following.first_layer == FIRST_LAYER

    def step(
        self,
        claim: Claim,
        generation: int | None,
        lineage: int | None,
        pulled: Pulled,
        prepared: Prepared,
        is_fresh: bool = True,
    ) -> Gradients:
        """Return the gradients of a batch, or that others have pushed them. is_fresh: as of `Asked`.

        Raises ServerLost, OwnershipUnknown, and the errors of the batch or its lease that a stage finds.
        """
        given = Given(pulled.rows, prepared.keys, prepared.batch)
        answer = self._asked(claim, generation, lineage, given, is_fresh)
        if answer is not None:
            return Gradients(answer.loss, (), NOTHING, NOTHING, is_pushed=True)
        values = pulled if len(pulled.dense) else self._parameters.pull_slices(None)
        found = self._behind.step(given, values.dense, values.state, _nobody, contextlib.nullcontext())
        told = found.answer
        state_delta = found.state_delta if len(found.state_delta) else np.zeros_like(values.state)
        squares = found.dense_squares
        return Gradients(told.loss, told.rows, found.dense, state_delta, told.row_squares, squares)

    def _asked(
        self, claim: Claim, generation: int | None, lineage: int | None, given: Given, is_fresh: bool
    ) -> Returned | None:
        """Return the answer of the next stage; None if nobody answers."""
        what = f"step of shard {claim.shard} attempt {claim.attempt} samples {claim.start}..{claim.stop}"
        for _ in range(2):
            route = self._parameters.routes.current()
            check_books(route, generation, lineage, what)
            asked = Asked(claim, route.books, self._parameters.worker, lineage, FIRST_LAYER, given, is_fresh)
            try:
                return self._following.ask(asked)
            except OtherBooks as error:
                log.info("%s: %s", what, error)
                self._parameters.routes.refresh()
        return None


def _nobody(_: Given) -> Returned:
    raise AssertionError("nothing is behind the last layer")
