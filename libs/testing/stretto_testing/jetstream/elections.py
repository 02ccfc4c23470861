"""Three servers, whose leaders change: what clients see while nobody leads a stream, and what becomes of their writes.

A stream has one copy here, of which nothing acknowledged is lost. Its former leader has stored what was under way
without an answer, or has not. ``tests/simulated_contract.py`` has what three real servers do (``OF_CLUSTERS``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, NamedTuple

from stretto_testing.jetstream.api import Api
from stretto_testing.jetstream.consumers import Consumer, Timer
from stretto_testing.jetstream.streams import KeptStream
from stretto_testing.loop import SimulatedLoop
from stretto_testing.network import Line, Network

SERVERS = 3
META = "$META"
"""Name under which the leader of the whole cluster is elected: it makes and removes streams and consumers."""
UNDER_WAY_S = 0.1
"""Longest time before the end of a leader in which its messages may be stored although their answers are lost."""
ASKED_LASTS_S = 0.5
"""Longest election after a request to step down"""
STEPDOWN = "$JS.API.STREAM.LEADER.STEPDOWN."
FOLLOWER_ANSWERS_SHARE, BEHIND_MOST = 0.25, 30
"""Share of questions about a stream without a leader that a follower answers, and the messages that it lacks at most"""
CREATES, TELLS = "CONSUMER.CREATE", "STREAM.INFO"
OF_META = ("STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE", "STREAM.RESTORE", CREATES, "CONSUMER.DELETE")
OF_CONSUMERS = {"CONSUMER.INFO": 4, "CONSUMER.MSG": 5}
"""Requests that a consumer's own server answers, and the place of its name in their subjects"""


class Write(NamedTuple):
    """A message on its way into a stream, and the process that sent it."""

    writer: str
    subject: str
    reply: str
    block: bytes
    data: bytes


@dataclass(slots=True, eq=False)
class Election:
    """The time without a leader of some streams.

    ``stores_until_s``: what comes before is stored, and not answered. ``is_silent``: nobody tells a writer that nobody
    listens: the former leader's server seems to be there.
    """

    names: Collection[str]
    stores_until_s: float
    is_silent: bool
    held: list[tuple[KeptStream, Write]] = field(default_factory=list[Any])
    """Writes that wait at a leader that is stopped"""
    timer: Timer | None = None


