"""Training jobs on shared nodes, from event to event.

Between two events every job trains at a constant rate, so nothing is lost by jumping. At each event of a job:

1. pods die,
2. the job ends,
3. a pod turns slow,
4. parameters have moved or begin to move,
5. the plan is in force,
6. a window is over.

Then the policy's commands are carried out. Last, pods that wait try the free nodes, in the order of submission.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from stretto_messages.values import Plan

from stretto_sim.cluster import policies, truth
from stretto_sim.cluster.live import NEARLY, Fate, Live, shape
from stretto_sim.cluster.nodes import NOWHERE, Nodes, SimulatedPod
from stretto_sim.cluster.observing import left_of, reserved_by, window_of
from stretto_sim.cluster.outcome import COMPLETED, ClusterOutcome, Left
from stretto_sim.cluster.trace import ClusterTraceSettings, TraceJob
from stretto_sim.measures import Level, Progress

KILLS_MOST = 5
"""Out-of-memory kills in a row after which a job is given up."""


def simulate(
    trace: Sequence[TraceJob],
    policy: policies.Policy,
    settings: ClusterTraceSettings,
    *,
    progress: Progress = lambda left, total: None,
) -> ClusterOutcome:
    """Simulate all jobs of the trace, until the last one has left.

    Raises:
        InvalidValue: a job would train for longer than ``HORIZON_YEARS`` with its user's request.
    """
    for job in trace:
        truth.check_horizon(job)
    order = sorted(range(len(trace)), key=lambda index: _canonical(trace[index]))
    outcome = _Simulation([trace[index] for index in order], policy, settings, progress).run()
    place = {index: number for number, index in enumerate(order)}
    outcome.jobs = [outcome.jobs[place[index]] for index in range(len(trace))]
    outcome.cores_of_job = [outcome.cores_of_job[place[index]] for index in range(len(trace))]
    return outcome


def _canonical(job: TraceJob) -> tuple[object, ...]:
    """Order jobs by their values, so that their order in the trace does not matter."""
    return (job.submit_s, job.samples, repr(job))


class _Simulation:
    """One run over a trace.

    Larger than 250 lines: a moment of one job frees or takes nodes, wakes jobs that wait, and puts events into the
    policy's inbox and the agenda, all within the same step.
    """

    def __init__(
        self, jobs: list[TraceJob], policy: policies.Policy, settings: ClusterTraceSettings, progress: Progress
    ) -> None:
        self.policy, self.settings, self.progress = policy, settings, progress
        self.nodes = Nodes(settings)
        self.session = policy.session(jobs, settings)
        self.lives = [
            Live(n, job, settings, policy.dynamic, rng, fate)
            for n, (job, (rng, fate)) in enumerate(zip(jobs, _fates(jobs, settings), strict=True))
        ]
        self.events = [(job.submit_s, n, 0) for n, job in enumerate(jobs)]
        heapq.heapify(self.events)
        self.ticks_s = math.inf
        self.left: dict[int, Left] = {}
        self.active: set[int] = set()
        self.waiting: set[int] = set()
        self.short: set[int] = set()
        self.freed = False
        self.inbox: deque[policies.Event] = deque()
        self.outcome = ClusterOutcome(settings=settings, cores_of_job=[Level() for _ in jobs])
        self.busy = 0.0

    def run(self) -> ClusterOutcome:
        """Simulate until the end of the last job."""
        while self.events or self.active:
            now = min(self.events[0][0] if self.events else math.inf, self.ticks_s)
            if now == self.ticks_s:
                self._tick(now)
            else:
                _, number, epoch = heapq.heappop(self.events)
                live = self.lives[number]
                if epoch == 0 and number not in self.left:
                    self._come(live, now)
                elif epoch == live.epoch and number in self.active:
                    self._look(live, now)
                else:
                    continue
            self._answer(now)
            self._measure(now)
        self.outcome.jobs = [self.left[number] for number in range(len(self.lives))]
        return self.outcome

    # ---- moments ----------------------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        period = self.policy.period_s
        self.ticks_s = now + period if self.active and period else math.inf
        if self.active:
            self.inbox.append(policies.Period())

    def _come(self, live: Live, now: float) -> None:
        """Handle the job's submission or, if it has not trained for too long, the end of its patience."""
        if live.number in self.active:
            live.advance(now)
            due = live.trained_s + self.settings.patience_s
            if due > now + NEARLY:
                heapq.heappush(self.events, (due, live.number, 0))
                return
            lacks_room = not live.servers or bool(live.pending) or not live.restarts
            self._end(live, "scheduling" if lacks_room else "pod failure", now)
            return
        self.active.add(live.number)
        live.since_s = live.trained_s = now
        heapq.heappush(self.events, (now + self.settings.patience_s, live.number, 0))
        if self.policy.period_s and self.ticks_s == math.inf:
            self.ticks_s = now + self.policy.period_s
        self.inbox.append(policies.Submitted(live.number))

    def _look(self, live: Live, now: float) -> None:
        """Handle the events of one job that are due."""
        live.advance(now)
        if live.servers:
            self._bury(live, now)
        if live.number in self.active and live.servers and not self._ends(live, now):
            self._turn_slow(live, now)
            if live.moving and live.paused_until_s <= now + NEARLY:
                live.moved(self.nodes)
                self.freed = True
                self.inbox.append(policies.Replaced(live.number, 0))
            if live.could_move(now):
                live.move(now)
            self._apply(live, now)
            self._tell_window(live, now)
        self._schedule(live, now)

    def _bury(self, live: Live, now: float) -> None:
        for pod in [pod for pod in live.pods if pod.dies_s <= now + NEARLY and pod.node != NOWHERE]:
            if self.policy.when_pods_die == "the job fails":
                return self._end(live, "pod failure", now)
            if self.policy.when_pods_die == "the job restarts":
                return self._restart(live, now)
            self._lose(live, pod, now, oom=False)
        return None

    def _lose(self, live: Live, pod: SimulatedPod, now: float, oom: bool) -> None:
        """Release a pod that is gone, and put a new one in its place."""
        self.nodes.release(pod)
        self.freed = live.unsettled = True
        pod.dies_s = math.inf
        if pod in live.workers:
            live.workers[live.workers.index(pod)] = live.fresh("worker", pod.size)
        elif pod in live.servers:
            live.servers[live.servers.index(pod)] = live.fresh("ps", pod.size)
            self.inbox.append(policies.ServerDied(live.number, pod.number, oom))
        self.short.add(live.number)

    def _restart(self, live: Live, now: float) -> None:
        """Release all pods, and start them again with the plan in force."""
        live.release_all(self.nodes)
        self.freed = live.unsettled = True
        live.restarts += 1
        live.moving = False
        live.standing = True
        self._begin(live, now)

    def _ends(self, live: Live, now: float) -> bool:
        """Return whether the job has ended; a job that runs out of memory may go on."""
        if live.reached(live.job.samples):
            self._end(live, COMPLETED, now)
        elif live.reached(live.fate.fails_at):
            self._end(live, "own fault", now)
        elif live.rate and live.reached(live.fills_at()):
            live.kills_in_row += 1
            if self.policy.when_pods_die != "the pod is replaced" or live.kills_in_row > KILLS_MOST:
                self._end(live, "out of memory", now)
            else:
                self._lose(live, min(live.holders, key=lambda pod: pod.size.memory_bytes), now, oom=True)
                live.rate = 0.0
        return live.number not in self.active

    def _turn_slow(self, live: Live, now: float) -> None:
        ready = live.ready_workers(now) if live.fate.slow == "straggler" else live.holders
        if not live.slowed and live.reached(live.fate.slow_at) and ready:
            live.slowed = True
            ready[0].speed = self.settings.slow_cpu
            if self.policy.windows and live.in_force:
                live.open_windows(now)

    def _apply(self, live: Live, now: float) -> None:
        if live.in_force == live.version or live.plan is None or not live.complete(now):
            return
        if live.paused_until_s > now + NEARLY:
            return
        live.in_force, live.kills_in_row = live.version, 0
        self.inbox.append(policies.PlanInForce(live.number, live.version, live.plan, now - live.asked_s))
        if self.policy.windows:
            live.open_windows(now)

    def _tell_window(self, live: Live, now: float) -> None:
        if live.window_due_s > now + NEARLY or live.plan is None:
            return
        since, samples = live.window_from
        seconds, done = now - since, live.samples - samples
        whole = live.in_force == live.version and live.complete(now) and not live.unsettled
        if seconds > 0 and done > 0 and live.rate_now(now) > 0:
            self.inbox.append(window_of(live, seconds, done, whole, now))
        live.next_window(now)

    def _end(self, live: Live, how: str, now: float) -> None:
        live.advance(now)
        live.release_all(self.nodes)
        for numbers in (self.active, self.waiting, self.short):
            numbers.discard(live.number)
        self.freed = True
        live.rate, live.epoch = 0.0, live.epoch + 1
        self._show(live, now)
        self.left[live.number] = left_of(live, how, now)
        self.inbox.append(policies.Ended(live.number, how))
        self.progress(len(self.left), len(self.lives))

    # ---- the policy's commands --------------------------------------------------------------------------------

    def _answer(self, now: float) -> None:
        """Deliver events to the policy and carry out its commands, until there are no more and no pod finds a node."""
        while True:
            while self.inbox:
                for command in self.session.handle(self.inbox.popleft(), now):
                    if command.job in self.active:
                        live = self.lives[command.job]
                        live.advance(now)
                        if isinstance(command, policies.Want):
                            self._want(live, command, now)
                        else:
                            self._replace(live, command)
                        self._look(live, now)
            if not self.freed:
                return
            self.freed = False
            self._retry(now)

    def _want(self, live: Live, want: policies.Want, now: float) -> None:
        before = live.plan
        if want.restart and live.servers and not self._restarted(live, want.plan, now):
            self.inbox.append(policies.RestartRefused(live.number))
            return
        live.plan, live.version, live.asked_s, live.unsettled = want.plan, live.version + 1, now, True
        if not live.servers:
            self._begin(live, now)
            return
        if before is not None and shape(before) != shape(want.plan):
            live.changes += 1
            live.scaled_s = now - live.job.submit_s
        if not want.restart:
            live.adapt(self.nodes, want.plan)
            self.freed = True
            self.short.add(live.number)

    def _restarted(self, live: Live, plan: Plan, now: float) -> bool:
        """Stop all pods and start others; without room, return False and change nothing."""
        old = (live.servers, live.workers, live.holders)
        placed = [(pod, pod.node) for pod in live.pods]
        for pod, _ in placed:
            self.nodes.release(pod)
        if not live.place_gang(self.nodes, plan, now, plan.workers):
            for pod, node in placed:
                if node != NOWHERE:
                    self.nodes.put_back(pod, node)
            live.servers, live.workers, live.holders = old
            return False
        live.moving = False
        live.restarts += 1
        live.paused_until_s = now + self.settings.pod_start_s + self.settings.restart_s
        self.freed = True
        return True

    def _begin(self, live: Live, now: float) -> None:
        """Start with the whole plan or, if workers may join later, with one of them; without room, wait."""
        assert live.plan is not None
        least = 1 if self.policy.when_pods_die == "the pod is replaced" else live.plan.workers
        if not live.place_gang(self.nodes, live.plan, now, least):
            self.waiting.add(live.number)
            return
        if live.pending:
            self.short.add(live.number)
            self.freed = True
        self.waiting.discard(live.number)
        if live.standing:
            live.paused_until_s = now + self.settings.pod_start_s + self.settings.restart_s
            live.standing = False
        if live.started_s is None:
            live.started_s, live.first = now, shape(live.plan)

    def _replace(self, live: Live, command: policies.Replace) -> None:
        """Start the successor of one server; both run until the parameters have moved."""
        for index, pod in enumerate(live.servers):
            if pod.number == command.number:
                live.servers[index] = live.fresh("ps", pod.size)
                live.unsettled = self.freed = True
                self.short.add(live.number)

    def _retry(self, now: float) -> None:
        for number in sorted(self.waiting | self.short):
            live = self.lives[number]
            live.advance(now)
            if number in self.waiting:
                assert live.plan is not None
                self._begin(live, now)
            else:
                live.place_pending(self.nodes, now)
            if not live.pending:
                self.short.discard(number)
            if number not in self.waiting:
                self._look(live, now)

    # ---- bookkeeping ------------------------------------------------------------------------------------------

    def _schedule(self, live: Live, now: float) -> None:
        live.epoch += 1
        if live.number not in self.active:
            return
        live.rate = live.rate_now(now) if live.servers else 0.0
        live.reserved = reserved_by(live)
        self._show(live, now)
        due = live.next_s(now)
        if due < math.inf:
            heapq.heappush(self.events, (max(due, now), live.number, live.epoch))

    def _show(self, live: Live, now: float) -> None:
        """Record the job's part in the levels over time."""
        before = sum(live.busy)
        live.busy = truth.busy_cores(live.job, live.rate)
        self.busy += sum(live.busy) - before
        here = 0.0 if live.number not in self.active else live.reserved[0] + live.reserved[2]
        self.outcome.cores_of_job[live.number].set(now, here)

    def _measure(self, now: float) -> None:
        self.outcome.reserved_cores.set(now, self.nodes.reserved_cores)
        self.outcome.reserved_bytes.set(now, self.nodes.reserved_bytes)
        self.outcome.busy_cores.set(now, self.busy)
        self.outcome.running.set(now, float(sum(1 for n in self.active if self.lives[n].servers)))


def _fates(jobs: Sequence[TraceJob], settings: ClusterTraceSettings) -> list[tuple[np.random.Generator, Fate]]:
    """Draw the fate of each job; the same seed draws the same for every policy and every rate."""
    found = list[tuple[np.random.Generator, Fate]]()
    for number, job in enumerate(jobs):
        rng = np.random.default_rng((settings.seed, number))
        bug, when_bug, slow, when_slow = (float(draw) for draw in rng.random(4))
        kind = "straggler" if slow < settings.straggler_rate else ""
        if not kind and slow < settings.straggler_rate + settings.hot_rate:
            kind = "hot server"
        fate = Fate(
            slow_at=when_slow * job.samples if kind else math.inf,
            slow=kind,
            fails_at=when_bug * job.samples if bug < settings.bug_rate else math.inf,
        )
        found.append((rng, fate))
    return found
