"""The program of loops.py with PyTorch: a data set parses and hashes a line, a `DataLoader` puts batches together."""

import sys
import zlib

import torch
from clock import Clock

BATCH, BINS, WIDTH, NUMBERS, TEXTS = 256, 20_000, 8, 13, 26


class Lines(torch.utils.data.Dataset):
    def __init__(self, file):
        with open(file) as opened:
            self.lines = opened.read().splitlines()

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, at):
        label, *columns = self.lines[at].split(",")
        texts = [each.encode() for each in columns[NUMBERS:]]
        ids = [zlib.crc32(each) % BINS for each in texts]
        return torch.log1p(torch.tensor([float(each) for each in columns[:NUMBERS]])), torch.tensor(ids), float(label)


def main(file, steps, warm_s, workers=0):
    torch.set_num_threads(1)
    table = torch.nn.Embedding(BINS, WIDTH)
    deep = torch.nn.Sequential(
        *(torch.nn.Linear(NUMBERS + TEXTS * WIDTH, 384), torch.nn.ReLU()),
        *(torch.nn.Linear(384, 192), torch.nn.ReLU(), torch.nn.Linear(192, 1)),
    )
    optimizer = torch.optim.SGD([*table.parameters(), *deep.parameters()], 0.01)
    loader = torch.utils.data.DataLoader(Lines(file), BATCH, shuffle=True, num_workers=workers)
    clock = Clock(steps, warm_s)
    while True:
        for numbers, ids, label in loader:
            optimizer.zero_grad()
            logits = deep(torch.cat([numbers, table(ids).flatten(1)], 1))[:, 0]
            torch.nn.functional.binary_cross_entropy_with_logits(logits, label.float()).backward()
            optimizer.step()
            if clock.is_over_behind_step():
                return


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), *map(int, sys.argv[4:]))
