"""The end of a job: its pods stop, its plans and data workers end, and its last fact names what the result lacks."""

from __future__ import annotations

from typing import Literal

from stretto_messages.actuator import JobFailed
from stretto_messages.base import bounded, counted
from stretto_messages.books import Shortfall, small_share
from stretto_messages.dispatcher import EvaluationMeasured, JobCompleted
from stretto_messages.values import GIVEN_UP_PERCENT, measures

from stretto_core.actuator import data_workers
from stretto_core.actuator.observations import CountsTaken
from stretto_core.actuator.state import ActuatorState, Facts

PROGRAM_END_S = 600.0
"""Seconds after the last sample within which a program may end by itself; then its worker is asked to leave."""


def end(state: ActuatorState, phase: Literal["finished", "failed", "cancelled"]) -> None:
    """End the job: stop all its pods."""
    state.phase = phase
    state.rebalance = None
    state.migration = None
    for pod in state.pods.values():
        pod.stop()


def fail(state: ActuatorState, reason: str) -> Facts:
    """End the job, which cannot go on."""
    end(state, "failed")
    return [JobFailed(job=state.job, reason=bounded(reason))]


def fail_beyond_samples_given_up(state: ActuatorState, samples: int) -> Facts:
    """Fail the job if more samples were given up than it may give up: a number of its specification, or a share.

    The share is judged once the number of all samples is known.
    """
    total, most = max(state.samples_known, state.samples_total), state.samples_given_up_max
    if most is None and total == 0:
        return []
    allowed = total * GIVEN_UP_PERCENT // 100 if most is None else most
    if samples <= allowed:
        return []
    of_all = f" of {total:,} ({samples / total:.2%})" if total else ""
    were = "was" if samples == 1 else "were"
    bound = (
        "restarts.samples_given_up"
        if most is not None
        else f"{GIVEN_UP_PERCENT} %, as restarts.samples_given_up is null"
    )
    last = f"; the last: {state.given_up_reason}" if state.given_up_reason else ""
    return fail(
        state,
        f"{counted(samples, 'sample')}{of_all} {were} given up, and at most {allowed:,} may be ({bound}): mend the "
        f"data, or allow more by a higher restarts.samples_given_up{last}",
    )


def fail_without_metric(state: ActuatorState, event: EvaluationMeasured) -> Facts:
    """Fail the job if its first evaluation lacks the metric by which its best model is found.

    A later one may lack it, as a mean of no samples or one that is not finite.
    """
    found = measures(event.evaluation)
    if state.best_metric in ("", *found):
        state.best_metric = ""
        return []
    known = ", ".join(found)
    return fail(state, f"best.metric is {state.best_metric!r}; name one that evaluations of this model have: {known}")


def shortfalls(state: ActuatorState, completed: JobCompleted, taken: CountsTaken) -> tuple[Shortfall, ...]:
    """Return why the job is not just finished, what weighs most first."""
    found = (
        not_stored(state.final_checkpoint_failure),
        given_up(completed),
        _not_evaluated(state, taken),
        _trained_again(state, completed),
        _without_data_workers(state),
        _not_exportable(state),
        _stopped_early(completed),
        _programs_stopped(state),
    )
    return tuple(each for each in found if each is not None)


def not_stored(failure: str, earlier_url: str = "") -> Shortfall | None:
    """Return that the trained parameters were not stored, if there is a failure.

    ``earlier_url``: manifest of the last checkpoint that was stored.
    """
    if not failure:
        return None
    earlier = f" with checkpoint.restore_from = {earlier_url}, the last one that was stored" if earlier_url else ""
    return Shortfall(
        kind="not-stored",
        words="not stored",
        detail=bounded(
            "the trained parameters are lost and cannot be exported: final checkpoint not stored: "
            f"{failure.removeprefix('not stored: ')}; mend the store and submit the job under another name{earlier}"
        ),
        lacking=True,
    )


