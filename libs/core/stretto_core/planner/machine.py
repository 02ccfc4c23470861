"""The machine that proposes one job's plans: its first plan, plans to measure, candidates of the Pareto front."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from stretto_messages.actuator import JobFailed, PlanApplied, PodStarted
from stretto_messages.arbiter import DataWorkersDecided, PlanDecided, PlanRefused
from stretto_messages.base import RATE_MAX
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.fitter import ModelFitted
from stretto_messages.gateway import DataWorkersRequested, JobCancelled
from stretto_messages.objects.decider import ObjectReleased
from stretto_messages.planner import (
    CandidatesComputed,
    HistoryMatched,
    HistoryRecorded,
    PlanProposed,
    PredictPlan,
    PredictPlanReply,
)
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import NOTHING, Interval, Plan, PlanKind, Resources, larger

from stretto_core.machine import Action, Emit
from stretto_core.model.mixed import MixedWorkers
from stretto_core.model.pareto import (
    NORMAL_90,
    CandidateAlgorithm,
    CandidateProblem,
    Comparison,
    Verified,
    exact_front,
    grid_within,
    thin,
    weigh,
    with_verified,
)
from stretto_core.model.throughput import (
    ENDLESS,
    Configuration,
    FittedModel,
    Inputs,
    Supply,
    measured_throughput,
    throughput,
)
from stretto_core.model.types import JobOpened, JobProfile
from stretto_core.planner.exploration import next_measurement
from stretto_core.planner.mixing import LEAST_LOG_SD, PlanTrial, fronts, measured_plan, trial
from stretto_core.planner.prediction import prediction
from stretto_core.planner.programs.elsewhere import proportional
from stretto_core.planner.programs.sizing import sized
from stretto_core.planner.staging import (
    first_stages,
    measured_ratios,
    sample_cost,
    staged_front,
    staged_trial,
    with_stages,
    without_stages,
)
from stretto_core.planner.state import PlannerSettings, PlanState
from stretto_core.planner.tuning import Tuning

PlannerEvent = (
    JobOpened
    | HistoryMatched
    | PlanDecided
    | PlanRefused
    | PlanApplied
    | PodStarted
    | DataWorkersDecided
    | DataWorkersRequested
    | JobProgressed
    | ProfileMeasured
    | ModelFitted
    | JobCompleted
    | JobCancelled
    | JobFailed
    | ObjectReleased
)

RATES_KEPT = 256
"""Rates of progress that are kept during one change."""
MIXES_KEPT = 8
"""Measured plans with workers on devices that are kept, the latest."""
STAGES_EVERY = 8
"""Settled windows between two looks at the candidates of a job in stages, once there are enough of them."""
REFUSED_S = 600.0
"""Time after which a plan that found no room is proposed again."""


class PlanMachine:
    """Proposes a warm start, then measurements, then the Pareto front whenever it has changed; one per job.

    Larger than 250 lines: all of it reads and writes the state of one job; its algorithms are in files of their own.
    """

    version = 7

    def __init__(
        self,
        state: PlanState | None = None,
        settings: PlannerSettings | None = None,
        algorithm: CandidateAlgorithm = exact_front,
        algorithm_name: str = "exact",
    ) -> None:
        self.state = state or PlanState()
        self.settings = settings or PlannerSettings(room=Resources(1e9, 2**60))
        self.algorithm, self.algorithm_name = algorithm, algorithm_name
        if self.state.profile is not None:  # types may have come, gone or another price since the state was saved
            self.state.profile = self.state.profile.among(self.settings.devices)

    @staticmethod
    def migrate(state: dict[str, Any], from_version: int) -> dict[str, Any]:
        """Continue a state of an earlier version: nothing was known of a watched program's use, or of types' speeds.

        The first stage is measured anew: its ratios were to predictions in which rows crossed to the next in no time.
        Before 6, speeds had no time; before 7, starts of workers were not timed.
        """
        later = [each for each in state.get("stage_ratios", ()) if each["stage"]]
        return state | {"stage_ratios": later}

    @property
    def ended(self) -> bool:
        """True once the job is over. Only a restore can open a completed one again."""
        return self.state.ended

    def handle(self, event: PlannerEvent, now: float) -> list[Action]:
        """Advance by one event of this job."""
        state = self.state
        if isinstance(event, JobOpened):
            return self._opened(event, now)
        if state.profile is None or not self._open_for(event):
            return []
        match event:
            case HistoryMatched():
                return self._matched(event)
            case PlanDecided(version=version) if version > state.decided_version:
                self._decided(event)
            case PlanRefused(kind="measure", wanted=wanted):
                state.refused.append(wanted)
                state.refused_at_s, state.pending = now, False
            case PlanApplied(version=version) if version > state.applied_version:
                return self._applied(event, state.profile)
            case JobProgressed() | PodStarted():
                self._noted(event)
            case DataWorkersDecided() | DataWorkersRequested():
                self._data_workers_told(event, state.profile)
            case ProfileMeasured():
                return self._measured(event, state.profile, now)
            case ModelFitted():
                return self._fitted(event, now)
            case JobCompleted() | JobCancelled() | JobFailed() | ObjectReleased():
                return self._ended(event, now)
            case _:
                pass
        return []

    def _open_for(self, event: PlannerEvent) -> bool:
        """Return True if the job is not over. Progress of a completed job means that a restore has taken it back."""
        if self.state.completed and isinstance(event, JobProgressed):
            self.state.ended = self.state.completed = False
        return not self.state.ended

    # ---- start ------------------------------------------------------------------------------------------------

    def _opened(self, event: JobOpened, now: float) -> list[Action]:
        state, profile = self.state, event.profile.among(self.settings.devices)
        if state.profile is not None:
            return []
        state.job, state.team, state.profile, state.submitted_s = event.job, event.team, profile, now
        if profile.initial is None:
            return []
        plan = profile.limits.clamp(profile.initial)
        reasons = ["the job's specification states this plan"]
        if plan != profile.initial:
            reasons.append(f"stated was {profile.initial.describe()}, which is outside the job's own limits")
        return self._start("initial", plan, reasons)

    def _matched(self, event: HistoryMatched) -> list[Action]:
        """Take the speeds of types that similar jobs measured; propose their smoothed plan, or the cold start."""
        state, profile = self.state, self.state.profile
        if profile is not None and event.speeds:
            state.profile = profile = replace(profile, speeds=event.speeds).among(self.settings.devices)
        if state.started or profile is None:
            return []
        if event.plan is None:
            why = (
                "no past job is similar enough" if profile.metadata else "without model.metadata no past job is similar"
            )
            return self._start("warm-start", self._cold_start(profile), [f"{why}: a small plan starts it"])
        closest = event.matches[-1]
        jobs = "1 similar past job" if len(event.matches) == 1 else f"{len(event.matches)} similar past jobs"
        by_similarity = sorted(closest.features.items(), key=lambda row: (-row[1], row[0]))
        reasons = [
            f"smoothed over {jobs} with mu = {event.smoothing:g} (Eq. 10)",
            f"closest is {closest.job}: similarity {closest.similarity:.2f}, share {closest.weight:.2f}, it ran"
            f" {closest.plan.describe()} at {closest.throughput:.0f} samples/s",
            "alike in " + ", ".join(f"{name} {value:.2f}" for name, value in by_similarity[:6]),
        ]
        return self._start("warm-start", profile.limits.clamp(event.plan), reasons)

    def _cold_start(self, profile: JobProfile) -> Plan:
        """Return the default first plan, on at most half of the cluster's cores: others need room to be measured."""
        default = self.settings.cold_start
        share = min(self._room(profile).cpu_cores / 2 / default.resources(profile.extended).cpu_cores, 1.0)
        smaller = replace(
            default,
            worker_cpu_cores=max(default.worker_cpu_cores * share, 0.1),
            ps_cpu_cores=max(default.ps_cpu_cores * share, 0.1),
        )
        return profile.limits.clamp(smaller)

    def _room(self, profile: JobProfile) -> Resources:
        """Return the part of the cluster that a plan of the job may take: its data workers have the rest."""
        return larger(self.settings.room - profile.data.of(profile.data.always), NOTHING)

    def _start(self, kind: PlanKind, plan: Plan, reasons: list[str]) -> list[Action]:
        assert self.state.profile is not None
        assert plan == self.state.profile.limits.clamp(plan), f"{plan} is outside the limits of {self.state.job}"
        self.state.started = self.state.pending = True
        cost = self.state.profile.cost_per_hour(plan)
        proposed = PlanProposed(job=self.state.job, kind=kind, plan=plan, cost_per_hour=cost, reasons=tuple(reasons))
        return [Emit(proposed)]

    # ---- events of the job ------------------------------------------------------------------------------------

    def _decided(self, event: PlanDecided) -> None:
        state = self.state
        state.decided_version, state.decided_previous = event.version, event.previous
        state.pending = False
        state.rates_while_changing, state.throughput_before = [], state.throughput
        if event.kind == "measure":
            state.explored += 1

    def _applied(self, event: PlanApplied, profile: JobProfile) -> list[Action]:
        """Note the plan in force. The change's time refines the expected overhead of changes of its kind (Eq. 8)."""
        state = self.state
        before, overheads = state.plan, state.overheads or self.settings.overheads
        state.plan, state.applied_version = event.plan, event.version
        state.settled_samples = state.settled_s = 0.0
        state.stage_windows = 0
        self._forget_refusals()
        state.decided_version = max(state.decided_version, event.version)
        if profile.elsewhere:
            return [Emit(proportional(state.job, event.version, event.plan, profile))]
        if before is None:
            return []
        moved, wasted_s = abs(event.plan.ps - before.ps), self._wasted_s(event.took_s)
        if moved:
            state.overheads = replace(overheads, ps_change_s=(overheads.ps_change_s + wasted_s / moved) / 2)
        elif event.plan.worker_places != before.worker_places:
            state.overheads = replace(overheads, worker_change_s=(overheads.worker_change_s + wasted_s) / 2)
        return []

    def _forget_refusals(self) -> None:
        """Propose refused plans again, and so resume an exploration that they ended: there may be room now."""
        if self.state.refused:
            self.state.refused, self.state.explored_enough = [], ""

    def _wasted_s(self, took_s: float) -> float:
        """Return the lost part of a change's time: training goes on at a lower rate while pods and parameters move."""
        state = self.state
        if not state.rates_while_changing or state.throughput_before <= 0:
            return took_s
        kept = sum(state.rates_while_changing) / len(state.rates_while_changing) / state.throughput_before
        return took_s * (1 - min(kept, 1.0))

    def _noted(self, event: JobProgressed | PodStarted) -> None:
        """Note how far the job is, or how long a worker on a device took to start."""
        state = self.state
        if isinstance(event, PodStarted):
            if event.role == "worker" and event.device and event.cause != "adopted":
                state.back_s = (self._back_s() + event.took_s) / 2
            return
        state.samples_done = event.samples_done  # less than before after a restore
        if state.decided_version > state.applied_version:
            state.rates_while_changing.append(event.samples_per_s)
            del state.rates_while_changing[:-RATES_KEPT]

    def _watched(self, event: ProfileMeasured, profile: JobProfile, now: float) -> list[Action]:
        """Size a program by what it uses: nobody knows its samples, so that no model is fitted to them."""
        state = self.state
        if not event.plan_version == state.applied_version == state.decided_version:
            return []
        most_cores = self._room(profile).cpu_cores
        found = sized(state.program, event, profile.limits, most_cores, now, self.settings.sizing, profile.fixed)
        if found is None:
            return []
        plan, reason = found
        kind: PlanKind = "improve" if plan.worker_memory_bytes == event.plan.worker_memory_bytes else "memory"
        cost = profile.cost_per_hour(plan)
        return [Emit(PlanProposed(job=state.job, kind=kind, plan=plan, cost_per_hour=cost, reasons=(reason,)))]

    def _measured(self, event: ProfileMeasured, profile: JobProfile, now: float) -> list[Action]:
        state = self.state
        if profile.watched:
            return self._watched(event, profile, now)
        fullest_bytes = max((ps.memory_used_bytes for ps in event.ps), default=0)
        state.ps_memory_peak_bytes = max(state.ps_memory_peak_bytes, fullest_bytes)
        if event.settled:
            state.feed = event.feed
        if event.settled and event.throughput > 0:
            state.throughput = event.throughput
            if event.plan_version == state.applied_version:
                state.settled_samples += event.throughput * event.window_s
                state.settled_s += event.window_s
        return self._tune(event, profile, now) or self._stages_measured(event, profile)

    def _stages_measured(self, event: ProfileMeasured, profile: JobProfile) -> list[Action]:
        """Note what the stages took; return advice, since no model is fitted to steps that pass stages."""
        state, fitted = self.state, self.state.model
        if event.plan.stages == 1 or not event.settled or event.plan_version != state.applied_version:
            return []
        state.stage_windows += 1
        if fitted is not None:
            state.stage_ratios = measured_ratios(self._workers(fitted, profile, event.plan), event, state.stage_ratios)
        beyond = state.stage_windows - self.settings.windows_min
        if beyond < 0 or beyond % STAGES_EVERY:
            return []
        return self._leave_stages(event, profile) if fitted is None else self._advise()

    def _leave_stages(self, event: ProfileMeasured, profile: JobProfile) -> list[Action]:
        """Return the trial of a plan of one stage, for a job that began with several and may have one."""
        state, plan = self.state, event.plan
        if profile.stages != "auto" or profile.fixed or state.pending or state.decided_version > state.applied_version:
            return []
        current = self._measured_stages(plan, event.batch_size)
        if current is None or current.throughput <= 0:
            return []
        found = without_stages(profile, plan, current.throughput)
        has_room = found.plan.resources(profile.extended).fits(self._room(profile)) and found.plan not in state.refused
        if not has_room or (proposed := self._trial(found, profile, plan, current)) is None:
            return []
        state.pending, state.mixes = True, [current]
        return [Emit(proposed)]

    def _workers(self, fitted: ModelFitted, profile: JobProfile, plan: Plan) -> MixedWorkers:
        model = FittedModel.of(fitted, self._supply(profile, plan))
        return MixedWorkers(model, fitted.batch_size, profile.devices, self._back_s(), tuple(self.state.stage_ratios))

    def _back_s(self) -> float:
        """Return the time until another worker trains after one was taken away."""
        known = self.state.back_s
        return self.settings.overheads.worker_change_s if known is None else known

    def _data_workers_told(self, event: DataWorkersDecided | DataWorkersRequested, profile: JobProfile) -> None:
        tuning = self._tuning(profile)
        if isinstance(event, DataWorkersDecided):
            tuning.decided(event.count)
        else:
            tuning.requested(event.count)
        self.state.tuning = tuning.state

    def _tuning(self, profile: JobProfile) -> Tuning:
        return Tuning(self.state.job, self.state.tuning, profile.data, self.settings.tuning)

    def _tune(self, event: ProfileMeasured, profile: JobProfile, now: float) -> list[Action]:
        """Return the number of data workers to ask for, if it is another. A change of plan comes first."""
        state = self.state
        if state.pending or not event.plan_version == state.applied_version == state.decided_version:
            return []
        left_s = self._remaining(profile) / event.throughput if event.throughput > 0 else 0.0
        proposed = self._tuning(profile).measured(event, left_s, now)
        return [Emit(proposed)] if proposed else []

    def _fitted(self, event: ModelFitted, now: float) -> list[Action]:
        self.state.model = event
        if self.state.profile is not None and self.state.profile.watched:
            return []
        if now - self.state.refused_at_s >= REFUSED_S:
            self._forget_refusals()
        return self._advise()

    def _ended(self, event: JobCompleted | JobCancelled | JobFailed | ObjectReleased, now: float) -> list[Action]:
        """Record a completed job in the history, with the plan that served it; a cancelled one for what it measured of
        types of devices."""
        state, profile, fitted = self.state, self.state.profile, self.state.model
        state.ended, state.completed = True, isinstance(event, JobCompleted)
        model = FittedModel.of(fitted) if fitted is not None else None
        speeds = tuple(replace(each, measured_at_s=now) for each in model.speeds(state.job)) if model else ()
        cancelled = isinstance(event, JobCancelled) and len(speeds) > 0
        recorded = state.completed or cancelled
        if not recorded or profile is None or state.plan is None or state.throughput <= 0:
            return []
        past = HistoryRecorded(
            job=state.job,
            metadata=dict(profile.metadata),
            plan=state.plan,
            throughput=state.settled_samples / state.settled_s if state.settled_s else state.throughput,
            duration_s=max(now - state.submitted_s, 0.0),
            ps_memory_peak_bytes=state.ps_memory_peak_bytes,
            samples=state.samples_done or profile.samples,
            model=model.known if model is not None else None,
            team=state.team,
            speeds=speeds,
            cancelled=cancelled,
        )
        return [Emit(past)]

    # ---- questions --------------------------------------------------------------------------------------------

    def predict(self, asked: PredictPlan) -> PredictPlanReply:
        """Return how fast the job would train under a plan, as its candidates are judged; it changes nothing."""
        profile, fitted, now = self.state.profile, self.state.model, self.state.plan
        if profile is None or fitted is None or now is None:
            return PredictPlanReply(job=asked.job, answer="no-model")
        workers = self._workers(fitted, profile, now)
        return PredictPlanReply(job=asked.job, answer="ok", prediction=prediction(workers, fitted, profile, asked.plan))

    # ---- advice -----------------------------------------------------------------------------------------------

    def _advise(self) -> list[Action]:
        """Return the next plan to measure or, once the model is known well enough, the candidates."""
        state, profile, fitted = self.state, self.state.profile, self.state.model
        if profile is None or fitted is None or state.plan is None or profile.fixed or state.pending:
            return []
        in_stages = state.plan.stages > 1
        figures_of = state.applied_version if in_stages else fitted.plan_version
        if not figures_of == state.applied_version == state.decided_version:
            return []  # a change is under way, or these figures are of an earlier plan
        if self._tuning(profile).is_trying:
            return []  # the next windows tell what data workers bring
        supply = self._supply(profile, state.plan)
        if in_stages:
            current = self._measured_stages(state.plan, fitted.batch_size)
        else:
            current = measured_plan(fitted, state.plan, supply, self.settings.windows_min)
        if current is None:
            return []
        kept = self._workers(fitted, profile, state.plan).kept(state.plan)
        current = replace(current, throughput=kept * current.throughput)  # no window was measured in which one was lost
        problem = self._problem(fitted, profile, state.plan, current)
        proposal = None if in_stages else self._next_trial(problem, current, profile, state.plan)
        if proposal is not None:
            state.pending = True
            return [Emit(proposal)]
        return self._candidates(problem, current, profile, state.plan)

    def _next_trial(
        self, problem: CandidateProblem, current: Verified, profile: JobProfile, plan: Plan
    ) -> PlanProposed | None:
        """Return the plan to measure next: an exploration, one on other devices, or in the stages asked for."""
        found = self._explore(problem, current, profile, plan) if not self.state.explored_enough else None
        if found is None and profile.devices:
            found = self._try_device(problem, current, profile, plan)
        if found is None and (best := self._cost_to_beat_by_stages(profile)) is not None:
            in_two = first_stages(problem, profile, plan, current, self.state.refused, best)
            found = self._trial(in_two, profile, plan, current)
        return found

    def _cost_to_beat_by_stages(self, profile: JobProfile) -> float | None:
        """Return the sample cost below which two stages are tried; None if they are not, or were measured."""
        if profile.stages == 2:
            return math.inf
        published = self.state.published
        if profile.stages != "auto" or self.state.stage_ratios or published is None:
            return None
        return min((sample_cost(each) for each in published.candidates if each.plan.stages == 1), default=None)

    def _measured_stages(self, plan: Plan, batch_size: int) -> Verified | None:
        """Return the plan as all its settled windows measured it; None before the least windows."""
        state = self.state
        if state.stage_windows < self.settings.windows_min:
            return None
        at = Configuration.of(plan, batch_size)
        return Verified(at, state.settled_samples / state.settled_s, LEAST_LOG_SD, plan.groups)

    def _problem(self, fitted: ModelFitted, profile: JobProfile, plan: Plan, current: Verified) -> CandidateProblem:
        supply = self._supply(profile, plan)
        verified = tuple(
            Verified(Configuration.measured(row), measured_throughput(row, supply), max(row.log_sd, LEAST_LOG_SD))
            for row in fitted.measured
            if row.windows >= self.settings.windows_min and not (row.device or row.mixed)
        )
        if plan.groups:  # what was measured is known, and remains so under another mix
            others = [
                mix
                for mix in self.state.mixes
                if (mix.configuration, mix.groups) != (current.configuration, plan.groups)
            ]
            self.state.mixes = [*others[-MIXES_KEPT + 1 :], current]
        verified += tuple(self.state.mixes)
        return CandidateProblem(
            model=FittedModel.of(fitted, supply),
            batch_size=fitted.batch_size,
            grid=grid_within(
                profile.limits, self._room(profile), plan, cpu_step=self.settings.cpu_step, extended=profile.extended
            ),
            prices=profile.prices,
            verified=verified,
            room=self._room(profile),
            seed=fitted.points,
            devices=profile.devices,
            back_s=self._back_s(),
            stage_ratios=tuple(self.state.stage_ratios),
        )

    def _supply(self, profile: JobProfile, plan: Plan) -> Supply:
        """Return how fast batches come under any plan, by those who prepare them now and may do so then."""
        feed = self.state.feed
        return ENDLESS if feed is None else self._tuning(profile).supply(feed, plan, self._room(profile).cpu_cores)

    def _remaining(self, profile: JobProfile) -> int:
        return max(profile.samples - self.state.samples_done, 0)

    def _explore(
        self, problem: CandidateProblem, current: Verified, profile: JobProfile, plan: Plan
    ) -> PlanProposed | None:
        """Return the next measurement, or None if exploration is over for this job; the state keeps the reason."""
        state, settings = self.state, self.settings
        choice = next_measurement(
            problem, plan, state.refused, state.explored, self._room(profile), settings.exploration
        )
        if choice.plan is None:
            state.explored_enough = choice.reasons[0]
            return None
        takes_s, left_s = self._measuring_s(plan, choice.plan), self._remaining(profile) / current.throughput
        if left_s < takes_s * (1 + settings.payback_factor):
            state.explored_enough = f"{left_s:.0f} s of training are left: a measurement of {takes_s:.0f} s"
            return None
        x = Inputs.of([Configuration.of(choice.plan, problem.batch_size)])
        expected = float(throughput(problem.model.step_time_s(x), x)[0])
        low_s, high_s = problem.model.interval_s(x)
        return PlanProposed(
            job=state.job,
            kind="measure",
            plan=choice.plan,
            cost_per_hour=profile.cost_per_hour(choice.plan),
            reasons=(*choice.reasons, f"measuring it takes about {takes_s:.0f} s of {left_s:.0f} s that are left"),
            throughput=expected,
            throughput_interval=Interval(
                low=_bounded(expected * float(problem.model.step_time_s(x)[0] / high_s[0])),
                high=_bounded(expected * float(problem.model.step_time_s(x)[0] / low_s[0])),
            ),
        )

    def _measuring_s(self, plan: Plan, wanted: Plan) -> float:
        """Return the time that a change to ``wanted`` wastes and its windows take."""
        wasted_s = (self.state.overheads or self.settings.overheads).seconds(plan, wanted)
        return wasted_s + self.settings.windows_min * self.settings.window_s

    def _try_device(
        self, problem: CandidateProblem, current: Verified, profile: JobProfile, plan: Plan
    ) -> PlanProposed | None:
        """Return the trial of a type of devices that may be cheaper, once each; its speed is unknown until then."""
        tried, refused = self.state.devices_tried, self.state.refused
        found = trial(problem, profile, plan, tried, refused)
        if found is None and profile.stages != 1:
            found = staged_trial(problem, profile, plan, current, tried, refused)
        proposed = self._trial(found, profile, plan, current)
        if found is not None and proposed is not None:
            tried.append(found.device)
        return proposed

    def _trial(
        self, found: PlanTrial | None, profile: JobProfile, plan: Plan, current: Verified
    ) -> PlanProposed | None:
        """Return the proposal of a trial that the rest of the job pays back; None if there is none."""
        if found is None:
            return None
        takes_s, left_s = self._measuring_s(plan, found.plan), self._remaining(profile) / current.throughput
        if left_s < takes_s * (1 + self.settings.payback_factor):
            return None
        return PlanProposed(
            job=self.state.job,
            kind="measure",
            plan=found.plan,
            cost_per_hour=profile.cost_per_hour(found.plan),
            reasons=(found.reason, f"measuring it takes about {takes_s:.0f} s of {left_s:.0f} s that are left"),
            throughput=_bounded(found.throughput),
            throughput_interval=Interval(
                low=_bounded(found.throughput * math.exp(-NORMAL_90 * found.log_sd)),
                high=_bounded(found.throughput * math.exp(NORMAL_90 * found.log_sd)),
            ),
        )

    def _candidates(
        self, problem: CandidateProblem, current: Verified, profile: JobProfile, plan: Plan
    ) -> list[Action]:
        """Return the Pareto front of the candidates, if it has changed since the published one."""
        state = self.state
        comparison = Comparison(
            current=plan,
            current_throughput=current.throughput,
            remaining_samples=self._remaining(profile),
            overheads=state.overheads or self.settings.overheads,
        )
        measured = {row.configuration for row in problem.verified}
        most = profile.limits.high.workers
        found, considered = fronts(problem, self.algorithm, plan, most)
        if profile.stages != 1:
            cheapest = min(found, key=sample_cost, default=None)
            staged = staged_front(problem, [plan, cheapest.plan] if cheapest else [plan], most)
            found, considered = with_stages(found, staged, profile.stages), considered + len(staged)
        known = with_verified(problem, found, plan)
        if profile.stages == 2:
            known = [each for each in known if each.plan.stages > 1]
        front = thin(known, self.settings.candidates_max, measured)
        fact = CandidatesComputed(
            job=state.job,
            plan_version=state.applied_version,
            plan=plan,
            throughput=comparison.current_throughput,
            algorithm=self.algorithm_name,
            plans_considered=considered,
            candidates=tuple(weigh(problem, front, comparison)),
            back_s=self._back_s() if any(each.interruptions_per_hour for each in profile.devices) else 0.0,
        )
        if not fact.candidates or not self._changed(fact):
            return []
        state.published = fact
        return [Emit(fact)]

    def _changed(self, fact: CandidatesComputed) -> bool:
        """Return True if the front differs from the published one by more than noise."""
        before = self.state.published
        if before is None or before.plan_version != fact.plan_version:
            return True
        if len(before.candidates) != len(fact.candidates):
            return True
        pairs = zip(before.candidates, fact.candidates, strict=True)
        return any(
            old.plan != new.plan
            or abs(math.log(new.throughput / old.throughput)) > self.settings.republish_change
            or (new.gain > 0) != (old.gain > 0)
            for old, new in pairs
        )


def _bounded(value: float) -> float:
    """Return an end of an interval within the rates that a message may carry, however wide the interval is."""
    return min(max(value, 0.0), RATE_MAX)
