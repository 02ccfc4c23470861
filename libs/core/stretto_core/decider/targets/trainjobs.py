"""A TrainJob (``trainer.kubeflow.org/v1alpha1``, 2.3): nobody may change its ``trainer``, and so its number of nodes.

Its ``runtimePatches`` hold no count either, but annotations of the JobSet that Trainer makes. That JobSet can be sized:
while neither is suspended, Trainer leaves the JobSet alone.
"""

from __future__ import annotations

from stretto_core.decider.fields import SIZE, Object, UnfitObject
from stretto_core.decider.targets.jobsets import JobSetTarget
from stretto_core.decider.targets.target import Part


class TrainJobTarget(JobSetTarget):
    kind, group, version, plural = "TrainJob", "trainer.kubeflow.org", "v1alpha1", "trainjobs"

    def part(self, one: Object) -> Part:
        remedy = (
            "annotate in its spec.runtimePatches the JobSet that Trainer makes: a TrainJob keeps its number of nodes"
        )
        raise UnfitObject(SIZE, "auto", remedy)