class Elections:
    """The leaders of streams, and the servers that are there.

    ``store`` stores a message that has waited for its leader; ``led`` is told of a stream that has one again.
    """

    def __init__(
        self,
        api: Api,
        network: Network,
        loop: SimulatedLoop,
        store: Callable[[KeptStream, Write], None],
        led: Callable[[KeptStream], None],
    ) -> None:
        self._api, self._network, self._loop, self._store, self._led = api, network, loop, store, led
        self._of: dict[str, Election] = {}
        """Stream without a leader -> its election"""
        self._lines, self._consumers = count(), count()
        self._chance = Random(0)
        self._away: int | None = None
        """The server that is not there"""
        self._returning: Timer | None = None

    def forget(self) -> None:
        """End all elections, as the death of all servers does."""
        if self._away is not None:
            self._wake(self._away)
        for election in {id(each): each for each in self._of.values()}.values():
            if election.timer is not None:
                election.timer.cancel()
        if self._returning is not None:
            self._returning.cancel()
        self._of.clear()
        self._away, self._returning = None, None

    # faults ----------------------------------------------------------------------------------------------------

    def unseat(self, names: Collection[str], lasts_s: float, chance: Random) -> None:
        """Let the leaders of streams step down; others are elected some time later."""
        self._begin(names, lasts_s, False, chance)

    def lose_server(self, names: Collection[str], is_killed: bool, lasts_s: float, chance: Random) -> None:
        """Kill or stop the server that leads these streams; it comes back, and others lead them by then: or it comes
        back first, and leads on.
        """
        if self._away is not None:
            self.unseat(names, lasts_s, chance)
            return
        self._away = number = chance.randrange(SERVERS)
        for line in self._lines_of(number):
            if is_killed:
                line.hang_up()
            else:
                line.is_stopped = True
        for consumer in self._consumers_of(number):
            if is_killed and not consumer.is_durable:
                self._api.remove(consumer)
            consumer.is_stopped = not is_killed
        elected_s = lasts_s * 1.5 * chance.random()
        election = self._begin(names, min(lasts_s, elected_s) if is_killed else elected_s, not is_killed, chance)
        self._returning = self._after(lasts_s, lambda: self._come_back(number, election))

    def _begin(self, names: Collection[str], lasts_s: float, is_silent: bool, chance: Random) -> Election:
        self._chance = chance
        new = [name for name in names if name not in self._of]
        stores_until_s = self._loop.time() + chance.uniform(0, UNDER_WAY_S)
        election = Election(new, stores_until_s, is_silent)
        for name in new:
            self._of[name] = election
        election.timer = self._after(lasts_s, lambda: self._elected(election))
        return election

    def _elected(self, election: Election) -> None:
        """Let others lead; they know nothing of batches that are not committed, nor of what a stopped leader has."""
        self._api.snapshots.forget()
        for name in election.names:
            if name in self._api.streams:
                self._api.streams[name].abandon_batches()
        self._end(election)

    def _end(self, election: Election) -> None:
        for name in election.names:
            self._of.pop(name, None)
            if name in self._api.streams:
                self._led(self._api.streams[name])
        if election.timer is not None:
            election.timer.cancel()
            election.timer = None

    def _come_back(self, number: int, election: Election) -> None:
        self._away, self._returning = None, None
        if election.timer is not None:  # nobody else has been elected: it leads on
            self._end(election)
            for stream, write in election.held:
                self._store(stream, write)
        self._wake(number)

    def _wake(self, number: int) -> None:
        for line in self._lines_of(number):
            line.wake()
        for consumer in self._consumers_of(number):
            consumer.wake()

    def _step_down(self, name: str) -> dict[str, Any]:
        """Let the leader of a stream step down, as whoever asks for it wants."""
        chance = Random(f"{name} {self._loop.time()}")
        self.unseat([name], chance.uniform(0, ASKED_LASTS_S), chance)
        return {"success": True}

    def _after(self, delay_s: float, action: Callable[[], None]) -> Timer:
        return self._loop.call_at(self._loop.time() + delay_s, action, context=self._loop.root.context)

    def _lines_of(self, number: int) -> list[Line]:
        return [line for line in self._network.lines if line.server_number == number]

    def _consumers_of(self, number: int) -> list[Consumer]:
        return [consumer for consumer in self._api.consumers.values() if consumer.server_number == number]

    # what clients see ------------------------------------------------------------------------------------------

    def place(self) -> int:
        """Return the server that gets a new connection."""
        number = next(self._lines) % SERVERS
        return number if number != self._away else (number + 1) % SERVERS

    def leads(self, name: str) -> bool:
        """Return whether a stream has a leader."""
        return name not in self._of

    def take(self, stream: KeptStream, write: Write) -> tuple[bool, bool]:
        """Return whether a message is stored, and whether its sender is told so, or told that nobody listens."""
        election = self._of.get(stream.name)
        if election is None:
            return True, True
        if self._loop.time() < election.stores_until_s:
            return True, False
        if election.is_silent:
            election.held.append((stream, write))
        return False, not election.is_silent

    def ask(self, subject: str, reply: str, data: bytes) -> dict[str, Any] | None:
        """Carry out a request of the API; return its answer, None: nobody answers. Raises ApiRefusal."""
        if subject.startswith(STEPDOWN):
            return self._step_down(subject.removeprefix(STEPDOWN))
        what = ".".join(subject.split(".")[2:4])
        number = next(self._consumers) % SERVERS if what == CREATES else None
        if not self._answers(what, subject.split("."), number):
            return None
        answer = self._api.ask(subject, reply, data)
        if answer is not None and number is not None:
            self._api.consumers[answer["stream_name"], answer["name"]].server_number = number
        elif answer is not None and what == TELLS:
            self._tell(answer["config"]["name"], answer)
        return answer

    def _answers(self, what: str, words: list[str], number: int | None) -> bool:
        """Return whether somebody answers a request. ``number``: the server that gets a new consumer."""
        if what in OF_META:
            return META not in self._of and (number is None or number != self._away)
        if what in OF_CONSUMERS:
            at = OF_CONSUMERS[what]
            consumer = self._api.consumers.get((words[at], words[at + 1]))
            return consumer is None or not consumer.is_stopped
        if (election := self._of.get(words[4])) is None:
            return True
        return what == TELLS and not election.is_silent and self._chance.random() < FOLLOWER_ANSWERS_SHARE

    def _tell(self, name: str, answer: dict[str, Any]) -> None:
        """Say who leads a stream. Without a leader a follower tells of it, which may lag."""
        answer["cluster"] = {"name": "simulated"}
        if self.leads(name):
            answer["cluster"]["leader"] = "n0"
            return
        state = answer["state"]
        held = state["last_seq"] + 1 - max(1, state["first_seq"])
        lacks = min(self._chance.randrange(BEHIND_MOST + 1), max(0, held))
        state["last_seq"] -= lacks
        state["messages"] = max(0, state["messages"] - lacks)
