"""A worker that is one rank of a program of several, as of ``torch.distributed``.

The actuator names the workers of the job that run, under a version that grows with each change (``GroupChanged``). Each
version is a rendezvous: a worker's place among them is its rank, and the first one leads (:mod:`.lead`). When the
version changes, all ranks are told to leave before the same step, and their programs start anew as ranks of the next.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from stretto_messages.actuator import GroupChanged
from stretto_messages.values import GroupMember
from stretto_plane import Connection, Listener, Message, Peer, PlaneError
from stretto_wire.program import PORT_VARIABLE, ProgramSpec

from ..agent import ADDRESS_VARIABLE, BATCH, CHECKPOINT, DONE, END, LEAVE, NEXT, REFUSED
from ..errors import BusError, DataError
from ..items import ITEMS, TOOK
from ..pod.process import EXIT_OK, EXIT_PLATFORM, LOOPBACK, Pod
from ..pod.servers import listed
from ..worker.leases import HEARTBEAT_S, Leases
from ..worker.step_timer import StepTime, StepTimer
from .asked import AskedSocket
from .batches import Batches
from .child import EARLY, SIGNALLED, Child, patience_of
from .consistent import consistent_of
from .far_items import FarItems
from .lead import AGAIN, BLAMED, GO, LOOK_S, WAIT_S, Lead
from .telemetry import Telemetry

GATHER_S = 10.0
"""Seconds that a group waits for workers of the plan that do not run yet: it would begin anew with each of them."""
GROWS_S = 120.0
"""Seconds until programs that leave for a larger group, or were told to leave and may save, get SIGTERM."""
MISSED_S = 30.0
"""Seconds after which a worker ends whose group is over and has no successor: another worker makes for one."""
LOST_S = 30.0
"""Seconds for which the first worker of a group may be out of reach while no other group is named."""
RELEASE_S = 10.0
ASK_EVERY_S = 2.0
LOOK_EVERY_S = 10.0
"""Interval at which the actuator is asked for the newest group while a program runs: an event may have been missed."""
LINK_S = 5.0
FRAME_BYTES_MAX = 2**16
_MESSAGE = 1
STALE = "stale"
"""Answer to a rank of a group that is over, or whose first worker is in another group by now."""

log = logging.getLogger("stretto.worker")


class Group(NamedTuple):
    """The workers that run, in the order of their ranks. ``wanted``: how many the plan has."""

    version: int
    workers: tuple[GroupMember, ...]
    wanted: int

    def rank_of(self, index: int) -> int | None:
        """Return the rank of a worker by its number."""
        indices = [each.index for each in self.workers]
        return indices.index(index) if index in indices else None


class NewestGroup:
    """The newest group that the actuator has named. Thread-safe. ``changed`` is called after each change."""

    def __init__(self, pod: Pod, changed: Callable[[], None]) -> None:
        self._bus, self._changed = pod.bus, changed
        self._lock = threading.Lock()
        self.known = Group(0, (), 0)

    def follow(self) -> None:
        """Follow the changes from now on."""
        self._bus.follow(GroupChanged, lambda event: self._take(Group(event.version, event.workers, event.wanted)))
        self.ask()

    def ask(self) -> None:
        """Ask the actuator, in case an event was missed."""
        if (reply := listed(self._bus)) is not None:
            self._take(Group(reply.group_version, reply.group, reply.group_wanted))

    def _take(self, group: Group) -> None:
        with self._lock:
            if group.version <= self.known.version:
                return
            self.known = group
        self._changed()


class Link(Protocol):
    """The way of a rank to the first one of its group. Raises PlaneError: the first rank is gone."""

    def join(self) -> str: ...

    def ask(self, number: int, request: str) -> str: ...

    def failed(self, status: int) -> str: ...

    def close(self) -> None: ...


class OwnLink:
    """Rank 0 asks itself."""

    def __init__(self, lead: Lead) -> None:
        self._lead = lead

    def join(self) -> str:
        return self._lead.join(0)

    def ask(self, number: int, request: str) -> str:
        refusal = self._lead.refusal(0) if request == NEXT else ""
        return f"{REFUSED} {refusal}" if refusal else self._lead.ask(0, number, request)

    def failed(self, status: int) -> str:
        return self._lead.failed(0, status)

    def close(self) -> None:
        """Close nothing."""


class FarLink:
    """A rank asks the first worker of its group. It is for one thread at a time but for ``close``."""

    def __init__(self, pod: Pod, group: Group, rank: int) -> None:
        self._pod, self._group, self._rank = pod, group, rank
        self._connection: Connection | None = None

    def join(self) -> str:
        return self._call({"do": "join"})

    def ask(self, number: int, request: str) -> str:
        return self._call({"do": "ask", "number": number, "request": request, "leaving": self._pod.leaving.is_set()})

    def failed(self, status: int) -> str:
        return self._call({"do": "failed", "status": status})

    def _call(self, request: dict[str, Any]) -> str:
        access = self._pod.access
        if self._connection is None:
            address = self._group.workers[0].address
            self._connection = Connection(address, access.key, timeout_s=LINK_S, encrypted=access.encrypted)
        body = json.dumps({**request, "version": self._group.version, "rank": self._rank}).encode()
        try:
            answer = self._connection.call(_MESSAGE, [body], WAIT_S + LINK_S)
        except PlaneError:
            self.close()
            raise
        return bytes(answer.parts[0]).decode()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Membership:
    """One rank of one group, from its beginning to its end. The program asks from one thread at a time."""

    def __init__(self, group: Group, rank: int, link: Link, lead: Lead | None, stop: threading.Event) -> None:
        self.group, self.rank, self.link, self.lead, self.stop = group, rank, link, lead, stop
        self.told = ""
        """The word by which the program was told that there are no more steps in this group."""
        self.is_left = False
        """True once the program has left its loop in the middle of a batch, in which the other ranks go on."""
        self.is_ended = False
        """True once the program has ended: whatever it asked for last, it gets nothing more."""
        self._given = 0
        self._given_at_s = 0.0
        self._numbers = 0

    def answered(self, request: str, meter: StepTimer) -> str:
        """Return the answer to a line of the program."""
        if self.is_left:
            return f"{REFUSED} the loop over samples() was left in the middle of a batch, and other ranks go on: end"
        if self._given and request in (NEXT, CHECKPOINT):
            meter.step(self._given_at_s, time.monotonic(), self._given, StepTime())
            self._given = 0
        if self.told and self.rank:  # whoever asked first may be gone
            return self.told if request == NEXT else DONE
        self._numbers += 1
        answer = self._asked(request)
        word, *numbers = answer.split()
        if word == BATCH:
            self._given, self._given_at_s = int(numbers[1]) - int(numbers[0]), time.monotonic()
        elif word in (END, LEAVE, STALE):
            self.told = self.told or (END if word == END else LEAVE)
            answer = word if word == END else LEAVE
        return answer

    def _asked(self, request: str) -> str:
        """Return the answer of the first rank, which may be lost for a moment; LEAVE: it is gone."""
        heard_s = time.monotonic()
        while not self.is_ended:
            try:
                answer = self.link.ask(self._numbers, request)
            except PlaneError as error:
                if self.stop.wait(LOOK_S) or time.monotonic() - heard_s > LOST_S:
                    log.info("the first rank of group %d is gone: %s", self.group.version, error)
                    return LEAVE
                continue
            if answer != AGAIN:
                return answer
            heard_s = time.monotonic()
        return LEAVE

    def variables(self, host: str, port: str) -> dict[str, str]:
        """Return the variables by which ``torch.distributed`` finds the ranks (``init_method="env://"``)."""
        here = {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"} if host == LOOPBACK else {}
        return {
            **here,
            "RANK": str(self.rank),
            "WORLD_SIZE": str(len(self.group.workers)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
        }

    def left(self) -> None:
        """Note that the program has closed its connection."""
        self.is_left = self._given > 0


class RankHost:
    """Runs the program of one worker as a rank of each group in turn."""

    def __init__(self, pod: Pod, program: ProgramSpec) -> None:
        self._pod, self._program = pod, program
        self._telemetry = Telemetry(pod)
        self._child = Child(pod, program, self._telemetry.meter)
        self._items = FarItems(pod, self._telemetry.took)
        self._asked = AskedSocket(self._answered, self._left, dict.fromkeys((ITEMS, TOOK), self._items.serve))
        self._groups = NewestGroup(pod, self._end_if_over)
        self._member: Membership | None = None
        self._over = 0
        """Version of the last group that is over here."""
        self._looked_at_s = 0.0
        self._is_behind = False
        """True once another worker has named a newer group than the newest one that is known here."""

    def run(self) -> int:
        """Run the program until its samples are over, and return the pod's exit code. Raises DataError."""
        settings, access = self._pod.settings, self._pod.access
        address = self._asked.listen(settings.pod_folder or Path.cwd())
        with Listener(
            settings.plane_address,
            self._serve,
            access.key,
            size_bytes_max=FRAME_BYTES_MAX,
            encrypted=access.encrypted,
        ) as listener:
            self._groups.follow()
            self._items.follow()
            self._telemetry.begin(listener.address)
            self._pod.every(lambda: HEARTBEAT_S, self._beat)
            self._pod.every(lambda: HEARTBEAT_S, self._look)
            threading.Thread(target=self._end_when_leaving, name="leaving", daemon=True).start()
            while (group := self._next()) is not None:
                if (code := self._run_in(group, address)) is not None:
                    return code
        return EXIT_OK if self._pod.leaving.is_set() else EXIT_PLATFORM

    # --- groups -----------------------------------------------------------------------------------------------

    def _next(self) -> Group | None:
        """Wait for a group after the last one, of which this worker is a rank; None: it leaves, or none has come."""
        began_s = asked_s = time.monotonic()
        while not self._pod.leaving.wait(LOOK_S / 4):
            group, now_s = self._groups.known, time.monotonic()
            if group.version > self._over and group.rank_of(self._pod.settings.index) is not None:
                return group
            if now_s - asked_s > ASK_EVERY_S:
                asked_s = now_s
                self._groups.ask()
            if self._over and now_s - began_s > MISSED_S:
                log.info("group %d is over, and no other one has begun", self._over)
                return None
        return None

    def _is_over(self, member: Membership) -> bool:
        """Return True once this worker leaves, or there is another group, unless all samples of this one are over."""
        newer = self._groups.known.version > member.group.version
        return self._pod.leaving.is_set() or (newer and member.told != END)

    def _end_if_over(self) -> None:
        member = self._member
        if member is not None and self._is_over(member):
            member.stop.set()

    def _end_when_leaving(self) -> None:
        self._pod.leaving.wait()
        self._end_if_over()

    def _membership(self, group: Group) -> Membership:
        """Become a rank of this group. Raises DataError: the store is no folder."""
        rank, stop = group.rank_of(self._pod.settings.index), threading.Event()
        assert rank is not None
        if rank:
            return Membership(group, rank, FarLink(self._pod, group, rank), None, stop)
        spec, consistent = self._pod.settings.spec, None
        leases = Leases(self._pod.bus, stop)
        batches = Batches(
            leases,
            StepTimer(),  # each rank times its own part of a step
            spec.dataset.batch_size * len(group.workers),
            stop,
            consistent=self._program.consistent,
            least=spec.resources.workers.count.max,
            release_s=RELEASE_S,
            tells_likely=spec.resources.data.mode != "off",
        )
        if self._program.consistent:
            consistent = consistent_of(self._pod, leases, batches, stop)
        lead = Lead(len(group.workers), leases, batches, consistent, stop, time.monotonic)
        return Membership(group, rank, OwnLink(lead), lead, stop)

    def _run_in(self, group: Group, socket: str) -> int | None:
        """Run the program as a rank of this group; return the pod's exit code, or None for the next group."""
        member = self._member = self._membership(group)
        self._end_if_over()  # a change that came meanwhile has stopped nothing
        failure: str | None = None
        try:
            if (where := self._joined(member)) is None:
                return None
            log.info("rank %d of %d, group %d", member.rank, len(group.workers), group.version)
            self._asked.begin()
            program = self._child.start({**member.variables(*where), ADDRESS_VARIABLE: socket})
            code = self._child.wait(program, lambda: self._patience_s(member))
            member.is_ended = True
            if member.lead is not None:
                member.lead.end()
            self._asked.hang_up()
            with self._asked.asking:  # what the program asked for last is answered
                found = self._ended(member, code)
            if (lead := member.lead) is not None:
                self._await(lambda: lead.is_heard if member.told == END else lead.is_settled or self._is_over(member))
            first = member.lead.failure if member.lead is not None else None
            if first is not None and first.status > 0 and not self._is_over(member):
                failure = f"the program of rank {first.rank} ended with status {first.status}"
            return found
        except DataError as error:
            failure = str(error)
            raise
        finally:
            self._over, self._member = group.version, None
            if member.lead is not None:
                member.lead.close(failure)
            member.link.close()

    def _await(self, is_told: Callable[[], bool]) -> None:
        """Wait until the other ranks know how the group ended: once its first worker is gone, nobody can tell them."""
        until_s = time.monotonic() + LOST_S
        while not is_told() and time.monotonic() < until_s:
            if self._pod.leaving.wait(LOOK_S):
                return

    def _joined(self, member: Membership) -> tuple[str, str] | None:
        """Wait until all ranks are there; return host and port of rank 0, or None: the group is over before."""
        gathers_until_s = time.monotonic() + GATHER_S
        is_begun = False
        while not self._is_over(member):
            lead, group = member.lead, member.group
            try:
                word, *where = member.link.join().split()
            except PlaneError as error:
                log.info("the first rank of group %d cannot be reached yet: %s", group.version, error)
                word, where = AGAIN, []
            if word == GO:
                return where[0], where[1]
            if word == STALE:
                return None
            is_whole = len(group.workers) >= group.wanted or time.monotonic() > gathers_until_s
            if lead is not None and lead.is_complete and is_whole and not is_begun:
                try:
                    lead.begin(self._pod.settings.host, int(os.environ.get(PORT_VARIABLE, "0")))
                except BusError:  # the group is to end
                    return None
                is_begun = True
                continue
            member.stop.wait(LOOK_S / 4)
        return None

    def _patience_s(self, member: Membership) -> float | None:
        """Return the seconds after which the program is ended; None while it is to run on."""
        if not self._is_over(member) and member.told != LEAVE:
            return None
        here = {each.index for each in member.group.workers}
        is_larger = here <= {each.index for each in self._groups.known.workers}
        ends_itself = (is_larger or member.told == LEAVE) and not self._pod.leaving.is_set()
        return GROWS_S if ends_itself else patience_of(self._pod.settings.stop_grace_s)

    def _ended(self, member: Membership, code: int) -> int | None:
        """Return the pod's exit code after the program has ended; None: this worker goes on in the next group.

        Raises DataError: the program failed by itself.
        """
        if self._pod.leaving.is_set() or (code == 0 and member.told == END):
            return EXIT_OK
        if member.told == END:
            return self._child.failed(code)
        if code == 0 and member.lead is not None and member.lead.batches.lost:
            log.info("the program's parameters have samples that are handed out again: another worker takes its place")
            return EXIT_PLATFORM
        if self._is_over(member) or member.told == LEAVE:
            return None
        if code == 0:
            raise DataError(EARLY)
        if code == -signal.SIGKILL:  # that comes from outside, and to this program
            return SIGNALLED + signal.SIGKILL
        return self._child.failed(code) if self._is_blamed(member, code) else None

    def _is_blamed(self, member: Membership, code: int) -> bool:
        """Wait until it is known whether a worker was lost, or which program failed first; True: this one."""
        while not self._is_over(member):
            try:
                answer = member.link.failed(code)
            except PlaneError:
                return False
            if answer != AGAIN:
                return answer == BLAMED
            member.stop.wait(LOOK_S)
        return False

    # --- requests ---------------------------------------------------------------------------------------------

    def _answered(self, request: str) -> str:
        member = self._member
        return LEAVE if member is None else member.answered(request, self._telemetry.meter)

    def _left(self) -> None:
        self._telemetry.meter.idle()
        if self._member is not None:
            self._member.left()

    def _beat(self) -> None:
        member = self._member
        if member is not None and member.lead is not None:
            member.lead.leases.beat()

    def _look(self) -> None:
        """Ask for the newest group now and then, and at once where another worker knows a newer one."""
        now_s = time.monotonic()
        if self._is_behind or now_s - self._looked_at_s >= LOOK_EVERY_S:
            self._is_behind, self._looked_at_s = False, now_s
            self._groups.ask()

    def _serve(self, message: Message, peer: Peer) -> tuple[int, list[bytes]]:
        """Answer a rank of another worker."""
        asked = json.loads(bytes(message.parts[0]))
        return _MESSAGE, [self._answer(asked, peer).encode()]

    def _answer(self, asked: dict[str, Any], peer: Peer) -> str:
        member, version, rank = self._member, int(asked["version"]), int(asked["rank"])
        self._is_behind |= version > self._groups.known.version
        if member is None or member.group.version != version or member.lead is None:
            return STALE if version <= max(self._over, self._groups.known.version - 1) else AGAIN
        lead = member.lead
        if not 0 < rank < len(member.group.workers):
            return STALE
        if asked["do"] == "join":
            return lead.join(rank, peer)
        if asked["do"] == "failed":
            return lead.failed(rank, int(asked["status"]), peer)
        if asked["leaving"]:
            lead.stop.set()
        request = str(asked["request"])
        refusal = lead.refusal(rank) if request == NEXT else ""
        return f"{REFUSED} {refusal}" if refusal else lead.ask(rank, int(asked["number"]), request, peer)
