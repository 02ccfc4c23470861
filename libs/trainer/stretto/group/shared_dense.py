"""The dense parameters of a worker in a group: what it gives the others, and the part that it pushes for all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import numpy as np
from stretto_parameters import Claim, Code, Own

from ..engine import protocol
from ..engine.layout import F32, I64, U64, Bools, Layout
from ..engine.link import Access
from ..engine.protocol import Gradients, Kind
from ..engine.pulling import Puller
from ..engine.routing import Route, Routes
from ..engine.transfer import EXACT
from ..errors import OwnershipUnknown, StrettoError
from .gathering import Mean, Outcome
from .membership import Membership

log = logging.getLogger("stretto.group")

PATIENCE_S = 1.0
"""Longest wait of a step for a member that has contributed lately. Taste: some ten steps."""


class SharedDense:
    """A worker's dense gradients, averaged with those of its group. For one thread at a time, but for ``use``.

    ``address``: where other members reach it. Until it is attached to parameters, the worker is alone.
    """

    def __init__(
        self,
        worker: int,
        layout: Layout,
        access: Access,
        address: str,
        clock: Callable[[], float],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._worker, self._layout = worker, layout
        self._routes: Routes | None = None
        self._puller: Puller | None = None
        self._given: Claim | None = None
        """The batch that the group was given last: it is given once, and repeated to servers alone."""
        self._group = Membership(worker, layout, access, address, self._push, clock=clock, patience_s=patience_s)
        self.address = self._group.address

    def attach(self, routes: Routes, puller: Puller) -> None:
        """Push by these routes, and give the dense parameters to this puller."""
        self._routes, self._puller = routes, puller

    def use(self, members: Mapping[int, str]) -> None:
        """Make these workers, by their numbers, the members of the group."""
        self._group.use(members)

    @property
    def is_alone(self) -> bool:
        """True while there is no other member."""
        return self._routes is None or self._group.is_alone

    def give(self, claim: Claim, slices: F32, state_delta: F32, generation: int | None) -> Bools:
        """Give a batch's dense gradient [slices, slice_length] to the group; return which slices then have the batch.

        The worker pushes the others for itself. A batch that the group was given before is not given again: what became
        of it, the records of the servers know.
        """
        none = np.zeros(self._layout.slices, np.bool_)
        if self._routes is None or self._puller is None or self.is_alone or claim == self._given:
            return none
        route = self._routes.current()
        if generation is not None and route.generation != generation:
            return none
        self._given = claim
        found = self._group.exchange(slices, state_delta, claim, route.books)
        if found.applied.all():
            self._puller.give(route.generation, self._layout.join_dense(found.slices))
        return found.applied

    def close(self) -> None:
        """Leave the group."""
        self._group.close()

    # --- the part that is pushed for all ----------------------------------------------------------------------

    def _push(self, mean: Mean) -> Outcome | None:
        """Apply the mean of several batches to a part under the claims of all; None if the servers do not."""
        routes = self._routes
        if routes is None:
            return None
        try:
            route = routes.current()
            if route.books != mean.books:
                return None
            applied = self._applied(routes, route, mean)
            return Outcome(self._values(routes, route, mean.ids), applied) if applied.any() else None
        except StrettoError as error:
            log.warning("the group's push: %s", error)
            return None

    def _applied(self, routes: Routes, route: Route, mean: Mean) -> Bools:
        """Push a mean; return which slices of the part have it, the batches of before included."""
        layout, ids = self._layout, mean.ids
        (shard, attempt, start, stop), *others = mean.claims
        head = np.array([shard, attempt, start, stop, self._worker], np.int64)
        slices = np.zeros((layout.slices, layout.slice_length), np.float32)
        slices[ids] = mean.slices
        no_rows = [np.zeros((0, table.dimension), np.float32) for table in layout.tables]
        gradients = Gradients.of(EXACT, no_rows, slices, mean.state_delta)
        asked = np.zeros(layout.columns, np.bool_)
        asked[layout.buckets + ids] = True
        claims = {server: part.claim & asked & ~route.frozen for server, part in route.parts.items()}
        chosen = [slice(0, 0)] * len(layout.tables)
        answers = routes.ask(
            {
                server: (
                    route.parts[server].link,
                    Kind.PUSH,
                    protocol.push_request(
                        head, claim, self._no_keys, gradients, chosen, np.flatnonzero(claim[layout.buckets :]), others
                    ),
                )
                for server, claim in claims.items()
                if claim.any()
            }
        )
        found = np.zeros(layout.columns, np.bool_)
        for server, answer in answers.items():
            code, _, _ = protocol.read_push_answer(answer, int(claims[server].sum()))
            if code is Code.APPLIED:
                found |= claims[server]
            else:
                log.info("ps-%d does not take the group's push: %s", server, code.name)
        return found[layout.buckets :][ids]

    def _values(self, routes: Routes, route: Route, ids: I64) -> F32:
        """Return the values of these slices. Raises ServerLost; OwnershipUnknown if one of them has moved away."""
        values = np.empty((self._layout.slices, self._layout.slice_length), np.float32)
        own = {server: np.intersect1d(ids, part.slices) for server, part in route.parts.items()}
        answers = routes.ask(
            {
                server: (route.parts[server].link, Kind.PULL, protocol.pull_request(its, self._no_keys))
                for server, its in own.items()
                if len(its)
            }
        )
        for server, answer in answers.items():
            pulled, _ = protocol.read_pulled(self._layout, self._no_keys, own[server], EXACT, answer)
            if (pulled.own[self._layout.buckets + own[server]] == Own.NOT_MINE).any():
                raise OwnershipUnknown(f"slices {own[server].tolist()[:8]} have left ps-{server}")
            values[own[server]] = pulled.slices
        return values[ids]

    @property
    def _no_keys(self) -> list[U64]:
        return [np.zeros(0, np.uint64)] * len(self._layout.tables)
