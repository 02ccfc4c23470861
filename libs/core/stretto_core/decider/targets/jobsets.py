"""A JobSet (``v1alpha2``, 0.12): one of its ``replicatedJobs`` is sized, whose only child Job has the pods.

The feature gate ``ElasticJobSet`` (alpha) lets ``parallelism`` and ``completions`` change, equal and at least one;
the controller then patches the child. Kueue does not follow that size (kubernetes-sigs/kueue#9411).
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto_core.decider.fields import Object, UnfitObject, labels_of
from stretto_core.decider.observations import WorkloadSeen
from stretto_core.decider.targets.target import Ending, Part, Pods, Target, chosen, condition_ending

REPLICATED = "jobset.sigs.k8s.io/replicatedjob-name"


class JobSetTarget(Target):
    kind, group, version, plural = "JobSet", "jobset.x-k8s.io", "v1alpha2", "jobsets"
    is_elastic = False

    def part(self, one: Object) -> Part:
        sized = chosen(one, one["spec"].get("replicatedJobs") or [], "name", "replicatedJob")
        name, spec = sized["name"], sized["template"]["spec"]
        count, completions = spec.get("parallelism"), spec.get("completions")
        if sized.get("replicas", 1) != 1:
            raise UnfitObject(f"replicas of {name}", sized["replicas"], "state 1: the pods of one child Job are sized")
        if spec.get("completionMode", "Indexed") != "Indexed":
            raise UnfitObject(
                f"completionMode of {name}", spec["completionMode"], "state Indexed: only these change size"
            )
        if count is None or count != completions:
            raise UnfitObject(f"completions of {name}", completions, f"state as many as parallelism, which is {count}")
        return Part(name, int(count), spec.get("template") or {})

    def pods(self, one: Object, part: Part, children: Sequence[Object]) -> Pods:
        counts = [each.get("status") or {} for each in _of(part, children)]
        active, ready, ending, done = (
            sum(int(each.get(name) or 0) for each in counts) for name in ("active", "ready", "terminating", "succeeded")
        )
        return Pods(active, ready, ending, due=max(part.count - done, 0))

    def ending(self, one: Object) -> Ending:
        return condition_ending(one, "Completed", "Failed")

    def held(self, one: Object, part: Part, children: Sequence[Object]) -> tuple[WorkloadSeen, ...]:
        return tuple(
            WorkloadSeen(
                name=each["metadata"]["name"],
                count=int(each["spec"].get("parallelism") or 0),
                state="pending" if each["spec"].get("suspend") else "admitted",
            )
            for each in _of(part, children)
        )

    def resized(self, one: Object, part: Part, count: int) -> Object:
        spec = {"parallelism": count, "completions": count}
        return {"replicatedJobs": [{"name": part.name, "template": {"spec": spec}}]}


def _of(part: Part, children: Sequence[Object]) -> list[Object]:
    return [each for each in children if labels_of(each).get(REPLICATED) == part.name]
