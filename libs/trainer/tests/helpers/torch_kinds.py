"""PyTorch modules that strangers have, by kind: tests/torch/test_adapted.py tries each, and tells it in ADAPT.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from planted import ITEMS, TAGS, USERS, Kind, columns, named, pairs
from torch import nn

functional = torch.nn.functional


def head(width: int, *layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 8), nn.ReLU(), *layers, nn.Linear(8, 1))


class Plain(nn.Module):
    """Two tables and a number."""

    def __init__(self, users: Any = None, layers: tuple[nn.Module, ...] = (), **options: Any) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, 6, **options) if users is None else users
        self.items = nn.Embedding(ITEMS, 6)
        self.head = head(13, *layers)

    def forward(self, user: Any, item: Any, price: Any) -> Any:
        return self.head(torch.cat([self.users(user), self.items(item), price[:, None]], dim=1))


class Widths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = {"user": (USERS, 8), "item": (ITEMS, 3), "many": (9, 8)}
        self.deep = nn.ModuleDict({name: nn.Embedding(*size) for name, size in sizes.items()})
        self.wide = nn.ModuleList([nn.Embedding(USERS, 1), nn.Embedding(ITEMS, 1)])
        self.last = nn.Linear(19, 1)

    def forward(self, user: Any, item: Any, many: Any) -> Any:
        given = {"user": user, "item": item, "many": many}
        deep = self.last(torch.cat([table(given[name]) for name, table in self.deep.items()], dim=1))
        return (deep + self.wide[0](user) + self.wide[1](item))[:, 0]


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(USERS, 4)
        self.again = self.table
        self.last = nn.Linear(8, 1)

    def forward(self, user: Any, item: Any, tags: Any) -> Any:
        return self.last(torch.cat([self.table(user) + self.again(item), self.table(tags).mean(dim=1)], dim=1))


class OneWeight(nn.Module):
    """Two layers, a bag among them, that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, 4, padding_idx=0)
        self.bag = nn.EmbeddingBag(USERS, 4, padding_idx=0)
        self.bag.weight = self.users.weight
        self.last = nn.Linear(8, 1)

    def forward(self, user: Any, tags: Any) -> Any:
        return self.last(torch.cat([self.users(user), self.bag(tags)], dim=1))


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tags = nn.Embedding(TAGS, 4, padding_idx=0)
        self.users = nn.Embedding(USERS, 4)
        self.last = nn.Linear(8, 1)

    def forward(self, user: Any, tags: Any) -> Any:
        mean = self.tags(tags).sum(dim=1) / (tags > 0).sum(dim=1, keepdim=True)
        return self.last(torch.cat([self.users(user), mean], dim=1))


class Bags(nn.Module):
    def __init__(self, mode: str, **options: Any) -> None:
        super().__init__()
        self.tags = nn.EmbeddingBag(TAGS, 4, mode=mode, **options)
        self.users = nn.Embedding(USERS, 4)
        self.last = nn.Linear(8, 1)

    def forward(self, user: Any, tags: Any, offsets: Any = None) -> Any:
        return self.last(torch.cat([self.users(user), self.tags(tags, offsets)], dim=1))


def flat_tags(*, is_last_included: bool = False) -> Callable[[int, int], Any]:
    """Return a `read` of all tags of a batch one after the other, with the place where each sample's begin."""

    def read(start: int, length: int) -> Any:
        found = columns(start, length)
        many = found["many"] - (np.arange(start, start + length) % 4 == 0)  # some samples have none
        tags = np.concatenate([row[:count] for row, count in zip(found["tags"], many, strict=True)])
        offsets = np.concatenate([[0], np.cumsum(many)])
        return {
            "user": found["user"],
            "tags": tags,
            "offsets": offsets if is_last_included else offsets[:-1],
            "label": found["label"],
        }

    return read


