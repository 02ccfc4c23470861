"""The baseline: Wide & Deep of trainer_task.py in PyTorch, data-parallel over gloo, run by an environment of its own.

    trainer_torch.py RANK WORLD STORE POOL     answers {"steps": n} lines with {"seconds": s}; its environment has torch

Tables are whole in each process, with sparse gradients: `DistributedDataParallel` gathers the rows of all processes and
averages them, so that a step of all processes is one step of each. The ids are numbered beforehand, without gaps.
"""

import itertools
import json
import os
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)  # as on the other sides


class WideDeep(nn.Module):
    def __init__(self, categories, dimension, fields, numeric, hidden):
        super().__init__()
        self.rows = nn.EmbeddingBag(categories, dimension, mode="sum", sparse=True)
        nn.init.uniform_(self.rows.weight, -0.05, 0.05)
        widths = [fields * (dimension - 1) + numeric, *hidden]
        layers = [part for pair in itertools.pairwise(widths) for part in (nn.Linear(*pair), nn.ReLU())]
        self.deep = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, ids, numeric):
        samples, fields = ids.shape
        # a bag for each id: the rows stay apart, as in the model of the other sides
        rows = self.rows(ids.reshape(-1, 1)).reshape(samples, fields, -1)
        deep = self.deep(torch.cat([rows[:, :, 1:].reshape(samples, -1), numeric], dim=1))
        return rows[:, :, 0].sum(dim=1, keepdim=True) + deep


class Worker:
    def __init__(self, rank, world, pool):
        data = np.load(pool)
        self.ids, self.numeric, self.label = (torch.from_numpy(data[name]) for name in ("ids", "numeric", "label"))
        task = json.loads(str(data["task"]))
        self.batch, self.at = task["batch"], rank * task["batch"]
        torch.manual_seed(0)
        self.model = WideDeep(
            task["categories"], task["dimension"], self.ids.shape[1], self.numeric.shape[1], task["hidden"]
        )
        if world > 1:
            self.model = DistributedDataParallel(self.model)
        self.stride = world * self.batch
        self.loss = nn.BCEWithLogitsLoss()
        self.optimizer = torch.optim.Adagrad(
            self.model.parameters(), task["learning_rate"], initial_accumulator_value=task["initial_accumulator"]
        )

    def train(self, steps):
        begun = time.monotonic()
        for _ in range(steps):
            at = slice(self.at, self.at + self.batch)
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.loss(self.model(self.ids[at], self.numeric[at]), self.label[at])
            loss.backward()
            self.optimizer.step()
            self.at = (self.at + self.stride) % len(self.ids)
        return {"seconds": time.monotonic() - begun, "loss": loss.item()}


def main():
    rank, world, store, pool = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if world > 1:
        torch.distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world)
    worker = Worker(rank, world, pool)
    answers.write("{}\n")
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(worker.train(json.loads(line)["steps"])) + "\n")
        answers.flush()
    os._exit(0)


main()
