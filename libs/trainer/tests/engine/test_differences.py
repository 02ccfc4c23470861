"""A full image with the differences after it is the server, bit for bit, whatever happened between and within them."""

import io
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shipped_planner import first_columns
from stretto.engine import Own, export_image, image_bytes, images, load_image
from stretto.engine.layout import BUCKETS, SLICES, Layout, Table
from stretto.engine.locked_store import LockedStore
from stretto.errors import ImageDamaged
from stretto.server.image_file import ImageWriter, Part, open_chain
from stretto_parameters import Push, RawBucket, RowPolicy
from stretto_parameters.checksums import of_rows
from stretto_parameters.optimizers import Adam

TABLES = (Table(2, Adam(0.05), 3), Table(3, Adam(0.05), 4, weights="bfloat16"))
LAYOUT = Layout(TABLES, 24, BUCKETS, SLICES, 1, Adam(0.05))
POLICY = replace(LAYOUT, rows=RowPolicy(admit=2, expire_samples=128))
COLUMNS = BUCKETS + SLICES
SOME = 5
"""Buckets that the pushes reach: few, so that they meet the same rows again."""
MEMORY_BYTES = 2**30


class Server:
    """The operations of one server, its images as a store keeps them, and pushes to it."""

    def __init__(self, columns=range(COLUMNS), index=0, layout=LAYOUT):
        self.store = LockedStore(index, layout, MEMORY_BYTES)
        self.store.set_own(columns, Own.MINE)
        self.exported, self.parts, self.files = [], [], {}
        self.shard = 0

    def push(self, seed, buckets=range(SOME)):
        """Train a batch of some rows of each bucket; a shard of its own."""
        random = np.random.default_rng(seed)
        claim = self.store.own() == Own.MINE
        chosen = [b for b in buckets if claim[b]]
        rows = [np.sort(random.choice(30, random.integers(0, 6), replace=False)).astype(np.uint64) for _ in chosen]
        pairs = zip(chosen, rows, strict=True)
        keys = np.concatenate([np.zeros(0, np.uint64), *((np.uint64(b) << np.uint64(58)) + each for b, each in pairs)])
        gradients = [random.normal(size=(len(keys), t.dimension)).astype(np.float32) for t in TABLES]
        dense = random.normal(size=(int(claim[BUCKETS:].sum()), LAYOUT.slice_length)).astype(np.float32)
        header = (self.shard, 1, 0, 64, 0)
        push = Push(*header, claim, [keys] * len(TABLES), gradients, dense, np.ones(1, np.float32))
        assert self.store.push(push)[0] == 0
        if self.shard % 3 == 0:
            self.store.finish([self.shard])
        self.shard += 1

    def export(self, base=None, memory=None):
        """Take an image: full, or a difference to the image with this number; return its number."""
        file = io.BytesIO()
        room = image_bytes(self.store, None if base is None else self.exported[base])
        writer = ImageWriter(file, room)
        image = export_image(self.store, writer, None if base is None else self.exported[base])
        size, digest = writer.finish(image.manifest)
        name = f"c{len(self.parts)}.ps-{self.store.server}"
        bases = self.parts[base].as_base() if base is not None and image.manifest["base"] else ()
        self.parts.append(Part("ps-0", name, name, size, digest, tuple(image.manifest["columns"]), bases=bases))
        self.exported.append(image.as_base(digest))
        self.files[name] = file.getvalue()
        return len(self.parts) - 1

    def opened(self, number):
        return open_chain(self.parts[number], self.sources)

    def sources(self, part):
        return [("here", lambda offset, length: self.files[part.file][offset : offset + length])]


