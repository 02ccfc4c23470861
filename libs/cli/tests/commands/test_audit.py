"""``stretto audit`` of a job that was restored from a backup, and of one that gave samples up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from installed_gateway import installed_gateway
from rich.console import Console
from stretto_cli.commands.views.audit import shown
from stretto_cli.main import app
from stretto_core.dispatcher.book import fingerprint_of
from stretto_gateway.requests import job_audit
from stretto_messages.actuator import JobFinished
from stretto_messages.books import AppliedBooks, ColumnBooks, CompletedBooks, GivenUp
from stretto_messages.dispatcher import JobCompleted, JobProgressed, LedgerReturn
from stretto_wire.codec import adapter_of
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.jobspec.spec import JobSpec
from stretto_wire.rest.audits import JobAudit
from typer.testing import CliRunner

from tests.live_bus import completed, finished, progressed
from tests.waits import wait_until

JOB = "ctr"


def progress(samples_done: int, returned: LedgerReturn | None = None) -> JobProgressed:
    return replace(progressed(JOB, samples_done, 240), returned=returned)


def ended() -> tuple[JobCompleted, JobFinished]:
    fingerprint = f"{sum(fingerprint_of(shard, 80) for shard in range(3)) % 2**64:016x}"
    columns = (ColumnBooks(columns=(0,), samples=240, fingerprint=fingerprint),)
    applied = AppliedBooks(columns_total=1, columns=columns)
    done = completed(JOB, 240, shards=3, books=CompletedBooks(fingerprint=fingerprint))
    return done, finished(JOB, 240, applied=applied)


def test_says_what_a_restored_job_trains_again_and_what_nobody_knows(tmp_path: Path) -> None:
    """Method: real installations before and after; the facts that dispatcher and actuator would publish."""
    spec = JobSpec.parse({"name": JOB, "model": {"entry": "m:M"}, "dataset": {"samples": 240}})
    first_return = LedgerReturn(checkpoint="ctr-000001", samples_before=80, samples_gained=0, samples_undone=80)
    second_return = LedgerReturn(checkpoint="ctr-000002", samples_before=80, samples_gained=80, samples_undone=0)
    with installed_gateway(tmp_path / "one") as first:
        first.publish(JobSubmitted(job=JOB, spec=spec), progress(80), progress(0, first_return), progress(80))
        saved = first.stretto("backup", str(tmp_path / "backup"), "-o", "json")
        taken_at_s = json.loads(saved.stdout)["taken_at_s"]
    restored = CliRunner().invoke(app, ["restore", str(tmp_path / "backup"), "--folder", str(tmp_path / "other")])
    assert restored.exit_code == 0, restored.stderr
    with installed_gateway(tmp_path / "other") as second:
        second.publish(progress(160, second_return), *ended())
        wait_until(lambda: second.stretto("audit", JOB, "-o", "json").exit_code == 0)
        returns = json.loads(second.stretto("audit", JOB, "-o", "json").stdout)["returns"]
        assert [each["backup_at_s"] for each in returns] == [None, taken_at_s]
        assert [each["samples_gained"] for each in returns] == [0, 80]
        told = " ".join(second.stretto("audit", JOB).stdout.split())
    assert "parameters and ledger went back to checkpoint ctr-000001; 80 samples of shards that were done" in told
    assert "which had 80 samples done; on from checkpoint ctr-000002. It holds 80 samples more, not trained" in told
    assert "Nobody knows how many were trained after the checkpoint" in told
    assert "exact" in told


def test_books_that_agree_are_not_called_exact_without_the_samples_that_were_given_up() -> None:
    whole, end = ended()
    lost = GivenUp(shard=3, offset=0, epoch=0, start=240, length=60, reason="no column 'price'")
    assert whole.books is not None
    given_up = replace(whole, samples_abandoned=60, books=replace(whole.books, given_up=(lost,)))
    for given, verdict in (
        (whole, "exact"),
        (given_up, "exact but for what was given up: 60 of 300 samples (20%) were given up and never trained"),
    ):
        found = adapter_of(JobAudit).dump_python(job_audit.finished(given, end, "finished"), mode="json")
        console = Console(width=120)
        with console.capture() as told:
            console.print(shown(found))
        assert told.get().splitlines()[-1] == verdict
    assert "no column 'price'" in told.get()


def test_the_books_of_a_job_that_trains_say_what_to_do_instead_of_an_error() -> None:
    found = adapter_of(JobAudit).dump_python(job_audit.finished(*ended(), "training"), mode="json")
    console = Console(width=160)
    with console.capture() as told:
        console.print(shown({**found, "quiet": False, "samples_in_flight": 1}))
    assert told.get().splitlines()[-1] == (
        "exact so far, with 1 sample in flight: it still trains. Audit again after its end, for which "
        "`stretto watch ctr` waits"
    )
