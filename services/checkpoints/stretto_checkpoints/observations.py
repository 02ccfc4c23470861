"""What only the edge of the checkpoints service sees; journalled, so that decisions replay from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import MaxLen
from stretto_messages.base import Bytes, Count, Message, Name, Seconds, Text
from stretto_messages.values import CheckpointRef

Ledger = Annotated[str, MaxLen(200000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagesTaken(Message):
    """All parameter servers have their images in memory; ``memory_bytes`` of them in what was reserved."""

    id: Name
    ledger: Ledger
    samples: Count
    size_bytes: Bytes
    pause_s: Seconds
    took_s: Seconds
    memory_bytes: Bytes = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagesStored(Message):
    """All images are in the store, and the manifest that names them."""

    id: Name
    took_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointBroken(Message):
    """It could not be taken, stored or read; ``damaged``: it never will be."""

    id: Name
    reason: Text
    damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersLoaded(Message):
    """Every parameter server has its part of the checkpoint."""

    id: Name
    checkpoint: CheckpointRef
    ledger: Ledger
    servers: Annotated[tuple[Count, ...], MaxLen(1000)]


OBSERVATIONS = (ImagesTaken, ImagesStored, CheckpointBroken, ParametersLoaded)
