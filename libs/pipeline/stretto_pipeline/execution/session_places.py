"""The places of a program's sessions: elements that runs of each pass have taken, and where a pass goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakSet

from ..errors import in_words
from .identities import identity_in_graph
from .places import Place
from .resume import Identity, Resume, dropped
from .session_steps import SessionGraph, own_run


@dataclass(eq=False)
class Taken:
    """The elements that runs of one pass have taken. unknown: why nobody can tell. is_over: a run met the end."""

    identity: Identity | None = None
    consumed: int = 0
    unknown: str = ""
    is_over: bool = False


class Passes(Protocol):
    """The iterators of one session, by name, with what their passes have taken."""

    @property
    def taken(self) -> Mapping[str, Taken]: ...


class SessionPlaces:
    """All sessions of one program."""

    def __init__(self, resume: Resume) -> None:
        self._resume = resume
        self._all: WeakSet[Passes] = WeakSet()
        resume.add_source(self._places)

    def add(self, passes: Passes) -> None:
        """Note a session."""
        self._all.add(passes)

    def _places(self) -> Iterator[Place]:
        """Return the places of passes that are not over."""
        for state in [*self._all]:
            for name, taken in state.taken.items():
                if taken.is_over:
                    continue
                if taken.identity is None:
                    yield Place(f"the data of {name}", "", unknown=taken.unknown or "its data set cannot be told")
                else:
                    found = taken.identity
                    unknown = found.unknown or taken.unknown
                    yield Place(found.source, found.digest, (), taken.consumed, 0, found.length, unknown)

    def claimed(self, known: SessionGraph, source: str, maker: str, taken: Taken) -> Place | None:
        """Return where a pass begins, None: at its beginning."""
        if not self._resume.is_on:
            return None
        try:
            taken.identity = identity_in_graph(known, source, maker)
        except Exception as error:  # the program runs as it does alone
            taken.unknown = in_words(error)
            return None
        place = self._resume.claim(taken.identity)
        taken.consumed = place.consumed if place else 0
        return place

    def advance(self, session: Any, source: str, maker: str, feeds: Mapping[str, Any], taken: Taken) -> None:
        """Advance the program's own iterator to the place where its pass begins."""
        there = dropped(lambda: own_run(session, [], [source]), taken.consumed)
        if there < taken.consumed:
            self.too_short(taken, there)
            if maker:
                own_run(session, [], [maker], feeds)

    def too_short(self, taken: Taken, there: int) -> None:
        """Let a pass begin anew whose data set has fewer elements than were trained."""
        assert taken.identity is not None
        self._resume.say_short(Place(taken.identity.source, "", consumed=taken.consumed), there)
        taken.consumed = 0