class WeightedBag(nn.Module):
    """The weights of a bag are rows of another table."""

    def __init__(self) -> None:
        super().__init__()
        self.tags = nn.EmbeddingBag(TAGS, 4, mode="sum", padding_idx=0)
        self.weights = nn.Embedding(TAGS, 1)
        self.last = nn.Linear(4, 1)

    def forward(self, tags: Any) -> Any:
        return self.last(self.tags(tags, per_sample_weights=torch.sigmoid(self.weights(tags)[:, :, 0])))


class InLists(nn.Module):
    """DLRM's form: the dense layers first, then lists of offsets and of ids."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = head(1)
        self.tables = nn.ModuleList([nn.EmbeddingBag(USERS, 4, mode="sum"), nn.EmbeddingBag(ITEMS, 4, mode="sum")])
        self.last = nn.Linear(9, 1)

    def forward(self, dense: Any, offsets: Any, ids: Any) -> Any:
        below = self.bottom(dense)
        rows = [table(i, o) for table, i, o in zip(self.tables, ids, offsets, strict=True)]
        return torch.sigmoid(self.last(torch.cat([below, *rows], dim=1))).squeeze(1)


def list_read(start: int, length: int) -> Any:
    found = columns(start, length)
    offsets = [np.arange(length), np.arange(length)]
    return (found["price"][:, None], offsets, [found["user"], found["item"]]), found["label"]


class OneDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, 4)
        self.last = nn.Linear(5, 1)

    def forward(self, batch: Any) -> Any:
        return self.last(torch.cat([self.users(batch["user"]), batch["price"][:, None]], dim=1))


def tensors_read(start: int, length: int) -> Any:
    found = columns(start, length)
    inputs = tuple(torch.from_numpy(found[name]) for name in ("user", "item", "price"))
    return inputs, torch.from_numpy(found["label"])


def lists_read(start: int, length: int) -> Any:
    found = columns(start, length)
    tags = [row[:count].tolist() for row, count in zip(found["tags"], found["many"], strict=True)]
    return {"user": found["user"], "tags": tags, "label": found["label"]}


class Calling(nn.Embedding):
    def forward(self, input: Any) -> Any:
        return 2 * super().forward(input)


class Functional(nn.Embedding):
    def forward(self, input: Any) -> Any:
        return torch.tanh(functional.embedding(input % self.num_embeddings, self.weight))


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(3, 4)
        self.tags = nn.Embedding(TAGS, 4)
        self.last = nn.Linear(12, 1)

    def forward(self, tags: Any) -> Any:
        rows = self.tags(tags)
        return self.last((rows + self.places(torch.arange(tags.shape[1], device=rows.device))).flatten(1))


class TiedWeights(nn.Module):
    def __init__(self, rows: int = ITEMS) -> None:
        super().__init__()
        self.items = nn.Embedding(rows, 4)
        self.users = nn.Embedding(USERS, 4)

    def forward(self, user: Any, item: Any) -> Any:
        scores = (self.users(user) + self.items(item)) @ self.items.weight.T
        return scores.mean(dim=1)


class Computed(nn.Module):
    """Ids by offsets, by the borders of a number, and by a product of two columns."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offsets", torch.tensor([0, USERS]))
        self.register_buffer("borders", torch.tensor([-0.5, 0.0, 0.5]))
        self.both = nn.Embedding(USERS + ITEMS, 4)
        self.prices = nn.Embedding(4, 4)
        self.crossed = nn.Embedding(97, 4)
        self.last = nn.Linear(16, 1)

    def forward(self, user: Any, item: Any, price: Any) -> Any:
        both = self.both(torch.stack([user, item], dim=1) + self.offsets).flatten(1)
        crossed = self.crossed((user * 31 + item) % 97)
        return self.last(torch.cat([both, self.prices(torch.bucketize(price, self.borders)), crossed], dim=1))