def given_up(completed: JobCompleted) -> Shortfall | None:
    """Return how many samples were never trained, with the last reason; None if none were."""
    samples = completed.samples_abandoned
    if not samples:
        return None
    total = completed.samples + samples
    told = completed.books.given_up if completed.books else ()
    last = told[-1] if told else None
    return Shortfall(
        kind="given-up",
        words=f"{small_share(samples / total)} given up",
        detail=bounded(
            f"{samples:,} of {total:,} samples ({samples / total:.2%}) were given up: `stretto audit {completed.job}` "
            "lists them"
            + (
                f"; the last, samples {last.start:,} to {last.start + last.length - 1:,}"
                f"{last.partition and f' of {last.partition}'} in epoch {last.epoch}: {last.reason}"
                if last
                else ""
            )
        ),
        lacking=True,
    )


def _not_evaluated(state: ActuatorState, taken: CountsTaken) -> Shortfall | None:
    if not state.evaluate or taken.evaluation is not None:
        return None
    why = taken.evaluation_failure or "no worker answered"
    return Shortfall(
        kind="not-evaluated",
        words="not evaluated",
        detail=bounded(f"the model was not evaluated on its {counted(state.evaluate, 'held-out sample')}: {why}"),
        lacking=True,
    )


def _trained_again(state: ActuatorState, completed: JobCompleted) -> Shortfall | None:
    if state.runs_program and not state.samples_undone:
        return _perhaps_repeated(completed)
    samples = state.samples_undone + (completed.books.samples_recomputed if completed.books else 0)
    if not samples and not state.returned_to:
        return None
    returned = f"; the job returned to checkpoint {state.returned_to}" if state.returned_to else ""
    return Shortfall(
        kind="trained-again",
        words=f"{counted(samples, 'sample')} trained again" if samples else "returned to a checkpoint",
        detail=bounded(
            f"parameters were lost and came back from a checkpoint{returned}; known to have been trained again, and to "
            f"count once: {counted(samples, 'sample')}"
        ),
        lacking=False,
    )


def _perhaps_repeated(completed: JobCompleted) -> Shortfall | None:
    samples = completed.books.samples_recomputed if completed.books else 0
    if not samples:
        return None
    return Shortfall(
        kind="trained-again",
        words=f"at most {counted(samples, 'sample')} twice",
        detail=bounded(
            f"workers were lost in the middle of a shard: at most {counted(samples, 'sample')} reached the program a "
            "second time (at level 1, leased, no more is promised)"
        ),
        lacking=False,
    )


def _without_data_workers(state: ActuatorState) -> Shortfall | None:
    failures = state.failures_in_row["data"]
    if failures < data_workers.FAILURES_MAX:
        return None
    return Shortfall(
        kind="no-data-workers",
        words="without data workers",
        detail=bounded(
            f"{failures} data workers in a row died, so workers prepared every batch themselves; the last one: "
            f"{state.data_failure}"
        ),
        lacking=False,
    )


def _not_exportable(state: ActuatorState) -> Shortfall | None:
    if state.final_checkpoint or state.runs_program:
        return None
    return Shortfall(
        kind="no-export",
        words="cannot be exported",
        detail=(
            "the trained parameters went with the job's servers: checkpoint.every_s is null, which takes no final "
            "checkpoint; leave checkpoint.every_s at its default, or name checkpoint.url"
        ),
        lacking=False,
    )


def _stopped_early(completed: JobCompleted) -> Shortfall | None:
    if not completed.stopped:
        return None
    return Shortfall(
        kind="stopped-early",
        words="stopped early",
        detail=bounded(f"{completed.stopped}; {completed.samples_left:,} samples were left out"),
        lacking=False,
    )


def _programs_stopped(state: ActuatorState) -> Shortfall | None:
    running = sorted(pod.name for pod in state.of_role("worker") if pod.phase == "running")
    if not state.runs_program or not running:
        return None
    others = f" and {len(running) - 1} more" if len(running) > 1 else ""
    return Shortfall(
        kind="stopped-early",
        words="programs stopped",
        detail=bounded(
            f"{PROGRAM_END_S:g} s after the last sample the program of {running[0]}{others} had not ended, and was "
            "stopped: what it does at its end, such as to save a model, may be missing; let the program end sooner"
        ),
        lacking=True,
    )
