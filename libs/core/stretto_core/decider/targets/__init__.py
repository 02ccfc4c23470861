"""The kinds of objects whose size can be decided, one small class each; ``TARGETS`` has them by kind.

The machine knows none of them. A target tells which part of an object is sized, which pods that part has, and which
fields give the part another size. For an object without a queue of Kueue the target also tells the size that the
object's own controller has taken over, in the place of Kueue's workloads.
"""

from stretto_core.decider.targets.jobs import JobTarget
from stretto_core.decider.targets.jobsets import JobSetTarget
from stretto_core.decider.targets.rayclusters import RayClusterTarget
from stretto_core.decider.targets.target import Part, Pods, Target
from stretto_core.decider.targets.trainjobs import TrainJobTarget

TARGETS = {each.kind: each() for each in (JobTarget, JobSetTarget, RayClusterTarget, TrainJobTarget)}

__all__ = ["TARGETS", "Part", "Pods", "Target"]
