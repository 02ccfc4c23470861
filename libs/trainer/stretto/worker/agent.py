"""The agent of a worker: it leases shards, trains them and reports."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from stretto_messages.actuator import DataWorkersChanged, GroupChanged, ServersChanged
from stretto_messages.dispatcher import NextShardReply
from stretto_messages.pods import (
    EvaluateModel,
    EvaluateModelReply,
    TrainUnder,
    TrainUnderReply,
    WorkerReported,
)
from stretto_messages.values import Evaluation, GroupMember, Shard, StepTimes

from ..batches.feed import DataWorkerList, Feed, window_bytes
from ..batches.preparation import fingerprint_of
from ..errors import BusError, DataError, ModelRefused, OwnershipUnknown, ServerLost, StrettoError
from ..pod.process import EXIT_OK, Pod, run_pod
from ..pod.servers import ServerList
from ..pod.warm_up import make_readers
from .leases import HEARTBEAT_S, Leases
from .program import build_program
from .step_timer import StepTimer, Window

if TYPE_CHECKING:
    from ..engine.client import Parameters
    from ..engine.layout import F32, KeyBatch
    from ..group.shared_dense import SharedDense
    from ..stages.asking import NextStage
    from ..stages.rows import RowsStage
    from .serving import ServedSteps
    from .step import Trainer, Work

log = logging.getLogger("stretto.worker")

_PATIENCE_S = 8.0
"""A push or pull that no server accepts fails after this time, so that the worker can check whether it is to leave."""
_EVALUATION_KEPT_S = 60.0
_PULL_AGAIN_S = 20.0
_PULL_PAUSE_S = 0.3
"""How long an evaluation repeats a pull from a server that is leaving, and the pause between tries."""
_ASK_AFTER_END_S = 2.0
_LINEAGE_PAUSE_S = 0.1
"""Pause before a worker asks again whose parameters and ledger have not both gone back to a checkpoint yet."""
_HOPELESS_SHARDS = 5
"""If the first shards fail, this many in a row, the fault is in the code and not in the data."""


class Worker:
    """A worker pod. Larger than 250 lines: connection, lease and model serve one loop."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._spec = pod.settings.spec
        self._meter = StepTimer()
        self._leases = Leases(pod.bus, pod.leaving)
        self._plan_version = pod.settings.plan_version
        self._cpu_cores = pod.settings.cpu_cores
        self._servers = ServerList(pod.bus, self._use_data_workers, self._use_group)
        self._shared_dense: SharedDense | None = None
        self._following: NextStage | None = None
        self._served: ServedSteps | None = None
        self._parameters: Parameters | None = None
        self._feed: Feed | None = None
        self._data_workers: DataWorkerList | None = None
        self._seeded = 0  # generation of the servers that were first offered initial values
        self._followed = 0  # version of the list of servers that a lease referred to
        self._evaluation = Evaluations(self)

    def run(self) -> int:
        bus = self._pod.bus
        if self._spec.resources.workers.stages != 1 or self._pod.settings.stage:
            from ..stages.asking import NextStage

            self._following = NextStage(self._pod.settings.index, self._pod.access, time.monotonic)
        bus.serve(TrainUnder, self._train_under)
        bus.serve(EvaluateModel, lambda request: self._evaluation.ask(request))
        bus.follow(ServersChanged, self._servers_changed)
        bus.follow(DataWorkersChanged, self._data_workers_changed)
        bus.follow(GroupChanged, lambda event: self._servers.take_group(event.version, event.workers))
        self._pod.detail("importing the model's framework")
        make_readers()
        self.program = build_program(self._pod)
        self._feed = Feed(self.program, window_bytes=window_bytes(self._pod.settings.memory_bytes))
        fingerprint = fingerprint_of(self._spec.model_dump(mode="json"), self.program.task)
        self._data_workers = DataWorkerList(self._feed, self._pod.access, fingerprint)
        self._pod.ready(self._join())
        self._pod.report_by(self._report)
        if not self._connect():
            return EXIT_OK
        if self._served is not None:
            assert self._parameters is not None
            return self._served.run(self._parameters, self._pod.leaving)
        self._pod.every(lambda: HEARTBEAT_S, self._leases.beat)
        return self._train()

    def _join(self) -> str:
        """Be there for a group or for stages, if the job has them; return the address where others reach the worker."""
        settings, workers = self._pod.settings, self._spec.resources.workers
        if settings.stage:
            from .serving import ServedSteps

            assert self._following is not None
            self._meter = StepTimer(are_apart=True)
            self._servers.ask()  # a part is warm only if the next stage's first layer is known
            self._served = ServedSteps(self.program, settings, self._pod.access, self._following, self._meter)
            return self._served.address
        if workers.dense != "group":
            return ""
        from ..group.shared_dense import SharedDense

        self._shared_dense = SharedDense(
            settings.index, self.program.layout, self._pod.access, settings.plane_address, time.monotonic
        )
        return self._shared_dense.address

    def _use_group(self, workers: Collection[GroupMember]) -> None:
        """Average dense gradients with the workers that have the same devices, or ask those of the next stage."""
        if self._following is not None:
            from ..stages.asking import Member

            stage = self._pod.settings.stage + 1
            found = {each.index: Member(each.address, each.first_layer) for each in workers if each.stage == stage}
            self._following.use(found)
        if self._shared_dense is not None:
            device = self._pod.settings.device
            self._shared_dense.use({each.index: each.address for each in workers if each.device == device})

    # --- servers ------------------------------------------------------------------------------------------

    def _connect(self) -> bool:
        """Wait until the actuator names servers, and connect; False if the pod is asked to leave before.

        Earlier events are ignored: they also name servers that are still being filled from a checkpoint.
        """
        from ..engine.client import Parameters
        from ..engine.transfer import Wire

        warming = ThreadPoolExecutor(1).submit(self.program.warm)
        while not self._pod.leaving.is_set():
            try:
                servers = self._servers.ask()
                if not servers:
                    self._pod.leaving.wait(0.2)
                    continue
                parameters = Parameters(
                    self.program.layout,
                    servers,
                    worker=self._pod.settings.index,
                    access=self._pod.access,
                    refresh_servers=self._servers.known,
                    patience_s=_PATIENCE_S,
                    wire=Wire.of(self._spec.model.transfer, self._spec.model.wire.model_dump()),
                )
                self._seeded = parameters.generation
                parameters.seed(self.program.initial_dense(), self.program.initial_state())
                if self._shared_dense is not None:
                    parameters.average_dense(self._shared_dense)
                self._parameters = parameters
                warming.result()
                log.info("connected to %s", servers)
                return True
            except (BusError, StrettoError) as error:
                if isinstance(error, (ModelRefused, DataError)):
                    raise
                log.warning("connecting: %s", error)
                self._pod.leaving.wait(0.5)
        return False

    def _servers_changed(self, event: ServersChanged) -> None:
        if self._parameters is not None and self._servers.take(event.version, event.servers):
            servers = {server.index: server.address for server in event.servers}
            log.info("servers version %d: %s", event.version, servers)
            self._parameters.connect(servers)

    def _data_workers_changed(self, event: DataWorkersChanged) -> None:
        if self._data_workers is not None:  # else they are asked for once the model is built
            self._servers.take_data_workers(event.version, event.data_workers)

    def _use_data_workers(self, addresses: Collection[str]) -> None:
        assert self._data_workers is not None
        if self._served is not None:
            return  # what a stage needs of a batch comes with each step
        log.info("data workers: %s", ", ".join(addresses) or "none")
        self._data_workers.use(addresses)

    def _follow_servers(self, version: int) -> bool:
        """Use the list of servers that a lease refers to, or a later one; False if the pod is to leave before."""
        assert self._parameters is not None
        if version > self._followed:
            if not self._servers.wait_for(version, self._pod.leaving):
                return False
            self._parameters.connect(self._servers.known())
            self._followed = version
        return True

    # --- training -----------------------------------------------------------------------------------------

    def _train(self) -> int:
        from .step import Trainer

        assert self._parameters is not None
        trainer = Trainer(
            self.program,
            self._parameters,
            self._spec.dataset.batch_size,
            self._meter,
            keep_going=lambda: not self._pod.leaving.is_set() and self._leases.current,
            passed=self._leases.passed,
            pipeline=self._spec.model.pipeline,
            pipeline_from_step=self._spec.model.pipeline_from_step,
            feed=self._feed,
            stage=self._rows_stage(self._parameters),
        )
        failures = 0
        generation = 0
        seeded = self._seeded
        while not self._pod.leaving.is_set():
            if not self._leases.asking:
                # read before the request is sent: the lease does not refer to servers that are replaced after it
                generation = self._parameters.generation
                if generation != seeded:
                    if not self._seed():
                        continue
                    seeded = generation
            reply = self._next(generation)
            if reply is None:
                self._meter.idle()
            elif reply.shard is None or not _is_of(self._parameters, reply.lineage):
                self._idle(reply)
            elif reply.shard.kind == "evaluate":
                self._evaluate_shard(reply.shard)
            elif (failure := self._train_shard(trainer, reply.lineage)) is None:
                failures = 0
            else:
                failures += 1
                if failures >= _HOPELESS_SHARDS and not self._meter.steps_total:
                    raise DataError(f"the first {failures} shards all failed; the last error: {failure}")
        return EXIT_OK

    def _rows_stage(self, parameters: Parameters) -> RowsStage | None:
        if self._following is None:
            return None
        from ..parts import FIRST_LAYER
        from ..stages.rows import RowsStage

        return RowsStage(parameters, self._following, self.program.part(FIRST_LAYER, None))

    def _next(self, generation: int) -> NextShardReply | None:
        """Ask for a shard; None without an answer, or if the pod is to leave before its servers are known."""
        reply = self._leases.next(generation)
        if reply is None:
            return None
        if reply.shard is not None and not self._follow_servers(reply.servers_version):
            self._leases.release(reply.shard.offset)
            return None
        if reply.forget:
            self._forget(reply.forget, reply.lineage)
        return reply

    def _idle(self, reply: NextShardReply) -> None:
        """Wait before the next request: there is nothing to train now."""
        self._meter.idle()
        if reply.answer == "end":
            log.info("the job has no more shards")
            # a worker that starts while the job returns to a checkpoint may ask before the ledger has returned
            self._pod.leaving.wait(_ASK_AFTER_END_S)
        elif reply.shard is None:
            self._leases.wait(reply)
        else:
            self._leases.drop()  # the same shard comes again, or another one once the ledger has gone back
            self._pod.leaving.wait(_LINEAGE_PAUSE_S)

    def _work(self, shard: Shard, lineage: int) -> Work:
        from .step import Work

        return Work(
            shard=shard.id,
            attempt=shard.attempt,
            start=shard.start,
            length=shard.length,
            offset=shard.offset,
            generation=self._leases.generation,
            partition=shard.partition,
            lineage=lineage,
            steps_before=shard.id * self._spec.dataset.batches_per_shard,  # shards are numbered as they are leased
        )

    def _train_shard(self, trainer: Trainer, lineage: int) -> DataError | None:
        """Train the leased shard; return the error if its data failed."""
        shard, ahead = self._leases.shard, self._leases.ahead
        assert shard is not None
        attributes = {"shard": shard.id, "attempt": shard.attempt, "start": shard.start, "length": shard.length}
        with self._pod.tracing.span("train shard", attributes=attributes):
            try:
                following = self._work(ahead, lineage) if ahead is not None else None
                stopped = trainer.train(self._work(shard, lineage), following)
            except DataError as error:
                log.error("shard %d failed: %s", shard.id, error)
                self._leases.release(self._leases.offset, failure=str(error))
                self._meter.idle()
                return error
            except ModelRefused as error:
                self._leases.release(self._leases.offset, failure=str(error))
                raise
        if stopped is None:
            self._leases.completed()
            if self._pod.leaving.is_set():
                self._hand_in()
        elif stopped.stale or not self._leases.current:
            self._leases.drop()
        else:
            self._leases.release(stopped.offset)
        return None

    def _evaluate_shard(self, shard: Shard) -> None:
        """Evaluate a held-out shard, a part of an evaluation by all workers. Its time counts for no step."""
        from ..model.evaluate import evaluate_part

        def go_on(passed: int) -> bool:
            self._leases.passed(passed)  # else the dispatcher would take the worker for hanging
            return not self._pod.leaving.is_set() and self._leases.current

        samples = range(shard.start, shard.start + shard.length)
        attributes = {"shard": shard.id, "start": shard.start, "length": shard.length}
        with self._pod.tracing.span("evaluate shard", attributes=attributes):
            try:
                batch_size = self._spec.dataset.batch_size
                found = evaluate_part(self.program, self._pull, samples, batch_size, shard.partition, go_on)
            except DataError as error:
                log.error("held-out shard %d failed: %s", shard.id, error)
                self._leases.release(0, failure=str(error))
            except (ServerLost, OwnershipUnknown) as error:
                log.warning("held-out shard %d: %s", shard.id, error)
                self._leases.release(0)
            else:
                if found is not None:
                    self._leases.completed(found)
                    if self._pod.leaving.is_set():
                        self._hand_in()
                elif self._leases.current:
                    self._leases.release(0)
                else:
                    self._leases.drop()
        self._meter.idle()

    def _pull(self, keys: KeyBatch) -> tuple[tuple[F32, ...], F32, F32]:
        if self._parameters is None:
            raise BusError("the worker is not connected to the parameter servers yet; ask again")
        deadline_s = time.monotonic() + _PULL_AGAIN_S
        while True:
            try:
                pulled = self._parameters.pull(keys)
            except (ServerLost, OwnershipUnknown) as error:
                # a server that has just left: the next try finds the new owner of its columns
                log.warning("pull for an evaluation: %s", error)
                if time.monotonic() > deadline_s or self._pod.leaving.wait(_PULL_PAUSE_S):
                    raise
            else:
                return pulled.rows, pulled.dense, pulled.state

    def _hand_in(self) -> None:
        """Report the last shard on leaving; a shard that the reply leases is returned at once."""
        reply = self._leases.next(self._leases.generation)
        if reply is not None and reply.shard is not None:
            self._leases.release(reply.shard.offset)

    def _seed(self) -> bool:
        """Offer initial values to servers that replaced lost ones: without a checkpoint they begin at zero."""
        assert self._parameters is not None
        try:
            self._parameters.seed(self.program.initial_dense(), self.program.initial_state())
        except (ServerLost, OwnershipUnknown) as error:
            log.warning("seeding: %s", error)
            self._pod.leaving.wait(0.5)
            return False
        return True

    def _forget(self, shards: tuple[int, ...], lineage: int) -> None:
        assert self._parameters is not None
        try:
            self._parameters.forget(shards, lineage)
        except StrettoError as error:
            # the records stay: 0.6 kB each, and no harm to correctness
            log.warning("forget: %s", error)

    # --- reports and requests -----------------------------------------------------------------------------

    def _report(self) -> None:
        assert self._feed is not None
        window = self._meter.window()
        told = _reported(self._pod, window, self._feed, self._plan_version, self._cpu_cores)
        if self._parameters is not None:
            sent, exact = self._parameters.step_bytes()
            told = replace(told, step_bytes=sent, step_bytes_exact=exact)
        self._pod.bus.report(told)

    def _train_under(self, request: TrainUnder) -> TrainUnderReply:
        self._plan_version = request.plan_version
        self._cpu_cores = request.cpu_cores
        return TrainUnderReply(job=request.job)

    def evaluate(self, samples: int) -> Evaluation:
        """Evaluate on the held-out samples: a partition, or samples behind the training data. Raises StrettoError."""
        from ..model.evaluate import evaluate, evaluation_of

        data = self._spec.dataset
        start = 0 if data.partitioned else data.samples
        quality = evaluate(self.program, self._pull, start, samples, data.batch_size, data.held_out or "")
        return evaluation_of(quality)


