"""Loaders as their documentation uses them for training that is interrupted, each in one function.

Each function runs in the environment of its loader, and opens the loader in one worker, at what the workers of a
checkpoint had saved, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.bench.programs.loaders.schedule import SHARD_BATCHES


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's place in its group.

    batch_size: of this worker. saved: the states of all ranks of the checkpoint, by rank.
    """

    rank: int
    workers: int
    batch_size: int
    samples: int
    seed: int
    data: str
    service: str
    saved: list[Any]

    @property
    def own(self) -> Any:
        """Return what this rank had saved; a rank that was not there gets that of the first."""
        return (self.saved[self.rank] if self.rank < len(self.saved) else self.saved[0]) if self.saved else None


def _nothing(*_: Any) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Opened:
    """A loader in one worker. state: what a checkpoint keeps of the loader. trained: called after each batch."""

    batches: Iterable[Any]
    state: Callable[[], Any] = _nothing
    trained: Callable[[int], Any] = _nothing


IMPORTS = {
    "grain": ("grain", "grain.experimental", "grain.sharding"),
    "distributed_sampler": ("torch.utils.data",),
    "stateful_data_loader": ("torchdata.stateful_dataloader.sampler",),
    "elastic_distributed_sampler": ("dlrover.trainer.torch.elastic.sampler",),
    "streaming": ("streaming",),
    "litdata": ("litdata",),
    "tf_data_service": ("tensorflow",),
    "dlrover_shards": (),
    "ray_data": (),  # forks of a process that has imported Ray crash now and then
}
"""Modules that a worker of each loader imports."""


def grain(place: Place) -> Opened:
    """Grain's iterator for another number of hosts; the state of any shard restores all."""
    from grain import MapDataset
    from grain.experimental import ElasticIterator
    from grain.sharding import ShardOptions

    data = MapDataset.range(place.samples).shuffle(seed=place.seed)
    shard = ShardOptions(shard_index=place.rank, shard_count=place.workers)
    batches = iter(ElasticIterator(data, place.batch_size * place.workers, shard))
    if place.saved:
        batches.set_state(place.saved[0])
    return Opened(batches, batches.get_state)


def grouped() -> None:
    """Join the processes of a group, as a program under torchrun does first."""
    from torch import distributed

    distributed.init_process_group("gloo")


def distributed_sampler(place: Place) -> Opened:
    """PyTorch's sampler has no state: the checkpoint keeps the number of steps, and the loop skips as many batches."""
    from itertools import islice

    from torch.utils.data import DataLoader, DistributedSampler

    data, before = range(place.samples), place.own or 0
    sampler = DistributedSampler(data, place.workers, place.rank, shuffle=True, seed=place.seed)
    steps = Steps(before)
    return Opened(islice(DataLoader(data, place.batch_size, sampler=sampler), before, None), steps.so_far, steps.one)


class Steps:
    """The steps of an epoch, over all groups that trained it."""

    def __init__(self, before: int) -> None:
        self.count = before

    def so_far(self) -> int:
        return self.count

    def one(self, _: int) -> None:
        self.count += 1


def stateful_data_loader(place: Place) -> Opened:
    """torchdata's loader and sampler with a state, which is that of the rank."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    data = range(place.samples)
    sampler = StatefulDistributedSampler(data, place.workers, place.rank, shuffle=True, seed=place.seed)
    loader = StatefulDataLoader(data, place.batch_size, sampler=sampler)
    if place.saved:
        loader.load_state_dict(place.own)
    return Opened(loader, loader.state_dict)


def elastic_distributed_sampler(place: Place) -> Opened:
    """DLRover's sampler, which is told the steps and knows what the group of another size had completed."""
    from dlrover.trainer.torch.elastic.sampler import ElasticDistributedSampler
    from torch.utils.data import DataLoader

    grouped()
    data, steps = range(place.samples), Steps(0)
    sampler = ElasticDistributedSampler(data, place.workers, place.rank, shuffle=True, seed=place.seed)
    before = 0
    if place.saved:
        sampler.load_state_dict(place.saved[0])
        before = place.saved[0]["completed_num"]

    def state() -> dict[str, int]:
        told = sampler.state_dict(steps.count, place.batch_size)
        return {**told, "completed_num": before + told["completed_num"]}

    return Opened(DataLoader(data, place.batch_size, sampler=sampler), state, steps.one)


