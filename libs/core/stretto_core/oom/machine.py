"""The memory watch of one job: measures in, a forecast out when it says something new (DLRover-RM section 5.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stretto_core.machine import Action, CoreError, Emit, as_it_was
from stretto_core.oom.forecast import Lead, MemoryForecast, ServerForecast, forecast
from stretto_core.oom.growth import GrowthLaw, GrowthPoint, add_point, fit_growth
from stretto_core.oom.usage import RowCost, ServerUsage, fit_row_cost, remembered

GIB = 1024**3
AFTER_KILL = 1.5
"""times the limit at which a server was killed is asked for: what it needs was not measured"""


class WatchError(CoreError):
    """A setting of the memory watch that cannot be; ``field``, ``value``, ``remedy``."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field, self.value, self.remedy = field, value, remedy
        super().__init__(f"{field} is {value!r}; give {remedy}")


@dataclass(frozen=True, slots=True)
class WatchOpened:
    """A job's memory bounds per parameter server, and what a row costs by its specification.

    ``row_bytes``: key, weights and optimiser slots of one category. ``initial_slots``: of one bucket's hash table,
    which doubles when full; 0 for tables that grow row by row.
    """

    samples_total: int
    row_bytes: float
    min_bytes: int
    max_bytes: int
    initial_slots: int = 0


@dataclass(frozen=True, slots=True)
class ServerMeasured:
    """One parameter server in a window."""

    pod: str
    used_bytes: int
    limit_bytes: int
    rows: int
    buckets: int


@dataclass(frozen=True, slots=True)
class MemoryMeasured:
    """All parameter servers. ``settled`` false: pods are coming or going, buckets are moving."""

    servers: tuple[ServerMeasured, ...]
    settled: bool = True


@dataclass(frozen=True, slots=True)
class ProgressSeen:
    """Where the job is by its ledger, how fast it goes and where it ends. A restore takes it back."""

    samples_done: int
    samples_total: int
    samples_per_s: float


@dataclass(frozen=True, slots=True)
class LimitChanged:
    """A parameter server (``pod`` None: every one) has ``limit_bytes`` from now on."""

    limit_bytes: int
    pod: str | None = None


@dataclass(frozen=True, slots=True)
class LimitDecided:
    """Servers that start from now on have ``limit_bytes``."""

    limit_bytes: int


@dataclass(frozen=True, slots=True)
class ServerLeft:
    """A parameter server is gone; ``oom_killed``: it needed more than its limit."""

    pod: str
    oom_killed: bool = False


@dataclass(frozen=True, slots=True)
class WatchClosed:
    """The job is over. ``completed``: unless a restore takes it back to where samples are left."""

    completed: bool = False


@dataclass(frozen=True, slots=True)
class OomForecast:
    """What to know and what to do. ``action``: none, grow or shrink, to ``recommended_bytes`` per parameter server.

    That is what the servers that are there need; it may be more than the job allows one: then more have to share it.
    """

    servers: tuple[ServerForecast, ...]
    samples_done: int
    samples_total: int
    horizon_s: float
    recommended_bytes: int
    limit_bytes: int
    action: str
    reason: str


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """When to speak and when to act.

    ``lead_s``: time that getting memory takes, with room; ``move_lead_s``: that moving buckets takes. A shrink must
    free ``shrink_gain`` of the limit, or ``shrink_gain_final`` once the end is well known; for ``shrink_patience_s``
    before no forecast may have crossed the limit.
    """

    lead_s: float = 30.0
    move_lead_s: float = 60.0
    repeat_s: float = 30.0
    change: float = 0.05
    shrink_gain: float = 0.25
    shrink_gain_final: float = 0.1
    shrink_patience_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("shrink_gain", "shrink_gain_final"):
            if not 0 < getattr(self, name) < 1:
                raise WatchError(name, getattr(self, name), "a fraction between 0 and 1")


