"""Chains of checkpoints: a full one, and differences that each add to the one before.

A difference is as good as a full checkpoint as long as the store has all checkpoints of its chain. So a chain is kept
and removed whole, and a new one begins when reading it would take much longer than a full one.
"""

from __future__ import annotations

from itertools import pairwise

from stretto_messages.values import CheckpointRef

from stretto_core.checkpoints.names import number_of
from stretto_core.checkpoints.state import CheckpointState

LINKS_MAX = 30
"""Differences of a chain: at the default of one in 10 s, a full checkpoint comes every five minutes."""
DIFFERENCES_SHARE_MAX = 0.5
"""Bytes of all differences of a chain, as a share of its full checkpoint: what a return reads at most in addition."""


def base_for_next(state: CheckpointState, alone: bool) -> str:
    """Return the name of the complete checkpoint that the next one adds to; "": the next one is full.

    ``alone``: the last checkpoint, which is the job's result, and the best one add to no other checkpoint, so that each
    is kept by itself.
    """
    if alone or not state.complete:
        return ""
    newest = state.complete[-1]
    names = chain(state, newest.id)
    known = {reference.id: reference for reference in state.complete}
    full, differences = known.get(names[0]), [known[name] for name in names[1:] if name in known]
    if full is None or len(names) > LINKS_MAX:
        return ""
    added_bytes = sum(difference.size_bytes for difference in differences)
    return newest.id if added_bytes <= DIFFERENCES_SHARE_MAX * full.size_bytes else ""


def chain(state: CheckpointState, name: str) -> list[str]:
    """Return the names of a checkpoint and of those that it adds to, the full one first."""
    names = [name]
    while (base := state.bases.get(names[-1])) is not None and base not in names:
        names.append(base)
    return names[::-1]


def newest_chain(state: CheckpointState) -> list[str]:
    """Return the names of the newest complete checkpoint and of those that it adds to; none without one."""
    return chain(state, state.complete[-1].id) if state.complete else []


def note(state: CheckpointState, checkpoint: CheckpointRef, bases: list[str]) -> list[str]:
    """Note a complete checkpoint, which adds to `bases` (the full one first); return the names that are kept no longer.

    The newest `keep` chains stay, and that of the best one. The names of a chain come with the latest first: while
    they are removed one by one, those that are left still are a chain.
    """
    state.complete.append(checkpoint)
    for base, name in pairwise([*bases, checkpoint.id]):
        state.bases[name] = base
    begins = list(dict.fromkeys(chain(state, reference.id)[0] for reference in state.complete))
    dropped = {*begins[: -state.keep]} - {*chain(state, state.best)[:1]}
    names = {*state.bases, *begins, *(reference.id for reference in state.complete)}
    gone = {name for name in names if chain(state, name)[0] in dropped}
    state.complete = [reference for reference in state.complete if reference.id not in gone]
    state.bases = {name: base for name, base in state.bases.items() if name not in gone}
    return sorted(gone, key=number_of, reverse=True)
