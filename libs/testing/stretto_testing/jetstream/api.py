"""The JetStream API of a server in memory: streams and consumers are made, changed, told about and removed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from stretto_testing.jetstream.consumers import Consumer, Host, body_of
from stretto_testing.jetstream.snapshots import Snapshots, content_of
from stretto_testing.jetstream.streams import ApiRefusal, KeptStream
from stretto_testing.jetstream.subjects import matches

STREAM_MISSING, CONSUMER_MISSING, INVALID_JSON, NAME_TAKEN, EXISTS = 10059, 10014, 10025, 10058, 10130
INFO_FIELDS = {"subjects_filter", "offset", "deleted_details"}
UNSET = {"max_bytes": -1, "max_msgs_per_subject": -1, "max_msg_size": -1, "num_replicas": 1, "discard": "old"}


class Api:
    """Every stream and consumer of a server."""

    def __init__(self, host: Host) -> None:
        self.streams: dict[str, KeptStream] = {}
        self.consumers: dict[tuple[str, str], Consumer] = {}
        self.on_created: Callable[[KeptStream], None] = lambda stream: None
        self.on_restored = self.on_deleted = self.on_created
        self.snapshots = Snapshots(host)
        self._host = host

    def ask(self, subject: str, reply: str, data: bytes) -> dict[str, Any] | None:
        """Carry out a request ``$JS.API.…``; return its answer, None where messages are it. Raises ApiRefusal."""
        words = subject.split(".")[2:]
        what = ".".join(words[:2])
        if what == "STREAM.INFO":
            return self._stream_info(words[2], body_of(data))
        if what in ("STREAM.CREATE", "STREAM.UPDATE"):
            return self._configure(words[2], body_of(data), is_new=what == "STREAM.CREATE")
        if what in ("STREAM.SNAPSHOT", "STREAM.RESTORE", "STREAM.DELETE"):
            return self._saved(what, words[2], body_of(data))
        if what == "CONSUMER.CREATE":
            return self._create(words[2], words[3], body_of(data))
        if what == "CONSUMER.INFO":
            return self._consumer(words[2], words[3]).info()
        if what == "CONSUMER.DELETE":
            self.remove(self._consumer(words[2], words[3]))
            return {"success": True}
        if what == "CONSUMER.MSG":
            self._consumer(words[3], words[4]).pull(reply, body_of(data))
            return None
        raise ApiRefusal(INVALID_JSON, f"{subject} is not simulated")

    def _stream(self, name: str) -> KeptStream:
        if name not in self.streams:
            raise ApiRefusal(STREAM_MISSING, "stream not found", 404)
        return self.streams[name]

    def _consumer(self, stream: str, name: str) -> Consumer:
        self._stream(stream)
        found = self.consumers.get((stream, name))
        if found is None:
            raise ApiRefusal(CONSUMER_MISSING, "consumer not found", 404)
        return found

    def _stream_info(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        if body.keys() - INFO_FIELDS:  # as a server with ``strict: true``
            raise ApiRefusal(INVALID_JSON, "invalid JSON")
        stream = self._stream(name)
        if self._host.leads(name):
            stream.expire()
        state: dict[str, Any] = stream.state()
        state["consumer_count"] = sum(1 for of, _ in self.consumers if of == name)
        found: dict[str, Any] = {"config": stream.config, "state": state, "created": _text(stream.created_ns)}
        newest = stream.messages.get(stream.last_seq)
        state["last_ts"] = _text(newest.time_ns if newest is not None else stream.created_ns)
        if (pattern := body.get("subjects_filter")) is not None:
            state["subjects"] = _counts(stream, str(pattern))
            found["total"] = len(state["subjects"])
        if body.get("deleted_details"):
            state["deleted"] = [
                seq for seq in range(int(state["first_seq"]), stream.last_seq + 1) if seq not in stream.messages
            ]
        return found | {"ts": _text(self._host.now_ns())}

    def _configure(self, name: str, config: dict[str, Any], is_new: bool) -> dict[str, Any]:
        if is_new and name in self.streams:
            raise ApiRefusal(NAME_TAKEN, "stream name already in use with a different configuration")
        if is_new:
            self.streams[name] = KeptStream(UNSET | config, self._host.now_ns)
            self.on_created(self.streams[name])
        else:
            self._stream(name).configure(UNSET | config)
        return self._stream_info(name, {})

    def _saved(self, what: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        if what == "STREAM.RESTORE":
            if name in self.streams:
                raise ApiRefusal(EXISTS, "stream name already in use, cannot restore")
            config = body["config"]
            return {"deliver_subject": self.snapshots.receive(name, lambda chunks: self._restore(name, config, chunks))}
        stream = self._stream(name)
        if what == "STREAM.DELETE":
            self.delete(stream)
            return {"success": True}
        self.snapshots.send(stream, body["deliver_subject"])
        return {"config": stream.config, "state": stream.state()}

    def _restore(self, name: str, config: dict[str, Any], chunks: list[bytes]) -> dict[str, Any]:
        self._configure(name, config, is_new=True)
        stream = self.streams[name]
        stream.load(*content_of(chunks))
        stream.expire()
        self.on_restored(stream)
        return self._stream_info(name, {})

    def delete(self, stream: KeptStream) -> None:
        """Remove a stream, and its consumers."""
        for consumer in [each for each in self.consumers.values() if each.stream is stream]:
            self.remove(consumer)
        del self.streams[stream.name]
        self.on_deleted(stream)

    def _create(self, stream: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        known = self.consumers.get((stream, name))
        if known is not None:  # the same again, with other texts
            known.config |= body["config"]
            return known.info()
        made = Consumer(self._host, self._stream(stream), name, dict(body["config"]))
        self.consumers[stream, name] = made
        return made.info()

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        self.consumers.pop((consumer.stream.name, consumer.name)).close()


def _counts(stream: KeptStream, pattern: str) -> dict[str, int]:
    return {subject: len(seqs) for subject, seqs in stream.by_subject.items() if matches(pattern, subject)}


def _text(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