def _is_of(parameters: Parameters, lineage: int) -> bool:
    """Return True if the parameters come from the same return to a checkpoint as the ledger.

    Else one of both is behind, and nothing of the one may go into the other.
    """
    try:
        return parameters.is_of(lineage)
    except (ServerLost, OwnershipUnknown) as error:
        log.warning("where the columns are: %s", error)
        return False


def _reported(pod: Pod, window: Window, feed: Feed, plan_version: int, cpu_cores: float) -> WorkerReported:
    used = pod.usage.measure()
    prepare_s, prepare_cpu_s = feed.prepare_s()
    return WorkerReported(
        job=pod.settings.job,
        pod=pod.settings.pod,
        plan_version=plan_version,
        ended_at_s=time.time(),
        window_s=used.window_s,
        steps=window.steps,
        steps_total=window.steps_total,
        samples_total=window.samples_total,
        step_time_s=window.step_s,
        longest_gap_s=window.longest_gap_s,
        times=StepTimes(
            emb_s=window.times.rows_s,
            grad_s=window.times.gradient_s,
            upd_s=window.times.update_s,
            sync_s=max(0.0, window.times.sync_s),
            read_s=window.times.read_s,
        ),
        prepared_elsewhere=feed.share_elsewhere(),
        prepare_s=prepare_s,
        prepare_cpu_s=prepare_cpu_s,
        cpu_used_cores=used.cpu_cores,
        cpu_limit_cores=cpu_cores,
        memory_used_bytes=used.memory_bytes,
        memory_limit_bytes=pod.settings.memory_bytes,
        stage=pod.settings.stage,
    )


class Evaluations:
    """Runs one evaluation at a time in a thread; a repeated request returns its state."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._samples = 0
        self._reply: EvaluateModelReply | None = None
        self._ended_s = 0.0

    def ask(self, request: EvaluateModel) -> EvaluateModelReply:
        running = EvaluateModelReply(job=request.job, state="running")
        with self._lock:
            if self._reply is not None:
                if self._reply.state == "running":
                    return self._reply
                if self._samples == request.samples and time.monotonic() - self._ended_s < _EVALUATION_KEPT_S:
                    return self._reply
            self._samples = request.samples
            self._reply = running
        threading.Thread(target=self._run, args=(request,), name="evaluate", daemon=True).start()
        return running

    def _run(self, request: EvaluateModel) -> None:
        try:
            evaluation = self._worker.evaluate(request.samples)
            reply = EvaluateModelReply(job=request.job, state="done", evaluation=evaluation)
        except Exception as error:
            log.exception("evaluation failed")
            reply = EvaluateModelReply(
                job=request.job, state="failed", detail=f"{type(error).__name__}: {error}"[:2000]
            )
        with self._lock:
            self._reply = reply
            self._ended_s = time.monotonic()


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    run_pod("worker", lambda pod: Worker(pod).run())
