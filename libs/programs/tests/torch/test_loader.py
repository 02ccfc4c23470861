"""`python -m stretto_programs.run` on programs of PyTorch: the same numbers, draws, output and exit status."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import program_harness
import pytest
from program_harness import FREE, steps_of
from program_texts import MEET

pytestmark = pytest.mark.slow
running, alone, compared = (
    partial(each, warm=None) for each in (program_harness.running, program_harness.alone, program_harness.compared)
)
"""Programs of PyTorch start cold: the process that others are forked from has TensorFlow."""

pytest.importorskip("torch", reason="PyTorch is not installed here: pip install stretto-programs[torch]")
pytest.importorskip("cloudpickle", reason="cloudpickle is not installed here: pip install stretto-programs[torch]")

START = (
    MEET
    + """
import hashlib, random, sys, threading, traceback
from collections import namedtuple
import numpy as np, torch
from torch import nn
from torch.utils import data
from torch.utils.data import DataLoader
torch.set_num_threads(1)
torch.manual_seed(7)
np.random.seed(8)
random.seed(9)

def states():
    arrays = [torch.get_rng_state(), *map(np.asarray, np.random.get_state())]
    return [*(each.tolist() for each in arrays), random.getstate()]

def tell(name, *found):
    print(name, hashlib.sha256(repr([found, states()]).encode()).hexdigest(), flush=True)

def worked(number, much=1500):
    for step in range(much):
        number = (number * 31 + step) % 1_000_003
    return number
"""
)
TRAINING = '''
class Clicks(data.Dataset):
    """Rows of numbers, and bags of words of varying lengths."""
    epoch = 0
    def __init__(self, count):
        self.amounts = torch.randn(count, 3)
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, place):
        number = worked(place + self.epoch)
        return self.amounts[place], [number % 50, *range(place % 4)], float(number % 2)

def collate(rows):
    amounts, words, labels = zip(*rows)
    ends = np.cumsum([len(each) for each in words])
    bags = torch.tensor([0, *ends[:-1].tolist()]), torch.tensor([word for each in words for word in each])
    return torch.stack(amounts), bags, torch.tensor(labels)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(50, 8, mode="sum")
        self.last = nn.Sequential(nn.Linear(11, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1))
    def forward(self, amounts, offsets, words):
        return self.last(torch.cat([amounts, self.words(words, offsets)], 1))[:, 0]

net = Net()
optimizer = torch.optim.Adam(net.parameters(), 0.01)
def step_on(amounts, bags, labels):
    loss = nn.functional.binary_cross_entropy_with_logits(net(amounts, *bags), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()

clicks = Clicks(40 * 16 + 7)
training = DataLoader(clicks, batch_size=16, shuffle=True, collate_fn=collate)
validation = DataLoader(Clicks(200), batch_size=50, collate_fn=collate)
losses, step = [], 0
for epoch in range(5):
    clicks.epoch = epoch // 2
    for batch in training:
        losses.append(step_on(*batch))
        step += 1
        if step in (20, 110):
            meet(step)
        if step % 30 == 0:
            net.eval()
            with torch.no_grad():
                losses += [net(amounts, *bags).sum().item() for amounts, bags, _ in validation]
            net.train()
        time.sleep(0.002)
tell("variables", losses, len(training), [(name, each.numpy()) for name, each in net.state_dict().items()])
print("tensorflow" in sys.modules)
sys.exit(int(sys.argv[1]))
'''
KINDS = '''
class Items(data.Dataset):
    def __init__(self, count=640, much=1500):
        self.count, self.much = count, much
    def __len__(self):
        return self.count
    def __getitem__(self, place):
        return self.item(int(place), worked(int(place), self.much))
    def item(self, place, number):
        return torch.tensor([place, number])

class Unread:
    """An object that raises when it is looked at."""
    is_closed = True
    @property
    def __class__(self):
        if Unread.is_closed:
            raise OSError("not open yet")
        return Unread

def content(batch):
    """Everything that a program can see of a batch."""
    if isinstance(batch, torch.Tensor):
        return [str(batch.dtype), tuple(batch.shape), batch.stride(), batch.double().tolist()]
    if isinstance(batch, np.ndarray | np.generic):
        return [str(batch.dtype), batch.shape, batch.tolist()]
    if isinstance(batch, dict):
        return [type(batch), *((key, content(each)) for key, each in batch.items())]
    if isinstance(batch, list | tuple):
        return [type(batch), *map(content, batch)]
    return batch

def consumed(batches, until=None):
    """Take batches; each step draws a number, as dropout does."""
    found = []
    for step, batch in enumerate(batches):
        found += [content(batch), torch.rand(1).item(), np.random.rand()]
        time.sleep(0.002)
        if step == until:
            break
    return found

def case(name, dataset, passes=2, until=None, **how):
    print(name, file=sys.stderr, flush=True)
    loader = DataLoader(dataset, **{"batch_size": 8, **how})
    tell(name, [consumed(loader, until) for _ in range(passes)], len(loader))

print("first", file=sys.stderr, flush=True)
for step, batch in enumerate(DataLoader(Items(9000, 5000), batch_size=8)):
    if step == 5:
        meet(5)
    if step == 30:
        break
'''
MOVING = """
case("in order", Items())
case("shuffled", Items(), shuffle=True)
case("last one dropped", Items(643), shuffle=True, drop_last=True)
case("broken off", Items(), shuffle=True, until=25, passes=3)
case("with replacement", Items(), sampler=data.RandomSampler(Items(), replacement=True, num_samples=600))
case("weighted", Items(), sampler=data.WeightedRandomSampler(range(1, 641), 500))
case("some", Items(), sampler=data.SubsetRandomSampler(np.arange(3, 600)))
case("distributed", Items(), sampler=data.DistributedSampler(Items(), 2, 1, seed=4))
case("listed", Items(), batch_size=1, batch_sampler=[[n, (7 * n) % 640, 5] for n in range(100)])
case("single", Items(much=9000), passes=1, batch_size=None, shuffle=True)

