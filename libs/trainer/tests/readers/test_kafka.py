"""Messages of Kafka by their numbers, from the broker that librdkafka has built in and speaks to over a real port."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from stretto import DataError

pytest.importorskip("confluent_kafka", reason="stretto[kafka] is not installed")

from stretto.readers.kafka import Kafka, check_kept, ranges_now

COUNTS = {0: 300, 1: 0, 2: 50}


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    from confluent_kafka import Producer

    producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "none", "log_level": 3})
    (broker,) = producer.list_topics(timeout=60).brokers.values()
    for partition, count in COUNTS.items():
        for offset in range(count):
            producer.produce("clicks", f"{partition}:{offset}".encode(), partition=partition)
    assert producer.flush(60) == 0
    yield f"{broker.host}:{broker.port}"
    del producer  # and the broker with it


def test_any_read_has_the_messages_of_its_numbers_in_any_process(servers: str):
    assert ranges_now(servers, "clicks")["0"] == [0, 300]
    reader = Kafka(servers, "clicks", {"2": [10, 50], "0": [100, 300], "1": [0, 0]}, list)
    whole = [f"0:{offset}".encode() for offset in range(100, 300)] + [
        f"2:{offset}".encode() for offset in range(10, 50)
    ]
    assert reader.size == len(whole)
    for start, length in ((0, 50), (50, 50), (190, 20), (0, 240), (239, 1), (7, 0), (30, 3)):
        assert reader.read(start, length) == whole[start : start + length]
    fork = multiprocessing.get_context("fork")
    found = fork.SimpleQueue()
    child = fork.Process(target=lambda: found.put(reader.read(33, 3)), daemon=True)
    child.start()
    child.join(60)
    assert (child.exitcode, found.get()) == (0, whole[33:36])
    assert reader.read(36, 2) == whole[36:38]
    with pytest.raises(DataError, match=r"samples \[200, 241\) of topic clicks do not exist"):
        reader.read(200, 41)


@pytest.mark.parametrize(
    ("topic", "ranges", "told"),
    [
        (
            "clicks",
            {"0": [0, 301]},
            "topic clicks, partition 0, offset 300 is not there yet: the topic ends at 300; end",
        ),
        ("clicks", {"0": [5, 3]}, r"ranges: 0 = \[5, 3\]: expected a first offset and one not before it"),
        ("clicks", {"0": 5}, r"ranges = .*: expected partition -> \[first, until\]"),
        ("clicks", {"99": [0, 1]}, "topic clicks, partition 99: .*check servers and names"),
    ],
)
def test_ranges_that_a_topic_does_not_hold_are_refused(servers: str, topic: str, ranges: Any, told: str):
    with pytest.raises(DataError, match=told):
        Kafka(servers, topic, ranges, list)


def test_offsets_beyond_retention_are_refused_with_the_remedy():
    check_kept("clicks", 3, 100, 200, low=100, high=200)
    with pytest.raises(
        DataError, match=r"partition 3, offset 99 is gone: the topic keeps 100 and later; begin the range"
    ):
        check_kept("clicks", 3, 99, 200, low=100, high=200)


@pytest.mark.parametrize("offsets", [[0, 2], [0]])
def test_a_hole_in_a_range_is_refused(servers: str, offsets: list[int]):
    """The built-in broker makes none: a stand-in for the consumer leaves out offset 1."""
    from confluent_kafka import KafkaError

    end = SimpleNamespace(error=lambda: KafkaError(KafkaError._PARTITION_EOF))
    messages = [SimpleNamespace(error=lambda: None, offset=lambda at=at: at, value=lambda: b"") for at in offsets]
    reader = Kafka(servers, "clicks", {"0": [0, 3]}, list)
    reader._consumer = SimpleNamespace(assign=lambda places: None, consume=lambda count, wait_s: [*messages, end])
    with pytest.raises(DataError, match="topic clicks, partition 0, offset 1 holds no message, as after compaction"):
        reader.read(0, 3)
