"""``stretto clean``: remove what ended jobs have left on the disk of this machine."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from stretto_client import figures
from stretto_wire.rest.views import OVER

from ... import render
from ...command import command
from ...errors import BadInput
from ...options import DEFAULT_FOLDER, FolderOption, OutputForm, OutputOption, answer, complaints, connect

if TYPE_CHECKING:
    from stretto_client.documents import Documents
    from stretto_installation.one_machine.disk import JobFolder

KEPT = "STRETTO_KEPT_"


@command("Installation", "stretto clean --dry-run", "stretto clean --checkpoints --older-than 90", "stretto clean JOB")
def clean(
    jobs: Annotated[list[str] | None, typer.Argument(metavar="JOB", help="Only these jobs, of any age.")] = None,
    older_than: Annotated[
        float | None,
        typer.Option(min=0, max=36500, metavar="DAYS", help="Only jobs that ended so long ago, whatever the settings."),
    ] = None,
    checkpoints: Annotated[
        bool,
        typer.Option(
            "--checkpoints", help="Also remove checkpoints, the final ones too; unless a setting says more, as pods."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing; show what would go.")] = False,
    output: OutputOption = OutputForm.TABLE,
    folder: FolderOption = DEFAULT_FOLDER,
) -> None:
    """Remove pods' folders and spans of ended jobs, with --checkpoints their checkpoints too; show the bytes of each.

    STRETTO_KEPT_PODS_DAYS (30), STRETTO_KEPT_SPANS_DAYS (30) and STRETTO_KEPT_CHECKPOINTS_DAYS say after how many days
    what goes; without the last, checkpoints stay unless --checkpoints is given. Nothing of a job goes that lives, and
    no checkpoint from which a live job starts. The books, decisions and names of jobs stay: they are in the log.
    Checkpoints in an object store are not looked at.
    """
    from stretto_installation.one_machine import disk
    from stretto_installation.one_machine.bus import store_url_of

    days = _days(older_than, bool(jobs), checkpoints)
    found = disk.folders(folder, store_url_of(os.environ))
    with connect(folder, None, None) as gateway:
        known = {job["name"]: job for job in gateway.jobs()}
        needed = _needed(gateway, known)
    _check(jobs or [], known, found)
    ended_s = {name: job["ended_at_s"] if job["status"] in OVER else None for name, job in known.items()}
    before_s = {kind: time.time() - kept * 86400 for kind, kept in days.items()}
    chosen = disk.removable(found, ended_s, needed, before_s, jobs or [])
    rows: list[dict[str, Any]] = []
    for each in [each for each in chosen if not jobs or each.job in jobs]:
        complaints.print(f"{'measuring' if dry_run else 'removing'} {each.kind} of {each.job} …")
        size_bytes = each.size_bytes()
        if not dry_run:
            each.remove()
        team = known[each.job]["team"] if each.job in known else ""
        rows.append({"job": each.job, "team": team, "kind": each.kind, "bytes": size_bytes})
    report = {"dry_run": dry_run, "bytes": sum(row["bytes"] for row in rows), "folders": rows}
    answer(output, report, lambda: _table(report))


def _days(older_than: float | None, named: bool, checkpoints: bool) -> dict[str, float]:
    """Return after how many days the folders of each kind go. Checkpoints of ``named`` jobs go by the option alone."""
    from stretto_installation.one_machine import disk
    from stretto_runtime import SettingsFault
    from stretto_runtime.settings import KeptSettings

    try:
        kept = KeptSettings.load("kept", {name: value for name, value in os.environ.items() if name.startswith(KEPT)})
    except SettingsFault as fault:
        raise BadInput(str(fault)) from fault
    days = {disk.PODS: kept.kept_pods_days, disk.SPANS: kept.kept_spans_days}
    if checkpoints or (kept.kept_checkpoints_days is not None and not named):
        days[disk.CHECKPOINTS] = kept.kept_checkpoints_days or kept.kept_pods_days
    given = older_than if older_than is not None else 0.0 if named else None
    asked = days if checkpoints else {kind: kept_days for kind, kept_days in days.items() if kind != disk.CHECKPOINTS}
    return days if given is None else days | dict.fromkeys(asked, given)


def _needed(gateway: Documents, known: dict[str, Any]) -> set[str]:
    """Return the jobs from whose checkpoints a live job starts."""
    live = [name for name, job in known.items() if job["status"] not in OVER]
    starts = [gateway.job(name)["spec"]["checkpoint"].get("restore_from") or "" for name in live]
    return {url.split("/")[-3] for url in starts if url.count("/") > 2}  # …/<job>/<checkpoint>/manifest.json


def _check(jobs: list[str], known: dict[str, Any], found: list[JobFolder]) -> None:
    there = {each.job for each in found}
    for job in jobs:
        if job in known and known[job]["status"] not in OVER:
            raise BadInput(f"{job} lives ({known[job]['status']}): `stretto cancel {job}` ends it, or wait for its end")
        if job not in there:
            raise BadInput(f"{job} has left nothing on this disk; `stretto clean --dry-run` shows which jobs have")


def _table(report: dict[str, Any]) -> RenderableType:
    teams = Counter[str]()
    made = render.table("job", "team", "folder", "size", right=("size",))
    for row in report["folders"]:
        made.add_row(row["job"], row["team"] or "–", row["kind"], figures.size(row["bytes"]))
        teams[row["team"] or "–"] += row["bytes"]
    for team, size_bytes in teams.items():
        made.add_row("[bold]all[/bold]", team, "", figures.size(size_bytes))
    if not report["folders"]:
        return "nothing to remove; --older-than 0 shows younger jobs, --checkpoints their checkpoints too"
    made.caption = "would go; without --dry-run it is removed" if report["dry_run"] else "removed"
    return made
