"""A preview finds what a submission is refused for, whatever it is: both are judged by one list of checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import stretto_wire as wire
from stretto_bus.faults import CallTimeout
from stretto_gateway.problems import Problem
from stretto_gateway.service import Gateway
from stretto_gateway.settings import GatewaySettings
from stretto_messages.base import Message
from stretto_runtime.settings import TeamQuota
from stretto_runtime.spent_names import SpentShard, shard_of
from stretto_wire.contract.registry import EVENTS_KEPT_S, STATE
from stretto_wire.findings import Finding

NOW_S = 1000.0
JOB, TEAM = "mine", "ads"
KNOWN = "known"
QUOTA = TeamQuota(jobs=1, priority_max=1.0)


@dataclass
class Bus:
    """A bus that has the submissions of ``jobs``, stores others, and on which no service answers.

    ``holds_back``: submissions are shown, and ``publish`` returns, once it is set.
    """

    jobs: list[wire.JobSubmitted] = field(default_factory=list[wire.JobSubmitted])
    names: dict[int, SpentShard] = field(default_factory=dict[int, SpentShard])
    holds_back: asyncio.Event = field(default_factory=asyncio.Event)
    is_caught_up: bool = True
    there: bool = True
    events_kept_s: float = EVENTS_KEPT_S
    apply: Callable[..., None] = field(init=False)

    async def kept(self) -> tuple[int, dict[str, bytes]]:
        return 1, {}

    async def spent(self, number: int | None = None) -> dict[int, SpentShard]:
        return self.names

    async def fold(self, apply: Any, _: object, caught_up: Callable[[], None], __: object) -> None:
        self.apply = apply
        for seq, message in enumerate(self.jobs, start=1):
            apply(message, seq, NOW_S, "")
        if self.is_caught_up:
            caught_up()

    async def call(self, request: Message, timeout_s: float) -> Message:
        wire.encode(request)  # as the real one does
        raise CallTimeout("nobody answers")

    async def publish(self, message: Message, msg_id: str, last: int | None = None, trace: str = "") -> int:
        await self.holds_back.wait()
        self.jobs.append(message)  # this test submits alone
        self.apply(message, len(self.jobs), NOW_S, trace)
        return len(self.jobs)


def spec(name: str = JOB, **more: Any) -> wire.JobSpec:
    return wire.JobSpec.parse({"name": name, "model": {"entry": "m:M"}, "dataset": {"samples": 1000}, **more})


def submitted(job: wire.JobSpec, team: str = TEAM) -> wire.JobSubmitted:
    return wire.JobSubmitted(job=job.name, spec=job, submitted_by="ada", team=team)


async def gateway_on(bus: Bus, fullness: float = 0.0, **settings: Any) -> Gateway:
    made = GatewaySettings(**settings)
    gateway = Gateway(bus, made, lambda: NOW_S)  # it has what submissions need
    await gateway.follow()
    gateway.fullness.shares[STATE] = fullness
    return gateway


def large(variables: int, name: str = JOB) -> wire.JobSpec:
    """Return a specification of about 4 KB for each variable of its environment."""
    return spec(name, environment={f"V{number}": "x" * 3900 for number in range(variables)})


def used_up() -> list[wire.JobSubmitted]:
    """Return submissions of one team that are more than a mebibyte."""
    return [submitted(large(15, f"old-{number}")) for number in range(18)]


@dataclass
class Case:
    """A submission that is refused for one reason: the kind of the problem, and the installation that refuses."""

    kind: str
    spec: wire.JobSpec = field(default_factory=spec)
    bus: Bus = field(default_factory=Bus)
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    fullness: float = 0.0


GPUS = {"nvidia.com/gpu": 4}
TYPE = {"name": "gpu-a", "price_per_hour": 1.2, "count": 2, "cpu_cores": 8, "memory": "32Gi"}
CASES = {
    "too large to encode": lambda: Case("bad-job", large(80)),
    "no message of the wire": lambda: Case("bad-job", replace_name(spec(), "No Name")),
    "not ready": lambda: Case("catching-up", bus=Bus(is_caught_up=False)),
    "another team's name": lambda: Case("name-taken", bus=Bus([submitted(spec(), "others")])),
    "another specification": lambda: Case("name-taken", bus=Bus([submitted(spec(priority=2.0))])),
    "a name of long ago": lambda: Case(
        "name-taken", bus=Bus(names={shard_of(JOB): SpentShard(SpentShard().joined_by([JOB]), 1)})
    ),
    "damaged names": lambda: Case("names-damaged", bus=Bus(names={shard_of(JOB): SpentShard(b"no names", 7)})),
    "too large": lambda: Case("too-large-job", large(3), settings={"spec_bytes": 8192}),
    "nothing allowed": lambda: Case("not-allowed", spec(image="registry/x:1", environment_from=["secret"])),
    "no such module": lambda: Case("bad-job", settings={"code_is_here": True}),
    "no such devices": lambda: Case("beyond-cluster", spec(resources={"workers": {"extended": GPUS}})),
    "no such type of devices": lambda: Case("beyond-cluster", spec(resources={"workers": {"devices": ["gpu-b"]}})),
    "bytes of the day": lambda: Case("bytes-used", bus=Bus(used_up()), settings={"team_bytes_per_day": 1 << 20}),
    "full state": lambda: Case("state-full", fullness=0.95),
    "priority": lambda: Case("above-priority-ceiling", spec(priority=2.0), settings={"teams_quotas": {TEAM: QUOTA}}),
    "live jobs": lambda: Case(
        "quota-used", bus=Bus([submitted(spec(KNOWN))]), settings={"teams_quotas": {TEAM: QUOTA}}
    ),
}


def replace_name(job: wire.JobSpec, name: str) -> wire.JobSpec:
    return job.model_copy(update={"name": name})


async def refusal(gateway: Gateway, job: wire.JobSpec) -> Problem:
    with pytest.raises(Problem) as found:
        await gateway.submissions.submit(job, "ada", team=TEAM)
    return found.value


@pytest.mark.parametrize("name", CASES)
async def test_a_preview_finds_what_a_submission_is_refused_for(name: str) -> None:
    case = CASES[name]()
    gateway = await gateway_on(case.bus, case.fullness, **case.settings)
    before = len(case.bus.jobs)
    previewed = await gateway.inquiries.preview(case.spec, "ada", TEAM)
    refused = await refusal(gateway, case.spec)
    assert refused.kind == case.kind
    assert not previewed.accepted
    assert [(one.status, one.kind, one.detail) for one in previewed.findings] == [
        (refused.status, refused.kind, refused.detail) for _ in refused.errors
    ]
    assert [Finding(one.field, one.value, one.remedy) for one in previewed.findings] == [*refused.errors]
    assert len(case.bus.jobs) == before


def starting_with(asked: str, **group: Any) -> wire.JobSpec:
    """Return a job that asks for a type of devices, and whose first plan has these workers on it."""
    first = {"device": "gpu-a", "workers": 2, "cpu_cores": 8, "memory_bytes": 32 * 2**30} | group
    sizes = {"ps": 1, "worker_cpu_cores": 1, "ps_cpu_cores": 1, "worker_memory_bytes": "1Gi", "ps_memory_bytes": "1Gi"}
    initial = {**sizes, "workers": first["workers"], "groups": [first]}
    return spec(resources={"workers": {"devices": asked if asked == "auto" else [asked]}, "initial": initial})


@pytest.mark.parametrize(
    ("job", "findings"),
    [
        (starting_with("gpu-a"), []),
        (starting_with("auto"), []),
        (spec(resources={"workers": {"devices": "auto"}}), []),
        (
            spec(resources={"workers": {"devices": ["gpu-a", "gpu-b"]}}),
            [("resources.workers.devices", "gpu-b", "the types of devices here are: gpu-a")],
        ),
        (
            starting_with("auto", device="gpu-b"),
            [("resources.initial.groups", "gpu-b", "the types of devices here are: gpu-a")],
        ),
        (
            starting_with("gpu-a", workers=3),
            [("resources.initial.groups", "gpu-a", "at most 2 workers, one for each unit that there is")],
        ),
        (
            starting_with("gpu-a", cpu_cores=4),
            [("resources.initial.groups", "gpu-a", "cpu_cores 8 and memory_bytes 34359738368, those of a unit")],
        ),
        (
            spec(resources=starting_with("gpu-a").model_dump()["resources"] | {"workers": {}}),
            [("resources.initial.groups", "gpu-a", "name it in resources.workers.devices as well")],
        ),
    ],
)
async def test_a_job_gets_no_type_of_devices_that_is_not_there(
    job: wire.JobSpec, findings: list[tuple[str, str, str]]
) -> None:
    gateway = await gateway_on(Bus(), device_types=[TYPE])
    found = (await gateway.inquiries.preview(job, "ada", TEAM)).findings
    assert [(one.field, one.value, one.remedy) for one in found] == findings


async def test_a_submission_is_refused_for_the_first_of_all_findings_of_its_preview() -> None:
    quotas = {"teams_quotas": {TEAM: QUOTA}, "team_bytes_per_day": 1 << 20}
    gateway = await gateway_on(Bus([*used_up(), submitted(spec(KNOWN), "others")]), 0.95, spec_bytes=8192, **quotas)
    kinds = ["too-large-job", "not-allowed", "beyond-cluster", "bytes-used", "state-full", "above-priority-ceiling"]
    beyond = {"priority": 2.0, "image": "x:1", "resources": CASES["no such devices"]().spec.resources}
    job = large(20).model_copy(update=beyond)
    told = {"new": kinds, KNOWN: ["name-taken", *kinds], "No Name": ["bad-job", *kinds[1:3], *kinds[4:]]}
    for name, expected in told.items():
        wanted = replace_name(job, name)
        found = (await gateway.inquiries.preview(wanted, "ada", TEAM)).findings
        assert [*dict.fromkeys(one.kind for one in found)] == expected
        assert (await refusal(gateway, wanted)).kind == expected[0]


async def test_what_was_submitted_before_is_accepted_again_by_both_whatever_holds_now() -> None:
    gateway = await gateway_on(Bus([submitted(spec())]), 0.95, teams_quotas={TEAM: QUOTA})
    assert (await gateway.inquiries.preview(spec(), "ada", TEAM)).findings == []
    assert await gateway.submissions.submit(spec(), "ada", team=TEAM) == (False, 1)


async def test_of_two_submissions_at_once_the_quota_of_one_job_lets_one_in() -> None:
    """Method: both pass every check at first; the bus stores the first one only after that."""
    bus = Bus()
    gateway = await gateway_on(bus, teams_quotas={TEAM: QUOTA})
    both = [
        asyncio.create_task(gateway.submissions.submit(spec(name), "ada", team=TEAM)) for name in ("first", "second")
    ]
    await asyncio.sleep(0)
    bus.holds_back.set()
    first, second = await asyncio.gather(*both, return_exceptions=True)
    assert first == (True, 1)
    assert isinstance(second, Problem)
    assert second.kind == "quota-used"
