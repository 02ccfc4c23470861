"""Preparations that travel to a lane."""

from __future__ import annotations

import numpy as np
from stretto_programs.splitting.graph_preparation import GraphPreparation, LookupTable, graph_preparation_of


def test_a_preparation_comes_back() -> None:
    contents = (np.arange(3.0), np.array([b"a\0", b""], object), np.arange(2))
    tables = (LookupTable("table:0", "string", "int64"),)
    sent = GraphPreparation(
        3, b"graph\0", ("raw:0",), ("a:0", "b:1"), ("int64", "string"), ("fixed:0",), tables, contents
    )
    got = graph_preparation_of([memoryview(bytes(each)) for each in sent.parts()])
    assert [each.tolist() for each in got.contents] == [each.tolist() for each in contents]
    names = ("number", "graph", "feeds", "fetches", "types", "constants", "tables")
    assert [getattr(got, name) for name in names] == [getattr(sent, name) for name in names]
