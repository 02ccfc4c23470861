"""The parameter servers of a job: which ones workers know of, and what follows when one of them is lost."""

from __future__ import annotations

from stretto_messages.actuator import (
    GetServers,
    GetServersReply,
    GroupChanged,
    ParametersLost,
    PodExited,
    ServersChanged,
)
from stretto_messages.dispatcher import RecomputationDecided
from stretto_messages.values import GroupMember, ParameterServer

from stretto_core.actuator import failures, pods
from stretto_core.actuator.ending import fail
from stretto_core.actuator.observations import BucketsClaimed, ServerEmptied
from stretto_core.actuator.state import ActuatorState, Facts, Pod
from stretto_core.actuator.steps import all_servers_run

RECOVERIES = 5
"""Losses of parameter servers in a row that a job survives; the next one ends it."""
CALM_S = 600.0
"""Seconds without a loss after which the next one is the first again, as for a pod that Kubernetes starts anew."""


def settle(state: ActuatorState) -> Facts:
    """Make running servers known as soon as the plan's are all there."""
    if state.phase != "active" or not all_servers_run(state):
        return []
    servers = state.of_role("ps")
    if state.layout == "empty" and state.restores:
        facts = _list(state, servers)
        state.layout = "restoring"
        return facts
    if state.layout == "ready" and any(not pod.listed for pod in servers):
        facts = _list(state, servers)
        state.relayout(state.rebalance or "plan")
        return facts
    return []


def claimed(state: ActuatorState, event: BucketsClaimed, now: float) -> Facts:
    """Take note that a new model has its first layout."""
    if state.layout != "empty" or state.restores or state.phase not in ("active", "completing"):
        return []
    claimants = [state.pods.get(name) for name in event.pods]
    live = [pod for pod in claimants if pod is not None and pod.phase == "running"]
    if not live:
        return []
    if len(live) < len(claimants):
        _replace_all(state, now)  # one of them died or was stopped meanwhile: nobody has its part
        return []
    state.layout = "ready"
    return _list(state, live) + _catch_up(state, now)


def restored(state: ActuatorState, now: float) -> Facts:
    """Note that parameters and ledger came back from a checkpoint. Nothing follows if the job has ended meanwhile."""
    if state.ended:
        return []
    state.samples_given_up = 0  # they come again; those given up before the checkpoint are in the sum at the end
    if state.layout != "restoring":
        return []
    state.layout = "ready"
    state.restores = False
    return _catch_up(state, now)


def died(state: ActuatorState, pod: Pod, event: PodExited, now: float) -> Facts:
    """Recover from the death of a parameter server.

    The parameters of a listed server are gone. If others survive, and no column was on its way between two servers,
    the lost columns come back on them; else all parameters go back together to the last checkpoint. One that nobody
    knew yet is simply replaced; after a claim may have been sent, together with its peers, since a claim is for a set
    of servers.
    """
    if pod.listed:
        return _recover(state, pod, event, now)
    if state.layout == "empty" and not state.restores and pod.phase == "running":
        _replace_all(state, now)
    else:
        pods.fill(state, "ps", now, "relaunch")
    return []


def recomputation_decided(state: ActuatorState, event: RecomputationDecided, now: float) -> Facts:
    """Go on once every column is back and the ledger hands out what the restored ones lack; else go back with all."""
    if state.layout != "recovering" or event.loss != state.loss or state.ended:
        return []
    if not event.granted:
        return return_to_checkpoint(state, now)
    state.layout = "ready"
    return _catch_up(state, now)


def changed(state: ActuatorState) -> ServersChanged:
    """Publish the servers that there are, under the next version."""
    state.servers_version += 1
    return ServersChanged(job=state.job, version=state.servers_version, servers=addresses(state))


def addresses(state: ActuatorState) -> tuple[ParameterServer, ...]:
    """Return where the listed servers listen."""
    return tuple(ParameterServer(index=pod.number, address=pod.address, leaving=pod.leaving) for pod in state.listed())


def answer(state: ActuatorState, request: GetServers) -> GetServersReply:
    """Answer which servers there are. Pods that have exited, or never were, are unknown."""
    ready = state.layout in ("ready", "recovering")  # until then nothing is to be pulled
    known = state.phase != "unknown" and not state.ended and request.pod in state.pods
    return GetServersReply(
        job=request.job,
        answer="ok" if known else "unknown",
        version=state.servers_version if ready else 0,
        plan_version=state.plan_version,
        servers=addresses(state) if ready else (),
        data_version=state.data_version,
        data_workers=state.data_published,
        group_version=state.group_version,
        group=state.group_published,
        group_wanted=state.group_wanted,
    )


