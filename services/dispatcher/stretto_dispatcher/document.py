"""The document of a mark: the ledger's books, as a checkpoint carries them."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode

from pydantic import TypeAdapter, ValidationError
from stretto_core.dispatcher import Book
from stretto_wire.errors import WireError

PACKED_OVER = 150_000
"""Bytes of JSON above which a document is compressed, so that it fits into its message."""

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
        return _BOOK.validate_python(_unpacked(document))
    except ValidationError as error:
        raise WireError.of(error, "ledger") from error


def _unpacked(document: str) -> object:
    try:
        plain = document if document.startswith("{") else zlib.decompress(b64decode(document, validate=True))
        return json.loads(plain)
    except (ValueError, zlib.error) as error:
        raise WireError("ledger", document[:100], "the document that MarkLedger gave") from error
