"""Ranges of offsets of a Kafka topic: a sample is a message, and its number says the partition and the offset.

The ranges are stated by the job, so a replay reads the same messages, as long as the topic keeps them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import DataError
from . import check_range


class Kafka:
    """Random access to messages. ``size``: messages in all ranges.

    servers: as in "broker-1:9092,broker-2:9092". ranges: partition -> [first offset, offset behind the last one], as
    :func:`ranges_now` gives them; samples are numbered by partition, then by offset. decode: values of messages ->
    a batch; a value is None where a message has none. settings: of librdkafka, as for SASL and TLS. wait_s: silence
    after which a read fails, and its shard is tried again.

    Each offset must hold a message. Compaction and transactions leave holes: a topic with one in its range is refused.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        ranges: Mapping[str, Sequence[int]],
        decode: Callable[[list[bytes | None]], Any],
        *,
        settings: Mapping[str, Any] | None = None,
        wait_s: float = 30.0,
    ) -> None:
        self._topic, self._decode, self._wait_s = topic, decode, wait_s
        self._settings = _settings(servers, settings)
        try:
            self._ranges = sorted(
                (int(partition), int(first), int(until)) for partition, (first, until) in ranges.items()
            )
        except (TypeError, ValueError, AttributeError):
            raise DataError(f"ranges = {ranges!r}: expected partition -> [first, until], as ranges_now gives") from None
        self.size = sum(until - first for _, first, until in self._ranges)
        self._lock = threading.Lock()
        self._consumer: Any = None
        self._left: list[Any] = []
        self._process = 0
        self._position: tuple[int, int] | None = None
        for partition, first, until in self._ranges:
            check_kept(topic, partition, first, until, *_kept(self._opened(), topic, partition, wait_s))

    def read(self, start: int, length: int) -> Any:
        """Return what ``decode`` makes of messages [start, start + length)."""
        check_range(start, length, self.size, f"topic {self._topic}")
        values: list[bytes | None] = []
        begin = 0
        with self._lock:
            for partition, first, until in self._ranges:
                low, high = max(start, begin), min(start + length, begin + until - first)
                if low < high:
                    values += self._values(partition, first + low - begin, first + high - begin)
                begin += until - first
        return self._decode(values)

    def _values(self, partition: int, first: int, until: int) -> list[bytes | None]:
        """Return the values of the messages at these offsets. Raises DataError."""
        from confluent_kafka import KafkaError, TopicPartition

        consumer, values = self._opened(), list[bytes | None]()
        if self._position != (partition, first):
            consumer.assign([TopicPartition(self._topic, partition, first)])
        self._position = None
        heard_s = time.monotonic()
        while len(values) < until - first:
            expected = first + len(values)
            for message in consumer.consume(until - expected, 0.5):
                heard_s, error = time.monotonic(), message.error()
                if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                    check_kept(self._topic, partition, expected, until, *_kept(consumer, self._topic, partition, 10.0))
                if error is not None and error.retriable():
                    continue
                at_end = error is not None and error.code() == KafkaError._PARTITION_EOF
                if error is not None and not at_end:
                    raise DataError(f"{_place(self._topic, partition, expected)} cannot be read: {error.str()}")
                if at_end or message.offset() != first + len(values):
                    raise DataError(
                        f"{_place(self._topic, partition, first + len(values))} holds no message, as after compaction "
                        "or in a transaction; write to a topic without either, or end the range before it"
                    )
                values.append(message.value())
            if time.monotonic() - heard_s > self._wait_s:
                raise DataError(f"{_place(self._topic, partition, expected)}: no answer within {self._wait_s:g} s")
        self._position = partition, until
        return values

    def _opened(self) -> Any:
        """Return this process's consumer. After a fork, the parent's consumer can neither be used nor be closed."""
        if self._process != os.getpid():
            self._left.append(self._consumer)
            self._consumer, self._process, self._position = _consumer(self._settings), os.getpid(), None
        return self._consumer


def ranges_now(
    servers: str, topic: str, *, settings: Mapping[str, Any] | None = None, wait_s: float = 30.0
) -> dict[str, list[int]]:
    """Return the offsets that a topic has now, for :class:`Kafka` and the arguments of a job. Raises DataError."""
    from confluent_kafka import KafkaException

    consumer = _consumer(_settings(servers, settings))
    try:
        found = consumer.list_topics(topic, timeout=wait_s).topics[topic]
    except KafkaException as error:
        raise DataError(f"topic {topic} at {servers}: {error.args[0].str()}") from error
    if found.error is not None:
        raise DataError(f"topic {topic} at {servers}: {found.error.str()}")
    return {str(partition): [*_kept(consumer, topic, partition, wait_s)] for partition in sorted(found.partitions)}


def check_kept(topic: str, partition: int, first: int, until: int, low: int, high: int) -> None:
    """Raise DataError for offsets that a partition, which has [low, high), does not hold."""
    if not 0 <= first <= until:
        raise DataError(f"ranges: {partition} = [{first}, {until}]: expected a first offset and one not before it")
    if first < min(low, until):
        raise DataError(
            f"{_place(topic, partition, first)} is gone: the topic keeps {low} and later; begin the range at {low}, or "
            "lengthen retention.ms before the next job"
        )
    if until > high:
        raise DataError(
            f"{_place(topic, partition, until - 1)} is not there yet: the topic ends at {high}; end the range at {high}"
        )


def _place(topic: str, partition: int, offset: int) -> str:
    return f"topic {topic}, partition {partition}, offset {offset}"


def _kept(consumer: Any, topic: str, partition: int, wait_s: float) -> tuple[int, int]:
    from confluent_kafka import KafkaException, TopicPartition

    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=wait_s)
    except KafkaException as error:
        raise DataError(
            f"topic {topic}, partition {partition}: {error.args[0].str()}; check servers and names"
        ) from error
    return low, high


def _settings(servers: str, settings: Mapping[str, Any] | None) -> dict[str, Any]:
    own = {"group.id": "stretto", "enable.auto.commit": False, "auto.offset.reset": "error"}
    return {"log_level": 3, **(settings or {}), **own, "enable.partition.eof": True, "bootstrap.servers": servers}


def _consumer(settings: Mapping[str, Any]) -> Any:
    try:
        from confluent_kafka import Consumer, KafkaException
    except ImportError as error:
        raise DataError(f"Kafka is read by confluent-kafka: install stretto[kafka] ({error})") from error
    try:
        return Consumer(dict(settings))
    except KafkaException as error:
        raise DataError(f"Kafka: {error.args[0].str()}; check settings") from error
