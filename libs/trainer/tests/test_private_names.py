"""Private names of Keras and PyTorch are used by one file of each framework's room, which a test of its own guards."""

from __future__ import annotations

import ast
from pathlib import Path

import stretto

PACKAGE = Path(stretto.__file__).parent
OWN = {"self", "cls", "super()", "sys", "os", "KafkaError"}
"""Objects whose names with an underscore any file may use: its own, and documented ones of Python and librdkafka."""


def private_names(source: str) -> list[str]:
    """Return the attributes with one leading underscore that code takes from objects of others.

    ``_replace`` is a public method, of named tuples.
    """
    found = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute))
    return [
        ast.unparse(node)
        for node in found
        if node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr != "_replace"
        and ast.unparse(node.value) not in OWN
        and not node.attr.startswith("__")
        and node.attr != "_replace"
        and ast.unparse(node.value) not in OWN
    ]


def test_a_private_name_is_found() -> None:
    assert private_names("model._flatten_layers()\nself._own\nsuper()._own()\nmodel.__class__") == [
        "model._flatten_layers"
    ]


def test_only_one_file_of_each_framework_uses_its_private_names() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if path.name != "private.py"]
    found = {str(path.relative_to(PACKAGE)): private_names(path.read_text()) for path in files}
    assert {file: names for file, names in found.items() if names} == {}
