"""Checkpoints: taken in time, never across a migration, the last complete one stands, and the way back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from stretto_core.checkpoints import facts as c
from stretto_core.checkpoints.machine import CheckpointMachine
from stretto_core.machine import Tick

POLICY = c.JobSubmitted("job", "file:/store/job", every_s=10.0, keep=2, final=True)


class Job:
    """A machine and everything it told."""

    def __init__(self, policy: c.JobSubmitted = POLICY) -> None:
        self.machine = CheckpointMachine()
        self.now = 100.0
        self.facts: list[Any] = []
        self.tell(policy)

    @property
    def state(self) -> c.CheckpointState:
        return self.machine.state

    def tell(self, event: Any) -> list[Any]:
        facts = [a.fact if hasattr(a, "fact") else a.body for a in self.machine.handle(event, self.now)]
        self.facts += facts
        return facts

    def told(self, kind: type) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def serve(self, version: int = 1, servers: tuple[int, ...] = (0, 1)) -> None:
        self.tell(c.ServersChanged(version, servers))

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.tell(Tick())

    def save(self) -> str:
        assert self.state.attempt is not None
        name = self.state.attempt.id
        self.tell(c.Saved(name, "ledger", 500, 1000, 0.1, 0.5))
        return name

    def complete(self) -> str:
        name = self.save()
        self.tell(c.Stored(name, 1.0))
        return name


def test_periodic_checkpoints_are_saved_flushed_and_expire() -> None:
    job = Job()
    job.serve()
    names = [job.complete()]
    for _ in range(2):
        job.after(9)
        assert job.state.attempt is None
        job.after(1)
        names.append(job.complete())
    assert names == ["job-000001", "job-000002", "job-000003"]
    saved, flushed = job.told(c.CheckpointSaved), job.told(c.CheckpointFlushed)
    assert [fact.checkpoint.id for fact in saved] == [fact.checkpoint.id for fact in flushed] == names
    assert saved[0].checkpoint.url == "file:/store/job/job-000001/manifest.json"
    assert [kept.id for kept in job.state.complete] == names[1:]
    assert job.state.expired == ["file:/store/job/job-000001/manifest.json"]


def test_never_while_parameters_move_and_at_once_after() -> None:
    job = Job()
    job.serve()
    job.complete()
    job.facts.clear()
    job.tell(c.MigrationStarted())
    job.after(20)
    assert job.state.attempt is None
    assert job.tell(c.SaveAsked())[0].answer == "busy"
    job.tell(c.MigrationFinished())
    assert job.state.attempt is not None
    job.tell(c.MigrationStarted())
    assert job.state.attempt is None
    assert "migration" in job.told(c.CheckpointFailed)[0].reason
    job.tell(c.Saved("job-000002", "late", 1, 1, 0.0, 0.0))
    assert job.told(c.CheckpointSaved) == []
    job.tell(c.MigrationFinished())
    assert job.state.attempt is not None
    assert job.state.attempt.id == "job-000003"


def test_the_first_is_taken_at_once_and_tried_again_soon_until_it_is_complete() -> None:
    job = Job(c.JobSubmitted("job", "file:/store/job", every_s=300.0))
    job.serve()
    for _ in range(3):
        assert job.state.attempt is not None
        job.tell(c.Broken(job.state.attempt.id, "the store is away"))
        job.after(29)
        assert job.state.attempt is None
        job.after(1)
    first = job.complete()
    assert [fact.reason for fact in job.told(c.CheckpointFailed)] == ["the store is away"] * 3
    job.after(299)
    assert job.state.attempt is None
    assert lost(job).url.endswith(f"{first}/manifest.json"), "the way back to the beginning"


def test_flushing_goes_on_during_a_migration() -> None:
    job = Job()
    job.serve()
    job.after(10)
    name = job.save()
    job.tell(c.MigrationStarted())
    job.tell(c.Stored(name, 1.0))
    assert len(job.told(c.CheckpointFlushed)) == 1


def test_failure_leaves_the_previous_one_standing() -> None:
    job = Job()
    job.serve()
    job.after(10)
    first = job.complete()
    job.after(10)
    assert job.state.attempt is not None
    job.tell(c.Broken(job.state.attempt.id, "disk full"))
    assert job.told(c.CheckpointFailed)[0].reason == "disk full"
    assert [kept.id for kept in job.state.complete] == [first]
    job.after(10)
    job.complete()
    assert len(job.state.complete) == 2


def test_last_checkpoint_follows_the_last_shard_even_behind_another() -> None:
    job = Job()
    job.serve()
    job.after(10)
    job.save()
    job.tell(c.JobCompleted())
    assert job.state.attempt is not None
    assert not job.state.attempt.final
    job.tell(c.Stored(job.state.attempt.id, 1.0))
    last = job.complete()
    assert c.is_final(last)
    job.after(100)
    assert job.state.attempt is None


def test_of_a_finished_job_its_last_checkpoint_stays_and_of_a_failed_one_all() -> None:
    for ended, left in ((c.JobEnded(finished=True), 1), (c.JobEnded(), 2)):
        job = Job()
        job.serve()
        job.complete()
        job.tell(c.JobCompleted())
        last = job.complete()
        job.tell(ended)
        assert len(job.state.complete) == left
        assert job.state.complete[-1].id == last
        assert len(job.state.expired) == 2 - left
    job = Job(c.JobSubmitted("job", "file:/store/job", keep=40))
    for number in range(20):
        job.serve(number + 1)
        job.tell(c.SaveAsked())
        job.complete()
    job.tell(c.JobEnded(finished=True))
    assert len(job.state.complete) == 20, "without a last one, those that somebody asked for stay"


def test_on_demand_only() -> None:
    job = Job(c.JobSubmitted("job", "file:/store/job"))
    assert not job.machine.ticking
    assert job.tell(c.SaveAsked())[0].answer == "busy"
    job.serve()
    job.after(1000)
    answer = job.tell(c.SaveAsked())[0]
    assert (answer.answer, answer.id) == ("begun", "job-000001")
    assert job.tell(c.SaveAsked())[0].answer == "busy"
    job.complete()
    job.tell(c.JobCompleted())
    assert job.state.attempt is None
    job.tell(c.JobEnded())
    assert job.tell(c.SaveAsked())[0].answer == "unknown"
    assert CheckpointMachine().handle(c.SaveAsked(), 1.0)[0].body.answer == "unknown"  # type: ignore[union-attr]


def test_lost_parameters_come_back_to_new_servers_from_the_last_complete_one() -> None:
    job = Job()
    job.serve()
    job.after(10)
    name = job.complete()
    job.after(10)
    job.tell(c.ServersChanged(2, ()))
    assert "lost" in job.told(c.CheckpointFailed)[0].reason
    assert not c.is_restore(job.told(c.CheckpointFailed)[0].id)
    job.after(50)
    assert job.state.attempt is None
    job.serve(3, (2, 3, 4))
    restore = job.state.restore
    assert restore is not None
    assert (restore.url, restore.servers) == (f"file:/store/job/{name}/manifest.json", [2, 3, 4])
    reference = job.state.complete[0]
    job.tell(c.Loaded(restore.id, reference, "ledger", (2, 3, 4)))
    job.tell(c.Loaded(restore.id, reference, "ledger", (2, 3, 4)))
    (restored,) = job.told(c.CheckpointRestored)
    assert (restored.ps, restored.ledger, restored.checkpoint.id) == (3, "ledger", name)
    job.after(10)
    assert job.state.attempt is not None


def test_damaged_checkpoint_falls_back_to_the_one_before() -> None:
    job = Job()
    job.serve()
    for _ in range(2):
        job.after(10)
        job.complete()
    job.tell(c.ServersChanged(2, ()))
    job.serve(3, (2, 3))
    assert job.state.restore is not None
    job.tell(c.Broken(job.state.restore.id, "checksum differs", damaged=True))
    assert job.state.restore is not None
    assert job.state.restore.url.endswith("job-000001/manifest.json")
    job.tell(c.Broken(job.state.restore.id, "checksum differs", damaged=True))
    failed = job.told(c.CheckpointFailed)[-1]
    assert c.is_restore(failed.id)
    assert failed.reason == "checksum differs"


def test_lost_parameters_without_a_checkpoint_are_told() -> None:
    job = Job(c.JobSubmitted("job", "file:/store/job"))
    job.serve()
    job.tell(c.ServersChanged(2, ()))
    job.serve(3, (1,))
    (failed,) = job.told(c.CheckpointFailed)
    assert c.is_restore(failed.id)
    assert "no complete checkpoint" in failed.reason


def test_job_from_a_checkpoint_restores_before_anything_is_saved() -> None:
    job = Job(c.JobSubmitted("job", "file:/s", every_s=1.0, restore_from="file:/old/manifest.json"))
    job.serve()
    job.after(10)
    assert job.state.attempt is None
    assert job.state.restore is not None
    assert job.state.restore.url == "file:/old/manifest.json"


events = st.one_of(
    st.just(Tick()),
    st.just(c.MigrationStarted()),
    st.just(c.MigrationFinished()),
    st.just(c.SaveAsked()),
    st.just(c.JobCompleted()),
    st.sampled_from(["saved", "stored", "broken", "lost", "servers", "loaded", "again"]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(events, max_size=40))
def test_any_order_keeps_the_last_complete_and_never_takes_across_a_migration(script: list[Any]) -> None:
    job = Job()
    adapter = TypeAdapter(c.CheckpointState)
    version, heard = 1, list[Any]()
    job.serve()
    for event in script:
        job.now += 4
        attempt, restore = job.state.attempt, job.state.restore
        if event == "saved" and attempt:
            event = c.Saved(attempt.id, "l", 1, 1, 0.0, 0.0)
        elif event == "stored" and attempt:
            event = c.Stored(attempt.id, 0.1)
        elif event == "broken" and (attempt or restore):
            event = c.Broken((attempt or restore).id, "broke")  # type: ignore[union-attr]
        elif event in ("lost", "servers"):
            version += 1
            event = c.ServersChanged(version, () if event == "lost" else (version,))
        elif event == "loaded" and restore:
            event = c.Loaded(restore.id, c.Checkpoint("x", "u", 1, 1, 1), "l", tuple(restore.servers))
        elif event == "again" and heard:
            event = heard[len(heard) // 2]
        if not isinstance(event, str):
            heard.append(event)
            job.tell(event)
        job.machine.state = adapter.validate_json(adapter.dump_json(job.state))
        state = job.state
        assert not (state.migrating and state.attempt and state.attempt.stage == "taking")
        assert not (state.attempt and state.restore)
        assert len(state.complete) <= 2
    flushed = [fact.checkpoint.id for fact in job.told(c.CheckpointFlushed)]
    assert len(set(flushed)) == len(flushed)
    assert {kept.id for kept in job.state.complete} <= set(flushed)


def lost(job: Job, version: int = 2) -> c.Restore:
    job.tell(c.ServersChanged(version, ()))
    job.serve(version + 1, (2, 3))
    assert job.state.restore is not None
    return job.state.restore


def test_checkpoint_that_could_not_be_read_is_read_again_before_it_is_given_up() -> None:
    job = Job()
    job.serve()
    job.complete()
    job.after(10)
    job.complete()
    restore, tried = lost(job), list[str]()
    for _ in range(4):
        tried.append(restore.url.split("/")[-2])
        job.tell(c.Broken(restore.id, "ps-2 does not answer"))
        assert job.state.restore is not None
        assert job.state.restore.id != restore.id
        restore = job.state.restore
    assert tried == ["job-000002"] * 3 + ["job-000001"]
    assert job.state.expired == [], "what could not be read stays in the store"
    reference = job.state.complete[0]
    job.tell(c.Loaded(restore.id, reference, "ledger", (2, 3)))
    assert len(job.told(c.CheckpointRestored)) == 1
    assert not job.told(c.CheckpointFailed)


def test_last_checkpoint_is_tried_again_with_pauses_and_then_its_failure_is_told() -> None:
    job = Job(c.JobSubmitted("job", "file:/store/job", final=True))
    job.serve()
    job.tell(c.JobCompleted())
    urls: list[str] = []
    for _ in range(3):
        assert not job.told(c.CheckpointFailed), "the actuator would wait no more"
        job.after(10)
        assert job.state.attempt is not None
        assert job.state.attempt.final
        urls.append(job.state.attempt.url)
        job.tell(c.Broken(job.state.attempt.id, "store full"))
        assert job.state.attempt is None, "not at once"
        assert job.machine.ticking == (len(urls) < 3)
    job.after(100)
    assert job.state.attempt is None
    assert [fact.reason for fact in job.told(c.CheckpointFailed)] == ["store full"]
    assert job.state.expired == urls
    assert not job.machine.ticking


def test_what_a_dropped_attempt_has_written_expires() -> None:
    job = Job()
    job.serve()
    job.after(10)
    job.tell(c.MigrationStarted())
    job.tell(c.MigrationFinished())
    job.tell(c.JobEnded())
    assert [url.split("/")[-2] for url in job.state.expired] == ["job-000001", "job-000002"]


def test_completion_said_while_parameters_are_lost_takes_no_last_checkpoint() -> None:
    job = Job()
    job.serve()
    job.after(10)
    job.complete()
    restore = lost(job)
    job.tell(c.JobCompleted())
    job.tell(c.Loaded(restore.id, job.state.complete[0], "ledger", (2, 3)))
    job.after(1)
    assert job.state.attempt is None
    job.tell(c.JobCompleted())
    assert job.state.attempt is not None
    assert job.state.attempt.final


@pytest.mark.parametrize("stage", ["taking", "storing"])
def test_a_server_that_leaves_is_not_waited_for(stage: str) -> None:
    """Found by `stretto chaos --seed 5`: the last checkpoint asked a server that had left, for a minute."""
    job = Job()
    job.serve(1, (0, 1))
    job.complete()
    job.tell(c.JobCompleted())
    first = job.state.attempt
    assert first is not None
    assert first.final
    if stage == "storing":
        job.tell(c.Saved(first.id, "l", 1, 1, 0.0, 0.0))
    job.serve(2, (0, 1, 2))  # one more does not concern it
    assert job.state.attempt == first
    job.serve(3, (0, 2))
    again = job.state.attempt
    assert again is not None
    assert (again.final, again.servers) == (True, [0, 2])
    assert again.id != first.id
    job.tell(c.Broken(first.id, "no answer"))  # late word of the one that was dropped
    assert job.state.attempt == again
