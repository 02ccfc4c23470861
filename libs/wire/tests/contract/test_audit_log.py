"""The chain of the audit log: what was changed, added, removed or swapped is found."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from stretto_messages.gateway import ChangeAudited
from stretto_wire.contract.audit_log import FIRST, AuditEntry, hash_of, line_of, verify
from stretto_wire.errors import WireError


def chain(actors: list[str]) -> list[bytes]:
    """Make the log of these actors."""
    lines: list[bytes] = []
    for number, actor in enumerate(actors):
        change = ChangeAudited(job="ctr", actor=actor, action="cancel", outcome="done", status=202)
        previous = hash_of(lines[-1]) if lines else FIRST
        lines.append(line_of(AuditEntry(previous=previous, time_s=float(number), change=change)))
    return lines


logs = st.lists(st.sampled_from(["ada", "bob", "eve"]), min_size=3, max_size=12).map(chain)


@given(logs)
def test_an_untouched_log_is_whole_and_so_is_its_end(lines: list[bytes]) -> None:
    """Method: verify any log, and the same without its first entry."""
    assert verify(lines).first
    assert verify(lines).last_hash == hash_of(lines[-1])
    assert not verify(lines[1:]).first
    assert verify([]).entries == 0


@given(logs, st.data())
def test_what_was_done_to_an_entry_before_the_last_is_found(lines: list[bytes], data: st.DataObject) -> None:
    """Method: do one of these to any entry that has one before and one behind it."""
    at = data.draw(st.integers(1, len(lines) - 2))
    forged = list(lines)
    match data.draw(st.sampled_from(["change", "remove", "double", "swap"])):
        case "change":
            forged[at] = lines[at].replace(b'"ctr"', b'"xyz"')
        case "remove":
            del forged[at]
        case "double":
            forged.insert(at, forged[at])
        case _:
            forged[at], forged[at + 1] = forged[at + 1], forged[at]
    assume(forged != lines)
    with pytest.raises(WireError, match="previous"):
        verify(forged)
