"""The memory watch of one job: measurements in, a forecast out when it is news (DLRover-RM section 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from stretto_messages.actuator import JobFailed, PlanApplied, PodExited, PodResized
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import GIB, bounded
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.gateway import JobCancelled
from stretto_messages.oom import OomForecast
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import PsForecast, PsProfile, Remedy

from stretto_core.machine import Action, Emit
from stretto_core.model.spilling import Correction, cheapest, in_words_of, noise_of
from stretto_core.model.types import JobProfile
from stretto_core.oom.forecast import Lead, MemoryForecast, forecast
from stretto_core.oom.growth import GrowthLaw, add_point, fit_growth
from stretto_core.oom.remedies import Known, read_ratio, remedies
from stretto_core.oom.state import JobOpened, WatchSettings, WatchState
from stretto_core.oom.usage import ServerUsage, UsagePoint, rest_bytes, row_cost, spilled_bytes_at

AFTER_KILL = 1.5
"""Factor on the limit at which a server was killed, requested because its need was not measured. Taste."""
NOT_FINAL = 1.2
"""A request that is neither urgent nor final must be this many times the limit: not a series of small ones. Taste."""

STEP_TIMES_KEPT = 16
"""Settled windows whose step times tell their noise: a minute or two, in which the machine drifts as it does."""
READ_RATIOS_KEPT = 5
"""Settled windows whose reads correct the curve. Taste: fewer follow data that change, more are calmer."""

WatchEvent = (
    JobOpened
    | ProfileMeasured
    | JobProgressed
    | PlanDecided
    | PlanApplied
    | PodResized
    | PodExited
    | JobCompleted
    | JobCancelled
    | JobFailed
)


class OomMachine:
    """The memory watch of one job."""

    version: int = 4

    def __init__(
        self, state: WatchState | None = None, settings: WatchSettings | None = None, law: GrowthLaw = fit_growth
    ) -> None:
        self.state: WatchState = state or WatchState()
        self.settings = settings or WatchSettings()
        self.law = law

    @staticmethod
    def migrate(state: dict[str, Any], from_version: int) -> dict[str, Any]:
        """Continue a state of version 1, without step times, or 2, without reads: their noise is a guess at first.

        Before 4, reads were compared from the first cold row on, and a fault of spilling was no news.
        """
        return state

    @property
    def ended(self) -> bool:
        """True once the job is over. Only a restore can open a completed one again."""
        return self.state.closed

    def handle(self, event: WatchEvent, now: float) -> list[Action]:
        """Advance by one event; an :class:`OomForecast` when there is news."""
        state = self.state
        match event:
            case ProfileMeasured():
                return self._measured(event, now)
            case JobProgressed():
                self._progressed(event)
            case PlanDecided(plan=plan) if state.opened is not None:  # not of an object that others run
                state.limit_bytes = plan.ps_memory_bytes
            case PlanApplied(plan=plan):
                for server in state.servers.values():
                    server.limit_bytes = plan.ps_memory_bytes
            case PodResized(pod=pod, memory_bytes=limit_bytes) if pod in state.servers:
                state.servers[pod].limit_bytes = limit_bytes
            case PodExited(pod=pod) if pod.startswith("ps-"):
                return self._server_exited(event, now)
            case JobOpened() if state.opened is None:
                state.opened, state.samples_total = event, event.samples_total
            case JobCompleted() | JobCancelled() | JobFailed():
                state.closed, state.completed = True, isinstance(event, JobCompleted)
                state.points.clear()
                state.servers.clear()
            case _:
                pass
        return []

    def _progressed(self, event: JobProgressed) -> None:
        """Follow the ledger. A restore takes the job back: later measurements go, a completed job is open again."""
        state = self.state
        state.samples_total, state.samples_per_s = event.samples_total, event.samples_per_s
        state.samples_done = event.samples_done
        state.points = [point for point in state.points if point.samples <= event.samples_done]
        if state.completed:
            state.closed = state.completed = False

    def _server_exited(self, event: PodExited, now: float) -> list[Action]:
        """Request more memory at once if the server was killed for it.

        The need holds until the job is past this sample: after a restore, nothing on the way there would show it.
        """
        state = self.state
        server = state.servers.pop(event.pod, ServerUsage(state.limit_bytes))
        limit = server.limit_bytes or state.limit_bytes
        if state.opened is None or state.closed or event.reason != "oom-killed" or not limit:
            return []
        state.killed_at_samples = max(state.killed_at_samples, state.samples_done)
        state.killed_bytes = max(state.killed_bytes, int(AFTER_KILL * limit))
        found = OomForecast(
            job=event.job,
            ps=(),
            samples_done=state.samples_done,
            samples_total=state.samples_total,
            horizon_s=0.0,
            recommended_ps_memory_bytes=state.killed_bytes,
            limit_ps_memory_bytes=limit,
            action="grow",
            reason=f"{event.pod} was killed at its limit of {_gib(limit)}",
        )
        return self._publish(found, now, state.published_fault)

    def _measured(self, event: ProfileMeasured, now: float) -> list[Action]:
        state, opened = self.state, self.state.opened
        if opened is None or state.closed or not event.ps:
            return []
        layout = {measured.pod: measured.buckets for measured in event.ps}
        # other pods may come and go, or never come: while every bucket is where it was, memory is known
        settled = event.settled or layout == state.layout
        for measured in event.ps:
            server = state.servers.setdefault(measured.pod, ServerUsage())
            if settled or measured.memory_used_bytes > server.used_bytes:
                server.add(_usage(measured), measured.memory_limit_bytes, measured.buckets)
        if not settled or not state.samples_done:
            return []
        self._note_step(event)
        state.layout = layout
        for pod in [pod for pod in state.servers if pod not in layout]:
            del state.servers[pod]
        if state.samples_done > state.killed_at_samples:
            state.killed_bytes = 0
        add_point(state.points, state.samples_done, sum(measured.categories for measured in event.ps))
        growth = self.law(state.points)
        if growth is None:
            return []
        cost = row_cost(list(state.servers.values()))
        lead = Lead(self.settings.lead_s, self.settings.move_lead_s)
        known = (state.servers, growth, cost, state.samples_total, state.samples_per_s, lead, opened.max_bytes)
        found = forecast(*known)
        ways = self._remedies(event, found, opened)
        spills = _spills(event, opened.profile, ways)
        if spills:
            found = forecast(*known, spilled_bytes_at)
        decided = self._decide(event.job, found, opened, now, spills)
        if event.spill_fault:
            decided = replace(decided, reason=bounded(f"{decided.reason}; rows find no room: {event.spill_fault}"))
        return self._publish(replace(decided, remedies=ways), now, bool(event.spill_fault))

    def _note_step(self, event: ProfileMeasured) -> None:
        """Keep step times and reads of the latest settled windows; step times of the present plan alone."""
        state = self.state
        if event.plan_version != state.step_plan_version:
            state.step_plan_version = event.plan_version
            state.step_times_s.clear()
        if event.settled:
            state.step_times_s.append(event.step_time_s)
            del state.step_times_s[:-STEP_TIMES_KEPT]
            evicted = {pod for pod, server in state.servers.items() if server.had_cold_rows}
            if (ratio := read_ratio(event, evicted)) is not None:
                state.read_ratios.append(ratio)
                del state.read_ratios[:-READ_RATIOS_KEPT]

    def _remedies(self, event: ProfileMeasured, found: MemoryForecast, opened: JobOpened) -> tuple[Remedy, ...]:
        """Return what may be done for servers that may not hold all their rows in memory; empty for others."""
        if opened.profile is None or not found.crosses:
            return ()
        state, fullest = self.state, max(found.servers, key=lambda server: server.at_end_bytes)
        need_bytes = max(found.recommended_bytes, fullest.limit_bytes)
        known = Known(noise_of(state.step_times_s), Correction.of(state.read_ratios))
        return remedies(state.servers[fullest.pod], need_bytes, event, fullest.pod, opened.profile, known)

    def _decide(
        self, job: str, found: MemoryForecast, opened: JobOpened, now: float, spills: Remedy | None
    ) -> OomForecast:
        state, settings = self.state, self.settings
        limit = min((server.limit_bytes for server in found.servers if server.limit_bytes), default=0)
        least = max(opened.min_bytes, state.killed_bytes)
        wanted, enough = max(found.recommended_bytes, least), max(found.enough_bytes, least)
        urgent = found.urgent or state.killed_bytes > limit
        fullest = max(found.servers, key=lambda server: server.at_end_bytes)
        left = state.samples_total - state.samples_done
        horizon_s = left / state.samples_per_s if state.samples_per_s > 0 else 0.0
        gain = settings.shrink_gain_final if found.reaches_end else settings.shrink_gain
        roomy = not found.crosses and enough <= (1 - gain) * limit and spills is None
        if found.crosses:
            state.roomy_since_s = None
        elif roomy and state.roomy_since_s is None:
            state.roomy_since_s = now
        action: Literal["none", "grow", "shrink"] = "none"
        # without urgency a change has to be final, or large
        worth = found.reaches_end or wanted >= NOT_FINAL * limit
        if limit and wanted > limit and (urgent or (found.crosses and worth)):
            action, reason = "grow", _why_grow(found, fullest, opened, state.servers[fullest.pod].points[-1])
        elif roomy and state.roomy_since_s is not None and now - state.roomy_since_s >= settings.shrink_patience_s:
            action, reason = "shrink", f"{_gib(enough)} is enough to the end, {_gib(limit)} is the limit"
            wanted = enough
        elif spills is not None:
            reason = f"{fullest.pod} keeps rows on its disk, as more memory costs more: {in_words_of(spills)}"
        elif found.crosses:
            reason = f"{fullest.pod} may pass its limit of {_gib(fullest.limit_bytes)} before the end, but not soon"
        else:
            reason = f"{fullest.pod} ends at about {_gib(fullest.at_end_bytes)} of {_gib(fullest.limit_bytes)}"
        return OomForecast(
            job=job,
            ps=found.servers,
            samples_done=state.samples_done,
            samples_total=state.samples_total,
            horizon_s=max(0.0, horizon_s),
            recommended_ps_memory_bytes=wanted,
            limit_ps_memory_bytes=limit,
            action=action,
            reason=reason,
            base_bytes=int(rest_bytes(state.servers[fullest.pod])),
        )

    def _publish(self, found: OomForecast, now: float, fault: bool) -> list[Action]:
        """Publish a forecast that is news: another action, another end or request by 5 %, or after a while.

        ``fault``: rows find no room; that they begin or cease to is news, too.
        """
        state, settings = self.state, self.settings
        end = max((server.at_end_bytes for server in found.ps), default=state.published_end_bytes)
        moved = abs(end - state.published_end_bytes) > settings.change * state.published_end_bytes
        wanted = found.recommended_ps_memory_bytes
        asked = found.action != "none" and (
            abs(wanted - state.published_bytes) > settings.change * state.published_bytes
        )
        due = now - state.published_at_s >= settings.repeat_s
        other = found.action != state.published_action or fault != state.published_fault
        if not (moved or asked or due or other):
            return []
        state.published_fault = fault
        state.published_at_s, state.published_end_bytes = now, end
        state.published_bytes, state.published_action = wanted, found.action
        return [Emit(found)]


def _usage(server: PsProfile) -> UsagePoint:
    used, tables = server.memory_used_bytes, server.table_bytes
    away = server.cold_rows, server.warm_rows, server.warm_bytes
    return UsagePoint(server.categories, used, tables, server.row_bytes, *away)


def _spills(event: ProfileMeasured, job: JobProfile | None, ways: Sequence[Remedy]) -> Remedy | None:
    """Return the remedy of a job that is to evict rows rather than get memory, once it does so."""
    if job is None or job.spill != "auto" or not any(measured.cold_rows for measured in event.ps):
        return None
    best = cheapest(ways)
    return best if best is not None and best.kind == "spill" else None


def _why_grow(found: MemoryForecast, fullest: PsForecast, opened: JobOpened, last: UsagePoint) -> str:
    crossing = [server for server in found.servers if server.oom_in_s is not None]
    if last.cold_rows:
        when = (
            f"{fullest.pod} has {last.cold_rows:,} rows on its disk: its limit of {_gib(fullest.limit_bytes)} is too"
            " small"
        )
    elif crossing:
        first = min(crossing, key=lambda server: server.oom_in_s or 0.0)
        when = f"{first.pod} reaches its limit of {_gib(first.limit_bytes)} in about {first.oom_in_s:.0f} s"
    elif last.warm_rows:
        when = (
            f"{fullest.pod} has {last.warm_rows:,} of {last.rows:,} rows rounded to bfloat16: its limit of"
            f" {_gib(fullest.limit_bytes)} is too small for all of them as they were trained"
        )
    else:
        when = f"{fullest.pod} may reach its limit of {_gib(fullest.limit_bytes)}"
    over = f"; one may have {_gib(opened.max_bytes)}: more servers have to share it"
    capped = over if found.recommended_bytes > opened.max_bytes else ""
    at_end = fullest.at_end_interval_bytes
    return f"{when} (at the end {_gib(at_end.low)} to {_gib(at_end.high)}){capped}"


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.2f} GiB"