def regroup(state: ActuatorState) -> Facts:
    """Publish the workers that address each other, if they are others than those published last.

    Those of a plan without stages need none, unless they average dense gradients or are ranks of one program.
    """
    addressed = state.averages_dense or state.together or (state.plan is not None and state.plan.stages > 1)
    running = tuple(
        GroupMember(
            index=pod.number, address=pod.address, device=pod.device, stage=pod.stage, first_layer=pod.first_layer
        )
        for pod in sorted(state.pods.values(), key=lambda pod: pod.number)
        if pod.role == "worker" and pod.phase == "running" and pod.address and addressed
    )
    if running == state.group_published:
        return []
    state.group_published = running
    state.group_wanted = state.plan.workers if state.together and state.plan is not None else 0
    state.group_version += 1
    return [GroupChanged(job=state.job, version=state.group_version, workers=running, wanted=state.group_wanted)]


def _list(state: ActuatorState, servers: list[Pod]) -> Facts:
    for pod in servers:
        pod.listed = True
    return [changed(state)]


def _catch_up(state: ActuatorState, now: float) -> Facts:
    """Follow a plan that changed while the first layout was made."""
    pods.fill(state, "ps", now, "plan")
    facts = settle(state)
    if any(pod.leaving for pod in state.pods.values()):
        state.relayout("plan")
    return facts


def _recover(state: ActuatorState, lost: Pod, event: PodExited, now: float) -> Facts:
    """Bring back what the lost server owned; too many losses end the job."""
    if event.reason not in failures.BLAMELESS:
        calm = state.lost_at_s is not None and now - state.lost_at_s >= CALM_S
        state.recoveries = 1 if calm else state.recoveries + 1
        state.lost_at_s = now
    if state.recoveries > RECOVERIES:
        which = f"the {state.recoveries}. loss of parameters without {CALM_S:g} s between two of them"
        return fail(state, f"{lost.name} was lost ({event.reason}), {which}; giving up")
    if _others_go_on(state):
        return _lose_columns(state, lost, now)
    return return_to_checkpoint(state, now)


def _others_go_on(state: ActuatorState) -> bool:
    """Return True if the lost columns can come back while all others train.

    In a migration they cannot: a column may be owned by neither server for an instant, or its old owner may hold a
    copy of it that its dead new owner had trained further. A completed job is not recovered so either: its last
    checkpoint and its counts may have begun.
    """
    quiet = state.phase == "active" and state.layout in ("ready", "recovering") and state.migration is None
    return quiet and any(pod.phase == "running" for pod in state.listed())


def _lose_columns(state: ActuatorState, lost: Pod, now: float) -> Facts:
    state.layout = "recovering"
    pods.fill(state, "ps", now, "relaunch")
    survivors = changed(state)
    state.loss = survivors.version
    loss = ParametersLost(job=state.job, pod=lost.name, version=survivors.version, servers=survivors.servers)
    return [loss, survivors]  # in this order: no checkpoint is to begin on the survivors


def return_to_checkpoint(state: ActuatorState, now: float) -> Facts:
    """Let parameters and ledger go back together to the last checkpoint.

    Pods that live stay: servers are emptied in place before any of them loads, workers drop what they are at. Servers
    that were being replaced are not worth their room any more.
    """
    state.phase = "active"  # a completed job goes back with the ledger
    state.restores = True
    state.final_checkpoint_due = state.final_checkpoint
    state.servers_version += 1
    state.returned_version = state.servers_version
    _forget_layout(state)
    for pod in state.pods.values():
        if pod.role != "ps" or pod.phase == "stopping":
            continue
        if pod.retired:
            pod.stop()
        else:
            pod.leaving = pod.listed = False
            pod.emptying = pod.phase == "running"
    pods.fill(state, "ps", now, "relaunch")
    pods.fill(state, "worker", now, "relaunch")
    return [ServersChanged(job=state.job, version=state.servers_version, servers=())]


def emptied(state: ActuatorState, event: ServerEmptied) -> Facts:
    """Go on once no server holds anything of before the return."""
    pod = state.pods.get(event.pod)
    if pod is None or not pod.emptying or event.version != state.returned_version:
        return []
    pod.emptying = False
    return settle(state)


def _replace_all(state: ActuatorState, now: float) -> None:
    """Start all parameter servers of a new model anew: some of them may have claimed their part of it."""
    _forget_layout(state)
    for pod in state.pods.values():
        if pod.role == "ps" and pod.phase != "stopping":
            pod.stop()
    pods.fill(state, "ps", now, "relaunch")


def _forget_layout(state: ActuatorState) -> None:
    state.layout = "empty"
    state.rebalance = None
    state.migration = None
    state.weights = {}
