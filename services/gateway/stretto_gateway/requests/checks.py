"""Checks of users' requests against the read model, and the problems that refuse requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stretto_core.model.teams import Quotas, quota_of
from stretto_messages.values import ANY_DEVICE, Plan, WorkerGroup
from stretto_runtime.settings import DEVICE_TYPES_VARIABLE, EXTENDED_VARIABLE
from stretto_wire.errors import WireError
from stretto_wire.findings import Finding, finding
from stretto_wire.jobspec.devices import DeviceTypeSpec
from stretto_wire.jobspec.entry_lookup import faults_of_entry
from stretto_wire.jobspec.spec import JobSpec
from stretto_wire.policy.allowed import VARIABLES, Allowed
from stretto_wire.program import CONSISTENT
from stretto_wire.rest.problems import Kind
from stretto_wire.rest.views import OVER, JobView, Status
from stretto_wire.stores.urls import canonical

from ..problems import Problem

STATES: dict[Status, str] = {
    "submitted": "has been submitted",
    "waiting": "waits for capacity",
    "starting": "is starting",
    "training": "is training",
    "finishing": "is finishing",
    "finished": "has finished",
    "failed": "has failed",
    "cancelled": "was cancelled",
}
OBJECTS = "trainingjob/"
"""Beginning of the names of submitters that are TrainingJob objects; namespace and object follow."""
QUOTAS = "STRETTO_TEAMS_QUOTAS"
TEAM_BYTES = "STRETTO_GATEWAY_TEAM_BYTES_PER_DAY"
CHOOSE = "choose another name, as with `stretto submit --name`"
FOR_EVER = f"{CHOOSE}: a name belongs to one job for ever, so that its history stays true"


def name_taken(name: str, view: JobView | None = None, which: str = "with another specification") -> Problem:
    """Refuse a name in use by ``view``'s job, or (no view) by an earlier job whose records have expired."""
    if view is None:
        text, remedy = f"a job called {name} ended long ago", FOR_EVER
    else:
        text = f"a job called {name} {which} {STATES[view.status]}"
        remedy = FOR_EVER if view.status in OVER else f"{CHOOSE}; `stretto cancel {view.name}` ends the old job"
    return Problem(409, "name-taken", text, field="name", value=name, remedy=remedy)


def names_damaged(name: str, error: str) -> Problem:
    """Refuse a new name while the names of past jobs cannot be read."""
    remedy = "choose another name, or let the operator restore the bucket's entry"
    return Problem(503, "names-damaged", error, field="name", value=name, remedy=remedy)


def others_name(name: str) -> Problem:
    """Refuse a name that a job of another team has or had, and tell nothing of that job."""
    text = f"another team has, or had, a job called {name}"
    return Problem(409, "name-taken", text, field="name", value=name, remedy=CHOOSE)


def check_allowed(spec: JobSpec, by: str, allowed: Allowed, jobs: Mapping[str, JobView]) -> None:
    """Refuse a specification that asks for more than the installation gives to the submitter ``by``.

    Raises Problem: 422 with every finding.
    """
    found = [*allowed.findings(spec, owner_of(by)), *_foreign_start(spec, by, allowed, jobs)]
    if found:
        raise Problem.of_wire(WireError.collected(found), "not-allowed")


def check_entry(spec: JobSpec) -> None:
    """Refuse training code that pods of this machine would not find. Raises Problem 422."""
    if found := faults_of_entry(spec):
        raise Problem.of_wire(WireError.collected(found))


def check_object(spec: JobSpec) -> None:
    """Refuse a job that names an object: the object says for itself that it asks for a size. Raises Problem 422."""
    if spec.program is not None and (name := spec.program.object) is not None:
        remedy = "leave it out; an object with the annotation stretto.dev/size is taken in by the decider"
        raise Problem.of_wire(WireError.collected([finding(("program", "object"), name, remedy)]))


def check_extended(spec: JobSpec, cluster: Mapping[str, int]) -> None:
    """Refuse a job whose fewest pods need more units of an extended resource than the whole cluster has.

    Raises Problem: 422 with a finding for each such resource.
    """
    resources, found = spec.resources, list[Finding]()
    least = resources.initial if resources.fixed and resources.initial is not None else resources.least
    needed = dict(resources.extended.of(least.workers, least.ps))
    for field, role in (("workers", resources.workers), ("ps", resources.ps)):
        for name, count in role.extended.items():
            if needed.get(name, 0) > (there := cluster.get(name, 0)):
                remedy = (
                    f"the cluster has {there or 'none'}, and the fewest pods of the job need {needed[name]}: lower it, "
                    f"or let the operator state more in {EXTENDED_VARIABLE}"
                )
                found.append(finding(("resources", field, "extended", name), count, remedy))
    if found:
        raise Problem.of_wire(WireError.collected(found), "beyond-cluster")


