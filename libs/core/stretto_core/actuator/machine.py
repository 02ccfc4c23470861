"""The actuator's machine: one job, its pods, its parameter servers.

The machine dispatches events; the decisions are functions of its state in the rooms beside it (``pods``, ``servers``,
``migrations``, ``hot``, ``failures``, ``ending``), which change the state and return the facts to publish.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stretto_messages.actuator import GetServers, PlanApplied, PodExited, PodPending, PodResized, PodStarted
from stretto_messages.arbiter import DataWorkersDecided, PlanDecided, ReplacementDecided
from stretto_messages.checkpoints import CheckpointFailed, CheckpointFlushed, CheckpointRestored
from stretto_messages.dispatcher import (
    EvaluationMeasured,
    JobCompleted,
    JobProgressed,
    RecomputationDecided,
    ShardAbandoned,
)
from stretto_messages.gateway import JobCancelled
from stretto_messages.profiler import HotPsCleared, HotPsDetected
from stretto_messages.values import SAMPLES_MAX

from stretto_core.actuator import data_workers, failures, hot, migrations, pods, servers
from stretto_core.actuator.counts import job_finished, job_finished_of_program
from stretto_core.actuator.ending import end, fail, fail_beyond_samples_given_up, fail_without_metric, shortfalls
from stretto_core.actuator.observations import (
    BucketsClaimed,
    CountsTaken,
    MovesFinished,
    MovesStarted,
    OrphanFound,
    PlanConverged,
    PodGivenUp,
    PodResizeRefused,
    ServerEmptied,
)
from stretto_core.actuator.state import ActuatorState, Facts, JobOpened
from stretto_core.actuator.steps import converged
from stretto_core.checkpoints.names import is_column_restore, is_final, is_restore
from stretto_core.machine import Action, Emit, Reply, Tick, assert_no_new_fault

JobEvent = (
    JobOpened
    | PlanDecided
    | PlanConverged
    | DataWorkersDecided
    | JobProgressed
    | JobCompleted
    | EvaluationMeasured
    | ShardAbandoned
    | CheckpointFlushed
    | CheckpointFailed
    | CountsTaken
    | JobCancelled
)
PodEvent = PodStarted | PodPending | PodGivenUp | PodResized | PodResizeRefused | PodExited
ParametersEvent = (
    BucketsClaimed
    | ServerEmptied
    | CheckpointRestored
    | RecomputationDecided
    | MovesStarted
    | MovesFinished
    | HotPsDetected
    | HotPsCleared
    | ReplacementDecided
    | Tick
)
ActuatorEvent = JobEvent | PodEvent | ParametersEvent | GetServers | OrphanFound


class ActuatorMachine:
    """Pods and parameters of one job follow its plan."""

    version = 7

    def __init__(self, state: ActuatorState | None = None) -> None:
        self.state = state if state is not None else ActuatorState()

    @staticmethod
    def migrate(state: dict[str, Any], from_version: int) -> dict[str, Any]:
        """Continue a state of an earlier version.

        Under 1, a job whose number is null may give up any number. Under 3, losses of servers had no times: they are
        counted anew. Before 5, an exit did not tell when another pod follows; before 6, a later stage that never began
        was tried as often as one that had; before 7, errors of other workers counted against it.
        """
        if from_version == 1 and state["phase"] != "unknown" and state["samples_given_up_max"] is None:
            state["samples_given_up_max"] = SAMPLES_MAX
        return {**state, "recoveries": 0} if from_version < 4 else state

    @property
    def ticking(self) -> bool:
        """True while the passing of time matters: a hot server waits for its successor."""
        return self.state.replacement is not None

    @property
    def ended(self) -> bool:
        """True once the job is over and no pod of it is left."""
        return self.state.ended and not self.state.pods and not self.ticking

    def handle(self, event: ActuatorEvent, now: float) -> list[Action]:
        """Advance by one event."""
        if isinstance(event, GetServers):
            return [Reply(servers.answer(self.state, event))]
        before = self.state.faults()
        if isinstance(event, JobEvent):
            facts = self._job(event, now)
        elif isinstance(event, PodEvent):
            facts = self._pod(event, now)
        elif isinstance(event, ParametersEvent):
            facts = self._parameters(event, now)
        else:
            return []
        facts += hot.settle(self.state)
        facts += data_workers.settle(self.state)
        pods.let_go(self.state)
        facts += servers.regroup(self.state)
        assert_no_new_fault(before, self.state.faults())
        return [Emit(fact) for fact in facts]

    # the job ---------------------------------------------------------------------------------------------------

    def _job(self, event: JobEvent, now: float) -> Facts:
        state = self.state
        match event:
            case JobOpened() if state.phase == "unknown":
                self._open(event)
            case PlanDecided(version=version) if state.phase == "active" and version > state.plan_version:
                return self._plan_decided(event, now)
            case PlanConverged(version=version) if version == state.plan_version:
                return self._plan_converged(now)
            case DataWorkersDecided(version=version) if state.phase == "active" and version > state.data_decided:
                data_workers.decided(state, event)
                pods.fill(state, "data", now, "plan")
            case JobProgressed() | ShardAbandoned() | EvaluationMeasured():
                return self._trained(event)
            case JobCompleted() if state.phase == "active" and state.layout == "ready":
                # while parameters are lost, the completion will be undone: the ledger goes back with them
                return self._complete(event, now)
            case CheckpointFlushed(checkpoint=checkpoint) if is_final(checkpoint.id) and state.phase == "completing":
                state.final_checkpoint_due = False
            case CheckpointFailed():
                return self._checkpoint_failed(event, now)
            case CountsTaken() if state.phase == "completing" and state.completed is not None:
                count = job_finished_of_program if state.runs_program else job_finished
                finished = count(state.samples_total, state.completed, event)
                lacks = shortfalls(state, state.completed, event)
                end(state, "finished")
                return [replace(finished, shortfalls=lacks)]
            case JobCancelled() if not state.ended:
                end(state, "cancelled")
            case _:
                pass
        return []

    def _open(self, event: JobOpened) -> None:
        state = self.state
        state.job = event.job
        state.spec = event.spec
        state.samples_total = event.samples_total
        state.phase = "active"
        state.evaluate = event.evaluate
        state.best_metric = event.best_metric
        state.worker_failures_allowed = event.worker_failures
        state.samples_given_up_max = event.samples_given_up_max
        state.restores = event.restores
        state.final_checkpoint = event.final_checkpoint
        state.final_checkpoint_due = event.final_checkpoint
        state.worker_memory_max_bytes = event.worker_memory_max_bytes
        state.data = event.data
        state.averages_dense, state.together = event.averages_dense, event.together
        state.runs_program, state.watched = event.runs_program, event.watched
        if event.runs_program:  # there are no parameters to place before workers can start
            state.layout = "ready"

    def _plan_decided(self, event: PlanDecided, now: float) -> Facts:
        state = self.state
        state.plan = event.plan
        state.plan_version = event.version
        state.decided_at_s = now
        pods.resize_to_plan(state)
        pods.fill(state, "ps", now, "plan")
        pods.fill(state, "worker", now, "plan")
        pods.fill(state, "data", now, "plan")
        return servers.settle(state)

    def _plan_converged(self, now: float) -> Facts:
        state = self.state
        if state.plan is None or not converged(state):
            return []
        state.applied_version = state.plan_version
        took_s = max(now - state.decided_at_s, 0.0)
        return [PlanApplied(job=state.job, version=state.plan_version, plan=state.plan, took_s=took_s)]

    def _trained(self, event: JobProgressed | ShardAbandoned | EvaluationMeasured) -> Facts:
        state = self.state
        match event:
            case JobProgressed():
                return self._progressed(event)
            case ShardAbandoned(shard=shard, reason=reason) if state.phase == "active":
                state.samples_given_up += shard.length - shard.offset
                state.given_up_reason = reason
                return fail_beyond_samples_given_up(state, state.samples_given_up)
            case EvaluationMeasured() if state.phase == "active":
                return fail_without_metric(state, event)
            case _:
                return []

    def _progressed(self, event: JobProgressed) -> Facts:
        """Note all samples and the first trained one; a ledger from a checkpoint begins with samples of another job."""
        state = self.state
        state.samples_known = event.samples_total
        if not state.has_trained and event.returned is not None:
            state.samples_at_start = event.samples_done
        elif event.samples_done > state.samples_at_start:
            state.has_trained = True
        if state.has_trained and event.returned is not None:
            state.returned_to = event.returned.checkpoint
            state.samples_undone += event.returned.samples_undone
        return fail_beyond_samples_given_up(state, state.samples_given_up) if state.phase == "active" else []

    def _complete(self, event: JobCompleted, now: float) -> Facts:
        state = self.state
        if failed := fail_beyond_samples_given_up(state, event.samples_abandoned):
            return failed
        state.phase = "completing"
        state.has_trained = True
        state.final_checkpoint_failure = ""  # of an earlier completion, which was undone
        state.completed = event
        state.completed_at_s = now
        if state.migration is None:  # a migration that has not begun is not worth beginning
            state.rebalance = None
            for pod in state.pods.values():
                pod.leaving = False
                pod.retired = False
        for pod in state.pods.values():
            if pod.phase == "starting" and not pod.listed:
                pod.stop()
        pods.fill(state, "worker", now, "relaunch")
        return []

    def _checkpoint_failed(self, event: CheckpointFailed, now: float) -> Facts:
        state = self.state
        if event.next_try_at_s is not None:
            return []
        if is_final(event.id) and state.phase == "completing":
            state.final_checkpoint_due = False  # its failure is published; the counts do not wait for it
            state.final_checkpoint_failure = event.reason
        elif is_restore(event.id) and state.phase == "active" and state.layout != "ready":
            return fail(state, f"the parameters cannot be restored: {event.reason}")
        elif is_column_restore(event.id) and state.phase == "active" and state.layout == "recovering":
            return servers.return_to_checkpoint(state, now)
        return []

    # pods ------------------------------------------------------------------------------------------------------

    def _pod(self, event: PodEvent, now: float) -> Facts:
        state = self.state
        match event:
            case PodStarted():
                facts = pods.started(state, event, now)
                return facts + servers.settle(state) if facts and event.role == "ps" else facts
            case PodPending():
                return pods.pending(state, event, now)
            case PodGivenUp(pod=name):
                pods.given_up(state, name, now)
            case PodResized():
                return pods.resized(state, event)
            case PodResizeRefused(pod=name):
                pods.resize_refused(state, name, now)
            case PodExited():
                return self._exited(event, now)
        return []

    def _exited(self, event: PodExited, now: float) -> Facts:
        state = self.state
        pod = state.pods.pop(event.pod, None)
        if pod is None:
            return []
        asked = pod.phase == "stopping" or pod.relieved
        fact = replace(event, reason="stopped") if asked and event.reason != "oom-killed" else event
        facts: Facts = [fact]
        state.weights.pop(pod.name, None)
        if asked or state.phase not in ("active", "completing"):
            return facts
        if state.runs_program and state.phase == "completing":
            return facts + failures.program_ended(state, event)
        if reason := failures.count(state, pod, event, now):
            return facts + fail(state, reason)
        if pod.role == "ps":
            return facts + servers.died(state, pod, event, now)
        pods.fill(state, pod.role, now, "relaunch")
        return [replace(fact, again_in_s=pods.backoff_s(state, pod.role))]

    # parameters ------------------------------------------------------------------------------------------------

    def _parameters(self, event: ParametersEvent, now: float) -> Facts:
        state = self.state
        match event:
            case BucketsClaimed():
                return servers.claimed(state, event, now)
            case ServerEmptied():
                return servers.emptied(state, event)
            case CheckpointRestored():
                return servers.restored(state, now)
            case RecomputationDecided():
                return servers.recomputation_decided(state, event, now)
            case MovesStarted():
                return migrations.started(state, event, now)
            case MovesFinished():
                return migrations.finished(state, event, now)
            case HotPsDetected():
                return hot.detected(state, event, now)
            case HotPsCleared():
                hot.cleared(state, event)
            case ReplacementDecided():
                return hot.decided(state, event, now)
            case Tick():
                return hot.time_passed(state, now)
        return []