own = torch.Generator()
own.manual_seed(3)
shared = [DataLoader(Items(644), batch_size=8, shuffle=True, generator=own) for _ in range(2)]
print("a generator of the program", file=sys.stderr, flush=True)
tell("a generator of the program", [[consumed(each), consumed(each, 30), own.get_state().tolist()] for each in shared])
print("more than once", file=sys.stderr, flush=True)
often = DataLoader(Items(644), batch_size=8, sampler=data.RandomSampler(Items(200), num_samples=630, generator=own))
tell("more than once", consumed(often), consumed(often, 30), own.get_state().tolist())

Pair = namedtuple("Pair", "one two")
class Structured(Items):
    def item(self, place, number):
        return {
            "pair": Pair(number, np.float32(place / 7)), "text": f"t{number}", "array": np.arange(place % 5 + 2)[:2],
            "half": torch.tensor(place / 3, dtype=torch.bfloat16), 3: [None, True, 1.5, b"x"],
        }
def kept(rows):
    return data.default_collate([{k: v for k, v in row.items() if k != 3} for row in rows]), [row[3] for row in rows]
case("structured", Structured(), collate_fn=kept)
class Columns(Items):
    def item(self, place, number):
        return [place, number, place * number]
def columns(rows):
    table = torch.tensor(rows)
    return [table[:, n] for n in range(3)], table.T, table[::2, 1:], torch.ones(1).expand(4)
case("views", Columns(), collate_fn=columns, shuffle=True)
words = ["a", "b"]
case("a local function", Items(), collate_fn=lambda rows: (torch.stack(rows), words[len(rows) % 2]))

print("one beside the other", file=sys.stderr, flush=True)
one, two = (DataLoader(Items(), batch_size=8, shuffle=True) for _ in range(2))
tell("one beside the other", consumed(zip(one, two)), consumed(two), consumed(zip(one, one)))