def books(control):
    """Return what a server counts, and what the policy of its rows counts and will drop."""
    applied = control.applied()
    policies = [control.export_policy(bucket).tobytes() for bucket in range(SOME)]
    raws = [raw for bucket in range(SOME) for raw in control.unlocked.export_bucket(bucket)]
    stamps = [
        sorted(zip(raw.keys.tolist(), raw.stamps.tolist(), strict=True)) for raw in raws if raw.stamps is not None
    ]
    shards, records = control.records()
    finished = control.finished().tolist()
    offsets = records[:, :-2].tolist()  # attempts begin again
    return applied.samples.tolist(), applied.fingerprints.tolist(), shards.tolist(), offsets, finished, policies, stamps


def restored(images, count=1):
    """Return new servers that own what the images have."""
    servers = [LockedStore(n, images[0].layout, MEMORY_BYTES) for n in range(count)]
    for number, columns in first_columns(LAYOUT, range(count)).items():
        load_image(servers[number], images, columns)
    return servers


@pytest.mark.parametrize("layout", [LAYOUT, POLICY], ids=["plain", "policy"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_image_of_any_chain_is_the_server_as_it_was(layout, data):
    """Images add to any earlier one, as after failed checkpoints; buckets leave, come back, and are cleared."""
    server = Server(layout=layout)
    then = []  # of each image: checksum and books
    for step in range(data.draw(st.integers(2, 14))):
        action = data.draw(st.sampled_from(["push"] * 4 + ["export"] * 3 + ["leave", "clear"]))
        if action == "push":
            server.push(step)
        elif action == "export":
            base = data.draw(st.one_of(st.none(), st.integers(0, len(then) - 1))) if then else None
            server.export(base)
            then.append((server.store.checksum(), books(server.store)))
        elif action == "leave":  # to another server, where it is trained, and back
            bucket = data.draw(st.integers(0, SOME - 1))
            raw = server.store.unlocked.export_bucket(bucket)
            server.store.drop_bucket(bucket)
            kept = data.draw(st.integers(0, len(raw[0].keys)))
            part = [[None if one is None else one[:kept] for one in astuple(each)] for each in raw]
            server.store.import_bucket(bucket, [RawBucket(*each) for each in part])
        else:
            server.store.clear()
            server.store.set_own(range(COLUMNS), Own.MINE)
    for number, (checksum, expected) in enumerate(then):
        (control,) = restored([server.opened(number)])
        assert control.checksum() == checksum
        assert books(control) == expected


def test_a_row_that_expired_long_ago_does_not_come_back_with_the_image_that_has_it():
    """Stamps begin anew after 256 periods of 16 samples: that of the image's rows looks like one of now."""
    server = Server(layout=replace(POLICY, rows=RowPolicy(expire_samples=128)))
    server.push(1)
    full, rows = server.export(), server.store.categories()
    for seed in range(64):
        server.push(seed, [])
    difference = server.opened(server.export(full))
    (control,) = restored([difference])
    assert rows > control.categories() == server.store.categories() == 0
    assert sum(len(raw.keys) for raw in images.bucket_rows(difference, 0, 0)) == 0, "as an export reads it"
    assert sum(len(raw.keys) for raw in images.bucket_rows(server.opened(full), 0, 0)) > 0


def bucket_of(control, bucket):
    """Return checksums of a bucket's tables, and the samples that it has."""
    raw = control.unlocked.export_bucket(bucket)
    return [of_rows(each.keys, each.rows) for each in raw], control.applied().samples[bucket]


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(1, SOME + 2), max_size=4), min_size=2, max_size=4), st.integers(1, 3))
def test_a_push_between_two_copies_is_in_the_image_or_in_the_next_one(moments, count):
    """Rows and record of a column are of one instant: that of its copy."""
    server = Server()
    server.push(0)
    numbers, expected = [server.export()], {}
    copied = images._export_bucket

    def between(control, bucket, *rest):
        answer = copied(control, bucket, *rest)
        if bucket < SOME:
            expected[len(numbers), bucket] = bucket_of(control, bucket)
        for at, moment in enumerate(moments[len(numbers) - 1]):
            if moment == bucket + 1:
                server.push(1000 * len(numbers) + at)
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "_export_bucket", between)
        for _ in moments:
            numbers.append(server.export(numbers[-1]))
    for number in numbers[1:]:
        servers = restored([server.opened(number)], count)
        for bucket in range(SOME):
            (owner,) = (control for control in servers if control.own()[bucket])
            assert bucket_of(owner, bucket) == expected[number, bucket]


