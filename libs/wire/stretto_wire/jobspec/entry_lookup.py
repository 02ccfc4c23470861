"""Look-up of a job's training code where pods will look: nothing of it is imported or executed."""

from __future__ import annotations

import ast
import importlib.util
import os
import stat
from collections.abc import Iterable, Iterator, Sequence

from ..findings import Finding, finding
from .spec import JobSpec

SOURCE_BYTES = 1 << 20
"""Largest module that is read for its names; a larger one is taken for right."""
_COMPILED = (".so", ".pyc")
_ABSOLUTE = (
    "an absolute path, since each pod starts in a folder of its own; `stretto submit` finds one beside the job file, "
    "if there is such a folder"
)


def faults_of_entry(spec: JobSpec) -> list[Finding]:
    """Return why no pod of this machine would find ``model.entry``; empty if one finds it, or if nobody can tell.

    Code that a worker fetches or installs at its start, and files of the specification, are not looked into.
    """
    model = spec.model
    if spec.program is not None:
        return _faults_of_path(spec.program.path)
    if model.code is not None or model.requirements or spec.files:
        return []
    if model.path is not None and not os.path.isabs(model.path):
        return [finding(("model", "path"), model.path, _ABSOLUTE)]
    if model.path is not None and not os.path.isdir(model.path):
        return [finding(("model", "path"), model.path, "there is no such folder where the pods run")]
    module, _, name = model.entry.partition(":")
    stated = spec.environment.get("PYTHONPATH", "") + os.pathsep + os.environ.get("PYTHONPATH", "")
    folders = [each for each in (model.path or "", *stated.split(os.pathsep)) if each]
    found = _module(module.split("."), folders)
    if found is None:
        remedy = f"there is no module {module} in {model.path or 'the packages of this machine'}: "
        remedy += "correct one of the two" if model.path else "correct it, or set model.path to the folder that has it"
        return [finding(("model", "entry"), model.entry, remedy)]
    names = _names(found) if found else None
    if names is None or name in names:
        return []
    public = ", ".join(sorted(each for each in names if not each.startswith("_"))[:20])
    return [finding(("model", "entry"), model.entry, f"{found} has no {name}; it has {public or 'no names'}")]


def _faults_of_path(path: str | None) -> list[Finding]:
    if path is None or (os.path.isabs(path) and os.path.isdir(path)):
        return []
    remedy = "there is no such folder where the pods run" if os.path.isabs(path) else _ABSOLUTE
    return [finding(("program", "path"), path, remedy)]


def _module(parts: Sequence[str], folders: Sequence[str]) -> str | None:
    """Return the source of a module: "" if it is there and has none to read, None if it is not there."""
    inside = list(folders)
    for number, part in enumerate(parts):
        found = _in_folders(part, inside)
        if not found and number == 0:
            found = _installed(part)
        if not found:
            return None
        source, inside = found
        if number < len(parts) - 1 and not inside:
            return None if source else ""  # what is built in, or compiled, may have parts that are no files
        if number == len(parts) - 1:
            return source
    return None


def _in_folders(part: str, folders: Iterable[str]) -> tuple[str, list[str]] | None:
    """Return the source of a module or package, and the folders of its parts; a folder without source is a package."""
    bare: list[str] = []
    for folder in folders:
        place = os.path.join(folder, part)
        if os.path.isfile(source := os.path.join(place, "__init__.py")):
            return source, [place]
        if os.path.exists(f"{place}.py"):
            return f"{place}.py", []
        if os.path.isdir(folder) and any(
            each.startswith(f"{part}.") and each.endswith(_COMPILED) for each in os.listdir(folder)
        ):
            return "", []
        if os.path.isdir(place):
            bare.append(place)
    return ("", bare) if bare else None


def _installed(name: str) -> tuple[str, list[str]] | None:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return "", []  # nobody can tell
    if found is None:
        return None
    source = found.origin if found.origin and found.origin.endswith(".py") else ""
    return source, list(found.submodule_search_locations or ())


def _names(source: str) -> set[str] | None:
    """Return the names that a module has once it is imported; None if its text does not say."""
    try:
        status = os.stat(source)
        if not stat.S_ISREG(status.st_mode) or status.st_size > SOURCE_BYTES:
            return None
        with open(source, "rb") as file:
            body = ast.parse(file.read(SOURCE_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # the pod's own error says where
    found = set(_bound(body))
    return None if found & {"*", "__getattr__"} else found


def _bound(tree: ast.AST) -> Iterator[str]:
    """Yield the names that the statements of a module bind, whichever of them are executed."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from ((each.asname or each.name).partition(".")[0] for each in names)
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Call(func=ast.Name(id="globals" | "setattr" | "vars" | "exec")):
                yield "*"
            case _:
                yield from _bound(node)
