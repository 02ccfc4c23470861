"""``stretto audit``: prove the books of a job."""

from __future__ import annotations

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from stretto_client import figures
from stretto_messages.base import counted
from stretto_messages.books import small_share
from stretto_wire.program import CONSISTENT

from ...command import command
from ...errors import CliError
from ...options import GatewayOptions, JobArgument
from ...render import Json, rows_told, table


@command("Jobs", "stretto audit ctr -o json")
def audit(options: GatewayOptions, job: JobArgument) -> None:
    """Prove that every sample was trained exactly once, by the parameter servers' own count.

    The ledger's books are compared with the counts of every column of the parameters: how many samples, and which.
    Losses and repetitions are counted separately; one never cancels the other. Samples that were given up are in no
    column: they are listed with their reasons. Exit status 0 only if the books agree and no sample is in flight: of a
    job that still trains it is 1, and the last line says so. Of a job that runs a program there are the ledger's books
    alone, and what they promise.
    """
    with options.connect() as gateway:
        found, view = gateway.audit(job), gateway.job(job)
        program = view["spec"].get("program")
    level = view.get("level", program["level"]) if program else None
    options.answer(found, lambda: shown(found, level, view.get("guarantee", "")))
    if not found["columns"] and not program:
        raise CliError(f"the books of {job} cannot be compared now: {'; '.join(found['findings'])}")
    if not found["exact"]:
        raise CliError(f"the books of {job} are not exact: {'; '.join(found['findings'])}")
    if not found["quiet"]:
        raise typer.Exit(CliError.status)


def shown(found: Json, level: int | None = None, guarantee: str = "") -> RenderableType:
    """Render the audit for people, after what the job's level promises.

    ``level``: of a job that runs a program, whose samples no column counts.
    """
    if level is not None:
        return _of_program(found, level, guarantee)
    parts: list[RenderableType] = [guarantee] if guarantee else []
    made = table("samples", "count", right=("count",))
    for title, name in (
        ("of the dataset, all epochs", "samples_total"),
        ("assigned to workers", "samples_assigned"),
        ("reported complete", "samples_done"),
        ("given up (dead-letter list)", "samples_given_up"),
        ("in flight", "samples_in_flight"),
        ("waiting", "samples_waiting"),
        ("trained again for restored columns", "samples_recomputed"),
        ("lost, by the worst column", "samples_lost"),
        ("repeated, by the worst column", "samples_repeated"),
    ):
        made.add_row(title, f"{found[name]:,}")
    parts += [made, f"{found['columns_exact']} of {counted(found['columns'], 'column')} counted just these samples"]
    parts += [of_rows] if (of_rows := rows_told(found["rows"])) else []
    parts += [f"[red]{escape(finding)}[/red]" for finding in found["findings"]]
    if found["epochs"]:
        made = table("epoch", "done", "in flight", "waiting", "given up", right=("done", "in flight", "waiting"))
        for e in found["epochs"]:
            made.add_row(
                str(e["epoch"]), f"{e['done']:,}", f"{e['in_flight']:,}", f"{e['waiting']:,}", f"{e['given_up']:,}"
            )
        parts.append(made)
    if found["open"]:
        made = table("open shard", "attempt", "held by", "samples", "applied", right=("samples", "applied"))
        for o in found["open"]:
            least, most = o["applied_least"], o["applied_most"]
            applied = f"{least:,}" if least == most else f"{least:,} to {most:,}"
            shard = o["shard"]
            made.add_row(str(shard["id"]), str(shard["attempt"]), o["pod"] or "nobody", f"{shard['length']:,}", applied)
        parts.append(made)
    if found["given_up"]:
        made = table("given up", "epoch", "samples", "why", wrapped="why")
        for g in found["given_up"]:
            span = f"{g['start']:,} to {g['start'] + g['length'] - 1:,}"
            made.add_row(f"shard {g['shard']}", str(g["epoch"]), span, escape(g["reason"]))
        parts.append(made)
    parts += [escape(line) for line in returned(found["returns"])]
    parts.append(_verdict(found))
    return Group(*parts)


def _of_program(found: Json, level: int, guarantee: str) -> RenderableType:
    """Render the ledger's books of a program, and what they promise."""
    made = table("samples", "count", right=("count",))
    for title, name in (
        ("of the dataset, all epochs", "samples_total"),
        ("trained, as workers say", "samples_done"),
        ("given up (dead-letter list)", "samples_given_up"),
        ("in flight", "samples_in_flight"),
        ("waiting", "samples_waiting"),
        ("repeated after lost workers, at most", "samples_recomputed"),
    ):
        made.add_row(title, f"{found[name]:,}")
    failed = [f"[red]{escape(finding)}[/red]" for finding in found["findings"]]
    back = [escape(line) for line in returned(found["returns"])] if level == CONSISTENT else []
    still = [] if found["quiet"] else [_still(found) if level else f"it still runs. {_again(found)}"]
    return Group(guarantee, *([made] if level else []), *back, *failed, *still)


def _verdict(found: Json) -> str:
    """Say in a line whether the books agree, and which samples no column could count."""
    verdict = "[green bold]exact[/green bold]" if found["exact"] else "[red bold]not exact[/red bold]"
    if given_up := found["samples_given_up"]:
        share = small_share(given_up / found["samples_total"])
        of_all = f"{given_up:,} of {found['samples_total']:,} samples ({share}) were given up and never trained"
        verdict = (
            f"[yellow bold]exact but for what was given up[/yellow bold]: {of_all}"
            if found["exact"]
            else f"{verdict}; {of_all}"
        )
    if found["quiet"]:
        return verdict
    return f"{verdict} so far, with {_still(found)}"


def _still(found: Json) -> str:
    """Say that a job is not over, so that its books cannot be proven."""
    return f"{counted(found['samples_in_flight'], 'sample')} in flight: it still trains. {_again(found)}"


def _again(found: Json) -> str:
    return f"Audit again after its end, for which `stretto watch {escape(found['job'])}` waits"


def returned(returns: list[Json]) -> list[str]:
    """Say for each return to a checkpoint which samples are trained again, and which nobody knows of."""
    lines: list[str] = []
    for each in returns:
        at, checkpoint = figures.date_and_time(each["at_s"]), each["checkpoint"]
        gained, undone = f"{each['samples_gained']:,}", f"{each['samples_undone']:,}"
        if each["backup_at_s"] is None:
            lines.append(
                f"{at}: parameters and ledger went back to checkpoint {checkpoint}; {undone} samples of shards that "
                "were done after it are trained again, and what was trained of a shard under way"
            )
            continue
        lines.append(
            f"{at}: restored from the backup of "
            f"{figures.date_and_time(each['backup_at_s'])}, which had {each['samples_before']:,} samples done; on from "
            f"checkpoint {checkpoint}. It holds {gained} samples more, not trained again, and lacks {undone}, "
            "trained again. Nobody knows how many were trained after the checkpoint: they are gone with their servers, "
            "and trained again"
        )
    return lines
