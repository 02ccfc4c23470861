"""Elastic Scheduler (Or et al., MLSys 2020), as DLRover-RM compares itself with it (sections 6 and 7).

It changes only the number of workers, by a fixed number each time; new workers join without a pause once they are
ready. It adds workers as long as each addition pays: the relative gain of throughput must be at least
``LEAST_EFFICIENCY`` of the relative growth of the workers. An addition that does not pay is undone. If the first one
does not pay, workers are removed as long as a removal costs less than that. Servers, cores and memory stay as in the
user's request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stretto_messages.values import NO_EXTENDED, Plan, Resources

from stretto_sim.cluster import policies
from stretto_sim.cluster.trace import ClusterTraceSettings, TraceJob

PERIOD_S = 180.0
"""DLRover-RM, section 6.2"""
STEP = 2
LEAST_EFFICIENCY = 0.5


@dataclass(slots=True)
class _Seen:
    """A job's plan, the throughput before its last change, and the state of its search."""

    job: TraceJob
    plan: Plan
    before: tuple[Plan, float] | None = None
    speed: float | None = None
    applied: bool = False
    search: Literal["up", "down", "over"] = "up"


class ElasticScheduler:
    """The session of the policy."""

    def __init__(self, trace: Sequence[TraceJob], settings: ClusterTraceSettings) -> None:
        self.trace, self.capacity = trace, settings.capacity
        self.seen: dict[int, _Seen] = {}

    def handle(self, event: policies.Event, now: float) -> list[policies.Command]:
        """Start a job by its request, and change it at the intervals."""
        match event:
            case policies.Submitted():
                job = self.trace[event.job]
                self.seen[event.job] = _Seen(job, job.request)
                return [policies.Want(event.job, job.request)]
            case policies.PlanInForce() if event.job in self.seen:
                self.seen[event.job].applied, self.seen[event.job].speed = True, None
            case policies.MeasuredWindow() if event.settled and event.job in self.seen:
                self.seen[event.job].speed = event.samples_per_s
            case policies.Ended():
                self.seen.pop(event.job, None)
            case policies.Period():
                return [want for number in sorted(self.seen) if (want := self._decide(number)) is not None]
            case _:
                pass
        return []

    def _decide(self, number: int) -> policies.Want | None:
        seen = self.seen[number]
        if not seen.applied or seen.speed is None or seen.search == "over":
            return None
        if seen.before is not None and not self._pays(seen, *seen.before):
            undone, seen.search = seen.before[0], "over" if self._moved_before(seen) else "down"
            return self._to(number, undone, None)
        step = STEP if seen.search == "up" else -STEP
        high = seen.job.limits.high.workers
        target = replace(seen.plan, workers=min(max(seen.plan.workers + step, 1), high))
        if target == seen.plan or not self._fits(seen, target):
            return None
        return self._to(number, target, (seen.plan, seen.speed))

    @staticmethod
    def _moved_before(seen: _Seen) -> bool:
        """Return whether an addition has paid, or pods were being removed already."""
        return seen.search == "down" or (seen.before is not None and seen.before[0].workers != seen.job.request.workers)

    @staticmethod
    def _pays(seen: _Seen, plan: Plan, speed: float) -> bool:
        assert seen.speed is not None
        return seen.speed / speed - 1 >= LEAST_EFFICIENCY * (seen.plan.workers / plan.workers - 1)

    def _fits(self, seen: _Seen, target: Plan) -> bool:
        used = [each.plan.resources(NO_EXTENDED) for each in self.seen.values()]
        held = Resources(sum(r.cpu_cores for r in used), sum(r.memory_bytes for r in used))
        return (target.resources(NO_EXTENDED) - seen.plan.resources(NO_EXTENDED)).fits(self.capacity - held)

    def _to(self, number: int, plan: Plan, before: tuple[Plan, float] | None) -> policies.Want:
        seen = self.seen[number]
        seen.plan, seen.before, seen.applied, seen.speed = plan, before, False, None
        return policies.Want(number, plan)


ELASTIC = policies.Policy(ElasticScheduler, when_pods_die="the job restarts", windows=True, period_s=PERIOD_S)