def check_devices(spec: JobSpec, types: Sequence[DeviceTypeSpec]) -> None:
    """Refuse a job that asks for types of devices, or starts with units of them, which the installation has not.

    Raises Problem: 422 with a finding for each such type, and for each group of the job's initial plan.
    """
    known, resources = {each.name: each for each in types}, spec.resources
    asked = resources.workers.devices
    there = ", ".join(known) or f"none; an operator states them in {DEVICE_TYPES_VARIABLE}"
    found = [
        finding(("resources", "workers", "devices"), name, f"the types of devices here are: {there}")
        for name in asked
        if name != ANY_DEVICE and name not in known
    ]
    for group in resources.initial.groups if resources.initial else ():
        if group.device not in asked and ANY_DEVICE not in asked:
            remedy = "name it in resources.workers.devices as well"
        elif (device := known.get(group.device)) is None:
            remedy = f"the types of devices here are: {there}"
        else:
            remedy = _beyond_units(group, device)
        if remedy:
            found.append(finding(("resources", "initial", "groups"), group.device, remedy))
    if found:
        raise Problem.of_wire(WireError.collected(found), "beyond-cluster")


def _beyond_units(group: WorkerGroup, device: DeviceTypeSpec) -> str:
    """Return the remedy for a group that is not so many units of its type as there are; empty: it is."""
    if group.workers > device.count:
        return f"at most {device.count} workers, one for each unit that there is"
    if (group.cpu_cores, group.memory_bytes) != (device.cpu_cores, device.memory):
        return f"cpu_cores {device.cpu_cores:g} and memory_bytes {device.memory}, those of a unit"
    return ""


def check_quota(spec: JobSpec, team: str, quotas: Quotas, jobs: Mapping[str, JobView]) -> None:
    """Refuse a new job beyond its team's quota of live jobs or above its ceiling of priority.

    Raises Problem: 422 for the priority, 409 for one live job too many.
    """
    quota = quota_of(quotas, team)
    if quota.priority_max is not None and spec.priority > quota.priority_max:
        remedy = f"at most {quota.priority_max:g}, the ceiling of the team {team} ({QUOTAS})"
        raise Problem.of_wire(
            WireError.collected([finding(("priority",), spec.priority, remedy)]), "above-priority-ceiling"
        )
    live = sorted(name for name, view in jobs.items() if view.team == team and view.status not in OVER)
    if quota.jobs is not None and len(live) >= quota.jobs:
        raise Problem(
            409,
            "quota-used",
            f"the team {team} has {len(live)} of its {quota.jobs} live jobs",
            field="team",
            value=team,
            remedy=f"wait until one of its jobs ends, cancel one, or raise its jobs in {QUOTAS}",
        )


def check_size(size: int, most: int) -> None:
    """Refuse a specification of more than ``most`` bytes. Raises Problem 422."""
    if size > most:
        remedy = f"at most {most} bytes (STRETTO_GATEWAY_SPEC_BYTES); a growing job gets partitions later, by its data"
        found = [finding(("(document)",), f"{size} bytes", remedy)]
        raise Problem.of_wire(WireError.collected(found), "too-large-job")


def bytes_used(team: str, wait_s: float) -> Problem:
    """Refuse a change of a team that has used its bytes of events."""
    remedy = f"send it again in {math.ceil(wait_s)} s, or raise {TEAM_BYTES}"
    text = f"the team {team} has used its bytes of submissions and changes"
    return Problem(409, "bytes-used", text, field="team", value=team, remedy=remedy)


def check_state(fullness: float, full_at: float) -> None:
    """Refuse a new job while the services' state has hardly any room left. Raises Problem 503."""
    if fullness <= full_at:
        return
    remedy = "wait until jobs of the past leave it, or let the operator raise STRETTO_STREAMS_STATE_MAX_BYTES"
    text = f"the saved state of the services is {fullness:.0%} full"
    raise Problem(503, "state-full", text, field="job", value=f"{fullness:.0%}", remedy=remedy)


def _foreign_start(spec: JobSpec, by: str, allowed: Allowed, jobs: Mapping[str, JobView]) -> list[Finding]:
    """Refuse a start from any checkpoint but one of the submitter's own jobs, or a shared one.

    The answer is the same whether that checkpoint exists or not: it must not tell of others' stores.
    """
    url = spec.checkpoint.restore_from
    if url is None or allowed.restores_from(url):
        return []
    try:
        place = canonical(url)
        view = jobs.get("".join(place.split("/")[-3:-2]))  # …/<job>/<checkpoint>/manifest.json
        own = view is not None and owner_of(view.submitted_by) == owner_of(by)
        if view is not None and own and place in map(canonical, _checkpoints_of(view)):
            return []
        remedy = "take one of your own jobs' (`stretto jobs`), or one in a folder that an operator has added to "
        remedy += f"{VARIABLES}RESTORES"
    except ValueError as error:
        remedy = str(error)
    return [finding(("checkpoint", "restore_from"), url, remedy)]


