"""The data of the README's examples, and their code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def readme_code(*parts: str) -> str:
    """Return the blocks of Python in the README that hold one of these texts."""
    blocks = (Path(__file__).parents[2] / "README.md").read_text().split("```python\n")[1:]
    found = [block.split("```")[0] for block in blocks]
    return "\n".join(block for block in found if any(part in block for part in parts))


def write_clicks(folder: Path) -> str:
    """Write 6000 samples, whose users say what they click in 9 of 10 cases; return the path."""
    rng = np.random.default_rng(3)
    user, age = rng.integers(0, 40, 6000), rng.uniform(20, 60, 6000)
    table = {
        "clicked": ((user % 3 == 0) ^ (rng.uniform(size=6000) < 0.1)).astype(np.int64),
        "age": age,
        "price": rng.uniform(1, 9, 6000),
        "user": user,
        "item": [f"item {i}" for i in rng.integers(0, 100, 6000)],
        "city": rng.integers(0, 5, 6000),
    }
    pq.write_table(pa.table(table), folder / "clicks.parquet")
    return str(folder / "clicks.parquet")
