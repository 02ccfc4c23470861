"""The errors of the trainer. Every message names what failed, the value, and the remedy."""

from __future__ import annotations


class StrettoError(Exception):
    """The base of every error of the package."""


class LayoutError(StrettoError):
    """A layout, a key or a set of columns that cannot be served."""


class ServerLost(StrettoError):
    """A parameter server does not answer: dead, unreachable, or slower than the operation timeout.

    The operation may or may not have been applied there; repeating it is always safe.
    """

    def __init__(self, server: int, address: str, cause: str) -> None:
        super().__init__(
            f"parameter server ps-{server} at {address} did not answer ({cause}); "
            "repeat the same batch once it is back, or restore it from the last checkpoint"
        )
        self.server = server
        self.address = address


class ServerBusy(ServerLost):
    """An overloaded parameter server refused one request. It is alive, and the connection stays."""


class ServerEmptied(StrettoError):
    """An operation of a life of the parameter server that has ended: the server was emptied in place since."""


class OwnershipUnknown(StrettoError):
    """Columns that have no owner among the known parameter servers (or stayed frozen) for too long."""


class PushRefused(StrettoError):
    """A push that must not be repeated as it is."""


class StaleAttempt(PushRefused):
    """The shard was leased again with a higher attempt, or is finished: this worker must drop it."""


class ProgressGap(PushRefused):
    """Samples before the batch are missing on the parameter servers: ask for the lease, then `progress(shard)`."""


class ServersReplaced(PushRefused):
    """Parameter servers were lost, or went back to a checkpoint, since the shard was leased: ask the dispatcher."""


class BatchMisaligned(PushRefused):
    """Part of the batch is applied already: replay with the same batch boundaries as before."""


class MigrationError(StrettoError):
    """A move that could not be finished. Columns that did not move stay at their source: plan again by GetOwnership."""


class CheckpointError(StrettoError):
    """A checkpoint image that is damaged, incomplete or of another layout."""


class ImageDamaged(CheckpointError):
    """Every copy of an image was read and none is whole: reading again will not help."""


class NoRoom(CheckpointError):
    """The columns of a checkpoint might take more memory than this server has left."""


class ModelRefused(StrettoError):
    """The user's model, optimizer or entry cannot be trained as it is; the message says what to change."""


class ExportRefused(StrettoError):
    """An export that cannot be made as it was asked for; the message says what to change."""


class DataError(StrettoError):
    """Samples that are malformed or do not exist: the fault is in the data, not in the pod."""


class PodError(StrettoError):
    """A pod was started with an environment that it cannot work in."""


class BusError(StrettoError):
    """The bus or the service behind it did not answer in time. The request may have been handled or not."""


class CallRefused(StrettoError):
    """A service refused a request; repeating it does not help."""
