"""Lost columns come back from the newest complete checkpoint while others go on, or the actuator is told why not."""

from __future__ import annotations

import pytest
from checkpoint_builders import (
    columns_imported,
    images_flushed,
    job_completed,
    parameters_lost,
    parameters_restored,
    recomputation_decided,
    save_checkpoint,
    servers_changed,
    step_failed,
)
from checkpoint_harness import Job, served
from pydantic import TypeAdapter
from stretto_core.checkpoints.names import is_column_restore, is_restore
from stretto_core.checkpoints.state import CheckpointState, ColumnRestore, JobOpened
from stretto_messages.checkpoints import CheckpointFailed, ColumnsRestored
from stretto_messages.values import CheckpointRef


def trained() -> Job:
    """Return a job on three servers with two complete checkpoints."""
    job = Job()
    job.serve(servers=(0, 1, 2))
    job.complete()
    job.after(10)
    job.complete()
    return job


def returning(job: Job) -> ColumnRestore:
    assert job.state.columns is not None
    return job.state.columns


def test_columns_come_from_the_newest_checkpoint_and_no_other_begins_before_the_ledger_knows() -> None:
    job = trained()
    newest = job.state.complete[-1]
    job.tell(parameters_lost(2, (0, 2)))
    columns = returning(job)
    assert (columns.checkpoint, columns.servers, columns.takers, columns.loss) == (newest, [0, 2], [0, 2], 2)
    assert is_column_restore(columns.id)
    assert not is_restore(columns.id)
    job.now += 1.5
    (restored,) = job.tell(columns_imported(columns.id))
    assert isinstance(restored, ColumnsRestored)
    assert (restored.loss, restored.checkpoint, restored.columns, restored.took_s) == (2, newest, 38, 1.5)
    job.tell(servers_changed(2, (0, 2)))  # the list that comes with the loss
    job.after(60)
    assert job.tell(save_checkpoint())[0].answer == "busy"
    job.tell(recomputation_decided(1))
    assert job.state.attempt is None
    job.tell(recomputation_decided(2))
    assert job.state.columns is None
    assert job.state.attempt.servers == [0, 2]


def test_before_its_own_first_checkpoint_a_job_takes_columns_from_the_one_that_it_started_from() -> None:
    url = "file:/store/other/other-000007/manifest.json"
    job = Job(JobOpened("job", "file:/store/job", every_s=10.0, restore_from=url))
    job.serve(servers=(0, 1))
    other = CheckpointRef(id="other-000007", url=url, samples=1, size_bytes=1, ps=2)
    job.tell(parameters_restored(job.state.restore.id, other, (0, 1)))
    job.tell(parameters_lost(2, (0,)))
    assert (returning(job).checkpoint, returning(job).lineage) == (other, 1)
    job.tell(columns_imported(returning(job).id))
    job.tell(recomputation_decided(2))
    job.after(10)
    job.save()
    job.tell(images_flushed("job-000003"))
    job.tell(parameters_lost(3, (0,)))
    assert returning(job).checkpoint.id == "job-000003"


@pytest.mark.parametrize("stage", ["taking", "storing"])
def test_a_checkpoint_on_its_way_is_taken_again_afterwards(stage: str) -> None:
    job = trained()
    job.after(10)
    name = job.save() if stage == "storing" else job.state.attempt.id  # type: ignore[union-attr]
    (failed,) = job.tell(parameters_lost(2, (0, 2)))
    assert (failed.id, failed.reason) == (name, "a parameter server was lost while it was taken")
    assert not job.tell(images_flushed(name))
    job.tell(columns_imported(returning(job).id))
    job.tell(recomputation_decided(2))
    assert job.state.attempt.id != name


def test_a_failure_is_tried_again_under_a_higher_number_and_then_everything_goes_back() -> None:
    job = trained()
    job.tell(parameters_lost(2, (0, 2)))
    numbers: list[int] = []
    for _ in range(3):
        numbers.append(returning(job).number)
        job.tell(step_failed(returning(job).id, "ps-2 does not answer"))
    assert numbers == sorted(set(numbers))
    failed = job.told(CheckpointFailed)[-1]
    assert is_column_restore(failed.id)
    job.after(60)
    assert job.state.attempt is None, "columns have no owner"
    job.tell(servers_changed(3, ()))
    assert (job.state.columns, job.state.lost) == (None, True)
    job.serve(4, (4, 5))
    assert job.state.restore.number > numbers[-1]


def test_a_damaged_checkpoint_is_not_read_again() -> None:
    job = trained()
    job.tell(parameters_lost(2, (0, 2)))
    name = returning(job).id
    (failed,) = job.tell(step_failed(name, "no copy is whole", damaged=True))
    assert failed.id == name


def test_another_loss_meanwhile_begins_anew_with_the_servers_that_survive_both() -> None:
    job = trained()
    job.tell(parameters_lost(2, (0, 2)))
    first = returning(job)
    job.tell(parameters_lost(3, (2,)))
    second = returning(job)
    assert (second.loss, second.servers) == (3, [2])
    assert second.number > first.number
    assert not job.tell(columns_imported(first.id))
    assert not job.tell(step_failed(first.id, "ps-0 is gone"))
    job.tell(columns_imported(second.id))
    job.tell(parameters_lost(4, (2,)))
    job.tell(recomputation_decided(3))
    assert returning(job).loss == 4, "an answer about an earlier loss changes nothing"


def test_a_job_without_a_complete_checkpoint_says_so_at_once() -> None:
    job = served(JobOpened("job", "file:/store/job", every_s=None))
    (failed,) = job.tell(parameters_lost(2, (0,)))
    assert is_column_restore(failed.id)
    assert "no complete checkpoint" in failed.reason
    assert job.state.columns is None


def test_a_server_that_is_leaving_takes_nothing_unless_no_other_is_there() -> None:
    job = trained()
    job.tell(parameters_lost(2, (0,), leaving=(2,)))
    assert (returning(job).servers, returning(job).takers, job.state.servers) == ([0, 2], [0], [0])
    job.tell(parameters_lost(3, (), leaving=(2,)))
    assert (returning(job).servers, returning(job).takers) == ([2], [2])


def test_a_completion_published_before_the_ledger_heard_of_the_loss_takes_no_last_checkpoint() -> None:
    job = trained()
    job.tell(job_completed())
    assert job.state.attempt.final
    job.tell(parameters_lost(2, (0, 2)))
    assert (job.state.attempt, job.state.completed, job.state.final_due) == (None, False, True)
    job.tell(job_completed())
    job.tell(columns_imported(returning(job).id))
    job.tell(recomputation_decided(2))
    assert not job.state.attempt.final
    job.complete()
    job.tell(job_completed())
    assert job.state.attempt.final


def test_its_document_continues_where_it_was() -> None:
    job = trained()
    job.tell(parameters_lost(2, (0, 2)))
    state = TypeAdapter(CheckpointState)
    assert state.validate_json(state.dump_json(job.state)) == job.state
