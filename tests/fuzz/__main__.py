"""Try one reader: ``python -m tests.fuzz READER SECONDS CORPUS``; it ends with a traceback where a reader fails.

Each reader takes any bytes and either reads them or refuses them with its own error; any other error, and an input that
takes ten seconds, is a defect. libFuzzer writes the input that did it beside the corpus.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["stretto_wire", "stretto_plane", "stretto_messages", "yaml"]):
    from stretto_plane import FrameRefused
    from stretto_plane.frames import HEADER_BYTES, body_bytes, head_of, parts_of, sizes_of, table_bytes
    from stretto_wire import WireError
    from stretto_wire.codec import decode
    from stretto_wire.contract.registry import CHANNELS
    from stretto_wire.jobspec.jobfile import read_job

SLOWEST_S = 10
LIMIT_BYTES = 1 << 16


def _check(refused: WireError) -> None:
    assert refused.findings
    assert all(str(one).isprintable() for one in refused.findings), refused


def job_file(data: bytes) -> None:
    """Read a job file, as YAML and as JSON."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    for form in ("YAML", "JSON"):
        try:
            read_job(text, form)
        except WireError as error:
            _check(error)


def frame(data: bytes) -> None:
    """Read a message of the bus, whose first byte chooses its channel, and a frame of the plane."""
    channel = CHANNELS[(data[0] if data else 0) % len(CHANNELS)]
    try:
        decode(channel.message, data[1:])
    except WireError as error:
        _check(error)
    if len(data) < HEADER_BYTES:
        return
    try:
        head = head_of(data[:HEADER_BYTES], LIMIT_BYTES)
        rest = memoryview(data)[HEADER_BYTES:]
        table = table_bytes(head.part_count)
        if len(rest) < table:
            return
        sizes = sizes_of(head, rest[:table], LIMIT_BYTES)
        body = rest[table:]
        if len(body) == body_bytes(sizes):
            assert sum(map(len, parts_of(body, sizes))) <= LIMIT_BYTES
    except FrameRefused:
        pass


READERS: dict[str, Callable[[bytes], None]] = {"job_file": job_file, "frame": frame}


def main() -> None:
    reader, seconds, corpus = sys.argv[1:]
    options = [f"-max_total_time={seconds}", f"-timeout={SLOWEST_S}", "-rss_limit_mb=2048", "-print_final_stats=1"]
    given = [sys.argv[0], corpus, *options, f"-artifact_prefix={Path(corpus).parent}/", "-seed=1"]
    atheris.Setup(given, READERS[reader])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
