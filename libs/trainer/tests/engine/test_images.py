import io
import threading
from dataclasses import replace

import numpy as np
import pytest
from shipped_planner import first_columns
from stretto.engine import (
    FINISHED,
    ParameterServer,
    export_image,
    image_bytes,
    load_image,
    loaded_bytes,
    move,
    one_table,
)
from stretto.engine import images as checkpoint
from stretto.errors import CheckpointError, ImageDamaged
from stretto.server.image_file import ImageWriter, Part, open_image
from stretto_messages.values import BUCKETS
from stretto_parameters import RawBucket
from stretto_parameters.layout import RowFormat
from stretto_parameters.optimizers import SGD, Adam
from trainer_harness import wait_for

pytestmark = pytest.mark.slow

LAYOUT = one_table(4, 200, state_size=2, optimizer=Adam(0.05), seed=8)


def export(control):
    """Return a server's part of the manifest, and the bytes of its image file."""
    file = io.BytesIO()
    writer = ImageWriter(file)
    size, digest = writer.finish(export_image(control, writer).manifest)
    return Part(f"ps-{control.server}", "", "", size, digest), file.getvalue()


def opened(part, data):
    return open_image(part, [("here", lambda offset, length: data[offset : offset + length])])


def save(servers):
    """Export all servers and open the images from bytes, as a store would keep them."""
    return [opened(*export(control)) for control in servers.controls()]


def restore(bare_here, images, count, layout=LAYOUT):
    servers = bare_here(layout, count)
    for server, columns in first_columns(layout, range(count)).items():
        load_image(servers.control(server), images, columns)
    return servers


@pytest.mark.parametrize("count", [1, 3])
def test_restored_at_another_number_of_servers_each_bit_is_the_same(cluster_here, bare_here, training, count):
    servers = cluster_here(LAYOUT)
    worker = servers.worker()
    for shard in range(3):
        training.train_shard(worker, shard, attempt=4, length=256)
    worker.forget([1])
    keys = LAYOUT.index(np.arange(5000))
    before, checksum, samples = worker.pull(keys), servers.checksum(), servers.samples()
    prints = servers.prints()
    categories = sum(c.categories() for c in servers.controls())
    images = save(servers)
    restored = restore(bare_here, images, count)
    assert restored.checksum() == checksum
    assert (restored.samples() == samples).all()
    assert (restored.prints() == prints).all()
    assert sum(c.categories() for c in restored.controls()) == categories
    worker = restored.worker()
    after = worker.pull(keys)
    assert (before.rows[0] == after.rows[0]).all()
    assert (before.dense == after.dense).all()
    assert (before.state == after.state).all()
    assert [worker.progress(s) for s in range(4)] == [256, FINISHED, 256, 0]
    # attempts start anew with the restored ledger
    training.train_shard(worker, 0, attempt=1, length=320)
    assert (restored.samples() == samples + 64).all()


def test_a_cleared_server_takes_an_older_checkpoint_as_a_new_one_would(cluster_here, bare_here, training):
    """Another server could not read the newer one, so shards that are finished in it must be trained again."""
    servers = cluster_here(LAYOUT)
    worker = servers.worker()
    training.train_shard(worker, 0, attempt=1, length=128)
    older, samples, prints, checksum = save(servers), servers.samples(), servers.prints(), servers.checksum()
    for shard in (0, 1, 2):
        training.train_shard(worker, shard, attempt=1, length=256)
    worker.forget([0, 1])
    restored = restore(bare_here, save(servers), 2)
    for server, columns in first_columns(LAYOUT, range(2)).items():
        control = restored.control(server)
        control.clear()
        assert (control.columns(), int(control.raw_sizes().sum()), len(control.finished())) == ([], 0, 0)
        load_image(control, older, columns)
    assert restored.checksum() == checksum
    assert (restored.samples() == samples).all()
    assert (restored.prints() == prints).all()
    again = restored.worker()
    assert [again.progress(s) for s in range(3)] == [128, 0, 0]
    training.train_shard(again, 0, attempt=1, length=256)
    training.train_shard(again, 1, attempt=1, length=256)
    assert (restored.samples() == samples + 128 + 256).all()


