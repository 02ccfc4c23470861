"""Checkpoints: taken in time, never across a migration, the last complete one stands, and the way back."""

from __future__ import annotations

from typing import Any

import pytest
from checkpoint_builders import (
    evaluated,
    images_flushed,
    images_saved,
    job_completed,
    job_failed,
    job_finished,
    migration_finished,
    migration_started,
    parameters_restored,
    save_checkpoint,
    servers_changed,
    step_failed,
)
from checkpoint_harness import Job, served
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from stretto_core.checkpoints.attempts import FINAL_TRIES
from stretto_core.checkpoints.machine import CheckpointMachine
from stretto_core.checkpoints.names import is_final, is_restore
from stretto_core.checkpoints.state import CheckpointState, JobOpened, Restore
from stretto_core.machine import Tick
from stretto_messages.checkpoints import CheckpointFailed, CheckpointFlushed, CheckpointRestored, CheckpointSaved
from stretto_messages.values import CheckpointRef


def test_periodic_checkpoints_are_saved_flushed_and_expire() -> None:
    job = served()
    names = [job.complete()]
    for _ in range(2):
        job.after(9)
        assert job.state.attempt is None
        job.after(1)
        names.append(job.complete())
    assert names == ["job-000001", "job-000002", "job-000003"]
    saved, flushed = job.told(CheckpointSaved), job.told(CheckpointFlushed)
    assert [fact.checkpoint.id for fact in saved] == [fact.checkpoint.id for fact in flushed] == names
    assert saved[0].checkpoint.url == "file:/store/job/job-000001/manifest.json"
    assert [kept.id for kept in job.state.complete] == names[1:]
    assert [fact.stored_bytes for fact in flushed] == [size * saved[0].checkpoint.size_bytes for size in (1, 2, 2)]
    assert job.state.expired == ["file:/store/job/job-000001/manifest.json"]


def test_an_attempt_whose_name_the_store_has_begins_again_behind_all_that_is_there() -> None:
    job = served()
    job.complete()
    job.after(10)
    job.tell(step_failed("job-000002", "the store has later ones", beyond=5))
    assert job.state.attempt.id == "job-000006"
    assert job.state.expired == [], "what the store has stays"
    assert [told.id for told in job.told(CheckpointFailed)] == ["job-000002"], "whoever has asked for it is told"
    job.tell(step_failed("job-000006", "a pod lays more and more of them", beyond=8))
    assert job.state.attempt is None, "the second time it waits"
    job.after(10)
    assert job.state.attempt.id == "job-000009"
    job.complete()
    job.tell(job_completed())
    assert is_final(job.state.attempt.id)
    job.tell(step_failed(job.state.attempt.id, "the store has later ones", beyond=20))
    assert job.state.attempt.id == "job-000021-final"


def test_a_later_checkpoint_that_cannot_be_read_costs_none_that_the_state_knows() -> None:
    """The service reads 6, of after a restored backup, in place of 2: it is damaged, and 2 was never read."""
    job = served()
    names = [job.complete()]
    job.after(10)
    names.append(job.complete())
    job.tell(servers_changed(2, ()))
    job.tell(servers_changed(3, (0, 1)))
    later = f"{job.state.folder}/job-000006/manifest.json"
    job.tell(step_failed(job.state.restore.id, "checksum differs", damaged=True, url=later))
    assert job.state.unreadable == [later]
    assert [each.id for each in job.state.complete] == names
    assert job.state.restore.url == job.state.complete[-1].url
    job.tell(step_failed(job.state.restore.id, "checksum differs", damaged=True))
    assert [each.id for each in job.state.complete] == names[:1]


def test_an_attempt_that_was_given_up_is_known_as_such_until_a_checkpoint_is_complete() -> None:
    job = served()
    job.complete()
    job.after(10)
    job.tell(step_failed(job.state.attempt.id, "the store is away"))
    assert job.state.given_up == job.state.expired == [f"{job.state.folder}/job-000002/manifest.json"]
    job.after(10)
    job.complete()
    assert job.state.given_up == []


