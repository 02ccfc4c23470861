"""Items of a data set that data workers compute for a program: the program's side, in a worker and in a data worker.

Nothing but the standard library is needed here, as in :mod:`stretto.agent`. A worker's program cuts a batch into pieces
and asks for them while the step before computes. Data workers begin with the first piece; once the program waits for
the batch, the program takes back whatever they have not begun, from the last piece on, and computes that itself. So a
batch takes no longer than where it is computed alone, but for what a piece takes on its way, and data workers that do
not pay are asked rarely.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import pickle
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from .errors import StrettoError

GONE = "the process that runs this program is gone; end, and Stretto runs it again"
ITEMS, BACK, TOOK, SERVES = "items", "back", "took", "serves"
"""First words of lines about items: asked for (the number of a piece, then those of its items); asked for no more (the
number of a piece); what they took (:class:`Took`, in its order); and the one by which a process of a data worker offers
to compute some."""
_FRAME = struct.Struct("!qq")
"""The head of an answer about items: the number of a piece, or in a data worker 1 for items and 0 for an error's text;
then the length of what follows."""
_LEAST_S, _PIECE_S, _PIECES_MAX = 0.001, 0.008, 64
"""Seconds of a batch from which others are asked, those of a piece of one, and the most pieces. A piece takes some
tenths of a millisecond on its way."""
_LATE_S = 1.0
"""Seconds, beside twice what its items take here, after which a piece that a data worker has begun is computed here."""
_ALONE_S, _TRIAL_SHARE = 1.0, 0.02
"""Seconds until data workers are asked again that gave nothing, and the share of the time for which trials that do not
pay may be made."""
_TOLD_EVERY_S = 0.5
"""Seconds between two lines of what items took."""
_OWN_EVERY = 64
"""Each so many batches a piece is computed here, to know what items take here by now."""
likely: list[range] = []
"""The batch that most likely follows the one that the program works on, if it is known."""


class _Batch(NamedTuple):
    """A batch that was asked for: the numbers of each piece's items, and pickled items that came (empty: none)."""

    numbers: list[int]
    pieces: dict[int, list[int]]
    came: dict[int, bytearray]


class Took(NamedTuple):
    """The time that a program's items have taken since the last telling.

    ``own_s``, ``own_cpu_s``: seconds, and seconds of a processor, of an item that the program computes itself.
    """

    items: int = 0
    away: int = 0
    """Items that data workers computed."""
    waited_s: float = 0.0
    """Seconds for which the program waited for them, or computed them itself."""
    own_s: float = 0.0
    own_cpu_s: float = 0.0

    def line(self) -> str:
        return f"{TOOK} {' '.join(map(repr, self))}\n"

    @classmethod
    def read(cls, text: str) -> Took:
        """Return what a line says behind its first word. Raises ValueError: it is no such line."""
        items, away, waited_s, own_s, own_cpu_s = text.split()
        took = cls(int(items), int(away), float(waited_s), float(own_s), float(own_cpu_s))
        if not (0 <= took.away <= took.items and all(0.0 <= each < math.inf for each in took[2:])):
            raise ValueError(text)
        return took


