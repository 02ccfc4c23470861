"""Stages of one job: how long each takes for a batch, predicted or measured. Pure, and without numeric libraries.

A later stage computes, t_i a step; beside that a step takes t_0. The slowest stage bounds the job: a batch takes
max_i tau_i (HeterPS Eq. 3, 5). A worker of stage 0 has one batch under way, and waits for all of it, so that with n_i
workers

    tau_0 = (t_0 + t_1 + ... + t_K) / n_0;    tau_i = t_i / n_i    for i > 0.

These are both asymptotes of a closed network, N / sum D and 1 / max D (Denning, Buzen, The Operational Analysis of
Queueing Network Models, Computing Surveys 1978, section 7).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stretto_messages.base import three_digits
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import GroupProfile

LEAST_PART = 0.01
"""Least part of a step of stage 0 that is not waiting for the next stage."""


def in_words(stage_times_s: Sequence[float]) -> str:
    """Describe what the stages of a plan take, and which one bounds it, for reasons that people read."""
    told = " and ".join(three_digits(1e3 * each_s) for each_s in stage_times_s)
    slowest = max(range(len(stage_times_s)), key=stage_times_s.__getitem__)
    return f"they take {told} ms for a batch, so that stage {slowest} bounds the plan (HeterPS Eq. 3)"


def stage_times_s(steps: Iterable[tuple[int, float, float]]) -> tuple[float, ...]:
    """Return tau_i of each stage, in seconds: its workers share the batches.

    steps: of each group of workers its stage, their number, less what interruptions cost, and t_i of one of them.
    """
    workers, per_s = dict[int, float](), dict[int, float]()
    for stage, count, step_s in steps:
        workers[stage] = workers.get(stage, 0.0) + count
        per_s[stage] = per_s.get(stage, 0.0) + count / step_s
    shared_s = {stage: 1 / max(rate, 1e-12) for stage, rate in sorted(per_s.items())}
    later_s = sum(workers[stage] * time_s for stage, time_s in shared_s.items() if stage)
    return tuple(time_s if stage else time_s + later_s / max(workers[0], 1e-12) for stage, time_s in shared_s.items())


def measured_times_s(event: ProfileMeasured) -> tuple[float, ...]:
    """Return the seconds that each stage of a plan took for a batch in a window, tau_i of HeterPS Eq. 3. Empty for a
    plan of one stage, and while a stage has no steps."""
    seen = [(group.stage, group.workers, own_s(group)) for group in event.groups if group.step_time_s > 0]
    found = stage_times_s(seen) if event.plan.stages > 1 else ()
    return found if len(found) == event.plan.stages else ()


def own_s(group: GroupProfile) -> float:
    """Return the time of a step without that in which its worker waits: for its batch, or for the next stage."""
    if group.stage:
        return group.step_time_s
    waited_s = group.times.read_s + group.times.grad_s
    return max(group.step_time_s - waited_s, LEAST_PART * group.step_time_s)
