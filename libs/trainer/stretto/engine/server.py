"""A parameter server: it listens for workers and other servers of its job, and knows no other process."""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

import psutil
from stretto_parameters import InputRefused, LogDamaged, Own, Store, StoreFull
from stretto_plane import Key, Listener, Message, Peer, PlaneError

from ..errors import LayoutError, ServerEmptied
from . import codec, protocol
from .layout import I64, U64, UNKNOWN, Layout
from .locked_store import LockedStore
from .protocol import Kind
from .spilling import Eviction, Spill, at_hand_bytes
from .transfer import Transfers
from .turns import Turn

log = logging.getLogger("stretto.engine")

CONTROL = (
    "own", "columns", "set_own", "clear", "sizes", "raw_sizes", "categories", "memory_bytes", "image_bytes", "applied",
    "stats", "workers", "checksum", "known_layout", "next_epoch", "export_ranges", "import_bucket", "drop_bucket",
    "export_slices", "import_slices", "records", "all_progress", "merge_columns", "finished", "finish", "seed",
    "progress", "placement", "lineage", "export_policy", "import_policy", "cold_rows",
    "freeze_and_export",
)  # fmt: skip
"""The operations that others may ask for."""

_UNKNOWN_BYTES_MAX = 2**26
"""The most bytes of a message while the layout, and so the size of a push, is unknown."""


