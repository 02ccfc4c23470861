"""``python -m stretto.readers DATA [--index URL]``: count the samples of data, and keep their index, before a job."""

from __future__ import annotations

import argparse
import sys

from stretto_messages.base import counted

from ..errors import DataError
from .formats import open_format
from .index import Settings, index_of
from .places import find


def main() -> int:
    """The command; exit status 1 if the data cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m stretto.readers", description=__doc__)
    parser.add_argument("data", nargs="+", help="files, folders, globs or URLs")
    parser.add_argument("--index", help="file or URL that keeps the index, for Arrow(…, index=)")
    given = parser.parse_args()
    try:
        files = find(given.data)
        entries = index_of(files, Settings("", given.index), open_format, lambda file, opened, rows: (rows, rows * 0))
        first = entries[0]
        names = open_format(first.file, first.kind).schema.names
    except DataError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    samples = sum(int(entry.rows.sum()) for entry in entries)
    pieces = sum(len(entry.rows) for entry in entries)
    sys.stdout.write(f"{counted(samples, 'sample')} in {counted(len(files), 'file')} ({counted(pieces, 'piece')})\n")
    sys.stdout.write(f"columns: {', '.join([*names, *(name for name, _ in first.file.keys)])}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
