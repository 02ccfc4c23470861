"""Numbers of preparations, and the lane that they are taught to: both forget what no pass needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stretto_pipeline.arrays import Arrays, Reader, Writer
from stretto_plane import Connection, Key, PeerFailed
from stretto_programs.lanes.lane import Lane
from stretto_programs.lanes.protocol import LaneMessageKind, Prepares, request
from stretto_programs.splitting.graph_preparation import GraphPreparation
from stretto_programs.tensorflow.plans import PREPARED_MAX, LivePreparation, Numbered


class Adds:
    """A framework whose preparations add a number."""

    def begin(self, settings: Mapping[str, Any]) -> None:
        del settings

    def taught(self, parts: Sequence[memoryview]) -> Prepares:
        added = int(bytes(parts[1]))

        def add(raw: Arrays) -> Arrays:
            return {name: each + added for name, each in raw.items()}

        return add


def made(graph: bytes) -> GraphPreparation:
    return GraphPreparation(0, graph, (), (), (), (), (), (np.zeros(1),))


def test_lanes_know_what_home_may_ask_for_and_forget_the_rest(tmp_path: Path) -> None:
    address, key, numbered = f"unix:{tmp_path}/lane", Key.random(), Numbered()
    lane = Lane(address, key, Adds())
    all_made = [made(str(place).encode()) for place in range(PREPARED_MAX + 4)]
    with Connection(address, key, timeout_s=20.0) as link:
        writer, reader = Writer(), Reader()

        def teach(each: LivePreparation) -> None:
            link.call(LaneMessageKind.TEACH, [str(each.number).encode(), *each.parts()])

        def asked(number: int) -> int:
            answer = link.call(LaneMessageKind.PREPARE, request(number, {"one": np.array(100)}, writer))
            return int(reader.arrays(answer.parts[1:])["one"])

        in_use = numbered.of(all_made[0])
        teach(in_use)
        numbers: list[int] = []
        for each in all_made[1:]:
            numbers.append(numbered.of(each).number)
            teach(numbered.of(each))
        assert asked(in_use.number) == 100
        last = numbered.of(all_made[-1])
        assert last.number == numbers[-1]
        assert sorted(numbered.live()) == [in_use.number, *numbers[-PREPARED_MAX:]]
        assert asked(numbers[-PREPARED_MAX]) == 100 + 4
        again = numbered.of(all_made[1])
        assert again.number not in numbers, "lanes that have forgotten it are taught again"
        teach(again)
        assert asked(again.number) == 101
        with pytest.raises(PeerFailed, match=f"preparation {numbers[0]} is not known here"):
            asked(numbers[0])
    lane.close()
