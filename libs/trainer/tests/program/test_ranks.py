"""Workers as ranks of one program, as processes: they begin together, one comes, one is killed, the rest goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stretto.pod.process import EXIT_USER
from stretto_wire import JobSpec
from trainer_harness import Cluster, wait_for

TRAIN = """\
import os, socket, time, stretto.agent

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def connected():
    while True:
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:  # rank 0 does not listen yet
            time.sleep(0.02)


if rank:
    links = [connected()]
else:
    listener = socket.create_server(address)
    links = [listener.accept()[0] for _ in range(ranks - 1)]


def average():  # as torch.distributed does: a rank that is gone fails all others
    for link in links:
        link.sendall(b"x")
    for link in links:
        if not link.recv(1):
            raise RuntimeError("a rank is gone")


for batch in stretto.agent.samples():
    average()
    print("trains", rank, ranks, batch.start, batch.stop, flush=True)
    while os.path.exists({hold!r} + str(ranks)):
        time.sleep(0.02)
print("saved", flush=True)
"""


def trained(cluster: Cluster, pod: str) -> list[tuple[int, int, int, int]]:
    lines = (line.split() for line in cluster.log(pod).splitlines() if line.startswith("trains "))
    return [(int(rank), int(ranks), int(first), int(stop)) for _, rank, ranks, first, stop in lines]


def test_ranks_step_together_while_workers_come_and_are_killed(started: Callable[..., Cluster], tmp_path: Path) -> None:
    alone, both = tmp_path / "hold1", tmp_path / "hold2"
    alone.touch()
    both.touch()
    (tmp_path / "train.py").write_text(TRAIN.format(hold=str(tmp_path / "hold")))
    document: dict[str, Any] = {
        "name": "mine",
        "program": {"command": ["python", "train.py"], "path": str(tmp_path), "resize": "restart"},
        "dataset": {"samples": 192, "batch_size": 8, "batches_per_shard": 4, "shuffle": False},
        "resources": {"workers": {"count": {"max": 2}}},
    }
    cluster = started(JobSpec.parse(document), cold=True)
    for pod in ("worker-0", "worker-1"):
        cluster.launch(pod, **cluster.own_folder(pod))
    cluster.announce_group("worker-0", wanted=1)
    wait_for(lambda: trained(cluster, "worker-0"))
    cluster.announce_group("worker-0", "worker-1", wanted=2)
    wait_for(lambda: "asked to leave" in cluster.log("worker-0"))
    alone.unlink()
    wait_for(lambda: trained(cluster, "worker-1") and len(trained(cluster, "worker-0")) == 2)
    assert trained(cluster, "worker-0") == [(0, 1, 0, 8), (0, 2, 8, 16)]
    assert trained(cluster, "worker-1") == [(1, 2, 16, 24)]
    cluster.kill("worker-1")
    cluster.announce_group("worker-0", wanted=1)
    both.unlink()
    assert cluster.processes["worker-0"].wait(60) == 0, cluster.log("worker-0")
    assert sorted(cluster.done) == [0, 1, 2, 3, 4, 5]
    assert [(one.offset, one.repeated) for one in cluster.released] == [(8, 0), (8, 16)], "a step repeated"
    assert trained(cluster, "worker-0")[2:] == [(0, 1, first, first + 8) for first in range(8, 192, 8)]
    assert "saved" in cluster.log("worker-0")


FAILS = """\
import os, stretto.agent

for batch in stretto.agent.samples():
    if os.environ["RANK"] == "1":
        raise ValueError("of the user")
"""


def test_a_rank_that_fails_is_to_blame_while_the_first_one_waits_for_its_step(
    started: Callable[..., Cluster], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(FAILS)
    document: dict[str, Any] = {
        "name": "mine",
        "program": {"command": ["python", "train.py"], "path": str(tmp_path), "resize": "restart"},
        "dataset": {"samples": 192, "batch_size": 8, "batches_per_shard": 4},
        "resources": {"workers": {"count": {"max": 2}}},
    }
    cluster = started(JobSpec.parse(document), cold=True)
    for pod in ("worker-0", "worker-1"):
        cluster.launch(pod, **cluster.own_folder(pod))
    cluster.announce_group("worker-0", "worker-1", wanted=2)
    assert cluster.processes["worker-1"].wait(60) == EXIT_USER, cluster.log("worker-0") + cluster.log("worker-1")
    assert cluster.processes["worker-0"].poll() is None
