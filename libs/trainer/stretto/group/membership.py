"""A member of a group of workers exchanges its dense gradient for the dense parameters after the group's step.

The dense slices are cut into as many parts as there are members, and each member keeps one (a reduce-scatter). Whoever
keeps a part adds up what all send of it, pushes the mean to the servers under the claims of all batches, and answers
each with the part's new values, which the servers computed (an all-gather). With P bytes of dense parameters and k
members, each member sends and receives 4 (k - 1) / k P bytes to and from others, and 2 P / k to and from servers, which
have 2 P in all instead of 2 k P (HeterPS l.95: servers for CPU workers, all-reduce among accelerators of one type).
Servers stay the only place that has optimizer states and the truth: who joins pulls, and a lost member loses nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from stretto_parameters import Claim, InputRefused
from stretto_plane import Connection, Listener, Message, Peer, PlaneError

from ..engine.layout import F32, I64, Bools, Layout
from ..engine.link import Access
from ..engine.transfer import array_of
from ..errors import LayoutError, StrettoError
from .gathering import Contribution, ContributionRefused, Gathering, Mean, Outcome

log = logging.getLogger("stretto.group")

_HEAD_BYTES_MAX = 2**16


class GroupMessage(IntEnum):
    """The kinds of messages between members."""

    CONTRIBUTE = 1
    ANSWER = 16
    REFUSED = 17


class Exchanged(NamedTuple):
    """The dense slices after a step [slices, slice_length], and which of them have the worker's batch; the others have
    undefined values, and are the worker's own to push."""

    slices: F32
    applied: Bools


class Membership:
    """One worker's membership. ``exchange`` is for one thread at a time; everything else is thread-safe.

    ``address``: where the other members reach it. ``push`` applies a mean gradient at the servers, as
    :class:`Gathering` says. ``patience_s``: how long a step waits for a member that has contributed lately.
    """

    def __init__(
        self,
        member: int,
        layout: Layout,
        access: Access,
        address: str,
        push: Callable[[Mean], Outcome | None],
        *,
        clock: Callable[[], float],
        patience_s: float,
        timeout_s: float = 20.0,
    ) -> None:
        self.member = member
        self._layout, self._access, self._timeout_s = layout, access, timeout_s
        self._lock = threading.Lock()
        self._members: dict[int, str] = {}
        self._gathering = Gathering(push, clock, patience_s)
        self._links: dict[int, Connection] = {}
        self._threads = ThreadPoolExecutor(layout.slices, thread_name_prefix="group")
        try:
            self._listener = Listener(
                address,
                self._handle,
                access.key,
                size_bytes_max=4 * (layout.slices * layout.slice_length + layout.state_size) + _HEAD_BYTES_MAX,
                encrypted=access.encrypted,
            )
        except PlaneError as error:
            raise LayoutError(f"address {address!r} cannot be listened on: {error}") from error
        self.address = self._listener.address

    def use(self, members: Mapping[int, str]) -> None:
        """Make these workers, by their numbers, the members; alone, a worker pushes for itself."""
        with self._lock:
            if members == self._members:
                return
            self._members = {member: members[member] for member in sorted(members)}
            gone = [self._links.pop(member) for member in [*self._links] if member not in members]
        self._gathering.expect(members)
        for link in gone:
            link.close()
        log.info("group: %s", ", ".join(f"worker-{member}" for member in self._members))

    @property
    def is_alone(self) -> bool:
        """True while the worker has no other member to exchange with."""
        return len(self._members) < 2 or self.member not in self._members

    def exchange(self, slices: F32, state_delta: F32, claim: Claim, books: str) -> Exchanged:
        """Give a batch's dense gradient [slices, slice_length] to the group; return what has become of it.

        Slices that are not applied may or may not have the batch at the servers: their records know.
        """
        values, applied = np.empty_like(slices), np.zeros(len(slices), np.bool_)
        with self._lock:
            members = dict(self._members)
        asked: dict[int, Future[Outcome]] = {}
        parts = _parts(self._layout.slices, [*members])
        for member, part in parts.items():
            given = Contribution(claim, books, part, slices[part], state_delta)
            if member == self.member:
                asked[member] = self._threads.submit(self._gathering.contribute, self.member, given)
            else:
                asked[member] = self._threads.submit(self._ask, member, members, given)
        for member, future in asked.items():
            try:
                found = future.result()
            except (StrettoError, PlaneError, InputRefused) as error:
                log.info("group: the part of worker-%d: %s", member, error)
            else:
                values[parts[member]], applied[parts[member]] = found.values, found.applied
        return Exchanged(values, applied)

    def close(self) -> None:
        """Leave: end all connections, and take no more contributions."""
        with self._lock:
            self._members, links, self._links = {}, self._links, {}
        self._listener.close()
        for link in links.values():
            link.close()
        self._threads.shutdown(wait=False)

    # --- the parts of others --------------------------------------------------------------------------------

    def _ask(self, member: int, members: Mapping[int, str], given: Contribution) -> Outcome:
        """Send a contribution to the keeper of its part. Raises PlaneError, ContributionRefused, InputRefused."""
        link = self._links.get(member)
        if link is None or link.address != members[member]:
            link = Connection(
                members[member], self._access.key, timeout_s=self._timeout_s, encrypted=self._access.encrypted
            )
            with self._lock:
                self._links[member] = link
        try:
            link.send(GroupMessage.CONTRIBUTE, _contribution_parts(self.member, members, given))
            message = link.receive()
        except PlaneError:
            with self._lock, suppress(KeyError):
                del self._links[member]
            link.close()
            raise
        if message.kind != GroupMessage.ANSWER:
            raise ContributionRefused(bytes(message.parts[0]).decode(errors="replace"))
        applied = array_of("applied", message.parts[0], np.uint8).view(np.bool_)
        values = array_of("values", message.parts[1], np.float32).reshape(-1, self._layout.slice_length)
        if len(applied) != len(given.slices) or values.shape != given.slices.shape:
            raise InputRefused(f"an answer of {len(applied)} slices, {len(given.slices)} were sent")
        return Outcome(values, applied)

    # --- the own part ---------------------------------------------------------------------------------------

    def _handle(self, message: Message, peer: Peer) -> tuple[int, list[Any]]:
        """Answer a contribution. Whatever does not fit is refused, and changes nothing."""
        try:
            if message.kind != GroupMessage.CONTRIBUTE:
                raise InputRefused(f"a message of kind {message.kind}: of another version of Stretto?")
            member, members, given = _read_contribution(self.member, self._layout, message.parts)
            if members != [*self._members]:
                raise ContributionRefused(f"worker-{member} knows the group as {members}, not {[*self._members]}")
            found = self._gathering.contribute(member, given)
        except (InputRefused, ContributionRefused) as error:
            log.info("refused a contribution of %s: %s", peer, error)
            return GroupMessage.REFUSED, [str(error).encode()]
        return GroupMessage.ANSWER, [found.applied.view(np.uint8), np.ascontiguousarray(found.values)]


