"""A Job of Kubernetes under Kueue: ``parallelism`` is its size, and its status counts the pods."""

from __future__ import annotations

from collections.abc import Sequence

from stretto_core.decider.fields import TRUE, Object, annotations_of
from stretto_core.decider.targets.target import Ending, Part, Pods, Target, condition_ending

COMPLETIONS = "kueue.x-k8s.io/job-completions-equal-parallelism"


class JobTarget(Target):
    kind, group, version, plural = "Job", "batch", "v1", "jobs"
    needs_queue = True

    def part(self, one: Object) -> Part:
        return Part("main", int(one["spec"].get("parallelism") or 0), one["spec"].get("template") or {})

    def pods(self, one: Object, part: Part, children: Sequence[Object]) -> Pods:
        """Return the pods of a Job.

        Completions that follow the size bound no size. Without completions no pod starts once one has succeeded.
        """
        status, completions = one.get("status") or {}, one["spec"].get("completions")
        active, done = int(status.get("active") or 0), int(status.get("succeeded") or 0)
        left = (active if done else None) if completions is None else max(int(completions) - done, 0)
        return Pods(
            active=active,
            ready=int(status.get("ready") or 0),
            terminating=int(status.get("terminating") or 0),
            due=part.count if left is None else min(part.count, left),
            most=None if follows(one) else left,
        )

    def ending(self, one: Object) -> Ending:
        return condition_ending(one, "Complete", "Failed")

    def resized(self, one: Object, part: Part, count: int) -> Object:
        return {"parallelism": count, **({"completions": count} if follows(one) else {})}


def follows(one: Object) -> bool:
    """Return True for a Job whose completions are to equal its size."""
    return annotations_of(one).get(COMPLETIONS) in TRUE
