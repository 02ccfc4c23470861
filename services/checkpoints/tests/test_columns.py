"""Columns come back to servers that go on: late and repeated requests never give one a second owner."""

from __future__ import annotations

from typing import Any

import pytest
from stretto_bus import CallTimeout
from stretto_checkpoints.columns import ColumnsError, assigned, bring_back
from stretto_core.checkpoints.state import ColumnRestore
from stretto_messages.pods import GetOwnership, GetOwnershipReply, ImportState, ImportStateReply
from stretto_messages.values import CheckpointRef

CHECKPOINT = CheckpointRef(id="j-000001", url="file:/store/j/manifest.json", samples=1, size_bytes=1, ps=3)


class Pods:
    """Servers that own columns, and refuse as parameter servers do."""

    def __init__(self, own: dict[int, set[int]]) -> None:
        self.own = own
        self.numbers = dict.fromkeys(own, 0)
        self.requests: list[tuple[str, ImportState]] = []
        self.refusal: ImportStateReply | None = None
        self.silent = ""

    async def call_pod(self, pod: str, request: Any, timeout_s: float = 5.0, trace: str = "") -> Any:
        number = int(pod.removeprefix("ps-"))
        own = self.own[number]
        if pod == self.silent:
            raise CallTimeout(f"{pod} does not answer")
        if isinstance(request, GetOwnership):
            states = [int(column in own) for column in range(76)]
            return GetOwnershipReply(job="j", buckets=tuple(states[:64]), slices=tuple(states[64:]), bucket_rows=())
        assert request.beside
        self.requests.append((pod, request))
        if request.number < self.numbers[number]:
            return ImportStateReply(job="j", accepted=False, detail="late")
        self.numbers[number] = request.number
        if self.refusal is not None and (request.buckets or request.slices):
            return self.refusal
        own.update((*request.buckets, *(64 + part for part in request.slices)))
        return ImportStateReply(job="j", accepted=True, size_bytes=100)


def returning(number: int = 7, servers: tuple[int, ...] = (0, 2)) -> ColumnRestore:
    return ColumnRestore(f"j-columns-{number}", 2, CHECKPOINT, list(servers), list(servers), 1.0)


async def test_each_server_ends_earlier_imports_and_then_gets_a_part_of_what_nobody_owns() -> None:
    pods = Pods({0: set(range(20)), 2: set(range(20, 40))})
    imported = await bring_back("j", returning(), pods, "", 5.0)
    assert (imported.id, imported.columns, imported.size_bytes) == ("j-columns-7", 36, 200)
    assert [(pod, request.buckets) for pod, request in pods.requests[:2]] == [("ps-0", ()), ("ps-2", ())]
    assert sorted(len(own) for own in pods.own.values()) == [38, 38]
    assert not pods.own[0] & pods.own[2]
    again = await bring_back("j", returning(8), pods, "", 5.0)
    assert again.columns == 0


def test_a_column_has_the_same_taker_whatever_else_is_lost() -> None:
    takers = [0, 2, 5]
    whole = assigned(list(range(76)), takers)
    for some in (range(10, 40), range(0, 76, 2), [75]):
        for number, columns in assigned(list(some), takers).items():
            assert set(columns) <= set(whole[number])


@pytest.mark.parametrize("damaged", [True, False])
async def test_a_refusal_says_whether_trying_again_helps(damaged: bool) -> None:
    pods = Pods({0: set(range(20)), 2: set(range(20, 40))})
    pods.refusal = ImportStateReply(job="j", accepted=False, damaged=damaged, detail="no room")
    with pytest.raises(ColumnsError, match=r"ps-0 could not load its part of .*: no room") as refused:
        await bring_back("j", returning(), pods, "", 5.0)
    assert refused.value.damaged == damaged


async def test_two_owners_of_a_column_and_a_silent_server_are_failures() -> None:
    pods = Pods({0: set(range(40)), 2: set(range(39, 60))})
    with pytest.raises(ColumnsError, match=r"columns \[39\] have another number of owners than one") as refused:
        await bring_back("j", returning(), pods, "", 5.0)
    assert refused.value.damaged
    pods.silent = "ps-2"
    with pytest.raises(CallTimeout):
        await bring_back("j", returning(), pods, "", 5.0)
