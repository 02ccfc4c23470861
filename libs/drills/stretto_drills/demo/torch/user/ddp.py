"""A recommendation model of PyTorch, trained by DistributedDataParallel as anybody has it; four lines are Stretto's.

The samples are generated clicks: each is made from its number alone, and whether it is a click follows hidden tastes.
"""

import stretto.agent  # new
import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FIELDS, CATEGORIES, WIDTH = 8, 2000, 16
HELD_OUT, HELD_OUT_FROM, TOLD_EVERY = 2048, 10**9, 100


class Clicks(Dataset):
    def __init__(self):
        self.tastes = torch.randn(FIELDS, CATEGORIES, generator=torch.Generator().manual_seed(7))

    def __getitem__(self, number):
        dice = torch.Generator().manual_seed(number)
        keys = torch.randint(CATEGORIES, (FIELDS,), generator=dice)
        liking = self.tastes[range(FIELDS), keys].sum()
        return keys, (torch.rand((), generator=dice) < torch.sigmoid(liking)).float()


class Recommender(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = torch.nn.Embedding(FIELDS * CATEGORIES, WIDTH)
        self.top = torch.nn.Sequential(torch.nn.Linear(FIELDS * WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def forward(self, keys):
        rows = self.tables(keys + CATEGORIES * torch.arange(FIELDS))
        return self.top(rows.flatten(1)).squeeze(1)


dist.init_process_group("gloo")
torch.manual_seed(7)
clicks, model = Clicks(), DistributedDataParallel(Recommender())
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)


def save(folder):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/state.pt")


def load(folder):
    state = torch.load(f"{folder}/state.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


stretto.agent.restored(load)  # new
for step, (keys, clicked) in enumerate(DataLoader(clicks, batch_sampler=stretto.agent.samples(save)), 1):  # new
    optimizer.zero_grad()
    loss = binary_cross_entropy_with_logits(model(keys), clicked)
    loss.backward()
    optimizer.step()
    if step % TOLD_EVERY == 0:
        stretto.agent.checkpoint(save)  # new
stretto.agent.checkpoint(save)
if dist.get_rank() == 0:
    keys, clicked = map(torch.stack, zip(*(clicks[HELD_OUT_FROM + each] for each in range(HELD_OUT)), strict=True))
    with torch.no_grad():
        loss = binary_cross_entropy_with_logits(model.module(keys), clicked)
    print(f"held-out loss {loss:.4f}, beside {binary_cross_entropy_with_logits(0 * clicked, clicked):.4f} untrained")