@dataclass(slots=True)
class WatchState:
    """The memory of one job's watch; some KB."""

    opened: WatchOpened | None = None
    closed: bool = False
    completed: bool = False
    samples_done: int = 0
    points: list[GrowthPoint] = field(default_factory=list[GrowthPoint])
    servers: dict[str, ServerUsage] = field(default_factory=dict[str, ServerUsage])
    layout: dict[str, int] = field(default_factory=dict[str, int])
    """buckets of every server when everything was as planned"""
    cost: RowCost | None = None
    cost_before: RowCost | None = None
    """bytes per row: now, and as found before buckets moved"""
    samples_total: int = 0
    samples_per_s: float = 0.0
    told_at_s: float = 0.0
    told_bytes: int = 0
    told_end_bytes: int = 0
    told_action: str = ""
    limit_bytes: int = 0
    """of a server that starts now"""
    killed_bytes: int = 0
    killed_at_samples: int = 0
    """what a server needs at least since one was killed for its memory, until the job is past where that was"""
    roomy_since_s: float | None = None
    """since when the limit has been larger than needed, and never too small"""


class OomMachine:
    """The memory watch of one job."""

    version: int = 5
    migrate = staticmethod(as_it_was)  # until version 3 growth was extrapolated by its exponent

    def __init__(
        self, state: WatchState | None = None, settings: WatchSettings | None = None, law: GrowthLaw = fit_growth
    ) -> None:
        self.state: WatchState = state or WatchState()
        self.settings = settings or WatchSettings()
        self.law = law

    def handle(self, event: Any, now: float) -> list[Action]:
        """Advance by one event; an :class:`OomForecast` when there is something new to say."""
        st = self.state
        match event:
            case WatchOpened():
                if st.opened is None:
                    st.opened, st.samples_total = event, event.samples_total
            case ProgressSeen():
                self._progressed(event)
            case LimitChanged():
                for pod, server in st.servers.items():
                    if event.pod in (None, pod):
                        server.limit_bytes = event.limit_bytes
            case LimitDecided():
                st.limit_bytes = event.limit_bytes
            case ServerLeft():
                return self._left(event, now)
            case WatchClosed():
                st.closed, st.completed = True, event.completed
                st.points.clear()
                st.servers.clear()
            case MemoryMeasured():
                return self._measured(event, now)
            case _:
                pass
        return []

    def _progressed(self, event: ProgressSeen) -> None:
        """What was measured further on than the job is now did not happen; a completed job that moves is open again."""
        st = self.state
        st.samples_total, st.samples_per_s = event.samples_total, event.samples_per_s
        st.samples_done = event.samples_done
        st.points = [point for point in st.points if point.samples <= event.samples_done]
        if st.completed:
            st.closed = st.completed = False

    def _left(self, event: ServerLeft, now: float) -> list[Action]:
        """What ran out once does so again where the job goes back to, and on the way there nothing would show it."""
        st = self.state
        left = st.servers.pop(event.pod, ServerUsage(st.limit_bytes))
        limit = left.limit_bytes or st.limit_bytes
        if st.opened is None or st.closed or not event.oom_killed or not limit:
            return []
        st.killed_at_samples = max(st.killed_at_samples, st.samples_done)
        st.killed_bytes = max(st.killed_bytes, int(AFTER_KILL * limit))
        reason = f"{event.pod} was killed at its limit of {_gib(limit)}"
        return self._tell(
            OomForecast((), st.samples_done, st.samples_total, 0.0, st.killed_bytes, limit, "grow", reason), now
        )

    def _measured(self, event: MemoryMeasured, now: float) -> list[Action]:
        st, opened = self.state, self.state.opened
        if opened is None or st.closed or not event.servers:
            return []
        layout = {measured.pod: measured.buckets for measured in event.servers}
        # other pods may come and go, or never come: while every bucket is where it was, memory is known
        settled = event.settled or layout == st.layout
        ended = False
        for measured in event.servers:
            server = st.servers.setdefault(measured.pod, ServerUsage())
            if settled or measured.used_bytes > server.used_bytes:
                ended |= server.add(measured.rows, measured.used_bytes, measured.limit_bytes, measured.buckets)
        if ended and st.cost is not None:
            st.cost_before = remembered(st.cost)
        if not settled or not st.samples_done:
            return []
        st.layout = layout
        for pod in [pod for pod in st.servers if pod not in layout]:
            del st.servers[pod]
        if st.samples_done > st.killed_at_samples:
            st.killed_bytes = 0
        add_point(st.points, st.samples_done, sum(measured.rows for measured in event.servers))
        growth = self.law(st.points)
        if growth is None:
            return []
        servers = list(st.servers.values())
        st.cost = fit_row_cost(servers, opened.row_bytes, opened.initial_slots, st.cost_before)
        lead = Lead(self.settings.lead_s, self.settings.move_lead_s)
        seen = forecast(st.servers, growth, st.cost, st.samples_total, st.samples_per_s, lead, opened.max_bytes)
        return self._tell(self._decide(seen, st.samples_done, opened, now), now)

    def _decide(self, seen: MemoryForecast, samples: int, opened: WatchOpened, now: float) -> OomForecast:
        st, settings = self.state, self.settings
        limit = min((s.limit_bytes for s in seen.servers if s.limit_bytes), default=0)
        least = max(opened.min_bytes, st.killed_bytes)
        wanted, enough = max(seen.recommended_bytes, least), max(seen.enough_bytes, least)
        urgent = seen.urgent or st.killed_bytes > limit
        most = max(seen.servers, key=lambda s: s.at_end_bytes)
        horizon_s = (st.samples_total - samples) / st.samples_per_s if st.samples_per_s > 0 else 0.0
        gain = settings.shrink_gain_final if seen.reaches_end else settings.shrink_gain
        roomy = not seen.crosses and enough <= (1 - gain) * limit
        if seen.crosses:
            st.roomy_since_s = None
        elif roomy and st.roomy_since_s is None:
            st.roomy_since_s = now
        if limit and wanted > limit and (urgent or (seen.crosses and self._worth(seen, wanted, limit))):
            action, reason = "grow", self._why_grow(seen, most, opened)
        elif roomy and st.roomy_since_s is not None and now - st.roomy_since_s >= settings.shrink_patience_s:
            action, reason = "shrink", f"{_gib(enough)} is enough to the end, {_gib(limit)} is the limit"
            wanted = enough
        elif seen.crosses:
            action = "none"
            reason = f"{most.pod} may pass its limit of {_gib(most.limit_bytes)} before the end, but not soon"
        else:
            action = "none"
            reason = f"{most.pod} ends at about {_gib(most.at_end_bytes)} of {_gib(most.limit_bytes)}"
        return OomForecast(seen.servers, samples, st.samples_total, max(0.0, horizon_s), wanted, limit, action, reason)

    @staticmethod
    def _worth(seen: MemoryForecast, wanted: int, limit: int) -> bool:
        """Without urgency a change has to be final, or large: not a series of small ones."""
        return seen.reaches_end or wanted >= 1.2 * limit

    @staticmethod
    def _why_grow(seen: MemoryForecast, most: ServerForecast, opened: WatchOpened) -> str:
        crossing = [s for s in seen.servers if s.oom_in_s is not None]
        if crossing:
            first = min(crossing, key=lambda s: s.oom_in_s or 0.0)
            when = f"{first.pod} reaches its limit of {_gib(first.limit_bytes)} in about {first.oom_in_s:.0f} s"
        else:
            when = f"{most.pod} may reach its limit of {_gib(most.limit_bytes)}"
        over = f"; one may have {_gib(opened.max_bytes)}: more servers have to share it"
        capped = over if seen.recommended_bytes > opened.max_bytes else ""
        return f"{when} (at the end {_gib(most.at_end_low_bytes)} to {_gib(most.at_end_high_bytes)}){capped}"

    def _tell(self, said: OomForecast, now: float) -> list[Action]:
        """Speak when it is new: the action, the end by 5 %, or after a while."""
        st, settings = self.state, self.settings
        end = max((server.at_end_bytes for server in said.servers), default=st.told_end_bytes)
        moved = abs(end - st.told_end_bytes) > settings.change * st.told_end_bytes
        asked = said.action != "none" and (
            abs(said.recommended_bytes - st.told_bytes) > settings.change * st.told_bytes
        )
        due = now - st.told_at_s >= settings.repeat_s
        if not (moved or asked or due or said.action != st.told_action):
            return []
        st.told_at_s, st.told_end_bytes = now, end
        st.told_bytes, st.told_action = said.recommended_bytes, said.action
        return [Emit(said)]


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.2f} GiB"