def test_never_while_parameters_move_and_at_once_after() -> None:
    job = served()
    job.complete()
    job.facts.clear()
    job.tell(migration_started())
    job.after(20)
    assert job.state.attempt is None
    assert job.tell(save_checkpoint())[0].answer == "busy"
    job.tell(migration_finished())
    assert job.state.attempt is not None
    job.tell(migration_started())
    assert job.state.attempt is None
    assert "migration" in job.told(CheckpointFailed)[0].reason
    job.tell(images_saved("job-000002", "late", 1))
    assert job.told(CheckpointSaved) == []
    job.tell(migration_finished())
    assert job.state.attempt.id == "job-000003"


def test_the_first_is_taken_at_once_and_tried_again_soon_until_it_is_complete() -> None:
    job = served(JobOpened("job", "file:/store/job", every_s=300.0))
    for _ in range(3):
        job.tell(step_failed(job.state.attempt.id, "the store is away"))
        job.after(29)
        assert job.state.attempt is None
        job.after(1)
    first = job.complete()
    assert [fact.reason for fact in job.told(CheckpointFailed)] == ["the store is away"] * 3
    job.after(299)
    assert job.state.attempt is None
    assert lost(job).url.endswith(f"{first}/manifest.json"), "the way back to the beginning"


def test_a_server_that_is_leaving_is_not_asked() -> None:
    job = Job()
    job.tell(servers_changed(1, (0, 2), leaving=(1,)))
    assert job.state.attempt.servers == [0, 2]


def test_flushing_goes_on_during_a_migration() -> None:
    job = served()
    job.after(10)
    name = job.save()
    job.tell(migration_started())
    job.tell(images_flushed(name))
    assert len(job.told(CheckpointFlushed)) == 1


def test_failure_leaves_the_previous_one_standing() -> None:
    job = served()
    job.after(10)
    first = job.complete()
    job.after(10)
    job.tell(step_failed(job.state.attempt.id, "disk full"))
    assert job.told(CheckpointFailed)[0].reason == "disk full"
    assert [kept.id for kept in job.state.complete] == [first]
    job.after(10)
    job.complete()
    assert len(job.state.complete) == 2


def test_last_checkpoint_follows_the_last_shard_even_behind_another() -> None:
    job = served()
    job.after(10)
    job.save()
    job.tell(job_completed())
    assert not job.state.attempt.final
    job.tell(images_flushed(job.state.attempt.id))
    last = job.complete()
    assert is_final(last)
    job.after(100)
    assert job.state.attempt is None


def test_of_a_finished_job_its_last_checkpoint_stays_and_of_a_failed_one_all() -> None:
    for ended, left in ((job_finished(), 1), (job_failed(), 2)):
        job = served()
        job.complete()
        job.tell(job_completed())
        last = job.complete()
        job.tell(ended)
        assert len(job.state.complete) == left
        assert job.state.complete[-1].id == last
        assert len(job.state.expired) == 2 - left
    job = Job(JobOpened("job", "file:/store/job", keep=40))
    for number in range(20):
        job.serve(number + 1)
        job.tell(save_checkpoint())
        job.complete()
    job.tell(job_finished())
    assert len(job.state.complete) == 20, "without a last one, those that somebody asked for stay"


def test_the_checkpoint_after_the_best_evaluation_is_taken_at_once_and_kept_until_there_is_a_better_one() -> None:
    job = served()
    job.complete()
    job.tell(evaluated(best=True))
    best = job.complete()
    job.tell(evaluated(best=False))
    assert job.state.attempt is None
    for _ in range(4):
        job.after(10)
        last = job.complete()
    assert [kept.id for kept in job.state.complete] == [best, "job-000005", last]
    assert [flushed.checkpoint.id for flushed in job.told(CheckpointFlushed) if flushed.best] == [best]
    job.after(10)
    job.tell(evaluated(best=True))
    job.tell(step_failed(job.state.attempt.id, "no room"))  # of before the evaluation: the next one is due at once
    better = job.complete()
    assert [kept.id for kept in job.state.complete] == [last, better]
    job.tell(job_completed())
    final = job.complete()
    job.tell(job_finished())
    assert [kept.id for kept in job.state.complete] == [better, final]
    assert len(set(job.state.expired)) == 7, "the first one, five more and the failed attempt"


