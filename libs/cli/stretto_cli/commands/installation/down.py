"""``stretto down``: end an installation on this machine."""

from __future__ import annotations

from ...command import command
from ...errors import CliError
from ...options import DEFAULT_FOLDER, FolderOption, OutputForm, OutputOption, answer

STOP_S = 60.0


@command("Installation", "stretto down")
def down(folder: FolderOption = DEFAULT_FOLDER, output: OutputOption = OutputForm.TABLE) -> None:
    """End everything that `stretto up` started, pods included. The folder keeps the state."""
    from stretto_installation.errors import NotRunning
    from stretto_installation.one_machine.detached import stop
    from stretto_installation.one_machine.leftovers import end_lost
    from stretto_installation.one_machine.state import read_state

    try:
        state = read_state(folder)
    except NotRunning:
        ended = end_lost(folder)
        if not ended:
            raise
        answer(output, {"ended": ended}, lambda: f"{ended} processes of a dead supervisor ended")
        return
    if not stop(folder, state["pid"], STOP_S):
        raise CliError(f"still running after {STOP_S:.0f} s; see {folder / 'logs' / 'supervisor.log'}")
    answer(output, {"ended": len(state["processes"])}, lambda: "everything ended")