class Faulty(Items):
    def item(self, place, number):
        if place == 77:
            raise KeyError(f"no item {place}")
        return number
print("an error in an item", file=sys.stderr, flush=True)
faulty, seen = iter(DataLoader(Faulty(), batch_size=8)), []
while True:
    try:
        seen.append(content(next(faulty)))
    except KeyError as error:
        tell("error", repr(error), traceback.extract_tb(error.__traceback__)[-1].line, len(seen))
    except StopIteration:
        break
tell("an error in an item", seen)
class Ending(Items):
    def item(self, place, number):
        if place == 130:
            raise KeyboardInterrupt
        return number
print("an interrupt", file=sys.stderr, flush=True)
try:
    found = consumed(DataLoader(Ending(), batch_size=8))
except KeyboardInterrupt:
    tell("an interrupt")

class Rarely(Items):
    def item(self, place, number):
        return number + (np.random.rand() + torch.rand(1).item() + random.random() if place % 100 == 70 else 0)
case("rarely random", Rarely(), passes=3)
class Loud(Items):
    def item(self, place, number):
        if place % 50 == 40:
            print("item", place)
        return number
case("rarely loud", Loud())
class Writes(Items):
    def item(self, place, number):
        if place % 50 == 40:
            with open("written", "a") as file:
                file.write(f"{place}\\n")
        return number
case("rarely writing", Writes())
print(open("written").read())

class Dated(Items):
    date = 1
    def item(self, place, number):
        return number + self.date
print("changed between passes", file=sys.stderr, flush=True)
dated = Dated()
loader, found = DataLoader(dated, batch_size=8), []
for dated.date in range(4):
    found.append(consumed(loader))
tell("changed between passes", found)
print("changed within a pass", file=sys.stderr, flush=True)
dated.date, found = 1, []
for step, batch in enumerate(DataLoader(dated, batch_size=8)):
    found.append(content(batch))
    if step == 40:
        dated.date = 5
tell("changed within a pass", found)
limit = 3
class Global(Items):
    def item(self, place, number):
        return number % limit
print("a changed global name", file=sys.stderr, flush=True)
loader, found = DataLoader(Global(), batch_size=8), []
for step, batch in enumerate(loader):
    found.append(content(batch))
    if step == 40:
        limit = 5
tell("a changed global name", found, consumed(loader))
rows = torch.zeros(700)
print("a changed tensor", file=sys.stderr, flush=True)
loader, found = DataLoader(data.StackDataset(Items(), [torch.zeros(1)] * 640, data.Subset(rows, range(640))), 8), []
for step, batch in enumerate(loader):
    found.append(content(batch))
    if step == 40:
        rows[400:] += 1
tell("a changed tensor", found)
"""
REFUSED = """
class Random(Items):
    def item(self, place, number):
        return number + torch.rand(1)
case("random", Random(), shuffle=True)
class NumPy(Items):
    def item(self, place, number):
        return number + np.random.rand()
case("numpy", NumPy())
class Python(Items):
    def item(self, place, number):
        return number + random.random()
case("python", Python())
class Own(Items):
    draws = np.random.default_rng(3)
    def __init__(self):
        super().__init__()
        self.draws = Own.draws
    def item(self, place, number):
        return number + self.draws.random()
case("own generator", Own())
class Counting(Items):
    seen = 0
    def item(self, place, number):
        self.seen += 1
        return number + self.seen
case("counting", Counting())
class Stream(data.IterableDataset):
    def __iter__(self):
        yield from (torch.tensor(worked(n)) for n in range(100))
    def __len__(self):
        return 100
case("stream", Stream())
case("workers", Items(), num_workers=1)
class Lazy(data.Sampler):
    def __iter__(self):
        for _ in range(100):
            yield int(torch.randint(0, 640, [1]))
    def __len__(self):
        return 100
