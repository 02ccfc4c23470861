"""The document of a mark: the ledger's books, as a checkpoint carries them."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode

from pydantic import TypeAdapter, ValidationError
from stretto_core.dispatcher.book import Book
from stretto_wire.errors import WireError

PACKED_OVER = 150_000
"""Bytes of JSON above which a document is compressed, so that it fits into its message."""

PLAIN_MAX = 8 << 20
"""Bytes of JSON that a document unfolds to; the largest books, of all partitions and workers, have some 2 MB.

Documents come back from manifests, which lie where the job's own code can write.
"""

_BOOK = TypeAdapter(Book)


def written(book: Book) -> str:
    """Return the document of the books: JSON, compressed where it is long."""
    document = _BOOK.dump_json(book)
    if len(document) <= PACKED_OVER:
        return document.decode()
    return b64encode(zlib.compress(document)).decode()


def read(document: str) -> Book:
    """Return the books of a document. Raises WireError for one that no ledger wrote."""
    try:
        book = _BOOK.validate_python(_unpacked(document))
    except ValidationError as error:
        raise WireError.of(error, "ledger") from error
    if book.samples_placed != book.source.opened:  # it lies where the job's own code can write
        remedy = f"books in which each of {book.source.opened} opened samples is in one place"
        raise WireError("ledger", f"{book.samples_placed} samples", remedy)
    return book


def _unpacked(document: str) -> object:
    try:
        return json.loads(document if document.startswith("{") else _decompressed(document))
    except (ValueError, zlib.error, RecursionError) as error:
        raise WireError("ledger", document[:100], "the document that MarkLedger gave") from error


def _decompressed(document: str) -> bytes:
    """Return at most ``PLAIN_MAX`` bytes. Raises ValueError or zlib.error for more, and for what is no document."""
    unpacking = zlib.decompressobj()
    plain = unpacking.decompress(b64decode(document, validate=True), PLAIN_MAX)
    if not unpacking.eof:
        raise ValueError(f"more than {PLAIN_MAX} bytes, or cut off")
    return plain