def owner_of(submitter: str) -> str:
    """Return the owner of a submitter's jobs: all TrainingJobs of a namespace have one owner."""
    return submitter.rpartition("/")[0] if submitter.startswith(OBJECTS) else submitter


def _checkpoints_of(view: JobView) -> list[str]:
    """Return the URLs of the job's own checkpoints."""
    urls = [each.checkpoint.url for each in view.checkpoints if each.checkpoint is not None]
    # A job may start from another job's checkpoint; leave those out.
    return [url for url in urls if url.split("/")[-3:-2] == [view.name]]


def conflict(view: JobView, code: Kind, text: str, remedy: str) -> Problem:
    """Refuse a request that the state of a job rules out."""
    return Problem(409, code, text, field="job", value=view.name, remedy=remedy)


def check_data_workers(view: JobView, count: int | None) -> None:
    """Refuse another number of data workers where the specification fixes it. Raises Problem 422."""
    data = view.spec.resources.data
    if view.level == 0:
        check_has_no_program(view, "data", count, "at level 0 it takes no items that data workers could compute")
    if data.mode == "always":
        raise Problem(
            422,
            "beyond-limits",
            f"{view.name} has {data.always} data workers from start to end",
            field="data",
            value="auto" if count is None else count,
            remedy="its resources.data.mode is always; leave it out, and the number may change",
        )


def program_books(view: JobView) -> str:
    """Say what is known of the samples of a job with a program whose ledger answers no more, or not yet."""
    told = f"{view.name} {STATES[view.status]}, and its ledger is not open: {view.guarantee}"
    if view.level == 0:
        return told
    progress = view.progress
    repeated = f", at most {progress.samples_recomputed:,} of them twice" if progress.samples_recomputed else ""
    return f"{told}. {progress.samples_done:,} of {progress.samples_total:,} samples were reported as trained{repeated}"


def check_has_no_program(view: JobView, field: str, value: object, why: str) -> None:
    """Refuse what only a job that trains a model can have. Raises Problem 422."""
    if view.spec.program is not None:
        text = f"{field} = {value} cannot be had: {view.name} runs a program, and {why}"
        remedy = f"leave {field} out"
        raise Problem(422, "runs-program", text, field=field, value=value, remedy=remedy)


def check_has_parameters(view: JobView) -> None:
    """Refuse a checkpoint of a job whose parameters Stretto does not know. Raises Problem 409."""
    if view.spec.program is not None:
        text = f"{view.name} runs a program, which keeps its own parameters: there is nothing that Stretto could save"
        remedy = "call stretto.agent.checkpoint" if view.level == CONSISTENT else "save its model by itself"
        raise conflict(view, "runs-program", text, f"let the program {remedy}")


def changed_plan(view: JobView, workers: int | None, ps: int | None) -> Plan:
    """Return the job's plan with other numbers of pods.

    Raises Problem: 409 for a job without a plan or that has ended; 422 beyond the limits of its specification.
    """
    if view.plan is None or view.status in OVER:
        text = f"{view.name} {STATES[view.status]}: there is no plan to change"
        raise conflict(view, "no-plan", text, "scale a job that has been started and has not ended")
    limits = {"workers": view.spec.resources.workers.count, "ps": view.spec.resources.ps.count}
    asked = {name: count for name, count in (("workers", workers), ("ps", ps)) if count is not None}
    if ps is not None:
        check_has_no_program(view, "ps", ps, "there are no parameter servers")
    program = view.spec.program
    is_alone = program is not None and program.guarantee in (0, CONSISTENT) and not (program.together or program.object)
    if is_alone and workers not in (None, 1):
        text = f"{view.name} runs all of its program in one worker: {view.guarantee}"
        remedy = "1; with program.resize restart, workers are ranks of one program; at level 1 each may run its own"
        raise Problem(422, "runs-program", text, field="workers", value=workers, remedy=remedy)
    for name, count in asked.items():
        least, most = limits[name].min, limits[name].max
        if not least <= count <= most:
            raise Problem(
                422,
                "beyond-limits",
                f"{name} = {count} is outside the limits of {view.name}",
                field=name,
                value=count,
                remedy=f"{least} to {most}, as its resources.{name}.count says",
            )
    plan = view.plan if ps is None else replace(view.plan, ps=ps)
    return plan if workers is None else with_workers(plan, workers)


def with_workers(plan: Plan, workers: int) -> Plan:
    """Return the plan with so many workers: more of them on cores, or fewer, those on devices last."""
    smaller = plan.fewer_workers(workers)
    return smaller.with_workers(smaller.cpu_workers + workers - smaller.workers, smaller.groups)
