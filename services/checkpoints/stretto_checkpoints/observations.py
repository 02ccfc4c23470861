"""What only the edge of the checkpoints service sees; journalled, so that decisions replay from it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from stretto_wire import CheckpointRef, Message
from stretto_wire.base import Bytes, Count, Name, Seconds, Text

Ledger = Annotated[str, Field(max_length=200_000)]


class ImagesTaken(Message):
    """All parameter servers have their images in memory; ``memory_bytes`` of them in what was reserved."""

    id: Name
    ledger: Ledger
    samples: Count
    size_bytes: Bytes
    pause_s: Seconds
    took_s: Seconds
    memory_bytes: Bytes = 0


class ImagesStored(Message):
    """All images are in the store, and the manifest that names them."""

    id: Name
    took_s: Seconds


class CheckpointBroken(Message):
    """It could not be taken, stored or read; ``damaged``: it never will be."""

    id: Name
    reason: Text
    damaged: bool = False


class ParametersLoaded(Message):
    """Every parameter server has its part of the checkpoint."""

    id: Name
    checkpoint: CheckpointRef
    ledger: Ledger
    servers: Annotated[tuple[Count, ...], Field(max_length=1000)]


OBSERVATIONS = (ImagesTaken, ImagesStored, CheckpointBroken, ParametersLoaded)
