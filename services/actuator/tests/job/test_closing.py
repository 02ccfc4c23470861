"""The end of a completed job, with pods that answer as they are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from stretto_actuator.job.closing import Closing
from stretto_actuator.job.edge import Edge
from stretto_actuator.settings import ActuatorSettings
from stretto_bus import CallTimeout
from stretto_core.actuator.observations import CountsTaken
from stretto_core.actuator.state import ActuatorState, Pod
from stretto_messages.pods import EvaluateModelReply


@dataclass
class FakeEdge:
    reply: EvaluateModelReply | None
    now_s: float = 0.0
    seen: list[CountsTaken] = field(default_factory=list[CountsTaken])

    def server_now(self) -> float:
        return self.now_s

    async def call_pod(self, pod: str, request: Any) -> EvaluateModelReply:
        if self.reply is None:
            raise CallTimeout(f"{pod} does not answer")
        return self.reply

    async def observe(self, job: str, observation: CountsTaken) -> None:
        self.seen.append(observation)


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        (EvaluateModelReply(job="a", state="failed", detail="DataError: row 7"), "worker-0: DataError: row 7"),
        (
            None,
            "it was not done within 600 s (STRETTO_ACTUATOR_EVALUATE_TIMEOUT_S); worker-0: worker-0 does not answer",
        ),
    ],
)
async def test_a_job_that_is_not_evaluated_says_why(reply: EvaluateModelReply | None, failure: str) -> None:
    state = ActuatorState(job="a", phase="completing", evaluate=50)
    state.pods["worker-0"] = Pod("worker-0", "worker", 0, 1.0, 1, 1, "plan", 0.0, phase="running")
    edge = FakeEdge(reply)
    closing = Closing("a", cast(Edge, edge), ActuatorSettings())
    await closing.advance(state)
    edge.now_s = 601.0
    for _ in range(2):
        await closing.advance(state)
    assert [taken.evaluation_failure for taken in edge.seen[:1]] == [failure]
