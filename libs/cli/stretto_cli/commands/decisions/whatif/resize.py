"""`stretto whatif resize`: the size that the decider would write into an object that others run, and why."""

from __future__ import annotations

from typing import Annotated, Any

import typer
import yaml
from rich.console import RenderableType
from stretto_core.decider import objects as asking
from stretto_core.decider.fields import SIZE, Object, UnfitObject
from stretto_core.decider.kueue import SeenObjects
from stretto_core.decider.machine import DeciderMachine
from stretto_core.decider.observations import ObjectObserved
from stretto_core.decider.quota import UNBOUNDED
from stretto_core.decider.state import DeciderState
from stretto_core.decider.targets import TARGETS, Target
from stretto_core.decider.transition import at_rest
from stretto_messages.values import Plan
from stretto_wire import JobSpec, WireError

from ....options import OutputForm, OutputOption, answer
from ....reading import refuse, text_of

OF_KUEUE = {"Workload": "workloads", "LocalQueue": "local_queues", "ClusterQueue": "cluster_queues"}


def resize(
    file: Annotated[str, typer.Option("-f", "--file", help="objects as `kubectl get -o yaml` prints them; -: stdin")],
    plan: Annotated[
        int | None,
        typer.Option(min=1, max=asking.PODS_MAX, help="pods that the plan allows; else the object's own most"),
    ] = None,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Tell for each Job, JobSet and RayCluster that asks for a size which one the decider would write now, and why.

    The file holds these objects, the Jobs of a JobSet and, to know the room in a queue, the Workloads, LocalQueues and
    ClusterQueues of their namespace. The whole format, with an example: libs/cli/WHATIF.md.
    """
    cluster = _cluster(_objects(file))
    found = [(TARGETS[kind], one) for kind, of in cluster.objects.items() for one in of.values() if asking.asks(one)]
    if not found:
        kinds = ", ".join(kind for kind in TARGETS if kind != "TrainJob")
        of_trainer = "a TrainJob is sized as the JobSet made of it"
        refuse("FILE", file, f'a {kinds} with the annotation {SIZE}: "auto"; {of_trainer}')
    result = {"objects": [_decided(target, one, cluster, plan) for target, one in found]}
    answer(output, result, lambda: _view(result))


def _objects(file: str) -> list[Object]:
    """Return the objects of a file: YAML or JSON, several documents, lists."""
    found: list[Object] = []
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


def _cluster(objects: list[Object]) -> SeenObjects:
    of: dict[str, dict[str, Object]] = {kind: {} for kind in (*TARGETS, *OF_KUEUE)}
    for one in objects:
        if (kind := one.get("kind", "")) in of:
            of[kind][one["metadata"]["name"]] = one
    queues = {name: of[kind] for kind, name in OF_KUEUE.items()}
    return SeenObjects({kind: of[kind] for kind in TARGETS}, **queues)


def _decided(target: Target, one: Object, cluster: SeenObjects, plan: int | None) -> dict[str, Any]:
    named = asking.reference(target, one)
    try:
        JobSpec.parse(asking.specification(target, one, cluster))
        least, most = asking.limits_of(target, one)
        seen = asking.observed(target, one, cluster)
    except (UnfitObject, WireError) as unfit:
        return {"object": named, "feasible": False, "reason": str(unfit)}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        refuse(named, repr(error), "objects with the fields that kubectl prints")
    machine = DeciderMachine(DeciderState(job=asking.job_of(one), least=least, version=1, size=seen.count))
    machine.state.plan = Plan(min(plan or most, most), 1, 1.0, 1.0, 2**30, 2**30)
    machine.handle(seen, 0.0)
    write = machine.state.write
    room = None if seen.room >= UNBOUNDED else seen.room
    answered = {"object": named, "feasible": True, "before": seen.count, "room": room}
    if write is not None:
        return {**answered, "size": write.count, "purpose": write.purpose, "reason": write.reason}
    return {**answered, "size": seen.count, "purpose": "none", "reason": _why_none(seen, machine.state)}


def _why_none(seen: ObjectObserved, state: DeciderState) -> str:
    if seen.ending:
        return f"the object has ended: {seen.ending_reason}"
    if not at_rest(seen):
        held = ", ".join(f"{one.name} of {one.count} is {one.state}" for one in seen.workloads)
        workloads = held or "the file has no Workload or child Job of it"
        pods = f"{seen.ready} of {seen.count} pods are ready and {seen.terminating} end"
        return f"a transition is open, in which nothing is written: {workloads}; {pods}"
    return state.outcome_reason


def _view(result: dict[str, Any]) -> RenderableType:
    return "\n".join(f"{each['object']}: {_told(each)}: {each['reason']}" for each in result["objects"])


def _told(decided: dict[str, Any]) -> str:
    if not decided["feasible"]:
        return "cannot be sized"
    if decided["purpose"] == "none":
        return f"stays at {decided['size']}"
    return f"{decided['before']} → {decided['size']} pods ({decided['purpose']})"
