"""Differences name a complete checkpoint; whatever a kept checkpoint needs is kept, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from checkpoint_builders import images_flushed, images_saved, job_completed, parameters_restored, servers_changed
from checkpoint_harness import POLICY, Job
from hypothesis import given
from hypothesis import strategies as st
from stretto_core.checkpoints.chains import DIFFERENCES_SHARE_MAX, LINKS_MAX, chain, newest_chain
from stretto_messages.values import CheckpointRef

FULL_BYTES = 1000


class Chained(Job):
    """A machine whose checkpoints complete at once."""

    def __init__(self, keep: int = 2) -> None:
        super().__init__(replace(POLICY, keep=keep))
        self.serve()

    def take(self, difference_bytes: int | None = None) -> tuple[str, str]:
        """Complete the checkpoint on its way; None: the servers made a full one all the same."""
        attempt = self.state.attempt
        asked = attempt.base
        is_difference = difference_bytes is not None and bool(asked)
        size_bytes = difference_bytes if is_difference and difference_bytes is not None else FULL_BYTES
        self.tell(images_saved(attempt.id, size_bytes=size_bytes, difference=is_difference))
        self.tell(images_flushed(attempt.id))
        self.after(10)
        return attempt.id, asked


def test_each_adds_to_the_newest_complete_one_until_the_differences_have_half_the_bytes() -> None:
    job = Chained()
    begun = [job.take(300) for _ in range(5)]
    assert begun == [
        ("job-000001", ""),
        ("job-000002", "job-000001"),
        ("job-000003", "job-000002"),
        ("job-000004", ""),
        ("job-000005", "job-000004"),
    ]
    assert DIFFERENCES_SHARE_MAX * FULL_BYTES < 2 * 300
    assert newest_chain(job.state) == ["job-000004", "job-000005"]


def test_a_chain_ends_after_so_many_differences() -> None:
    job = Chained()
    asked = [job.take(1)[1] for _ in range(LINKS_MAX + 2)]
    assert [not base for base in asked] == [True, *[False] * LINKS_MAX, True]


def test_a_failed_attempt_is_no_base_and_servers_that_made_it_full_begin_a_chain() -> None:
    job = Chained()
    job.take()
    attempt = job.state.attempt
    assert attempt.base == "job-000001"
    job.tell(servers_changed(2, (0,)))  # ps-1 left: it is taken again
    assert job.state.attempt is not None
    assert job.take() == ("job-000003", "job-000001")
    assert job.state.bases == {}
    assert newest_chain(job.state) == ["job-000003"]


def test_a_chain_expires_whole_and_its_end_first() -> None:
    job = Chained(keep=1)
    for _ in range(3):
        job.take(300)
    assert job.state.expired == []
    assert len(job.state.complete) == 3
    job.take()
    assert [url.rsplit("/", 2)[1] for url in job.state.expired] == ["job-000003", "job-000002", "job-000001"]
    assert [kept.id for kept in job.state.complete] == ["job-000004"]
    assert job.state.bases == {}


def test_the_last_checkpoint_stands_alone() -> None:
    job = Chained()
    job.take()
    job.take(1)
    job.tell(job_completed())
    job.take(1)  # the one that was on its way
    assert job.state.attempt.final
    assert job.state.attempt.base == ""


def test_an_adopted_difference_keeps_the_checkpoints_that_the_state_does_not_know() -> None:
    """The installation was restored from a backup: the chain of the newest checkpoint goes on in the store."""
    job = Chained(keep=1)
    job.take()
    job.tell(servers_changed(2, ()))
    job.tell(servers_changed(3, (3,)))
    restore = job.state.restore
    later = CheckpointRef(
        id="job-000009", url="file:/store/job/job-000009/manifest.json", samples=1, size_bytes=5, ps=1
    )
    job.tell(parameters_restored(restore.id, later, (3,), ("job-000001", "job-000008")))
    assert newest_chain(job.state) == ["job-000001", "job-000008", "job-000009"]
    job.after(10)
    assert job.take()[1] == "job-000009"
    expired = [url.rsplit("/", 2)[1] for url in job.state.expired]
    assert expired[-3:] == ["job-000009", "job-000008", "job-000001"]


@given(st.lists(st.one_of(st.none(), st.integers(1, 400)), max_size=40), st.integers(1, 3))
def test_what_a_kept_checkpoint_needs_is_kept_and_so_many_chains(sizes: list[int | None], keep: int) -> None:
    job = Chained(keep)
    taken = [job.take(size)[0] for size in sizes]
    state = job.state
    kept = {name for reference in state.complete for name in chain(state, reference.id)}
    gone = {url.rsplit("/", 2)[1] for url in state.expired}
    assert kept.isdisjoint(gone)
    assert kept | gone == set(taken)
    assert kept == {reference.id for reference in state.complete}
    begins = {chain(state, name)[0] for name in kept}
    assert len(begins) <= keep
    assert state.bases.keys() == kept - begins
