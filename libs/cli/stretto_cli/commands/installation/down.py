"""``stretto down``: end an installation on this machine."""

from __future__ import annotations

from stretto_messages.base import counted

from ...command import command
from ...options import DEFAULT_FOLDER, FolderOption, OutputForm, OutputOption, answer


@command("Installation", "stretto down")
def down(folder: FolderOption = DEFAULT_FOLDER, output: OutputOption = OutputForm.TABLE) -> None:
    """End everything that `stretto up` started, pods included. The folder keeps the state."""
    from stretto_installation.one_machine.detached import take_down

    ended = take_down(folder)
    text = "everything ended"
    if ended.left:
        left = counted(ended.left, "process", "processes")
        text = f"everything ended: the supervisor was gone, and what it had left was ended now: {left}"
    answer(output, {"ended": ended.ended, "left": ended.left}, lambda: text)
