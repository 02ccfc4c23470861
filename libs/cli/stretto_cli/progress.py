"""A progress bar for long runs, on a terminal only."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from stretto_sim import measures

from .options import complaints


@contextmanager
def watched(title: str, what: str = "jobs") -> Generator[measures.Progress]:
    """Yield a function (done, total) that updates a bar on standard error; the bar vanishes at the end."""
    if not complaints.is_terminal:
        yield lambda left, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(what))
    with Progress(*columns, TimeRemainingColumn(), console=complaints, transient=True, redirect_stdout=False) as drawn:
        task = drawn.add_task(title, total=None)
        yield lambda left, total: drawn.update(task, completed=left, total=total)