class SharedItems:
    """A data set whose items data workers compute, and this process whatever they have not begun when it waits."""

    def __init__(self, dataset: Any, path: str) -> None:
        self._dataset = dataset
        self._link: socket.socket | None = reached(path)
        self._poll = select.poll()
        self._poll.register(self._link, select.POLLIN)
        self._process = os.getpid()
        self._ahead: _Batch | None = None
        self._batches = self._last_piece = 0
        self._own_s = self._own_cpu_s = self._far_s = self._again_s = 0.0
        """Seconds, and seconds of a processor, of an item that is computed here, those that one of data workers keeps
        this process, and the time from which they are asked."""
        self._took, self._told_at_s = Took(), time.monotonic()

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> Any:
        return self._dataset[number]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process as the data set itself: data workers are asked from here alone."""
        return _itself, (self._dataset,)

    def __getitems__(self, numbers: Sequence[int]) -> Sequence[Any]:
        if os.getpid() != self._process:  # a fork has no way to data workers: this one is its parent's
            return _items(self._dataset, numbers)
        batch, self._ahead = self._ahead, None
        if batch is not None and batch.numbers != [*numbers]:
            self._send("".join(f"{BACK} {piece}\n" for piece in batch.pieces))
            batch = None
        began_s = time.monotonic()
        batch = batch or self._ask([*numbers])
        items = self._own(numbers) if batch is None else self._gathered(batch)
        self._tell(len(numbers), time.monotonic(), began_s)
        self._ahead = self._ask([*likely[0]]) if likely else None
        return items

    def _tell(self, items: int, now_s: float, began_s: float) -> None:
        """Add a batch to what is told now and then, by which the number of data workers is decided."""
        took = self._took
        self._took = Took(took.items + items, took.away, took.waited_s + now_s - began_s, self._own_s, self._own_cpu_s)
        if now_s - self._told_at_s >= _TOLD_EVERY_S and self._send(self._took.line()):
            self._took, self._told_at_s = Took(), now_s

    def _ask(self, numbers: list[int]) -> _Batch | None:
        """Ask for a batch; None: it is computed here."""
        is_cheap = self._own_s * len(numbers) <= _LEAST_S
        if is_cheap or time.monotonic() < self._again_s:
            return None
        size = max(int(_PIECE_S / self._own_s), -(-len(numbers) // _PIECES_MAX), 1)
        parts = [numbers[first : first + size] for first in range(0, len(numbers), size)]
        batch = _Batch(numbers, dict(enumerate(parts, self._last_piece + 1)), {})
        self._last_piece += len(parts)
        lines = (f"{ITEMS} {piece} {' '.join(map(str, part))}\n" for piece, part in batch.pieces.items())
        return batch if self._send("".join(lines)) else None

    def _gathered(self, batch: _Batch) -> list[Any]:
        """Return the items of a batch: the last pieces are computed here while data workers compute the first ones."""
        began_s, found = time.monotonic(), dict[int, Any]()
        self._batches += 1
        is_own = self._batches % _OWN_EVERY == 0
        for piece, numbers in reversed(batch.pieces.items()):
            self._receive(batch, piece, 0.0)
            if piece not in batch.came and not is_own and self._send(f"{BACK} {piece}\n"):
                self._receive(batch, piece, _LATE_S + 2 * self._own_s * len(numbers))
            items = None if is_own else _unpickled(batch.came.get(piece), len(numbers))
            if items is not None:
                self._took = self._took._replace(away=self._took.away + len(numbers))
            found[piece] = self._own(numbers) if items is None else items
            is_own = False
        now_s = time.monotonic()
        self._far_s = (self._far_s + (now_s - began_s) / len(batch.numbers)) / 2
        if not any(batch.came.values()):
            self._again_s = now_s + _ALONE_S
        elif self._far_s >= self._own_s:
            self._far_s, self._again_s = 0.0, now_s + (now_s - began_s) / _TRIAL_SHARE
        return [item for piece in batch.pieces for item in found[piece]]

    def _own(self, numbers: Sequence[int]) -> Any:
        began_s, began_cpu_s, count = time.monotonic(), time.thread_time(), max(1, len(numbers))
        items = _items(self._dataset, numbers)
        took_s, took_cpu_s = (time.monotonic() - began_s) / count, (time.thread_time() - began_cpu_s) / count
        self._own_s = (self._own_s + took_s) / 2 if self._own_s else took_s
        self._own_cpu_s = (self._own_cpu_s + took_cpu_s) / 2 if self._own_cpu_s else took_cpu_s
        return items

    def _send(self, lines: str) -> bool:
        with contextlib.suppress(OSError):  # the process that runs this program is gone, which samples tells
            if self._link is not None:
                self._link.sendall(lines.encode())
                return True
        self._link = None
        return False

    def _receive(self, batch: _Batch, piece: int, wait_s: float) -> None:
        """Take what has come, until the piece has, for so long."""
        until_s = time.monotonic() + wait_s
        while self._link is not None and piece not in batch.came:
            if not self._poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
                return
            try:
                came, body = framed(self._link)
            except (OSError, EOFError):
                self._link = None
                return
            batch.came[came] = body


def _itself(dataset: Any) -> Any:
    return dataset


def _items(dataset: Any, numbers: Sequence[int]) -> Any:
    at_once = getattr(dataset, "__getitems__", None)
    return at_once(numbers) if at_once else [dataset[number] for number in numbers]


class _Pickler(pickle.Pickler):
    """Pickles a tensor of PyTorch as its bytes: PyTorch's own way takes 140 us for each, here and where it is read."""

    def reducer_override(self, item: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(item) is not torch.Tensor or not item.numel():
            return NotImplemented
        is_plain = item.device.type == "cpu" and item.layout is torch.strided and item.is_contiguous()
        if not is_plain or item.requires_grad or item.is_quantized or item.is_complex() or item.is_neg() or vars(item):
            return NotImplemented
        content = item.flatten().view(torch.uint8).numpy().tobytes()
        return _tensor, (content, str(item.dtype).removeprefix("torch."), tuple(item.shape))


def _tensor(content: bytes, kind: str, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.frombuffer(bytearray(content), dtype=getattr(torch, kind)).reshape(shape)


def _pickled(found: list[Any]) -> bytes:
    body = io.BytesIO()
    _Pickler(body, pickle.HIGHEST_PROTOCOL).dump(found)
    return body.getvalue()


def _unpickled(body: bytearray | None, count: int) -> list[Any] | None:
    """Return so many items; None: there are none, or they cannot be read here."""
    with contextlib.suppress(Exception):
        if body and len(items := pickle.loads(body)) == count:
            return items
    return None


def serve(dataset: Any, path: str, processes: int) -> NoReturn:
    """Compute items for the data worker that runs this program, in so many processes, until it hangs up."""
    is_fork = any(not os.fork() for _ in range(processes - 1))
    try:
        with contextlib.suppress(OSError), reached(path) as link, link.makefile("r", encoding="ascii") as asked:
            link.sendall(f"{SERVES}\n".encode())
            for line in asked:
                numbers = [int(number) for number in line.split()]
                try:
                    answer = 1, _pickled([*_items(dataset, numbers)])
                except Exception as error:  # computed where it is wanted, the item tells what is wrong
                    answer = 0, f"{type(error).__name__}: {error}".encode()
                send_frame(link, *answer)
    finally:
        if is_fork:
            os._exit(0)
    raise SystemExit(0)


def send_frame(link: socket.socket, number: int, body: bytes | memoryview) -> None:
    """Send an answer about items."""
    link.sendall(_FRAME.pack(number, len(body)))
    link.sendall(body)


def framed(link: socket.socket) -> tuple[int, bytearray]:
    """Receive an answer about items. Raises EOFError: the other side has hung up."""
    number, length = _FRAME.unpack(_received(link, _FRAME.size))
    return number, _received(link, length)


def _received(link: socket.socket, length: int) -> bytearray:
    body = bytearray(length)
    rest = memoryview(body)
    while rest:
        if not (came := link.recv_into(rest)):
            raise EOFError
        rest = rest[came:]
    return body


def reached(path: str) -> socket.socket:
    """Return a connection to the process that runs this program. Raises StrettoError: that process is gone."""
    try:
        return connected(path)
    except OSError as error:
        raise StrettoError(f"STRETTO_AGENT = {path} cannot be reached: {error.strerror}; {GONE}") from error


def connected(path: str) -> socket.socket:
    """Return a connection to the socket at ``path``, which may be longer than the address of a socket."""
    link = socket.socket(socket.AF_UNIX)
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        link.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    except OSError:
        link.close()
        raise
    finally:
        os.close(folder)
    return link