def test_a_column_comes_back_where_it_was_before(cluster_here, training):
    """The column moved away after the image, and its new owner was lost: nothing of the earlier stay may count."""
    servers = cluster_here(LAYOUT, 2)
    worker = servers.worker()
    training.train_shard(worker, 0, attempt=1, length=128)
    images = save(servers)
    training.train_shard(worker, 1, attempt=1, length=128)
    for column in (min(c for c in servers.columns()[1] if c < BUCKETS), max(servers.columns()[1])):
        list(move(servers.processes[0], {column: 1}, servers.addresses))
    training.train_shard(worker, 2, attempt=1, length=128)
    lost = servers.columns()[0]
    servers.processes[0].close()
    del servers.addresses[0]
    load_image(servers.control(1), images, lost)
    assert (servers.control(1).applied().samples[lost] == 128).all()
    again = servers.worker()
    for shard in (1, 2):
        training.train_shard(again, shard, attempt=2, length=128)
    assert (servers.control(1).applied().samples == 3 * 128).all()


def test_what_columns_take_is_known_before_they_are_loaded(cluster_here, bare_here, training):
    """For rows of one float, whose entries and index are larger than they are, and of a difference."""
    layout = one_table(1, 20, optimizer=SGD(0.1))
    servers = cluster_here(layout, 1)
    worker = servers.worker()
    training.train_shard(worker, 0, attempt=1, length=4096)
    images = save(servers)
    loaded = restore(bare_here, images, 1, layout).control(0)
    assert loaded.categories() > 2000
    row_bytes = loaded.row_bytes()
    assert row_bytes * loaded.categories() <= loaded_bytes(images, loaded.columns())
    assert loaded_bytes(images, loaded.columns()) <= 1.5 * row_bytes * loaded.categories()


def test_no_push_waits_for_a_disk():
    """An image writes to a slow disk without the lock of the store."""
    here = ParameterServer(0, LAYOUT)
    here.own(range(LAYOUT.columns))
    random = np.random.default_rng(1)
    for bucket in range(3):
        keys = (np.arange(50, dtype=np.uint64) * 7 + np.uint64(bucket << 58)).astype(np.uint64)
        rows = random.random((50, RowFormat.of_table(LAYOUT.tables[0]).words), np.float32)
        here.store.import_bucket(bucket, [RawBucket(keys, rows)])
    held = []

    class Disk(io.BytesIO):
        def write(self, data):
            held.append(here.store.turn.lock._free.locked())
            return super().write(data)

    writer = ImageWriter(Disk())
    writer.finish(export_image(here.store, writer).manifest)
    here.close()
    assert len(held) > 6
    assert not any(held)


def test_a_checkpoint_taken_while_training_is_exact_after_replay(cluster_here, bare_here, training, monkeypatch):
    """Each column is copied at its own instant; a replay from the ledger's older state completes all of them."""
    servers = cluster_here(LAYOUT)
    worker, stop = servers.worker(), threading.Event()
    shards, length = range(4000), 192

    def train():
        for shard in shards:
            if stop.is_set():
                return
            training.train_shard(worker, shard, attempt=1, length=length)
            worker.forget([shard])

    copied = checkpoint._export_bucket

    def between_steps(control, bucket, *more):
        before = servers.samples().max()
        if bucket % 8 == 0:
            wait_for(lambda: servers.samples().max() > before)
        return copied(control, bucket, *more)

    monkeypatch.setattr(checkpoint, "_export_bucket", between_steps)
    thread = threading.Thread(target=train)
    thread.start()
    images = save(servers)
    stop.set()
    thread.join(60)
    rejected = sum(c.stats().rejected for c in servers.controls())
    assert rejected == 0, "a checkpoint rejects no push"
    restored = restore(bare_here, images, 3)
    samples = restored.samples()
    assert samples.min() < samples.max(), "the columns should be of different instants for this test to say much"
    worker, last = restored.worker(), int(samples.max()) // length + 2
    for shard in range(last):
        training.train_shard(worker, shard, attempt=1, length=length)
    assert (restored.samples() == last * length).all()


