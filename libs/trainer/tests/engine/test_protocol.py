"""The messages between workers and servers: whatever arrives is answered, and what is refused changes nothing."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stretto.engine import Layout, Own, ParameterServer, Table, codec, protocol
from stretto.engine.codec import ServerStats, WorkerSeen
from stretto.engine.protocol import Gradients, Kind
from stretto.engine.server import CONTROL
from stretto.engine.transfer import EXACT, Transfer, Transfers
from stretto_parameters import Code, InputRefused, Progress, RawBucket
from stretto_parameters.optimizers import Adam
from stretto_plane import Message, Peer

LAYOUT = Layout((Table(2), Table(3, Adam(0.1))), 30, 64, 12, 2)
PEER = Peer("a test")
TYPES = [EXACT, Transfers(Transfer.BFLOAT16), Transfers(Transfer.BFLOAT16, Transfer.BFLOAT16, packs_keys=True)]
PUSHED = [*TYPES, Transfers(Transfer.INT8, Transfer.INT8, packs_keys=True), Transfers(Transfer.FLOAT32, Transfer.INT8)]


def array(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


VALUES = [
    None,
    True,
    7,
    0.5,
    "text",
    [1, [2, None]],
    {3: WorkerSeen(1, 0.5), 4: WorkerSeen(2, 1.5)},
    ServerStats(1, 2.0, 3, 4),
    RawBucket(array(3, dtype=np.uint64), array(3, 4)),
    Progress(*(array(2, dtype=np.int64) for _ in range(5))),
    np.int64(9),
    array(0, 4),
]


def same(one: object, other: object) -> bool:
    return repr(one) == repr(other) or json.dumps(one) == json.dumps(other)


@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_read_as_it_was_packed(value: object) -> None:
    parts = [bytes(memoryview(part)) for part in codec.pack(value)]
    assert same(codec.unpack(parts), value.item() if isinstance(value, np.integer) else value)


def push_parts(shard: int, ids: int, gradient: float, transfers: Transfers, *squares: list | np.ndarray) -> list:
    """Return the parts of a request that pushes to rows of both tables the same gradient in every place."""
    keys = LAYOUT.index(np.arange(ids), np.arange(ids))
    rows = [np.full((ids, table.dimension), gradient, np.float32) for table in LAYOUT.tables]
    slices, delta = np.ones((12, LAYOUT.slice_length), np.float32), np.ones(2, np.float32)
    head, claim = np.array([shard, 1, 0, 10, 0]), np.ones(LAYOUT.columns, np.bool_)
    stored = [table.stored for table in keys.tables]
    gradients = Gradients.of(transfers, rows, slices, delta, *squares)
    return protocol.push_request(head, claim, stored, gradients, [slice(None)] * 2, slice(None))


@pytest.fixture(scope="module")
def server():
    made = ParameterServer(0, LAYOUT)
    made.own(range(LAYOUT.columns))
    kind, parts = made._handle(message(Kind.PUSH, push_parts(1, 50, 1, EXACT)), PEER)
    assert (kind, protocol.read_push_answer(parts, LAYOUT.columns)[0]) == (Kind.ANSWER, Code.APPLIED)
    yield made
    made.close()


def message(kind: int, parts: list) -> Message:
    return Message(kind, tuple(memoryview(np.ascontiguousarray(part)).cast("B") for part in map(np_bytes, parts)))


def np_bytes(part: object) -> np.ndarray:
    return np.frombuffer(part, np.uint8) if isinstance(part, bytes) else np.ascontiguousarray(part).reshape(-1)


def state(server: ParameterServer) -> tuple:
    control = server.store
    return control.checksum(), control.own().tobytes(), control.applied().samples.tobytes(), control.stats().updates


words = st.binary(max_size=64) | st.integers(0, 20).map(lambda n: bytes(8 * n))
names = st.sampled_from([*CONTROL, "__init__", "store", "locked", "_lock", "layout"])
numbers = st.integers(-(2**70), 2**70) | st.floats() | st.booleans() | st.none() | st.text(max_size=3)
shapes = st.recursive(
    numbers
    | st.fixed_dictionaries({
        "array": st.integers(-1, 3), "type": st.sampled_from(["<i8", "<f4", "|b1", "|O", "<M8", "x"]),
        "shape": st.lists(st.integers(-1, 4), max_size=3),
    })
    | st.fixed_dictionaries({"of": st.sampled_from(["RawBucket", "Progress", "Path", ""]), "fields": st.just({})}),
    lambda inner: st.lists(inner, max_size=4) | st.fixed_dictionaries({"pairs": st.lists(st.tuples(inner, inner))}),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=300)
@given(st.integers(0, 30), st.lists(words, max_size=10))
def test_whatever_bytes_arrive_are_answered_and_change_no_parameter(server, kind: int, parts: list[bytes]) -> None:
    before = state(server)
    answered, text = server._handle(message(kind, parts), PEER)
    assert answered in (Kind.ANSWER, Kind.REFUSED, Kind.FULL)
    assert state(server) == before, text


READING = [name for name in CONTROL if name not in ("set_own", "clear", "drop_bucket", "import_bucket", "finish")]


@settings(max_examples=500)
@given(st.data())
def test_whatever_operation_is_asked_with_whatever_arguments_is_answered(server, data) -> None:
    name = data.draw(st.sampled_from([*READING, "__class__", "store", "_lock", "adopt"]))
    whole = [name, data.draw(st.lists(shapes, max_size=4)), {"pairs": []}]
    head = json.dumps(data.draw(st.just(whole) | shapes)).encode()
    arrays = data.draw(st.lists(words, max_size=3))
    answered, parts = server._handle(message(Kind.CALL, [head, *arrays]), PEER)
    assert answered in (Kind.ANSWER, Kind.REFUSED, Kind.FULL), name
    if name not in CONTROL:
        assert answered == Kind.REFUSED
    assert len(server.store.own()) == LAYOUT.columns, parts


@pytest.mark.parametrize("transfers", PUSHED)
@pytest.mark.parametrize("changed", range(12))
def test_a_push_with_a_part_too_long_too_short_or_absent_is_refused(server, changed: int, transfers: Transfers) -> None:
    parts = push_parts(2, 4, 1, transfers, [np.full((4, floats), 2, np.float32) for floats in (2, 3)])
    before = state(server)
    whole = np.ascontiguousarray(parts[changed]).reshape(-1).view(np.uint8)
    for part in (whole[:-1], np.concatenate([whole, whole[:2]]), whole[:0]):
        kind, answer = server._handle(message(Kind.PUSH, [*parts[:changed], part, *parts[changed + 1 :]]), PEER)
        assert kind == Kind.REFUSED, answer
    kind, _ = server._handle(message(Kind.PUSH, parts[:-1]), PEER)
    assert kind == Kind.REFUSED
    assert state(server) == before


@pytest.mark.parametrize("transfers", PUSHED)
def test_only_squares_that_are_not_those_of_the_gradients_travel(transfers: Transfers) -> None:
    squares = [np.full((4, 2), 9, np.float32), None]
    squares[0][2] = [5, 9]
    parts = push_parts(2, 4, 3, transfers, squares)
    assert [part.size for part in parts[6:10]] == [1, 0, 2, 0]
    read = protocol.read_push(LAYOUT, message(Kind.PUSH, parts).parts)
    assert read.row_squares[0] == pytest.approx(squares[0], rel=2 / 127)  # most are those of rounded gradients
    assert read.row_squares[1] is read.slice_squares is None
    of_slices = np.full((12, LAYOUT.slice_length), 7, np.float32)
    also = protocol.read_push(LAYOUT, message(Kind.PUSH, push_parts(2, 4, 3, transfers, squares, of_slices)).parts)
    assert also.slice_squares.tolist() == of_slices.tolist()
    assert also.slice_gradients.tolist() == read.slice_gradients.tolist()
    parts[6] = np.array([4], np.uint32)
    with pytest.raises(InputRefused, match="1 squares at 1 places of 4 row gradients"):
        protocol.read_push(LAYOUT, message(Kind.PUSH, parts).parts)


@pytest.mark.parametrize("transfers", TYPES)
def test_what_is_pulled_is_what_the_server_has_rounded_as_asked(server, transfers: Transfers) -> None:
    keys = [LAYOUT.index(np.arange(50), np.arange(50)).tables[i].stored for i in (0, 1)]
    slices = np.arange(12)
    asked = protocol.pull_request(slices, keys, transfers)
    kind, parts = server._handle(message(Kind.PULL, asked), PEER)
    assert kind == Kind.ANSWER
    found, exact = protocol.read_pulled(LAYOUT, keys, slices, transfers, parts)[0], server.store.pull(keys, slices)
    of = (transfers.rows, transfers.rows, transfers.slices)
    pairs = zip((*found.rows, found.slices), (*exact.rows, exact.slices), of, parts[1:4], strict=True)
    for mine, its, transfer, part in pairs:
        assert np.asarray(part).nbytes == its.size * (4 if transfer is Transfer.FLOAT32 else 2)
        assert mine == pytest.approx(its, rel=0 if transfer is Transfer.FLOAT32 else 2**-8, abs=0)


def test_an_answer_to_another_pull_is_refused(server) -> None:
    """Goal: one row that came for many keys would else be all their weights, without an error."""
    keys = [LAYOUT.index(np.arange(50), np.arange(50)).tables[i].stored for i in (0, 1)]
    asked = protocol.pull_request(np.arange(12), keys, EXACT)
    _, parts = server._handle(message(Kind.PULL, asked), PEER)
    for place in range(len(parts)):
        short = [part[:1] if at == place else part for at, part in enumerate(parts)]
        with pytest.raises(InputRefused, match="were asked"):
            protocol.read_pulled(LAYOUT, keys, np.arange(12), EXACT, short)


def test_an_exchange_pulls_after_its_push_and_what_is_refused_of_it_changes_nothing(server) -> None:
    keys = [LAYOUT.index(np.arange(4), np.arange(4)).tables[i].stored for i in (0, 1)]
    push, pull = push_parts(3, 4, 1, EXACT), protocol.pull_request(np.arange(12), keys, EXACT)
    before = state(server)
    for wrong in ([*push[:-1], *pull], [*push, *pull[:-1]], [*push, pull[0], np.array([12]), *pull[2:]], push):
        assert server._handle(message(Kind.EXCHANGE, wrong), PEER)[0] == Kind.REFUSED
        assert state(server) == before
    kind, parts = server._handle(message(Kind.EXCHANGE, [*push, *pull]), PEER)
    pushed, pulled = protocol.cut_answer(parts)
    assert (kind, protocol.read_push_answer(pushed, LAYOUT.columns)[:2]) == (Kind.ANSWER, (Code.APPLIED, 76))
    found, exact = (
        protocol.read_pulled(LAYOUT, keys, np.arange(12), EXACT, pulled)[0],
        server.store.pull(keys, np.arange(12)),
    )
    assert [each.tolist() for each in (*found.rows, found.slices)] == [
        each.tolist() for each in (*exact.rows, exact.slices)
    ]


@pytest.mark.parametrize("head", [[0, 8, 1], [0, -1, 1], [99, 1, 1], [0, 1], []])
def test_an_answer_to_another_push_is_refused(head: list[int]) -> None:
    answer = protocol.push_answer(Code.APPLIED, 7, 1, np.zeros(9, np.int64))
    assert protocol.read_push_answer(answer, 7) == (Code.APPLIED, 7, 1e-6)
    with pytest.raises(InputRefused, match="to a push of 7 columns"):
        protocol.read_push_answer([np.array(head, np.int64)], 7)


@pytest.mark.parametrize("head", [[2], [512], [2**17], [-1], [0, 0], []])
def test_a_transfer_of_another_version_is_refused(server, head: list[int]) -> None:
    empty = np.zeros(0, np.uint64)
    parts = [np.array(head, np.int64), np.arange(12), empty, empty]
    kind, answer = server._handle(message(Kind.PULL, parts), PEER)
    assert kind == Kind.REFUSED
    assert b"of 0 (float32), 1 (bfloat16): of another version?" in answer[0]


def test_an_array_of_more_than_came_is_refused() -> None:
    head = json.dumps({"array": 0, "type": "<f4", "shape": [2**40, 2**40]}).encode()
    with pytest.raises(InputRefused, match="sizes do not agree"):
        codec.unpack([head, b"1234"])


def test_a_server_of_another_protocol_is_told_apart(server) -> None:
    kind, parts = server._handle(message(Kind.HELLO, [json.dumps({"protocol": 99, "layout": None}).encode()]), PEER)
    assert kind == Kind.REFUSED
    assert b"protocol = 99" in parts[0]
    assert (server.store.own() == Own.MINE).all()
