"""The actuator's machine: one job, its pods, its parameter servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from stretto_core.actuator import failures, hot, room
from stretto_core.actuator import state as s
from stretto_core.actuator.books import close_books
from stretto_core.actuator.state import ActuatorState, Pod, Role
from stretto_core.actuator.steps import all_servers_run, converged
from stretto_core.machine import Action, Emit, Reply, Tick, as_it_was

BACKOFF_MAX_S = 60.0
RECOVERIES = 5
"""restores from a checkpoint after the loss of a parameter server"""

PREFIX: dict[Role, str] = {"worker": "worker", "ps": "ps"}


class ActuatorMachine:
    """See the package. Names are never used again: numbers only grow, also across recoveries."""

    version = 8
    migrate = staticmethod(as_it_was)  # until version 6 no pod had to wait for room, until 7 memory kept was unheard

    def __init__(self, state: ActuatorState | None = None) -> None:
        self.state = state if state is not None else ActuatorState()
        self._out: list[Action] = []

    def handle(self, event: Any, now: float) -> list[Action]:
        """Advance by one event; unknown events are none of the actuator's business."""
        self._out = []
        handler = self._HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event, now)
            hot.settle(self)
        return self._out

    @property
    def ticking(self) -> bool:
        """Whether time matters: while a hot server waits for its successor."""
        return self.state.replacement is not None

    def tell(self, fact: Any) -> None:
        """Emit ``fact``."""
        self._out.append(Emit(fact))

    # the job ---------------------------------------------------------------------------------------------------

    def _submitted(self, event: s.JobSubmitted, now: float) -> None:
        if self.state.phase != "unknown":
            return
        st = self.state
        st.job, st.spec, st.samples_total, st.phase = event.job, event.spec, event.samples_total, "active"
        st.evaluate, st.worker_failures_allowed = event.evaluate, event.worker_failures
        st.samples_given_up_max = event.samples_given_up_max
        st.restores, st.final_checkpoint = event.restores, event.final_checkpoint
        st.final_checkpoint_due = event.final_checkpoint
        st.worker_memory_max_bytes = event.worker_memory_max_bytes

    def _decided(self, event: s.PlanDecided, now: float) -> None:
        st = self.state
        if st.phase != "active" or event.version <= st.plan_version:
            return
        st.plan, st.plan_version, st.decided_at_s = event.plan, event.version, now
        for pod in st.pods.values():
            if pod.phase != "stopping":
                pod.cpu_cores, pod.memory_bytes = self._size(pod.role)
        self.fill("ps", now, "plan")
        self.fill("worker", now, "plan")
        self._settle_servers(now)

    def _completed(self, event: s.JobCompleted, now: float) -> None:
        """Said while parameters are lost, it is of a time that will be undone: the ledger goes back with them."""
        st = self.state
        if st.phase != "active" or st.layout != "ready":
            return
        if self._gave_up_too_much(event.samples_abandoned, ""):
            return
        st.phase, st.completed_at_s = "completing", now
        st.completed = event
        if st.migration is None:  # what has not begun is not worth beginning
            st.rebalance = None
            for pod in st.pods.values():
                pod.leaving = pod.retired = False
        for pod in list(st.pods.values()):
            if pod.phase == "starting" and not pod.listed:
                self._stop(pod)
        self.fill("worker", now, "relaunch")

    def _abandoned(self, event: s.ShardAbandoned, now: float) -> None:
        if self.state.phase == "active":
            self.state.samples_given_up += event.samples
            self._gave_up_too_much(self.state.samples_given_up, event.reason)

    def _gave_up_too_much(self, samples: int, last: str) -> bool:
        limit = self.state.samples_given_up_max
        if limit is None or samples <= limit:
            return False
        last = f"; the last: {last}" if last else ""
        self._fail(f"{samples} samples were given up, restarts.samples_given_up allows {limit}{last}"[:2000])
        return True

    def _flushed(self, event: s.CheckpointFlushed, now: float) -> None:
        if event.final and self.state.phase == "completing":
            self.state.final_checkpoint_due = False

    def _checkpoint_failed(self, event: s.CheckpointFailed, now: float) -> None:
        st = self.state
        if event.final and st.phase == "completing":
            st.final_checkpoint_due = False  # its failure is told; the books do not wait for it
        elif event.restore and st.phase == "active" and st.layout != "ready":
            self._fail(f"the parameters cannot be restored: {event.reason}")

    def _closed(self, event: s.BooksTaken, now: float) -> None:
        if self.state.phase == "completing":
            self.tell(close_books(self.state.samples_total, self.state.completed, event))
            self._end("finished")

    def _cancelled(self, event: s.JobCancelled, now: float) -> None:
        if not self.state.ended:
            self._end("cancelled")

    def _fail(self, reason: str) -> None:
        self.tell(s.JobFailed(reason))
        self._end("failed")

    def _end(self, phase: Any) -> None:
        st = self.state
        st.phase, st.rebalance, st.migration = phase, None, None
        for pod in st.pods.values():
            self._stop(pod)

    # pods ------------------------------------------------------------------------------------------------------

    def _started(self, event: s.PodStarted, now: float) -> None:
        pod = self.state.pods.get(event.pod)
        if pod is None or pod.phase != "starting":
            return
        pod.phase, pod.address, pod.started_at_s = "running", event.address, now
        pod.cpu_cores_now, pod.memory_bytes_now = event.cpu_cores, event.memory_bytes
        cause = "adopted" if event.adopted else pod.cause
        self.tell(replace(event, role=pod.role, plan_version=pod.plan_version, cause=cause))
        if pod.role == "ps":
            self._settle_servers(now)

    def _resized(self, event: s.PodResized, now: float) -> None:
        pod = self.state.pods.get(event.pod)
        if pod is None or pod.phase != "running":
            return
        # memory in use cannot be taken away: what was possible is what is wanted until the next plan
        pod.memory_bytes = max(pod.memory_bytes, event.memory_bytes)
        if (pod.cpu_cores_now, pod.memory_bytes_now) != (event.cpu_cores, event.memory_bytes):
            pod.cpu_cores_now, pod.memory_bytes_now = event.cpu_cores, event.memory_bytes
            self.tell(event)

    def _exited(self, event: s.PodExited, now: float) -> None:
        st = self.state
        pod = st.pods.pop(event.pod, None)
        if pod is None:
            return
        asked = pod.phase == "stopping"
        reason = "stopped" if asked and event.reason != "oom-killed" else event.reason
        self.tell(replace(event, role=pod.role, reason=reason))
        st.weights.pop(pod.name, None)
        if asked or st.phase not in ("active", "completing"):
            return
        if reason := failures.count(st, pod, event, now):
            self._fail(reason)
            return
        if pod.role == "worker":
            self.fill("worker", now, "relaunch")
        else:
            self._server_died(pod, event, now)

    def fill(self, role: Role, now: float, cause: Any, wait_s: float = 0.0) -> None:
        """As many pods of ``role`` as the plan wants: take back leaving ones, name new ones, stop the newest."""
        st = self.state
        pods = st.of_role(role)
        missing = self._wanted(role) - len(pods)
        if missing > 0:
            kept = (p for p in st.pods.values() if p.role == role and p.leaving and not p.retired)
            leaving = sorted(kept, key=lambda p: -p.number)
            for pod in leaving[:missing]:
                pod.leaving = False
                missing -= 1
                self.relayout("plan")
            for _ in range(missing):
                self.name_pod(role, now, cause, wait_s)
        if st.phase == "completing":
            return
        for pod in pods[len(pods) + missing :] if missing < 0 else []:
            if pod.role == "ps" and pod.listed:
                pod.leaving = True
                self.relayout("plan")
            else:
                self._stop(pod)

    def _wanted(self, role: Role) -> int:
        st = self.state
        if st.plan is None:
            return 0
        if st.phase == "completing":  # only what the conclusion needs
            return min(1, st.evaluate) if role == "worker" else len(st.of_role("ps"))
        return st.plan.workers if role == "worker" else st.plan.ps

    def _size(self, role: Role) -> tuple[float, int]:
        plan = self.state.plan
        assert plan is not None  # pods are named only after a plan
        if role == "worker":
            return plan.worker_cpu_cores, max(plan.worker_memory_bytes, self.state.worker_memory_least_bytes)
        return plan.ps_cpu_cores, plan.ps_memory_bytes

    def name_pod(self, role: Role, now: float, cause: Any, wait_s: float = 0.0) -> None:
        """Another pod is wanted, in ``wait_s`` at the earliest."""
        st = self.state
        number = st.next_number[role]
        st.next_number[role] = number + 1
        in_row = st.failures_in_row[role] if cause == "relaunch" else 0
        if in_row > 1:
            wait_s = max(wait_s, min(2.0 ** (in_row - 2), BACKOFF_MAX_S))
        cpu_cores, memory_bytes = self._size(role)
        pod = Pod(
            name=f"{PREFIX[role]}-{number}",
            role=role,
            number=number,
            cpu_cores=cpu_cores,
            memory_bytes=memory_bytes,
            plan_version=st.plan_version,
            cause=cause,
            wanted_at_s=now,
            not_before_s=now + wait_s,
        )
        st.pods[pod.name] = pod

    def _stop(self, pod: Pod) -> None:
        pod.phase, pod.leaving, pod.listed = "stopping", False, False

    # parameter servers -----------------------------------------------------------------------------------------

    def _settle_servers(self, now: float) -> None:
        """Make running servers known as soon as the plan's are all there."""
        st = self.state
        if st.phase != "active" or not all_servers_run(st):
            return
        if st.layout == "empty" and st.restores:
            self._list(st.of_role("ps"))
            st.layout = "restoring"
        elif st.layout == "ready" and any(not pod.listed for pod in st.of_role("ps")):
            self._list(st.of_role("ps"))
            self.relayout(st.rebalance or "plan")

    def _claimed(self, event: s.BucketsClaimed, now: float) -> None:
        st = self.state
        if st.layout != "empty" or st.restores or st.phase not in ("active", "completing"):
            return
        pods = [st.pods.get(name) for name in event.pods]
        live = [pod for pod in pods if pod is not None and pod.phase == "running"]
        if not live:
            return
        if len(live) < len(pods):
            self._reset_servers(now)  # one of them died or was stopped in between: its part is nobody's
            return
        st.layout = "ready"
        self._list(live)
        self._catch_up(now)

    def _restored(self, event: s.CheckpointRestored, now: float) -> None:
        self.state.samples_given_up = 0  # they come again; what was given up before is in the sum at the end
        if self.state.layout == "restoring":
            self.state.layout, self.state.restores = "ready", False
            self._catch_up(now)

    def _catch_up(self, now: float) -> None:
        """The plan may have changed while the first layout was made."""
        self.fill("ps", now, "plan")
        self._settle_servers(now)
        if any(pod.leaving for pod in self.state.pods.values()):
            self.relayout("plan")

    def _server_died(self, pod: Pod, event: s.PodExited, now: float) -> None:
        """Parameters of a listed server are gone: all go back together to the last checkpoint. One that nobody knew
        yet is simply replaced (after a claim may have been sent, with its peers: a claim is for a set of servers)."""
        st = self.state
        if pod.listed:
            self._recover(pod, event, now)
        elif st.layout == "empty" and pod.phase == "running":
            self._reset_servers(now)
        else:
            self.fill("ps", now, "relaunch")

    def _recover(self, pod: Pod, event: s.PodExited, now: float) -> None:
        st = self.state
        if event.reason not in failures.BLAMELESS:
            st.recoveries += 1
        if st.recoveries > RECOVERIES:
            self._fail(f"{pod.name} was lost ({event.reason}), the {st.recoveries}. loss of parameters; giving up")
            return
        st.phase, st.restores = "active", True  # what was completed goes back with the ledger
        st.final_checkpoint_due = st.final_checkpoint
        for other in list(st.pods.values()):
            if other.role == "worker" and other.phase != "stopping":
                self._stop(other)
        self._reset_servers(now)
        st.servers_version += 1
        self.tell(s.ServersChanged(st.servers_version, ()))
        self.fill("worker", now, "relaunch")

    def _reset_servers(self, now: float) -> None:
        st = self.state
        st.layout, st.rebalance, st.migration, st.weights = "empty", None, None, {}
        for other in list(st.pods.values()):
            if other.role == "ps" and other.phase != "stopping":
                self._stop(other)
        self.fill("ps", now, "relaunch")

    def _list(self, pods: list[Pod]) -> None:
        for pod in pods:
            pod.listed = True
        self.tell_servers()

    def tell_servers(self) -> None:
        """Which servers there are."""
        self.state.servers_version += 1
        self.tell(s.ServersChanged(self.state.servers_version, self._servers()))

    def _servers(self) -> tuple[s.Server, ...]:
        return tuple(s.Server(pod.number, pod.address, pod.leaving) for pod in self.state.listed())

    def _asked(self, event: s.ServersAsked, now: float) -> None:
        st = self.state
        ready = st.layout == "ready"  # until then nothing is to be pulled
        known = st.phase != "unknown" and not st.ended and (not event.pod or event.pod in st.pods)
        servers = self._servers() if ready else ()
        self._out.append(Reply(s.ServersKnown(known, st.servers_version if ready else 0, st.plan_version, servers)))

    # migration -------------------------------------------------------------------------------------------------

    def relayout(self, cause: s.MigrationCause) -> None:
        """The parameters have to be spread anew."""
        if self.state.layout == "ready":
            self.state.rebalance = cause
            self.state.rebalance_number += 1

    def _migration_started(self, event: s.MigrationStarted, now: float) -> None:
        st = self.state
        if st.rebalance is None or event.number != st.rebalance_number or st.migration is not None:
            return
        st.migration = s.Migration(st.rebalance, now)
        self.tell(replace(event, plan_version=st.plan_version, cause=st.rebalance))

    def _migration_finished(self, event: s.MigrationFinished, now: float) -> None:
        st = self.state
        if st.rebalance is None or event.number != st.rebalance_number:
            return
        if st.migration is not None:
            took_s = now - st.migration.started_at_s
            self.tell(replace(event, plan_version=st.plan_version, took_s=took_s))
        st.rebalance, st.migration = None, None
        drained = [pod for pod in st.pods.values() if pod.leaving]
        for pod in drained:
            self._stop(pod)
        if drained:
            self.tell_servers()

    def _applied(self, event: s.PlanApplied, now: float) -> None:
        st = self.state
        if event.version == st.plan_version and converged(st):
            st.applied_version = event.version
            self.tell(s.PlanApplied(event.version, st.plan, max(now - st.decided_at_s, 0.0)))

    _HANDLERS: ClassVar[dict[type, Callable[[ActuatorMachine, Any, float], None]]] = {
        s.JobSubmitted: _submitted,
        s.PlanDecided: _decided,
        s.JobCompleted: _completed,
        s.ShardAbandoned: _abandoned,
        s.CheckpointFlushed: _flushed,
        s.CheckpointFailed: _checkpoint_failed,
        s.CheckpointRestored: _restored,
        s.BooksTaken: _closed,
        s.JobCancelled: _cancelled,
        s.PodStarted: _started,
        room.PodPending: room.pending,
        room.PodGivenUp: room.given_up,
        room.PodFixed: room.fixed,
        s.PodResized: _resized,
        s.PodExited: _exited,
        s.BucketsClaimed: _claimed,
        s.ServersAsked: _asked,
        s.HotPsDetected: hot.detected,
        s.HotPsCleared: hot.cleared,
        hot.ReplacementDecided: hot.decided,
        Tick: hot.time_passed,
        s.MigrationStarted: _migration_started,
        s.MigrationFinished: _migration_finished,
        s.PlanApplied: _applied,
    }
