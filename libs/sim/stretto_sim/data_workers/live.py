"""Data workers as live jobs get them: each job's own ``Tuning`` asks for a number, and the arbiter shares them out.

Both are told what the services tell them. Plans are another matter here: a job has one plan from start to end, the
training workers that the simulation has placed, with the CPUs that they need. Nothing else of the job is known. A batch
is one of a training worker's in one step, so a step of the job has as many batches as the job has GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.machine import Emit
from stretto_core.model.sharing import Ranking
from stretto_core.model.types import DataWorkerLimits, JobLimits, JobOpened, JobProfile
from stretto_core.planner.tuning import Tuning, TuningState
from stretto_core.planner.tuning_rules import TuningRules
from stretto_messages.actuator import JobFinished, PlanApplied
from stretto_messages.arbiter import DataWorkersDecided, PlanDecided
from stretto_messages.base import Message
from stretto_messages.dispatcher import JobProgressed
from stretto_messages.planner import DataWorkersProposed, PlanProposed
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import FeedProfile, Plan, Resources, StepTimes

from stretto_sim.data_workers.trace import CPUS, Cluster, TraceJob

WINDOW_S = 30.0
"""Length of a window: the interval of GoldMiner's own tuning (§5.5). Live windows are shorter."""
QUIET = 4
"""Windows without a word after which another would tell the same: more than any rule of the tuning counts."""
NO_TIMES = StepTimes(emb_s=0.0, grad_s=0.0, upd_s=0.0, sync_s=0.0)
SERVER_CPUS = CPUS[0]
"""CPUs of the parameter server that a plan has at least: none in the experiment, so the arbiter gets them beside."""


class Sharing:
    """The arbiter's machine, told of jobs as they start, tune themselves and end. ``given``: data workers by job."""

    def __init__(self, cluster: Cluster, jobs_max: int, ranking: Ranking) -> None:
        room = Resources(cluster.all_cpus + jobs_max * 2 * SERVER_CPUS, 2**60)
        self._machine = ArbiterMachine(None, ArbiterSettings(room), ranking=ranking)
        self.given: dict[str, int] = {}

    def started(self, tuned: Tuned, now: float) -> None:
        """Open the job; it has its plan at once, whatever data workers other jobs have."""
        job, plan = tuned.name, tuned.plan
        profile = JobProfile(1, tuned.samples, JobLimits(plan, plan), fixed=True, data=tuned.tuning.limits)
        self.given[job] = 0
        self._tell(JobOpened(job, profile), now)
        reasons = ("the simulation has placed its training workers",)
        proposal = PlanProposed(job=job, kind="warm-start", plan=plan, cost_per_hour=0.0, reasons=reasons)
        if not any(isinstance(fact, PlanDecided) and fact.job == job for fact in self._tell(proposal, now)):
            raise AssertionError(f"the arbiter has no room for job {job}, which the nodes have room for")
        self._tell(PlanApplied(job=job, version=1, plan=plan, took_s=0.0), now)

    def progressed(self, job: str, done: int, samples: int, now: float) -> None:
        """Report the samples that the job has trained."""
        self._tell(
            JobProgressed(
                job=job, samples_done=done, samples_total=samples, epoch=0, samples_per_s=0.0, shards_leased=0,
                shards_requeued_total=0,
            ),
            now,
        )  # fmt: skip

    def proposed(self, proposal: DataWorkersProposed, now: float) -> None:
        """Hand on what a job's tuning asks for."""
        self._tell(proposal, now)

    def ended(self, job: str, samples: int, now: float) -> None:
        """Close the job: its plan and its data workers are free."""
        del self.given[job]
        self._tell(
            JobFinished(
                job=job, samples_expected=samples, samples_applied=samples, samples_lost=0, samples_repeated=0,
                repeats_recognised=0, rows=0,
            ),
            now,
        )  # fmt: skip

    def _tell(self, event: Message | JobOpened, now: float) -> list[object]:
        facts = [action.fact for action in self._machine.handle(event, now) if isinstance(action, Emit)]  # type: ignore[arg-type]  # one of the arbiter's events
        for fact in facts:
            if isinstance(fact, DataWorkersDecided):
                self.given[fact.job] = fact.count
        return facts


@dataclass(slots=True)
class Tuned:
    """The tuning of one job. ``count`` data workers since ``since_s``; ``quiet``: windows since the last news."""

    job: TraceJob
    name: str
    tuning: Tuning
    since_s: float
    count: int = 0
    quiet: int = 0

    @staticmethod
    def begun(job: TraceJob, name: str, cluster: Cluster, now: float) -> Tuned:
        """Return the state of a job that starts without data workers; the job's file states the size of one."""
        each = job.worker_cpus(cluster)
        limits = DataWorkerLimits(Resources(each, 0), most=int(cluster.all_cpus / each))
        return Tuned(job, name, Tuning(name, TuningState(), limits, TuningRules()), now)

    @property
    def samples(self) -> int:
        """Return the batches of the whole job."""
        return self.job.steps * self.job.gpus

    @property
    def plan(self) -> Plan:
        """Return the job's training workers as a plan."""
        return Plan(self.job.gpus, 1, max(self.job.trainer_cpus, CPUS[0]), SERVER_CPUS, 1, 1)

    @property
    def data_cpus(self) -> float:
        """Return the CPUs of its data workers."""
        return self.count * self.tuning.limits.each.cpu_cores

    @property
    def steps_per_s(self) -> float:
        """Return the speed of the job: while training workers wait for batches, their CPUs prepare some, too."""
        cpus_per_gpu = self.job.trainer_cpus + self.data_cpus / self.job.gpus
        return min(cpus_per_gpu / self.job.cpus_per_gpu, 1.0) / self.job.step_s_ideal

    @property
    def _enqueued_per_s(self) -> float:
        return self.data_cpus / self.job.data_cpus / self.job.step_s_ideal

    @property
    def due_s(self) -> float | None:
        """Return the end of the next window; None if another would tell the same."""
        return None if self.quiet >= QUIET else self.since_s + WINDOW_S

    def gets(self, count: int, now: float) -> None:
        """Have so many data workers from now on."""
        if count != self.count:
            self.count, self.since_s, self.quiet = count, now, 0
            self.tuning.decided(count)

    def measured(self, now: float, left_s: float) -> DataWorkersProposed | None:
        """Tell the tuning of the window; return what it asks for. ``left_s``: training that is left."""
        self.since_s, self.quiet = now, self.quiet + 1
        proposal = self.tuning.measured(self._window(), left_s, now)
        if proposal is not None:
            self.quiet = 0
        return proposal

    def _window(self) -> ProfileMeasured:
        job, ideal_per_s = self.job, 1 / self.job.step_s_ideal
        cpu_per_batch_s = job.data_cpus * job.step_s_ideal / job.gpus
        busy = self.steps_per_s / ideal_per_s
        feed = FeedProfile(
            dequeued_per_s=ideal_per_s * job.gpus,
            enqueued_per_s=self._enqueued_per_s * job.gpus,
            read_share=1 - busy,
            prepare_s=cpu_per_batch_s,
            prepare_cpu_s=cpu_per_batch_s,
            cpu_share=busy,
            lanes=self.count * self.tuning.limits.lanes,
        )
        return ProfileMeasured(
            job=self.name,
            plan_version=1,
            plan=self.plan,
            batch_size=1,
            window_s=WINDOW_S,
            step_time_s=1 / self.steps_per_s,
            times=NO_TIMES,
            throughput=self.steps_per_s * job.gpus,
            samples_total=0,
            categories=0,
            settled=True,
            feed=feed,
            workers=(),
            ps=(),
        )
