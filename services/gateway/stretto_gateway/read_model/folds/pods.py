"""Folds of events about pods, migrations, shards and checkpoints."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import singledispatchmethod

from stretto_core.checkpoints.names import is_final
from stretto_messages.actuator import (
    MigrationFinished,
    MigrationStarted,
    ParametersLost,
    PodExited,
    PodPending,
    PodResized,
    PodStarted,
    ReplacementAsked,
    ReplacementEnded,
)
from stretto_messages.arbiter import ReplacementDecided
from stretto_messages.base import Message
from stretto_messages.checkpoints import (
    CheckpointFailed,
    CheckpointFlushed,
    CheckpointRestored,
    CheckpointSaved,
    ColumnsRestored,
)
from stretto_messages.dispatcher import RecomputationDecided, ShardAbandoned, ShardCompleted, ShardLeased, ShardRequeued
from stretto_messages.values import CheckpointRef
from stretto_wire.rest import views

from .fold import Fold, push
from .job import judge

PODS_KEPT = 1000
REPLACEMENTS = 100
PENDING = "cannot run yet"
LEASED_KEPT = 10_000
"""Number of leases in the view: as many as a job may have workers."""


class PodFold(Fold):
    """Fold of events about pods, migrations, shards and checkpoints."""

    @singledispatchmethod
    def fold(self, message: Message) -> None:
        """Ignore messages of other kinds."""

    # pods --------------------------------------------------------------------------------------------------------

    @fold.register
    def _(self, message: PodStarted) -> None:
        pods = self.view.pods
        pods[message.pod] = views.PodView(
            pod=message.pod,
            role=message.role,
            plan_version=message.plan_version,
            cause=message.cause,
            address=message.address,
            started_at_s=self.time_s,
            took_s=message.took_s,
            limits=message.limits,
            cpu_limit_cores=message.cpu_cores,
            memory_limit_bytes=message.memory_bytes,
        )
        self._drop_exited()
        if message.cause == "relaunch" and self.view.phases[-1].kind == "recovering":
            self._enter("steady", f"plan {self.view.plan_version}")

        if self.view.reason.startswith(f"{message.pod} {PENDING}"):
            self.view.reason = ""

    @fold.register
    def _(self, message: PodPending) -> None:
        pod = self.view.pods.setdefault(message.pod, views.PodView(message.pod, message.role, "pending"))
        if pod.state != "pending":
            return
        self._drop_exited()
        pod.pending_since_s = pod.pending_since_s or self.time_s
        pod.pending_reason, pod.pending_detail = message.reason, message.detail
        if self.view.status == "starting":  # the reason why it does not train yet
            self.view.reason = f"{message.pod} {PENDING} ({message.reason}): {message.detail}"

    @fold.register
    def _(self, message: ReplacementAsked) -> None:
        push(self.view.replacements, views.Replacement(message.pod, self.time_s), REPLACEMENTS)

    @fold.register
    def _(self, message: ReplacementDecided) -> None:
        if (found := self._replacement(message.pod)) is not None:
            found.decided_at_s, found.granted, found.reasons = self.time_s, message.granted, message.reasons

    @fold.register
    def _(self, message: ReplacementEnded) -> None:
        if (found := self._replacement(message.pod)) is not None:
            found.ended_at_s = self.time_s

    def _replacement(self, pod: str) -> views.Replacement | None:
        return next((one for one in reversed(self.view.replacements) if one.pod == pod), None)

    @fold.register
    def _(self, message: PodExited) -> None:
        pod = self.view.pods.setdefault(message.pod, views.PodView(pod=message.pod, role=message.role))
        self._drop_exited()
        pod.state, pod.exited_at_s = "exited", self.time_s
        pod.exit_reason, pod.exit_code, pod.detail = message.reason, message.exit_code, message.detail
        pod.again_at_s = self.time_s + message.again_in_s if message.again_in_s else None
        pod.straggler = pod.hot = False
        unwanted = message.reason not in ("completed", "stopped")
        if unwanted and self.view.status not in (*views.OVER, "finishing"):
            self._enter("recovering", f"{message.pod} {message.reason}")
            if self.view.status == "starting":  # the reason why it does not train yet
                self.view.reason = f"{message.pod} {message.reason}: {message.detail}"

    def _drop_exited(self) -> None:
        if len(self.view.pods) > PODS_KEPT:
            gone = next((name for name, pod in self.view.pods.items() if pod.state == "exited"), None)
            if gone is not None:
                del self.view.pods[gone]

    @fold.register
    def _(self, message: ParametersLost) -> None:
        push(self.view.losses, views.Loss(self.time_s, message.pod, message.version))

    @fold.register
    def _(self, message: ColumnsRestored) -> None:
        if (loss := self._loss(message.loss)) is not None:
            loss.checkpoint, loss.columns = message.checkpoint.id, message.columns
            loss.size_bytes, loss.restored_at_s = message.size_bytes, self.time_s

    @fold.register
    def _(self, message: RecomputationDecided) -> None:
        if (loss := self._loss(message.loss)) is None:
            return
        loss.samples_recomputed, loss.refused = message.samples, message.reason
        if message.granted and self.view.phases[-1].kind == "recovering":
            self._enter("steady", f"plan {self.view.plan_version}")

    def _loss(self, version: int) -> views.Loss | None:
        return next((loss for loss in self.view.losses if loss.version == version), None)

    @fold.register
    def _(self, message: PodResized) -> None:
        pod = self.view.pods.get(message.pod)
        before = pod.memory_limit_bytes if pod else None
        push(
            self.view.resizes,
            views.Resize(self.time_s, message.pod, message.cpu_cores, message.memory_bytes, before),
        )
        if pod is not None:
            pod.cpu_limit_cores, pod.memory_limit_bytes = message.cpu_cores, message.memory_bytes

    @fold.register
    def _(self, message: MigrationStarted) -> None:
        migration = views.Migration(
            message.plan_version,
            message.cause,
            message.sources,
            message.destinations,
            message.buckets,
            self.time_s,
        )
        push(self.view.migrations, migration)
        self._enter("migrating", f"{message.buckets} buckets ({message.cause})")

    @fold.register
    def _(self, message: MigrationFinished) -> None:
        for migration in reversed(self.view.migrations):
            if migration.finished_at_s is None:
                migration.finished_at_s = self.time_s
                migration.moved_bytes, migration.took_s = message.moved_bytes, message.took_s
                migration.longest_freeze_s = message.longest_freeze_s
                break
        if self.view.phases[-1].kind == "migrating":
            self._enter("applying", f"plan {self.view.plan_version}")

    # shards and checkpoints --------------------------------------------------------------------------------------

    @fold.register
    def _(self, message: ShardLeased) -> None:
        self._train()
        shards = self.view.shards
        # a worker holds one lease at a time, and a job with very many shards does not publish every completion
        former = self.evidence.leases.pop(message.pod, "")
        if shards.leased.get(former) == message.pod:
            del shards.leased[former]
        self.evidence.leases[message.pod] = shard = str(message.shard.id)
        shards.leased[shard] = message.pod
        for known in (shards.leased, self.evidence.leases):
            if len(known) > LEASED_KEPT:
                del known[next(iter(known))]
        shards.leases += 1

    @fold.register
    def _(self, message: ShardCompleted) -> None:
        self.view.shards.leased.pop(str(message.shard.id), None)
        self.view.shards.completed += 1

    @fold.register
    def _(self, message: ShardRequeued) -> None:
        self.view.shards.leased.pop(str(message.shard.id), None)
        self.view.shards.requeued += 1

    @fold.register
    def _(self, message: ShardAbandoned) -> None:
        self.view.shards.leased.pop(str(message.shard.id), None)
        self.view.shards.abandoned += 1

    @fold.register
    def _(self, message: CheckpointSaved) -> None:
        view = views.CheckpointView(message.checkpoint.id, "cached", self.time_s, message.checkpoint, message.pause_s)
        push(self.view.checkpoints, view)

    @fold.register
    def _(self, message: CheckpointFlushed) -> None:
        self._stage(message.checkpoint.id, "stored", message.checkpoint)
        if message.best:
            self.view.best_checkpoint = message.checkpoint
        self.view.stored_bytes = message.stored_bytes
        if is_final(message.checkpoint.id):
            self._forget_final_failure()
            self._judge()

    @fold.register
    def _(self, message: CheckpointRestored) -> None:
        self._stage(message.checkpoint.id, "restored", message.checkpoint)
        for loss in self.view.losses:  # a loss whose columns did not come back without a return to this checkpoint
            if loss.restored_at_s is None or loss.refused:
                loss.checkpoint, loss.returned_at_s = message.checkpoint.id, loss.returned_at_s or self.time_s

    @fold.register
    def _(self, message: CheckpointFailed) -> None:
        self._stage(message.id, "failed", None).detail = message.reason
        if is_final(message.id):
            self.view.final_checkpoint_failure = message.reason
            if self.view.status == "finishing":
                self.view.reason = f"its final checkpoint is not stored: {message.reason.removeprefix('not stored: ')}"
                if (at_s := message.next_try_at_s) is not None:
                    next_try = f"{datetime.fromtimestamp(at_s, UTC):%H:%M:%S} UTC"
                    self.view.reason += f"; mend the store before the next try, at {next_try}"
            self._judge()

    def _judge(self) -> None:
        """Say how the job ended if it is finished already, because it has not waited for its final checkpoint."""
        if self.view.status == "finished":
            judge(self.view)

    def _stage(self, id: str, stage: views.CheckpointStage, checkpoint: CheckpointRef | None) -> views.CheckpointView:
        found = next((view for view in self.view.checkpoints if view.id == id), None)
        if found is None:
            found = views.CheckpointView(id, "cached", self.time_s, checkpoint)
            push(self.view.checkpoints, found)
        found.stage, found.time_s = stage, self.time_s
        return found