class Towers(nn.Module):
    """The second table is looked up behind the dense layers of the first; shapes of rows are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, 4), nn.Embedding(ITEMS, 4)
        self.user_tower, self.norm = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)), nn.LayerNorm(4)

    def forward(self, user: Any, item: Any) -> Any:
        above = self.norm(self.user_tower(self.users(user)))
        assert above.shape == (len(user), 4)
        best = above.max(dim=1).values
        rows = self.items(item.reshape(above.size(0)))
        return (above * rows).sum(dim=1) + best


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tags, self.items = nn.Embedding(TAGS, 4, padding_idx=0), nn.Embedding(ITEMS, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.last = nn.Linear(4, 1)

    def forward(self, item: Any, tags: Any) -> Any:
        history = self.encoder(self.tags(tags))
        found, _ = self.attention(self.items(item)[:, None], history, history, key_padding_mask=tags == 0)
        return self.last(found[:, 0])


class Recurrent(nn.Module):
    def __init__(self, *, is_packed: bool) -> None:
        super().__init__()
        self.tags, self.users = nn.Embedding(TAGS, 4, padding_idx=0), nn.Embedding(USERS, 4)
        self.gru = nn.GRU(4, 5, batch_first=True)
        self.last = nn.Linear(9, 1)
        self.is_packed = is_packed

    def forward(self, user: Any, tags: Any, many: Any) -> Any:
        rows = self.tags(tags)
        if self.is_packed:
            rows = nn.utils.rnn.pack_padded_sequence(rows, many, batch_first=True, enforce_sorted=False)
        _, state = self.gru(rows)
        return self.last(torch.cat([state[0], self.users(user)], dim=1))


class Branching(nn.Module):
    """The values of rows decide how they are scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, 4), nn.Embedding(ITEMS, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, user: Any, item: Any) -> Any:
        rows = self.users(user)
        if float(rows.abs().max()) > 100:
            rows = rows / rows.abs().max()
        return self.last(rows + self.items(item))


class Looping(nn.Module):
    """Lookups one after the other, as many as the longest list of the batch has ids."""

    def __init__(self) -> None:
        super().__init__()
        self.tags = nn.Embedding(TAGS, 4, padding_idx=0)
        self.last = nn.Linear(4, 1)

    def forward(self, tags: Any) -> Any:
        total = torch.zeros(len(tags), 4)
        for column in tags.T:
            total = total + self.tags(column)
        return self.last(total)


def growing_lists(start: int, length: int) -> Any:
    found = columns(start, length)
    tags = [[1 + int(i % 9)] * (1 + int(i == 15) + int(i > 30)) for i in range(start, start + length)]
    return {"tags": tags, "label": found["label"]}


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS + 1, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, user: Any) -> Any:
        user += 1
        return self.last(self.users(user))


class Masked(nn.Module):
    """Attention of user and item under a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, 4), nn.Embedding(ITEMS, 4)
        self.register_buffer("mask", torch.triu(torch.full((2, 2), -torch.inf), diagonal=1))
        self.last = nn.Linear(8, 1)

    def forward(self, user: Any, item: Any) -> Any:
        rows = torch.stack([self.users(user), self.items(item)], dim=1)
        shares = torch.softmax(rows @ rows.mT + self.mask, dim=-1)
        return self.last((shares @ rows).flatten(1))


class Drawing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, user: Any) -> Any:
        rows = self.users(user)
        return self.last(rows + 0.01 * torch.randn(len(user), 4))


class Outputs(nn.Module):
    def __init__(self, width: int = 1) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, 4)
        self.click, self.buy = nn.Linear(4, width), nn.Linear(4, width)

    def forward(self, user: Any) -> Any:
        rows = self.users(user)
        return {"click": self.click(rows)[:, 0], "buy": self.buy(rows)[:, 0]}


class Classes(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, 4), nn.Embedding(ITEMS, 4)
        self.last = nn.Linear(8, classes)

    def forward(self, user: Any, item: Any) -> Any:
        return self.last(torch.cat([self.users(user), self.items(item)], dim=1))


class NoTables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = head(1)

    def forward(self, price: Any) -> Any:
        return self.last(price[:, None])


def initialised(fill: Callable[[Any], Any]) -> Callable[[], Any]:
    """Return a `build` of tables that are filled so."""

    def build() -> Any:
        model = Plain()
        for table in (model.users, model.items):
            fill(table.weight)
        return model

    return build


def pretrained(*, freeze: bool) -> Callable[[], Any]:
    def build() -> Any:
        values = torch.from_numpy(np.random.default_rng(3).normal(size=(USERS, 6)).astype(np.float32))
        return Plain(nn.Embedding.from_pretrained(values, freeze=freeze))

    return build


def copied() -> Any:
    """Return a module in which some rows of a table were set after it was drawn."""
    model = Plain()
    model.users.weight.data[3:7].copy_(torch.ones(4, 6))
    return model


def loss_of_two(label: Any, output: Any) -> Any:
    entropy = functional.binary_cross_entropy_with_logits
    return sum(entropy(output[name], label[name], reduction="none") for name in ("click", "buy"))


def both_labels(start: int, length: int) -> Any:
    found = columns(start, length)
    return {"user": found["user"]}, {"click": found["label"], "buy": found["bought"]}


class Dependent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(USERS, 4), nn.Embedding(4, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, user: Any) -> Any:
        rows = self.first(user)
        return self.last(rows + self.second(rows.argmax(dim=1)))


class Routed(nn.Module):
    """Ids that depend on a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(1, 4)
        self.experts = nn.Embedding(4, 1)

    def forward(self, price: Any) -> Any:
        return self.experts(self.gate(price[:, None]).argmax(dim=1))


