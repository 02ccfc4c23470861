"""The structure of each package in figures: ``python -m tests.structure [--root CHECKOUT]``.

A room is a file or folder directly below a package; an arrow goes from a room to one that it imports, also where the
import stands under ``TYPE_CHECKING``. Floors are the longest chain of arrows, circles are groups of files that import
each other. The second table is about messages: where they are spelled, and how many files an added one touches.
"""

from __future__ import annotations

import argparse
import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

Graph = dict[str, set[str]]


def imports_of(path: Path, module: str) -> Iterator[str]:
    """Yield the absolute names that a file imports, as ``module`` or ``module.name``."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def files_of(package: Path) -> Graph:
    """Return which files of a package import which, by module name."""
    modules: dict[str, Path] = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: Graph = {module: set() for module in modules}
    for module, path in modules.items():
        for name in imports_of(path, module):
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and target != module:
                graph[module].add(target)
    return graph


def rooms_of(files: Graph) -> Graph:
    """Return which rooms import which; the package's own ``__init__`` is no room."""
    room = {module: module.split(".")[1] for module in files if "." in module}
    graph: Graph = {name: set() for name in room.values()}
    for module, targets in files.items():
        for target in targets:
            if module in room and target in room and room[module] != room[target]:
                graph[room[module]].add(room[target])
    return graph


def circles_of(graph: Graph) -> list[set[str]]:
    """Return the groups of two or more nodes that reach each other (Tarjan's components, by reachability)."""
    reached = {node: _reached(graph, node) for node in graph}
    groups = {frozenset({node, *(other for other in reached[node] if node in reached[other])}) for node in graph}
    return sorted((set(group) for group in groups if len(group) > 1), key=sorted)


def _reached(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph[waiting.pop()] - found:
            found.add(target)
            waiting.append(target)
    return found


def floors_of(graph: Graph) -> int:
    """Return the number of nodes on the longest chain; a circle counts as one."""
    member = {node: min(circle) for circle in circles_of(graph) for node in circle}
    merged: Graph = defaultdict(set)
    for node, targets in graph.items():
        own = member.get(node, node)
        merged[own] |= {member.get(target, target) for target in targets} - {own}
    depth: dict[str, int] = {}

    def height(node: str) -> int:
        if node not in depth:
            depth[node] = 1 + max((height(target) for target in merged[node]), default=0)
        return depth[node]

    return max((height(node) for node in list(merged)), default=0)


def message_classes(root: Path) -> dict[str, list[str]]:
    """Return the files that define a class, for each name that some message has (registry or package of messages)."""
    sources = [path for path in root.glob("*/*/stretto*/**/*.py") if "/tests/" not in str(path)]
    defined: dict[str, list[str]] = defaultdict(list)
    messages: set[str] = set()
    for path in sources:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(str(path.relative_to(root)))
                if any(ast.unparse(base) == "Message" for base in node.bases):
                    messages.add(node.name)
    return {name: sorted(defined[name]) for name in sorted(messages)}


def lines_of(paths: list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.structure", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="another checkout to measure")
    root = parser.parse_args().root
    print(f"{'package':<24}{'lines':>7}{'rooms':>7}{'floors':>8}{'arrows':>8}{'circles':>9}")
    packages = sorted([*root.glob("libs/*/stretto*"), *root.glob("services/*/stretto_*")])
    for package in packages:
        if not (package / "__init__.py").exists():
            continue
        files = files_of(package)
        rooms = rooms_of(files)
        circles = circles_of(files)
        arrows = sum(map(len, rooms.values()))
        lines = lines_of(list(package.rglob("*.py")))
        print(
            f"{package.name:<24}{lines:>7}{len(rooms):>7}{floors_of(rooms):>8}{arrows:>8}{len(circles):>9}"
            + "".join(f"\n    circle: {', '.join(sorted(circle))}" for circle in circles)
        )
    classes = message_classes(root)
    spelled = {name: len(where) for name, where in classes.items()}
    again = {name: count for name, count in spelled.items() if count > 1}
    product = [path for path in root.glob("*/*/stretto*/**/*.py") if "/tests/" not in str(path)]
    total = sum(spelled.values())
    print(f"\nmessages: {len(classes)} classes, {len(again)} defined again elsewhere, {total} definitions in all")
    for name in sorted(again, key=lambda each: (-again[each], each))[:12]:
        print(f"    {name}: {', '.join(classes[name])}")
    handlers = [path for path in product if path.name == "handlers.py"]
    print(f"handlers.py: {len(handlers)} files, {lines_of(handlers)} lines; the product: {lines_of(product)} lines")


if __name__ == "__main__":
    main()
