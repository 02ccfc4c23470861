"""Books omit columns that follow from the others; reading restores them."""

from hypothesis import given
from hypothesis import strategies as st
from stretto_messages.base import MAX_MESSAGE_BYTES
from stretto_messages.books import AppliedBooks, ColumnBooks, ShardApplied, gathered, spread
from stretto_wire.codec import encode

FAR = st.dictionaries(st.integers(0, 5), st.lists(st.none() | st.sampled_from([0, 60, 80]), min_size=8, max_size=8))


@given(far=FAR)
def test_what_is_gathered_is_spread_again(far: dict[int, list[int | None]]) -> None:
    """None: the server of that column has no record of the shard, and says nothing of it."""
    parts = [
        ShardApplied(shard=shard, columns=(column,), samples=samples)
        for shard, columns in far.items()
        for column, samples in enumerate(columns)
        if samples is not None
    ]
    counted = (ColumnBooks(columns=tuple(range(8)), samples=9, fingerprint="0" * 16),)
    books = AppliedBooks(columns_total=8, columns=counted, shards=gathered(parts, 8))
    found = {(part.shard, column): part.samples for part in spread(books) for column in part.columns}
    assert found == {(part.shard, part.columns[0]): part.samples for part in parts}


def test_the_books_of_as_many_given_up_shards_as_are_named_fit_into_a_message() -> None:
    columns = tuple(range(1088))
    parts = gathered((ShardApplied(shard=10**6 + n, columns=columns, samples=4096) for n in range(1000)), 1088)
    counted = (ColumnBooks(columns=columns, samples=10**9, fingerprint="0" * 16),)
    books = AppliedBooks(columns_total=1088, columns=counted, shards=parts)
    assert len(encode(books)) < MAX_MESSAGE_BYTES / 3