class Negatives(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, 4)

    def forward(self, user: Any) -> Any:
        return (self.users(user) * self.users(torch.randint(USERS, (len(user),)))).sum(dim=1)


class TwoPaddings(OneWeight):
    def __init__(self) -> None:
        super().__init__()
        self.bag.padding_idx = 1


class Failing(Plain):
    def forward(self, user: Any, item: Any, price: Any) -> Any:
        return self.head(self.users(user))


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tags = nn.Embedding(TAGS, 4, padding_idx=0)
        self.last = nn.Linear(4, 1)

    def forward(self, tags: Any) -> Any:
        return self.last(self.tags(tags).sum(dim=1) / (tags > 0).sum(dim=1, keepdim=True))


def empty_list(start: int, length: int) -> Any:
    found = columns(start, length)
    return found["tags"] * (np.arange(length) != 3)[:, None], found["label"]


def without_labels(start: int, length: int) -> Any:
    return (columns(start, length)["user"],)


def half() -> Any:
    model = Plain()
    model.users.half()
    return model


TAKEN: dict[str, Kind] = {
    "plain": Kind("any number of `nn.Embedding` and `nn.EmbeddingBag`, anywhere in the module", Plain),
    "widths": Kind("tables of different widths", Widths, named("user", "item", "many")),
    "shared": Kind("a layer that several inputs share", Shared, named("user", "item", "tags")),
    "one weight": Kind("layers that share a weight", OneWeight, named("user", "tags")),
    "padded": Kind("`padding_idx`: its row is never trained", Padded, named("user", "tags")),
    "lists": Kind("lists of different lengths, which are padded with 0", Padded, lists_read),
    "sum": Kind("`EmbeddingBag` of mode `sum`", lambda: Bags("sum", padding_idx=0), named("user", "tags")),
    "mean": Kind("of mode `mean`", lambda: Bags("mean", padding_idx=0), named("user", "tags")),
    "max": Kind("of mode `max`", lambda: Bags("max", padding_idx=0), named("user", "tags")),
    "offsets": Kind("with `offsets`, and empty bags", lambda: Bags("mean"), flat_tags()),
    "last offset": Kind(
        "with `include_last_offset`",
        lambda: Bags("sum", include_last_offset=True, padding_idx=2),
        flat_tags(is_last_included=True),
    ),
    "weighted": Kind("with `per_sample_weights`, trained ones too", WeightedBag, named("tags")),
    "dlrm": Kind("lists of tensors as inputs, lookups behind dense layers, a `sigmoid` at the end", InLists, list_read),
    "order": Kind("inputs by position", Plain, pairs("user", "item", "price")),
    "one": Kind(
        "a single input; `nn.Sequential`", lambda: nn.Sequential(nn.EmbeddingBag(TAGS, 4), head(4)), pairs("tags")
    ),
    "one dict": Kind("a `forward` that takes one dict", OneDict, named("user", "price")),
    "tensors": Kind("`read` gives tensors", Plain, tensors_read),
    "calling": Kind("subclasses that call `super().forward`", lambda: Plain(Calling(USERS, 6))),
    "functional": Kind("subclasses with `F.embedding(ids, self.weight)`", lambda: Plain(Functional(USERS, 6))),
    "computed": Kind("ids that are computed from inputs and buffers", Computed),
    "towers": Kind("lookups behind dense layers of other rows", Towers, named("user", "item")),
    "attention": Kind("`MultiheadAttention`, `TransformerEncoderLayer`", Attention, named("item", "tags")),
    "recurrent": Kind("`GRU`, `LSTM`", lambda: Recurrent(is_packed=False), named("user", "tags", "many")),
    "packed": Kind("packed sequences", lambda: Recurrent(is_packed=True), named("user", "tags", "many")),
    "branching": Kind(
        "a `forward` that branches on values (its dense part is computed twice)", Branching, named("user", "item")
    ),
    "looping": Kind("as many lookups as the longest list of a batch has ids", Looping, growing_lists),
    "in place": Kind("a `forward` that changes its inputs", InPlace, named("user")),
    "drawing": Kind(
        "a `forward` that draws at random (not compared with the original)", Drawing, named("user"), noise=0.2
    ),
    "statistics": Kind("`BatchNorm1d`, `Dropout`", lambda: Plain(layers=(nn.BatchNorm1d(8), nn.Dropout(0.3)))),
    "masked": Kind("buffers with infinite numbers, such as causal masks", Masked, named("user", "item")),
    "lazy": Kind("lazy modules", lambda: Plain(layers=(nn.LazyLinear(8),))),
    "positions": Kind("positions (kept as dense parameters up to 1,000,000 floats)", Positions, named("tags")),
    "tied": Kind("tied weights (kept as dense parameters up to 1,000,000 floats)", TiedWeights, named("user", "item")),
    "no tables": Kind("modules without tables", NoTables, named("price")),
    "frozen": Kind("`freeze=True`, `requires_grad=False`: each worker holds the table", pretrained(freeze=True)),
    "pretrained": Kind(
        "`from_pretrained`, `load_state_dict`: initial values are kept exactly", pretrained(freeze=False)
    ),
    "copied": Kind("rows that were set after the table was drawn: likewise", copied),
    "constant": Kind("constant initial values", initialised(nn.init.zeros_)),
    "uniform": Kind(
        "`nn.init` by `uniform_`, `xavier_…`, `kaiming_…`, `normal_`: the servers draw them",
        initialised(nn.init.xavier_uniform_),
    ),
    "sparse": Kind("`sparse=True`", lambda: Plain(sparse=True)),
    "outputs": Kind("several outputs, with the task's `loss(label, output)`", Outputs, both_labels, loss=loss_of_two),
    "sample weights": Kind("sample weights", lambda: Classes(1), pairs("user", "item", weight="importance")),
    "regression": Kind(
        "regression, by a loss of `torch.nn`",
        lambda: Classes(1),
        pairs("user", "item", label="stars"),
        loss=nn.MSELoss(),
    ),
    "classes": Kind("several classes", Classes, pairs("user", "item", label="class"), loss=functional.cross_entropy),
}