case("lazy", Items(), sampler=Lazy())
case("lazy generator", Items(), sampler=data.RandomSampler(Items(), replacement=True, generator=torch.Generator()))
case("cheap", data.TensorDataset(torch.arange(99)), batch_size=1)
class Sparse(Items):
    def item(self, place, number):
        return torch.sparse_coo_tensor([[number % 3]], [1.0], (3,), check_invariants=True)
print("sparse", file=sys.stderr, flush=True)
for batch in DataLoader(Sparse(), batch_size=8, collate_fn=list):
    pass
class Object(Items):
    def item(self, place, number):
        return object()
print("object", file=sys.stderr, flush=True)
for batch in DataLoader(Object(), batch_size=8, collate_fn=list):
    pass
locked = Items()
locked.lock = threading.Lock()
case("locked", locked)
parameter = nn.Parameter(torch.ones(1))
class Trained(Items):
    def item(self, place, number):
        return number * parameter.detach()
case("trained", Trained())
table = torch.arange(700.0)
class Shared(Items):
    def item(self, place, number):
        return table[place : place + 8]
case("shared", Shared(), batch_size=1, collate_fn=lambda rows: [worked(5, 12000), rows[0]])
class Large(Items):
    def __init__(self):
        super().__init__()
        self.table = np.zeros(3 << 29, np.uint8)
case("large", Large(), passes=1)
unread = Items()
unread.part = Unread()
case("unread", unread)
class Nameless:
    def __str__(self):
        raise LookupError("no name")
nameless = Items()
nameless.parts = {Nameless(): 1}
case("nameless", nameless)
class Unsaid(Items):
    def __reduce__(self):
        class Quiet(Exception):
            __str__ = Nameless.__str__
        raise Quiet
case("unsaid", Unsaid())
"""
NO_FOLDER = """
import tempfile
tempfile.tempdir = "missing"
case("a fault", Items())
"""
CLOSED = """
print("a fault", file=sys.stderr, flush=True)
Unread.is_closed, items, found = False, Items(), []
items.part = Unread()
for step, batch in enumerate(DataLoader(items, batch_size=8, shuffle=True)):
    found.append([content(batch), torch.rand(1).item()])
    Unread.is_closed = step > 20
tell("a fault", found)
"""
BROKEN_OFF = """
import gc
from stretto_programs.lanes.feed import Feed
loader = DataLoader(Items(), batch_size=8)
for _ in range(20):
    consumed(loader, 5)
for _ in range(20):
    consumed(DataLoader(Items(), batch_size=8), 5)
[feed] = (each for each in gc.get_objects() if type(each) is Feed)
print(feed.counts.delivered, len(feed._streams))
"""
HASHED = """
names = [f"n{n}" for n in range(640)]
class Hashed(Items):
    def item(self, place, number):
        return hash(names[place]) % 1000
print("hashed", file=sys.stderr, flush=True)
wrong = 0
for batch, expected in zip(DataLoader(Hashed(much=5000), batch_size=8), zip(*[iter(names)] * 8)):
    wrong += batch.tolist() != [hash(each) % 1000 for each in expected]
print(wrong, len(batch))
"""
REASONS = {
    "random": "its items draw random numbers of torch",
    "numpy": "its items draw random numbers of numpy.random",
    "python": "its items draw random numbers of random",
    "own generator": "its items change the data set: draws",
    "counting": "its items change the data set: seen",
    "stream": "it is an IterableDataset",
    "workers": "num_workers=1: workers of its own prepare its batches",
    "lazy": "its Lazy may draw random numbers as it goes",
    "lazy generator": "its RandomSampler may draw random numbers as it goes",
    "cheap": "too little",
    "sparse": "a tensor of layout torch.sparse_coo",
    "object": "it has a object",
    "locked": "its data set does not pickle: TypeError: cannot pickle '_thread.lock' object",
    "trained": "its data set refers to a Parameter",
    "shared": "its batches share memory with its data set",
    "large": "its data set has an array of 1536 MiB",
    "unread": "OSError: not open yet",
    "nameless": "LookupError: no name",
    "unsaid": "LookupError: no name",
}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of the training alone."""
    found = alone(tmp_path_factory.mktemp("training") / "alone", START + TRAINING, status=3)
    assert found.endswith("\nFalse\n"), "PyTorch's programs load no TensorFlow"
    return found


