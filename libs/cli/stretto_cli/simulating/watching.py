"""Progress of a simulation, on a terminal only."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from stretto_sim import measures

from ..options import complaints


@contextmanager
def watched(title: str) -> Generator[measures.Progress]:
    """What the simulation is to tell how far it is; drawn on standard error, and gone when it is done."""
    if not complaints.is_terminal:
        yield lambda left, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("jobs"))
    with Progress(*columns, TimeRemainingColumn(), console=complaints, transient=True, redirect_stdout=False) as drawn:
        task = drawn.add_task(title, total=None)
        yield lambda left, total: drawn.update(task, completed=left, total=total)