class ParameterServer:
    """A running server; it owns no column yet.

    index: the n of pod `ps-<n>`. address: "host:port" (port 0 takes any free one) or "unix:/path". layout: None where
    the first worker, another server or an image gives it. key: who has it may ask for everything; None: a fresh one,
    for clients of this process (`key`). memory_bytes: the most memory that the pod may ever get. spill: where rows go
    that find no room in memory; None: nowhere. on_damage: called with the reason when rows on the disk are lost; the
    server should then end.
    """

    def __init__(
        self,
        index: int,
        layout: Layout | None = None,
        address: str = "127.0.0.1:0",
        *,
        key: Key | None = None,
        encrypted: bool = False,
        memory_bytes: int = 0,
        spill: Spill | None = None,
        on_damage: Callable[[str], None] | None = None,
    ) -> None:
        self.index = index
        self._on_damage = on_damage or log.error
        self.key = key or Key.random()
        self.encrypted = encrypted
        self._memory_bytes = memory_bytes or psutil.virtual_memory().total
        self.store = LockedStore(index, layout or UNKNOWN, self._memory_bytes, spill=spill)
        self._life = secrets.token_hex(8)
        self._lives = threading.Lock()
        self._of_peer: WeakKeyDictionary[Peer, tuple[LockedStore, str]] = WeakKeyDictionary()
        self._answers: dict[int, Callable[[Message, LockedStore], tuple[int, list[Any]]]] = {
            Kind.PULL: self._pull,
            Kind.PUSH: self._push,
            Kind.CALL: self._call,
            Kind.HINT: self._hint,
            Kind.EXCHANGE: self._exchange,
        }
        try:
            self._listener = Listener(
                address, self._handle, self.key, size_bytes_max=self._size_bytes_max(), encrypted=encrypted
            )
        except PlaneError as error:
            raise LayoutError(f"address {address!r} cannot be listened on: {error}") from error
        self.address = self._listener.address
        self.eviction = Eviction(spill, self._tiered, self._on_damage, self._at_hand_bytes) if spill else None
        if self.eviction is not None:
            self.eviction.start()

    @property
    def layout(self) -> Layout:
        """The layout of the job, or UNKNOWN."""
        return self.store.layout

    def own(self, columns: Iterable[int]) -> None:
        """Own these columns, empty: the first placement of a new job."""
        self.store.set_own(columns, Own.MINE, Own.NOT_MINE)

    def adopt(self, layout: Layout) -> None:
        """Take the layout of the job. Raises InputRefused for another than is known."""
        self.store.adopt(layout)
        self._listener.size_bytes_max = self._size_bytes_max()

    def empty(self) -> None:
        """Begin a new life that owns nothing, like a process that has just started; only the layout stays.

        Clients take the server for another process: their connections end, and a new connection shows another life. A
        request on its way belongs to the life in which its connection began, so it changes nothing in the new life.
        """
        with self._lives:
            self.store = self.store.next_life()
            self._life = secrets.token_hex(8)
        self._listener.end_connections()

    def close(self) -> None:
        """Stop listening, and end every connection."""
        if self.eviction is not None:
            self.eviction.close()
        self._listener.close()
        if self.store.unlocked.tiers is not None:
            self.store.unlocked.tiers.close()

    def _tiered(self) -> tuple[Store, Turn]:
        return self.store.unlocked, self.store.turn

    def _at_hand_bytes(self) -> float:
        pulls = self.store.pulls
        return at_hand_bytes(pulls, self.store.unlocked, time.monotonic()) if pulls else 0.0

    def _size_bytes_max(self) -> int:
        return self._memory_bytes if self.store.knows_layout else _UNKNOWN_BYTES_MAX

    # --- answers ------------------------------------------------------------------------------------------

    def _handle(self, message: Message, peer: Peer) -> tuple[int, list[Any]]:
        """Answer one message. Whatever does not fit is answered, and changes nothing."""
        answer = self._answers.get(message.kind)
        try:
            if message.kind == Kind.HELLO:
                return self._hello(message, peer)
            if answer is None:
                raise InputRefused(f"a message of kind {message.kind}: of another version of Stretto?")
            return answer(message, self._life_of(peer)[0])
        except InputRefused as error:
            log.warning("refused a message of %s: %s", peer, error)
            return Kind.REFUSED, [str(error).encode()]
        except (StoreFull, MemoryError) as error:
            log.warning("no room for a message of %s: %s", peer, error)
            return Kind.FULL, [str(error).encode()]
        except LogDamaged as error:
            self._on_damage(str(error))
            return Kind.FULL, [str(error).encode()]
        except ServerEmptied as error:  # its connection ends in a moment
            return Kind.FULL, [str(error).encode()]

    def _life_of(self, peer: Peer) -> tuple[LockedStore, str]:
        """Return the life in which a connection began, and its name."""
        with self._lives:
            return self._of_peer.setdefault(peer, (self.store, self._life))

    def _hello(self, message: Message, peer: Peer) -> tuple[int, list[Any]]:
        try:
            asked = json.loads(bytes(message.parts[0]))
            version, given = asked["protocol"], asked["layout"]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise InputRefused(f"a greeting that cannot be read: {error!r}") from error
        if version != protocol.VERSION:
            raise InputRefused(f"protocol = {version!r}, ps-{self.index} speaks {protocol.VERSION}: one job, one image")
        if given is not None:
            self.adopt(Layout.from_dict(given))
        _, life = self._life_of(peer)
        answer = {"protocol": protocol.VERSION, "server": self.index, "life": life, "pid": os.getpid()}
        return Kind.ANSWER, [json.dumps(answer | dict.fromkeys(protocol.KNOWN, True)).encode()]

    def _pull(self, message: Message, store: LockedStore) -> tuple[int, list[Any]]:
        return Kind.ANSWER, _pulled(store, *protocol.read_pull(self.layout, message.parts))

    def _hint(self, message: Message, store: LockedStore) -> tuple[int, list[Any]]:
        store.hint(protocol.read_pull(self.layout, message.parts)[0])
        return Kind.ANSWER, []

    def _push(self, message: Message, store: LockedStore) -> tuple[int, list[Any]]:
        return Kind.ANSWER, protocol.push_answer(*store.push(protocol.read_push(self.layout, message.parts)))

    def _exchange(self, message: Message, store: LockedStore) -> tuple[int, list[Any]]:
        push, asked = protocol.read_exchange(self.layout, message.parts)
        store.unlocked.check_pull(*asked[:2])  # what is refused changes nothing: the pull is looked at before the push
        pushed = protocol.push_answer(*store.push(push))
        return Kind.ANSWER, [*pushed, *_pulled(store, *asked)]

    def _call(self, message: Message, store: LockedStore) -> tuple[int, list[Any]]:
        asked = codec.unpack(message.parts)
        match asked:
            case [str(name), list(arguments), dict(named)] if name in CONTROL:
                pass
            case _:
                raise InputRefused(f"operation {str(asked)[:100]!r} does not exist: of another version of Stretto?")
        try:
            result = getattr(store, name)(*arguments, **named)
        except (TypeError, ValueError, AttributeError, OverflowError) as error:  # of another kind than it takes
            raise InputRefused(f"{name}: {error}") from error
        return Kind.ANSWER, codec.pack(result)


def _pulled(store: LockedStore, keys: list[U64], slices: I64, transfers: Transfers, is_training: bool) -> list[Any]:
    """Return the parts of the answer to a pull."""
    pulled = store.pull(keys, slices, is_training=is_training)
    cold_rows = store.cold_rows() if is_training else 0
    return protocol.pull_answer(pulled, keys, slices, transfers, cold_rows)
