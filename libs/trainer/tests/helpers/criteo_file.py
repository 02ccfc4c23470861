"""Files of Criteo's format, made of generated samples."""

from __future__ import annotations

from typing import Any

from stretto.readers.synthetic import Synthetic


def write_criteo(source: Synthetic, path: str, start: int, length: int) -> None:
    """Write samples as a Criteo file: label, 13 integers, 26 categories of 8 hexadecimal digits, tab-separated."""
    raw = source.raw(start, length)
    with open(path, "w", encoding="ascii") as file:
        for row in range(length):
            cells: list[Any] = [int(raw.label[row])]
            cells += ["" if m else int(v) for v, m in zip(raw.integers[row], raw.integers_missing[row], strict=True)]
            cells += ["" if m else f"{int(v):08x}" for v, m in zip(raw.codes[row], raw.codes_missing[row], strict=True)]
            file.write("\t".join(map(str, cells)) + "\n")
