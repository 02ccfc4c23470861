"""Observations of the checkpoints service: journalled inputs, from which its decisions replay.

The words are those of the facts that follow from them: saved, flushed, failed, restored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import MaxLen
from stretto_messages.base import Bytes, Count, Message, Name, Seconds, Text
from stretto_messages.values import CheckpointRef

Ledger = Annotated[str, MaxLen(200_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagesSaved(Message):
    """All parameter servers have their images in memory; ``memory_bytes`` of them in reserved shared memory.

    ``difference``: at least one of them adds to the checkpoint that the attempt named.
    """

    id: Name
    ledger: Ledger
    """The mark that was taken before the images."""
    samples: Count
    size_bytes: Bytes
    pause_s: Seconds
    took_s: Seconds
    memory_bytes: Bytes = 0
    difference: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagesFlushed(Message):
    """All images are in the store, and the manifest that names them."""

    id: Name
    took_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailed(Message):
    """A checkpoint could not be taken or stored, or (``id`` of a restore) could not be read."""

    id: Name
    reason: Text
    damaged: bool = False
    """The stored checkpoint is not sound: reading it again will not help."""
    url: Annotated[str, MaxLen(1000)] = ""
    """The manifest from which a return was tried, where it is a later one than the state knows."""
    beyond: Count = 0
    """The highest number of a checkpoint that the store has and the state does not know; 0: none. The installation was
    restored from a backup, and an attempt under a number up to this would write over what is whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersRestored(Message):
    """Every parameter server has its part of the checkpoint, which adds to ``bases``, the full one first."""

    id: Name
    checkpoint: CheckpointRef
    ledger: Ledger
    servers: Annotated[tuple[Count, ...], MaxLen(1000)]
    bases: Annotated[tuple[Name, ...], MaxLen(1000)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsImported(Message):
    """Every column has an owner again; ``columns`` of them are those of the checkpoint."""

    id: Name
    columns: Count
    size_bytes: Bytes


Observation = ImagesSaved | ImagesFlushed | StepFailed | ParametersRestored | ColumnsImported
OBSERVATIONS = (ImagesSaved, ImagesFlushed, StepFailed, ParametersRestored, ColumnsImported)
