"""`stretto whatif resize`: the size that the decider would write into a Job that Kueue runs, and why."""

from __future__ import annotations

from typing import Annotated, Any

import typer
import yaml
from rich.console import RenderableType
from stretto_core.decider import kueue
from stretto_core.decider.machine import DeciderMachine
from stretto_core.decider.observations import ObjectObserved
from stretto_core.decider.state import DeciderState
from stretto_core.decider.transition import at_rest
from stretto_messages.values import Plan
from stretto_wire import JobSpec, WireError

from ....options import OutputForm, OutputOption, answer
from ....reading import refuse, text_of

KINDS = {"Job": "jobs", "Workload": "workloads", "LocalQueue": "local_queues", "ClusterQueue": "cluster_queues"}


def resize(
    file: Annotated[str, typer.Option("-f", "--file", help="objects as `kubectl get -o yaml` prints them; -: stdin")],
    plan: Annotated[
        int | None, typer.Option(min=1, max=kueue.PODS_MAX, help="pods that the plan allows; else the Job's own most")
    ] = None,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Tell for each Job that asks for a size which one the decider would write now, and why.

    The file holds Jobs and, to know the room, the Workloads, LocalQueues and ClusterQueues of their namespace. The
    whole format, with an example: libs/cli/WHATIF.md.
    """
    cluster = _cluster(_objects(file))
    asking = [one for one in cluster.jobs.values() if kueue.asks(one)]
    if not asking:
        refuse("FILE", file, f'a Job with the annotation {kueue.SIZE}: "auto"')
    result = {"objects": [_decided(one, cluster, plan) for one in asking]}
    answer(output, result, lambda: _view(result))


def _objects(file: str) -> list[kueue.Object]:
    """Return the objects of a file: YAML or JSON, several documents, lists."""
    found: list[kueue.Object] = []
    try:
        documents = [*yaml.safe_load_all(text_of(file))]
    except yaml.YAMLError as error:
        refuse("FILE", file, f"objects in YAML or JSON; {' '.join(str(error).split())}")
    for document in filter(None, documents):
        found += document.get("items") or [document] if isinstance(document, dict) else [{}]
    for number, one in enumerate(found):
        meta = one.get("metadata") if isinstance(one, dict) else None
        if not isinstance(meta, dict) or not meta.get("name") or not isinstance(one.get("spec", {}), dict):
            refuse(f"object {number + 1}", "no object", "kind, metadata.name and spec, as kubectl prints them")
        meta.setdefault("namespace", "default")
        meta.setdefault("uid", f"{number:08d}-of-a-file")
    return found


def _cluster(objects: list[kueue.Object]) -> kueue.SeenObjects:
    of: dict[str, dict[str, kueue.Object]] = {name: {} for name in KINDS.values()}
    for one in objects:
        if (kind := KINDS.get(one.get("kind", ""))) is not None:
            of[kind][one["metadata"]["name"]] = one
    return kueue.SeenObjects(**of)


def _decided(one: kueue.Object, cluster: kueue.SeenObjects, plan: int | None) -> dict[str, Any]:
    try:
        JobSpec.parse(kueue.specification(one, cluster))
        least, most = kueue.limits_of(one)
        seen = kueue.observed(one, cluster)
    except (kueue.UnfitObject, WireError) as unfit:
        return {"object": kueue.reference(one), "feasible": False, "reason": str(unfit)}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        refuse(kueue.reference(one), repr(error), "objects with the fields that kubectl prints")
    machine = DeciderMachine(DeciderState(job=kueue.job_of(one), least=least, version=1, size=seen.count))
    machine.state.plan = Plan(min(plan or most, most), 1, 1.0, 1.0, 2**30, 2**30)
    machine.handle(seen, 0.0)
    write = machine.state.write
    answered = {"object": kueue.reference(one), "feasible": True, "before": seen.count, "room": seen.room}
    if write is not None:
        return {**answered, "size": write.count, "purpose": write.purpose, "reason": write.reason}
    return {**answered, "size": seen.count, "purpose": "none", "reason": _why_none(seen, machine.state)}


def _why_none(seen: ObjectObserved, state: DeciderState) -> str:
    if seen.ending:
        return f"the Job has ended: {seen.ending_reason}"
    if not at_rest(seen):
        workloads = ", ".join(f"{one.name} of {one.count} is {one.state}" for one in seen.workloads) or "no Workload"
        pods = f"{seen.ready} of {seen.count} pods are ready and {seen.terminating} end"
        return f"a transition is open, in which nothing is written: {workloads}; {pods}"
    return state.outcome_reason


def _view(result: dict[str, Any]) -> RenderableType:
    lines = [
        f"{each['object']}: {each['before']} → {each['size']} pods ({each['purpose']}): {each['reason']}"
        if each["feasible"]
        else f"{each['object']}: cannot be sized: {each['reason']}"
        for each in result["objects"]
    ]
    return "\n".join(lines)