@pytest.mark.parametrize("count", [1, 2])
def test_variables_and_draws_are_those_of_the_program_alone(tmp_path: Path, out: str, count: int) -> None:
    """Method: of two data workers, one is killed while it is used."""
    with running(tmp_path / "run", START + TRAINING, "--data-workers", str(count), meet=True) as program:
        program.meet_lanes(20, count)
        program.meet(110)
        if count == 2:
            program.kill_lane()
        program.go_on(110)
        *ended, errors = program.ended()
    assert ended == [3, out], errors
    assert f"stretto: DataLoader of Clicks: {count} data workers prepare it: " in errors
    assert errors.count("is lost: it ended with status -9;") == count - 1
    elsewhere, steps = steps_of(errors)
    assert elsewhere > steps // 10


def told(errors: str) -> dict[str, str]:
    """Return what was said about each case."""
    return dict(re.findall(r"^([a-z][a-z ]*)\n((?:stretto: .*\n)*)", errors, re.M))


def test_loaders_of_many_kinds_give_the_batches_and_draws_that_they_give_alone(tmp_path: Path) -> None:
    _, errors = compared(tmp_path, START + KINDS + MOVING, meet=5, free=FREE)
    assert "nothing moves" not in errors
    assert "used any more" not in errors
    lines = told(errors)
    assert len(lines) == 26
    assert all("1 data workers prepare it" in line for line in lines.values())
    changed = "home prepares the rest of a pass: the program changed the data set, "
    assert {name for name, line in lines.items() if changed in line} == {
        "changed within a pass", "a changed global name", "a changed tensor",
    }  # fmt: skip
    elsewhere, steps = steps_of(errors)
    assert elsewhere > steps // 10


def test_loaders_that_could_give_others_stay_as_they_are_and_the_reason_is_told(tmp_path: Path) -> None:
    _, errors = compared(tmp_path, START + KINDS + REFUSED)
    found = told(errors)
    assert {name: reason for name, reason in REASONS.items() if reason not in found.get(name, "")} == {}, found


@pytest.mark.parametrize(("text", "reason"), [(NO_FOLDER, "FileNotFoundError: "), (CLOSED, "OSError: not open yet")])
def test_a_fault_of_a_decision_is_told_and_does_not_reach_the_program(tmp_path: Path, text: str, reason: str) -> None:
    text = START + KINDS.partition('print("first"')[0] + text
    _, errors = compared(tmp_path, text, free=FREE)
    lines = told(errors)["a fault"]
    assert f"nothing moves to data workers: {reason}" in lines
    assert ("1 data workers prepare it" in lines) is text.endswith(CLOSED)


def test_passes_that_the_program_leaves_are_forgotten(tmp_path: Path) -> None:
    text = START + KINDS.partition('print("first"')[0] + BROKEN_OFF
    with running(tmp_path / "run", text, "--data-workers", "1", free=FREE) as program:
        status, out, errors = program.ended()
    assert status == 0, errors
    delivered, left = map(int, out.split())
    assert delivered == 20 * 6 - 3 + 20 * 3
    assert left <= 2


def test_items_that_use_the_hash_of_a_text_have_that_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another loader moved before, so the data worker is trusted for that one; its hashes have another salt."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with running(tmp_path / "run", START + KINDS + HASHED, "--data-workers", "1", meet=True, free=FREE) as program:
        program.meet_lanes(5, 1)
        status, out, errors = program.ended()
    assert (status, out) == (0, "0 8\n"), errors
    assert "1 data workers prepare it" in told(errors)["hashed"]
    elsewhere, _ = steps_of(errors)
    assert elsewhere > 0
