"""A program of several ranks under Compose: they reach each other, are killed and resized, and lose nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from stretto_client.errors import ClientError

from tests.containers.engine import Engine
from tests.containers.installation import Installation, filled, installed
from tests.containers.prepared import engine_with_compose

SAMPLES = 60_000
JOB = "ranks"
TRAIN = """\
import json, os, socket, time, stretto.agent

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def connected():
    while True:
        try:
            return socket.create_connection(address, 10).makefile("rw")
        except OSError:  # rank 0 does not listen yet
            time.sleep(0.05)


if rank:
    links = [connected()]
else:
    listener = socket.create_server(("", address[1]))
    links = [listener.accept()[0].makefile("rw") for _ in range(ranks - 1)]


def told(link, value):
    print(json.dumps(value), file=link, flush=True)


def heard(link):
    if not (line := link.readline()):
        raise RuntimeError("a rank is gone")
    return json.loads(line)


def added(values):  # all-reduce, which fails in all ranks if one is gone
    if rank:
        told(links[0], values)
        return heard(links[0])
    total = [sum(each) for each in zip(values, *map(heard, links))]
    for link in links:
        told(link, total)
    return total


parameters = [0, 0]  # how many samples they have seen, and the sum of their numbers


def save(folder):
    with open(f"{folder}/parameters.json", "w") as file:
        json.dump(parameters, file)


def load(folder):
    parameters[:] = json.load(open(f"{folder}/parameters.json"))


print("rank", rank, "of", ranks, flush=True)
stretto.agent.restored(load)
for step, batch in enumerate(stretto.agent.samples(save), 1):
    of_all = added([len(batch), sum(batch)])
    parameters[:] = [parameters[0] + of_all[0], parameters[1] + of_all[1]]
    time.sleep(0.03)
    if step % 20 == 0:
        stretto.agent.checkpoint(save)
stretto.agent.checkpoint(save)
print("parameters", *parameters, flush=True)
"""

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.night]


@pytest.fixture(scope="module")
def place() -> Engine:
    return engine_with_compose()


@pytest.fixture(scope="module")
def volume(place: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A volume of the engine with the program."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "train.py").write_text(TRAIN)
    with filled(place, "program", folder) as name:
        yield name


@pytest.fixture(scope="module")
def installation(place: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    allowed = {"STRETTO_ALLOWED_VOLUMES": "docker_volume:program-*"}
    own = Path(tmp_path_factory.mktemp("own"), "own.yaml")
    services = {"gateway": {"environment": allowed}, "actuator": {"environment": allowed}}
    own.write_text(yaml.safe_dump({"services": services}))
    with installed(place, own=own) as running:
        yield running
    assert running.left() == []


def printed(installation: Installation) -> str:
    """Return what the programs of all workers so far have printed."""
    told = ""
    for worker in range(5):
        with contextlib.suppress(ClientError):  # there is no such worker yet
            told += installation.gateway.last_lines(JOB, f"worker-{worker}", 10_000) + "\n"
    return told


def test_ranks_in_containers_are_killed_and_resized(installation: Installation, volume: str) -> None:
    spec = {
        "name": JOB,
        "program": {"command": ["python", "train.py"], "path": "/models", "level": 2, "resize": "restart"},
        "dataset": {"samples": SAMPLES, "batch_size": 64, "batches_per_shard": 10},
        "resources": {
            "workers": {"count": {"min": 1, "max": 3}},
            "initial": {"workers": 2, "worker_cpu_cores": 0.2, "worker_memory_bytes": "512Mi"},
            "fixed": True,
        },
        "volumes": [{"name": "program", "path": "/models", "docker_volume": volume}],
    }
    installation.gateway.submit(yaml.safe_dump(spec))
    installation.until(lambda: installation.trained_samples(JOB) > 0, "two ranks train")
    installation.crash(installation.pods("worker")[0])
    installation.until(lambda: printed(installation).count("rank 1 of 2\n") == 2, "a rank in the place of a killed one")
    installation.gateway.scale(JOB, {"workers": 1})
    installation.until(lambda: "rank 0 of 1\n" in printed(installation), "one rank")
    installation.gateway.scale(JOB, {"workers": 3})
    installation.until(lambda: "rank 2 of 3\n" in printed(installation), "three ranks")
    installation.until(lambda: installation.ended(JOB), "the job ends")
    assert installation.status(JOB) == "finished", installation.gateway.job(JOB)["reason"]
    ends = [line for line in printed(installation).splitlines() if line.startswith("parameters ")]
    assert set(ends) == {f"parameters {SAMPLES} {SAMPLES * (SAMPLES - 1) // 2}"}
    books = installation.gateway.audit(JOB)
    assert books["exact"], books["findings"]
    assert (books["samples_done"], books["samples_lost"]) == (SAMPLES, 0)