def test_a_better_evaluation_during_the_best_checkpoint_has_one_of_its_own_and_a_lost_model_has_none() -> None:
    job = served()
    job.complete()
    job.tell(evaluated(best=True))
    taking = job.state.attempt.id
    job.tell(evaluated(best=True))
    job.complete()
    job.complete()
    assert [one.checkpoint.id for one in job.told(CheckpointFlushed) if one.best] == [taking, "job-000003"]
    assert job.state.best == "job-000003"
    job.tell(evaluated(best=True))
    job.serve(2, ())  # all parameters are lost, and those of that evaluation with them
    job.serve(3)
    job.tell(parameters_restored(job.state.restore.id, job.state.complete[-1], (0, 1)))
    job.after(10)
    job.complete()
    assert job.state.best == "job-000003"


def test_on_demand_only() -> None:
    job = Job(JobOpened("job", "file:/store/job"))
    assert not job.machine.ticking
    assert job.tell(save_checkpoint())[0].answer == "busy"
    job.serve()
    job.after(1000)
    answer = job.tell(save_checkpoint())[0]
    assert (answer.answer, answer.id) == ("begun", "job-000001")
    assert job.tell(save_checkpoint())[0].answer == "busy"
    job.complete()
    job.tell(job_completed())
    assert job.state.attempt is None
    job.tell(job_failed())
    assert job.tell(save_checkpoint())[0].answer == "unknown"
    assert CheckpointMachine().handle(save_checkpoint(), 1.0)[0].body.answer == "unknown"  # type: ignore[union-attr]


def test_lost_parameters_come_back_to_new_servers_from_the_last_complete_one() -> None:
    job = served()
    job.after(10)
    name = job.complete()
    job.after(10)
    job.tell(servers_changed(2, ()))
    assert "lost" in job.told(CheckpointFailed)[0].reason
    assert not is_restore(job.told(CheckpointFailed)[0].id)
    job.after(50)
    assert job.state.attempt is None
    job.serve(3, (2, 3, 4))
    restore = job.state.restore
    assert (restore.url, restore.servers) == (f"file:/store/job/{name}/manifest.json", [2, 3, 4])
    reference = job.state.complete[0]
    job.tell(parameters_restored(restore.id, reference, (2, 3, 4)))
    job.tell(parameters_restored(restore.id, reference, (2, 3, 4)))
    (restored,) = job.told(CheckpointRestored)
    assert (restored.ps, restored.ledger, restored.checkpoint.id) == (3, "ledger", name)
    job.after(10)
    assert job.state.attempt is not None


def test_damaged_checkpoint_falls_back_to_the_one_before() -> None:
    job = served()
    for _ in range(2):
        job.after(10)
        job.complete()
    job.tell(servers_changed(2, ()))
    job.serve(3, (2, 3))
    job.tell(step_failed(job.state.restore.id, "checksum differs", damaged=True))
    assert job.state.restore.url.endswith("job-000001/manifest.json")
    job.tell(step_failed(job.state.restore.id, "checksum differs", damaged=True))
    failed = job.told(CheckpointFailed)[-1]
    assert is_restore(failed.id)
    assert failed.reason == "checksum differs"


def test_lost_parameters_without_a_checkpoint_are_told() -> None:
    job = served(JobOpened("job", "file:/store/job"))
    job.tell(servers_changed(2, ()))
    job.serve(3, (1,))
    (failed,) = job.told(CheckpointFailed)
    assert is_restore(failed.id)
    assert "no complete checkpoint" in failed.reason


def test_job_from_a_checkpoint_restores_before_anything_is_saved() -> None:
    job = served(JobOpened("job", "file:/s", every_s=1.0, restore_from="file:/old/manifest.json"))
    job.after(10)
    assert job.state.attempt is None
    assert job.state.restore.url == "file:/old/manifest.json"


events = st.one_of(
    st.just(Tick()),
    st.just(migration_started()),
    st.just(migration_finished()),
    st.just(save_checkpoint()),
    st.just(job_completed()),
    st.sampled_from(["saved", "stored", "broken", "lost", "servers", "loaded", "again"]),
)