def hooked() -> Any:
    made = Plain()
    next(made.head.parameters()).register_hook(lambda gradient: gradient * 0)
    return made


class Projected(Plain):
    """Keeps the weights of its last layer within a range that those it begins with are in."""

    def forward(self, *args: Any, **named: Any) -> Any:
        next(self.head.parameters()).data.clamp_(-1, 1)
        return super().forward(*args, **named)


class Counting(Plain):
    """Counts its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, *args: Any, **named: Any) -> Any:
        self.steps += self.training
        return super().forward(*args, **named)


REFUSED: dict[str, Kind] = {
    "norm": Kind(
        "`max_norm`",
        lambda: Plain(max_norm=1.0),
        refused="layer users: max_norm changes the table",
        why="it changes the table whenever it is looked up",
    ),
    "frequency": Kind(
        "`scale_grad_by_freq`",
        lambda: Plain(scale_grad_by_freq=True),
        refused="layer users: scale_grad_by_freq",
        why="Adagrad and Adam scale rows by their gradients",
    ),
    "hook": Kind(
        "hooks on a parameter's gradient",
        hooked,
        refused="the parameter head.*weight has a hook on its gradient",
        why="no step of a worker calls them; freeze, or detach in forward",
    ),
    "counting": Kind(
        "buffers of other types than float32 that a step changes",
        Counting,
        refused="the state steps of type torch.int64 changes in a step",
        why="no checkpoint or export would have them; make them float32",
    ),
    "projection": Kind(
        "a forward that changes a parameter in place",
        Projected,
        refused="forward changes the parameter head.*weight in place",
        why="the next step gets it from the servers as it was; use `torch.nn.utils.parametrize`",
    ),
    "half": Kind(
        "tables in half precision or on a GPU",
        half,
        refused="layer users: its table has type torch.float16",
        why="parameters are float32 on the CPU",
    ),
    "dependent": Kind(
        "ids that depend on other rows or on parameters",
        Dependent,
        named("user"),
        refused="layer second: its ids depend on the rows of layer first",
        why="they are not known when the rows are requested",
    ),
    "drawn ids": Kind(
        "ids that `forward` draws at random",
        Negatives,
        named("user"),
        refused="layer users: its ids are others than those that were found",
        why="the step would draw others; draw them in `read`",
    ),
    "paddings": Kind(
        "one table with several `padding_idx`",
        TwoPaddings,
        named("user", "tags"),
        refused="layer users: its table is looked up with padding_idx",
        why="a row is trained or not",
    ),
    "whole": Kind(
        "a larger table that is used as a whole",
        lambda: TiedWeights(250_001),
        named("user", "item"),
        refused="layer items: .* whole table of 250001 x 4 floats",
        why="a worker has the rows of a batch only",
    ),
    "compiled": Kind(
        "`torch.compile`, `torch.jit.script`",
        lambda: torch.jit.script(nn.Sequential(nn.Embedding(USERS, 1))),
        pairs("user"),
        refused="is compiled",
        why="lookups cannot be told apart; return the plain module",
    ),
    "outputs": Kind(
        "several outputs without a loss",
        Outputs,
        both_labels,
        refused="the task has no loss",
        why="nothing says what is trained",
    ),
    "no labels": Kind(
        "neither labels nor a loss",
        lambda: nn.Sequential(nn.Embedding(USERS, 1)),
        without_labels,
        refused="read gave no labels",
        why="nothing says what is trained",
    ),
    "nan": Kind(
        "outputs that are NaN before training, as those of an empty list",
        Mean,
        empty_list,
        refused="the model itself, as build\\(\\) made it, gives NaN for sample 3: output output_0",
        why="give an empty list an id",
    ),
    "failing": Kind(
        "a forward that fails",
        Failing,
        refused="the module Failing failed: RuntimeError: mat1 and mat2",
        why="the message of PyTorch is passed on",
    ),
    "text": Kind(
        "texts",
        lambda: nn.Sequential(nn.Embedding(USERS, 1)),
        pairs("city"),
        refused="is text, and a module takes numbers: map it in read",
        why="map them in `read`, as by `stretto.hash_strings`",
    ),
}


class Several:
    """Optimizers that step together."""

    def __init__(self, optimizers: list[Any]) -> None:
        self._optimizers = optimizers

    def zero_grad(self) -> None:
        for each in self._optimizers:
            each.zero_grad()

    def step(self) -> None:
        for each in self._optimizers:
            each.step()
