"""The next steps towards the wanted state: a pure function, asked again after every change."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from stretto_core.actuator.ending import PROGRAM_END_S
from stretto_core.actuator.placement import claim
from stretto_core.actuator.state import ActuatorState, MigrationCause, Pod


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Spread the buckets over these servers by ``weights`` (number -> weight); others give theirs away."""

    number: int
    cause: MigrationCause
    weights: dict[int, float]


@dataclass(frozen=True, slots=True)
class Steps:
    """Everything to do now. The steps are independent of each other."""

    launch: tuple[Pod, ...] = ()
    """Pods that must exist; a launch that happened already is adopted."""
    expect: tuple[Pod, ...] = ()
    """Pods that exist already."""
    stop: tuple[Pod, ...] = ()
    """Pods to end gracefully."""
    resize: tuple[Pod, ...] = ()
    empty: tuple[Pod, ...] = ()
    """Parameter servers to empty in place, before any of them gets its part of a checkpoint."""
    claim: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict[str, tuple[list[int], list[int]]])
    """Pod -> (buckets, slices)."""
    rebalance: Rebalance | None = None
    conclude: bool = False
    """Take the counts of the parameter servers."""
    converged: int | None = None
    """The plan's version, once nothing is missing any more."""
    retry_at_s: float | None = None
    """When a launch that is held back becomes due."""


def next_steps(state: ActuatorState, now: float) -> Steps:
    """Return the steps due in ``state`` at ``now`` (seconds since the epoch)."""
    ordered = sorted(state.pods.values(), key=lambda pod: (pod.role, pod.number))
    stop = tuple(pod for pod in ordered if pod.phase == "stopping")
    if state.phase not in ("active", "completing"):
        return Steps(stop=stop)
    due = [pod for pod in ordered if pod.phase == "starting" and _may_launch(state, pod)]
    later = [pod.not_before_s for pod in due if pod.not_before_s > now]
    return Steps(
        launch=tuple(pod for pod in due if pod.not_before_s <= now),
        expect=tuple(pod for pod in ordered if pod.phase == "running"),
        stop=stop,
        resize=tuple(pod for pod in ordered if pod.phase == "running" and _needs_resize(pod)),
        empty=tuple(pod for pod in ordered if pod.phase == "running" and pod.emptying),
        claim=_claim(state),
        rebalance=_rebalance(state),
        conclude=state.phase == "completing"
        and state.rebalance is None
        and state.layout == "ready"
        and not _program_ends(state, now),
        converged=state.plan_version if converged(state) else None,
        retry_at_s=min(later, default=None),
    )


def converged(state: ActuatorState) -> bool:
    """Return True if pods and parameters are as the plan wants them and that is not published yet."""
    plan = state.plan
    if plan is None or state.phase != "active" or state.applied_version >= state.plan_version:
        return False
    planned = [pod for pod in state.pods.values() if pod.role != "data"]
    staying = all(pod.phase == "running" and not (pod.leaving or pod.relieved) for pod in planned)
    settled = staying and not any(map(_needs_resize, planned))
    workers = Counter(pod.place for pod in state.of_role("worker"))
    counts = workers == Counter(plan.worker_places) and len(state.of_role("ps")) == plan.servers
    return settled and counts and state.layout == "ready" and state.rebalance is None


def _program_ends(state: ActuatorState, now: float) -> bool:
    """Return True while programs may still do what they do after the last sample, such as to save a model."""
    runs = any(pod.phase == "running" for pod in state.of_role("worker"))
    return state.runs_program and runs and now - state.completed_at_s < PROGRAM_END_S


def _needs_resize(pod: Pod) -> bool:
    return (pod.cpu_cores_now, pod.memory_bytes_now) != (pod.cpu_cores, pod.memory_bytes)


def _may_launch(state: ActuatorState, pod: Pod) -> bool:
    """Return True if the pod may start: parameter servers first, workers when there is something to pull.

    A lost worker is replaced at once, an additional one joins after the parameters have moved. While parameters come
    from a checkpoint, workers start beside their servers and wait: both take seconds to import their code, and the job
    stands still.
    """
    going_on = state.layout in ("ready", "recovering")
    if pod.role == "data":  # there is something to prepare batches for
        return going_on
    if going_on and pod.role == "worker":
        moved = state.rebalance is None and all(p.listed for p in state.of_role("ps"))
        return pod.cause == "relaunch" or moved
    if going_on:
        return True
    stale = any(p.role == pod.role and p.phase == "stopping" for p in state.pods.values())
    return not stale and (pod.role == "ps" or state.restores)


def _claim(state: ActuatorState) -> dict[str, tuple[list[int], list[int]]]:
    servers = state.of_role("ps")
    if state.layout != "empty" or state.restores or not all_servers_run(state):
        return {}
    parts = claim([pod.number for pod in servers])
    return {pod.name: parts[pod.number] for pod in servers}


def all_servers_run(state: ActuatorState) -> bool:
    """Return True if the plan's parameter servers all run, and none is still to be emptied."""
    servers = state.of_role("ps")
    run = all(pod.phase == "running" and not pod.emptying for pod in servers)
    return state.plan is not None and len(servers) == state.plan.servers and run


def _rebalance(state: ActuatorState) -> Rebalance | None:
    if state.rebalance is None or state.layout != "ready":
        return None
    servers = state.of_role("ps")
    if not servers or any(pod.phase != "running" or not pod.listed for pod in servers):
        return None
    weights = {pod.number: state.weights.get(pod.name, 1.0) for pod in servers}
    return Rebalance(state.rebalance_number, state.rebalance, weights)