def _parts(slices: int, members: list[int]) -> dict[int, I64]:
    """Return the slices that each member keeps, without members that keep none: as even as can be, in order."""
    cut = np.array_split(np.arange(slices, dtype=np.int64), max(len(members), 1))
    return {member: part for member, part in zip(members, cut, strict=False) if len(part)}


def _contribution_parts(member: int, members: Mapping[int, str], given: Contribution) -> list[Any]:
    """Return the message: member and claim, the members as it knows them, books, slices, change of the state."""
    return [
        np.array([member, *given.claim], np.int64),
        np.array([*members], np.int64),
        given.books.encode(),
        np.ascontiguousarray(given.slices),
        given.state_delta,
    ]


def _read_contribution(keeper: int, layout: Layout, parts: Any) -> tuple[int, list[int], Contribution]:
    """Return (member, members, contribution to the keeper's part), views of the parts. Raises InputRefused."""
    if len(parts) != 5:
        raise InputRefused(f"a contribution of {len(parts)} parts, wanted 5")
    head = array_of("head", parts[0], np.int64).tolist()
    if len(head) != 5:
        raise InputRefused(f"a contribution with a head of {len(head)} numbers, wanted 5")
    slices = array_of("slices", parts[3], np.float32)
    delta = array_of("state delta", parts[4], np.float32)
    if len(slices) % layout.slice_length or len(delta) != layout.state_size:
        raise InputRefused(f"{len(slices)} values of slices and {len(delta)} of the state: of another layout?")
    members = array_of("members", parts[1], np.int64).tolist()
    ids, gradients = _parts(layout.slices, members).get(keeper), slices.reshape(-1, layout.slice_length)
    if ids is None or len(ids) != len(gradients):
        raise InputRefused(f"{len(gradients)} slices for worker-{keeper} in a group of {members[:8]}")
    books = bytes(parts[2]).decode(errors="replace")
    return head[0], members, Contribution(Claim(*head[1:]), books, ids, gradients, delta)