def streaming(place: Place) -> Opened:
    """MosaicML Streaming; the state of rank 0 restores all."""
    from streaming import StreamingDataLoader, StreamingDataset

    grouped()
    given = {"batch_size": place.batch_size, "shuffle": True, "shuffle_seed": place.seed}
    data = StreamingDataset(local=place.data, **given)
    loader = StreamingDataLoader(data, batch_size=place.batch_size)
    if place.saved:
        loader.load_state_dict(place.saved[0])
    return Opened((batch["id"] for batch in loader), loader.state_dict)


def streaming_data(folder: str, samples: int) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=folder, columns={"id": "int"}, size_limit=2**13) as writer:
        for each in range(samples):
            writer.write({"id": each})


def litdata(place: Place) -> Opened:
    """litData; each rank keeps its state."""
    from litdata import StreamingDataLoader, StreamingDataset

    grouped()
    loader = StreamingDataLoader(
        StreamingDataset(place.data, shuffle=True, seed=place.seed), batch_size=place.batch_size
    )
    if place.saved:
        loader.load_state_dict(place.own)
    return Opened(loader, loader.state_dict)


def _same(number: int) -> int:
    return number


def litdata_data(folder: str, samples: int) -> None:
    from litdata import optimize

    optimize(_same, list(range(samples)), folder, chunk_size=256, num_workers=1)


def ray_data(place: Place) -> Opened:
    """Ray Data has no state of a training's place: workers that begin again begin the epoch again.

    The first worker splits the data set for all of its group, as Ray Train does, and an actor keeps the parts.
    """
    import os
    import time

    import ray

    class Parts:
        def __init__(self, parts: list[Any]) -> None:
            self.parts = parts

        def of(self, rank: int) -> Any:
            return self.parts[rank]

    ray.init(address=place.service, namespace="bench", log_to_driver=False)
    name, keeper = os.environ["MASTER_PORT"], None
    if place.rank == 0:
        data = ray.data.range(place.samples, override_num_blocks=8).random_shuffle(seed=place.seed)
        parts = data.streaming_split(place.workers, equal=True)
        keeper = ray.remote(num_cpus=0)(Parts).options(name=name).remote(parts)
    while keeper is None:
        try:
            keeper = ray.get_actor(name)
        except ValueError:  # the first worker has not begun yet
            time.sleep(0.05)
    part = ray.get(keeper.of.remote(place.rank))

    def batches(_: Any = keeper) -> Iterator[Any]:  # the actor ends with its last handle
        for batch in part.iter_batches(batch_size=place.batch_size):
            yield batch["id"]

    return Opened(batches())


def tf_data_service(place: Place) -> Opened:
    """tf.data service: one named job, whose consumers take what comes first; splits are given out as needed."""
    import tensorflow as tf
    from tensorflow.data.experimental import service

    data = tf.data.Dataset.range(place.samples).shuffle(place.samples, seed=place.seed).batch(place.batch_size)
    mode = service.ShardingPolicy.DYNAMIC
    return Opened(data.apply(service.distribute(mode, place.service, job_name="epoch")).as_numpy_iterator())


def dlrover_shards(place: Place) -> Opened:
    """DLRover's shards: a worker fetches one, trains its batches and reports them."""
    import os

    os.environ |= {"DLROVER_MASTER_ADDR": place.service, "DLROVER_MASTER_SERVICE_TYPE": "grpc", "NODE_TYPE": "worker"}
    os.environ |= {"NODE_ID": str(place.rank), "WORKER_RANK": str(place.rank), "DLROVER_LOG_LEVEL": "WARNING"}
    from dlrover.python.elastic_agent.sharding.client import ShardingClient

    client = ShardingClient("data", place.batch_size, 1, place.samples, num_minibatches_per_shard=SHARD_BATCHES)

    def batches() -> Iterator[range]:
        while shard := client.fetch_shard():
            for first in range(shard.start, shard.end, place.batch_size):
                yield range(first, min(first + place.batch_size, shard.end))

    return Opened(batches(), trained=client.report_batch_done)