STATE = TypeAdapter(CheckpointState)


@settings(max_examples=150)
@given(st.lists(events, max_size=40))
def test_any_order_keeps_the_last_complete_and_never_takes_across_a_migration(script: list[Any]) -> None:
    job = Job()
    version, heard = 1, list[Any]()
    job.serve()
    for event in script:
        job.now += 4
        attempt, restore = job.state.attempt, job.state.restore
        if event == "saved" and attempt:
            event = images_saved(attempt.id, "l", 1)
        elif event == "stored" and attempt:
            event = images_flushed(attempt.id)
        elif event == "broken" and (attempt or restore):
            event = step_failed((attempt or restore).id, "broke")  # type: ignore[union-attr]
        elif event in ("lost", "servers"):
            version += 1
            event = servers_changed(version, () if event == "lost" else (version,))
        elif event == "loaded" and restore:
            event = parameters_restored(
                restore.id, CheckpointRef(id="x", url="u", samples=1, size_bytes=1, ps=1), tuple(restore.servers)
            )
        elif event == "again" and heard:
            event = heard[len(heard) // 2]
        if not isinstance(event, str):
            heard.append(event)
            job.tell(event)
        job.machine.state = STATE.validate_json(STATE.dump_json(job.state))
        state = job.state
        assert not (state.migrating and state.attempt and state.attempt.stage == "taking")
        assert not (state.attempt and state.restore)
        assert len(state.complete) <= 2
    flushed = [fact.checkpoint.id for fact in job.told(CheckpointFlushed)]
    assert len(set(flushed)) == len(flushed)
    assert {kept.id for kept in job.state.complete} <= set(flushed)


def lost(job: Job, version: int = 2) -> Restore:
    job.tell(servers_changed(version, ()))
    job.serve(version + 1, (2, 3))
    assert job.state.restore is not None
    return job.state.restore


def test_checkpoint_that_could_not_be_read_is_read_again_before_it_is_given_up() -> None:
    job = served()
    job.complete()
    job.after(10)
    job.complete()
    restore, tried = lost(job), list[str]()
    for _ in range(4):
        tried.append(restore.url.split("/")[-2])
        job.tell(step_failed(restore.id, "ps-2 does not answer"))
        assert job.state.restore.id != restore.id
        restore = job.state.restore
    assert tried == ["job-000002"] * 3 + ["job-000001"]
    assert job.state.expired == [], "what could not be read stays in the store"
    reference = job.state.complete[0]
    job.tell(parameters_restored(restore.id, reference, (2, 3)))
    assert len(job.told(CheckpointRestored)) == 1
    assert not job.told(CheckpointFailed)


def test_last_checkpoint_is_tried_again_with_pauses_and_each_failure_tells_the_next_try() -> None:
    job = served(JobOpened("job", "file:/store/job", final=True))
    job.tell(job_completed())
    urls: list[str] = []
    began_at_s = job.now
    for _ in range(FINAL_TRIES):
        while job.state.attempt is None:
            job.after(1)
        assert job.state.attempt.final
        urls.append(job.state.attempt.url)
        job.tell(step_failed(job.state.attempt.id, "store full"))
        assert job.state.attempt is None, "not at once"
        failed = job.told(CheckpointFailed)[-1]
        assert (failed.id, failed.reason) == (urls[-1].split("/")[-2], "store full")
        again_at_s = job.now + 2 ** len(urls) if len(urls) < FINAL_TRIES else None
        assert failed.next_try_at_s == again_at_s, "an operator has until then to mend the store"
        assert job.machine.ticking == (len(urls) < FINAL_TRIES)
    assert job.now - began_at_s > 240, "a full disk may be mended within minutes"
    job.after(100)
    assert job.state.attempt is None
    assert len(job.told(CheckpointFailed)) == FINAL_TRIES
    assert job.state.expired == urls
    assert not job.machine.ticking


@pytest.mark.parametrize("waiting", ["for the next try", "for images"])
def test_a_final_checkpoint_that_the_job_waits_for_no_more_is_told_as_failed(waiting: str) -> None:
    job = served(JobOpened("job", "file:/store/job", final=True))
    job.tell(job_completed())
    assert job.state.attempt is not None
    if waiting == "for the next try":
        job.tell(step_failed(job.state.attempt.id, "store full"))
    job.tell(job_finished())
    *tries, failed = job.told(CheckpointFailed)
    assert len(tries) == (waiting == "for the next try")
    assert is_final(failed.id)
    assert failed.next_try_at_s is None
    assert failed.reason == ("store full" if waiting == "for the next try" else "the job ended before it was taken")
    job.tell(job_finished())
    assert job.told(CheckpointFailed) == [*tries, failed]


def test_a_final_checkpoint_that_is_stored_or_on_its_way_has_not_failed_when_the_job_ends() -> None:
    for is_stored in (False, True):
        job = served(JobOpened("job", "file:/store/job", final=True))
        job.tell(job_completed())
        assert job.state.attempt is not None
        if is_stored:
            job.complete()
        else:
            job.tell(images_saved(job.state.attempt.id, "ledger", 1))
        job.tell(job_finished())
        assert job.told(CheckpointFailed) == []


def test_what_a_dropped_attempt_has_written_expires() -> None:
    job = served()
    job.after(10)
    job.tell(migration_started())
    job.tell(migration_finished())
    job.tell(job_failed())
    assert [url.split("/")[-2] for url in job.state.expired] == ["job-000001", "job-000002"]


def test_completion_said_while_parameters_are_lost_takes_no_last_checkpoint() -> None:
    job = served()
    job.after(10)
    job.complete()
    restore = lost(job)
    job.tell(job_completed())
    job.tell(parameters_restored(restore.id, job.state.complete[0], (2, 3)))
    job.after(1)
    assert job.state.attempt is None
    job.tell(job_completed())
    assert job.state.attempt.final


@pytest.mark.parametrize("stage", ["taking", "storing"])
def test_a_server_that_leaves_is_not_waited_for(stage: str) -> None:
    """Found by `stretto chaos --seed 5`: the last checkpoint asked a server that had left, for a minute."""
    job = Job()
    job.serve(1, (0, 1))
    job.complete()
    job.tell(job_completed())
    first = job.state.attempt
    assert first.final
    if stage == "storing":
        job.tell(images_saved(first.id, "l", 1))
    job.serve(2, (0, 1, 2))  # one more does not concern it
    assert job.state.attempt == first
    job.serve(3, (0, 2))
    again = job.state.attempt
    assert (again.final, again.servers) == (True, [0, 2])
    assert again.id != first.id
    job.tell(step_failed(first.id, "no answer"))  # late word of the one that was dropped
    assert job.state.attempt == again


def test_a_later_checkpoint_than_the_state_knows_is_adopted_and_no_name_is_used_twice() -> None:
    """Goal: after a restoration from a backup the job goes on from checkpoints of after the backup.

    Method: the state knows number 1; the store gave number 7, which then stands, and the next one is number 8.
    """
    job = served()
    job.after(10)
    first = job.complete()
    job.tell(servers_changed(2, ()))
    job.serve(3)
    later = CheckpointRef(
        id="job-000007", url="file:/store/job/job-000007/manifest.json", samples=1, size_bytes=1, ps=2
    )
    job.tell(parameters_restored(job.state.restore.id, later, (0, 1)))
    assert [known.id for known in job.state.complete] == [first, later.id]
    job.after(10)
    assert job.save() == "job-000008"


def test_the_checkpoint_of_another_job_is_not_adopted() -> None:
    """Goal: `restore_from` stays what it was. Method: a job that starts from another one's checkpoint."""
    url = "file:/store/other/other-000007/manifest.json"
    job = served(JobOpened("job", "file:/store/job", every_s=10.0, restore_from=url))
    other = CheckpointRef(id="other-000007", url=url, samples=1, size_bytes=1, ps=2)
    job.tell(parameters_restored(job.state.restore.id, other, (0, 1)))
    assert job.state.complete == []
    assert job.state.next_number == 2