def test_a_difference_has_the_changed_rows_and_a_bucket_that_came_back_whole():
    server = Server()
    server.push(1)
    full = server.export()
    server.push(2, [0])
    changed = server.export(full)
    rows = [server.opened(changed).blocks[f"bucket{b}/0/keys"].shape[0] for b in range(SOME)]
    assert rows[1:] == [0] * (SOME - 1)
    assert server.opened(changed).manifest["whole"] == []
    raw = server.store.unlocked.export_bucket(1)
    server.store.import_bucket(1, raw)
    came_back = server.opened(server.export(changed))
    assert came_back.manifest["whole"] == [1]
    assert came_back.blocks["bucket1/0/keys"].shape[0] == len(raw[0].keys)
    (control,) = restored([came_back])
    assert control.checksum() == server.store.checksum()


def test_what_cannot_be_a_difference_is_a_full_image():
    """The server has another layout, or all of its buckets are new since."""
    server = Server()
    server.push(1)
    full = server.export()
    server.store.clear()
    server.store.set_own(range(COLUMNS), Own.MINE)
    server.push(2)
    assert server.parts[server.export(full)].bases == ()
    bare = LockedStore(0, images.UNKNOWN, MEMORY_BYTES)
    bare.set_own(range(COLUMNS), Own.MINE)
    image = export_image(bare, ImageWriter(io.BytesIO()))
    bare.adopt(LAYOUT)
    image = export_image(bare, ImageWriter(io.BytesIO()), image.as_base("digest"))
    assert image.manifest["base"] == ""


def test_some_columns_are_loaded_into_a_server_that_owns_others():
    """The way back of one lost server: the survivor keeps what it has."""
    columns = list(range(0, COLUMNS, 2)), list(range(1, COLUMNS, 2))
    lost, survivor = Server(columns[0], 0), Server(columns[1], 1)
    for server in (lost, survivor):
        server.push(1)
        server.export()
        server.push(2)
        server.export(0)
        server.push(3)
    images = [lost.opened(1), survivor.opened(1)]
    before = survivor.store.checksum()
    load_image(survivor.store, images, columns[0])
    assert survivor.store.columns() == list(range(COLUMNS))
    (whole,) = restored(images)
    alone = LockedStore(0, LAYOUT, MEMORY_BYTES)
    load_image(alone, images, columns[0])
    assert survivor.store.checksum() == (before + alone.checksum()) % 2**64
    assert whole.columns() == list(range(COLUMNS))


def test_a_damaged_or_foreign_link_is_refused():
    server = Server()
    server.push(1)
    server.export()
    server.push(2)
    server.export(0)
    last = server.export(1)
    other = Server()
    other.push(5)
    other.export()
    other.push(6)
    other.export(0)
    for file, data in list(server.files.items()):
        changed = bytearray(data)
        changed[100] ^= 1  # in the first block: the dense slices
        server.files[file] = bytes(changed)
        if file == server.parts[last].file:
            with pytest.raises(ImageDamaged, match="checksum"):
                restored([server.opened(last)])
        changed = bytearray(data)
        changed[-30] ^= 1
        server.files[file] = bytes(changed)
        with pytest.raises(ImageDamaged, match="SHA-256"):
            restored([server.opened(last)])
        server.files[file] = data
    foreign = replace(other.parts[1], file="foreign", bases=server.parts[0].as_base())
    server.files["foreign"] = other.files[other.parts[1].file]
    with pytest.raises(ImageDamaged, match="another image"):
        open_chain(foreign, server.sources)
    alone = replace(server.parts[1], bases=())
    with pytest.raises(ImageDamaged, match="another image"):
        restored([open_chain(alone, server.sources)])