def test_damaged_foreign_and_incomplete_images_are_refused(cluster_here, bare_here):
    servers = cluster_here(LAYOUT)
    images, (part, data) = save(servers), export(servers.control(0))
    target = bare_here(LAYOUT, 1)
    changed = bytearray(data)
    changed[100] ^= 1  # in the first block
    with pytest.raises(ImageDamaged, match="checksum"):
        load_image(target.control(0), [opened(part, bytes(changed)), images[1]], range(LAYOUT.columns))
    with pytest.raises(ImageDamaged, match="truncated"):
        opened(part, data[:1000])
    with pytest.raises(ImageDamaged, match="SHA-256"):
        opened(replace(part, description_sha256="0"), data)
    foreign = replace(images[0], manifest=images[0].manifest | {"version": 99})
    with pytest.raises(CheckpointError, match="version 99"):
        load_image(target.control(0), [foreign, images[1]], [0])
    with pytest.raises(CheckpointError, match="in no image"):
        load_image(target.control(0), images[:1], [0])
    with pytest.raises(CheckpointError, match="two images"):
        load_image(target.control(0), [images[0], *images], [0])
    other = bare_here(one_table(8, 200), 1)
    with pytest.raises(CheckpointError, match="layout"):
        load_image(other.control(0), images, [0])
    assert target.control(0).columns() == []


def test_an_image_in_the_memory_of_an_older_one_is_the_same_to_the_byte_and_has_no_more_room(
    cluster_here, training, tmp_path
):
    servers = cluster_here(LAYOUT)
    training.train_shard(servers.worker(), 0, attempt=1, length=256)
    control, path = servers.control(0), tmp_path / "image"
    part, data = export(control)
    room = image_bytes(control)
    path.write_bytes(b"\xff" * room)
    with open(path, "r+b") as file:
        writer = ImageWriter(file, room)
        image = export_image(control, writer)
        assert writer.finish(image.manifest) == (part.size_bytes, part.description_sha256)
    assert path.read_bytes()[: part.size_bytes] == data

    half = part.size_bytes // 2
    path.write_bytes(bytes(half))
    with open(path, "r+b") as file, pytest.raises(OSError, match=f"more than the {half} bytes"):
        export_image(control, ImageWriter(file, half))
    assert path.stat().st_size == half


def test_an_export_takes_a_bucket_of_memory_not_an_image(cluster, training, tmp_path):
    """The bound is the copy of the largest bucket and the reservation of the file."""
    layout = one_table(64, 200, seed=8)
    servers = cluster(layout, 1)
    worker, nothing = servers.worker(), np.zeros(200, np.float32)
    for shard in range(8):
        keys = layout.index(np.arange(shard * 40_000, (shard + 1) * 40_000))
        gradients = np.ones((len(keys), 64), np.float32)
        worker.push(keys, [gradients], nothing, shard=shard, attempt=1, start=0, stop=64)
    room = image_bytes(servers.control(0))
    servers.processes[0].ask("save", path=str(tmp_path / "warm"))
    taken = servers.processes[0].ask("save", path=str(tmp_path / "image"))
    rows = 320_000 * layout.row_bytes()
    assert 0.95 * rows < taken["bytes"] < rows, "of an entry only the key is kept"
    assert taken["bytes"] < room
    assert taken["extra_bytes"] < taken["bytes"] / 8
    assert 0 < taken["pause_seconds"] < taken["seconds"]


def test_finished_shards_cost_an_id_each_and_stay_finished(cluster_here, bare_here, training, monkeypatch):
    """Also shards that finish between the copies of two columns: only the missing part of a column is replayed."""
    servers = cluster_here(LAYOUT)
    worker = servers.worker()
    for shard in range(6):
        training.train_shard(worker, shard, attempt=1, length=64)
    worker.forget(range(5))
    copied, seen = checkpoint._export_bucket, []

    def between(control, bucket, since, blocks, progress):
        if not seen:
            training.train_shard(worker, 5, attempt=1, length=128)
            training.train_shard(worker, 6, attempt=1, length=64)  # begun and finished after the first instant
            worker.forget([5, 6])
        known = progress.known_finished
        held = copied(control, bucket, since, blocks, progress)
        seen.append(progress.known_finished - known)
        return held

    monkeypatch.setattr(checkpoint, "_export_bucket", between)
    images = save(servers)
    monkeypatch.undo()
    assert [image.blocks["progress/finished"].tolist() for image in images] == [[0, 1, 2, 3, 4], [*range(7)]]
    assert [image.blocks["progress/shards"].tolist() for image in images] == [[5, 6], []]
    assert [n for n in seen if n] == [2], "the marks are copied once after the first instant"
    restored = restore(bare_here, images, 3)
    worker = restored.worker()
    assert [worker.progress(shard) for shard in range(7)] == [FINISHED] * 5 + [64, 0]
    training.train_shard(worker, 5, attempt=1, length=128)
    training.train_shard(worker, 6, attempt=1, length=64)
    assert (restored.samples() == 5 * 64 + 128 + 64).all()
    assert restored.checksum() != 0
