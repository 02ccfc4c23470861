"""Reader of job files: strict YAML or JSON, each finding with its line and column.

Bare words are those of YAML 1.2: ``1e-3`` is a number, as in every training script, and a date is text. Words that YAML
1.1 takes for something else, such as ``no``, ``1:30`` and ``010``, are refused: their writer meant one of the two.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import yaml

from ..errors import WireError
from ..findings import NO_SUCH_FIELD, Finding, Marks, Path, finding, place_of
from .spec import JobSpec

Form = Literal["YAML", "JSON"]
_EXPONENT = re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+$")
_OF_ONE_VERSION = (
    (
        re.compile(r"(?i)yes|on"),
        "write true, or put it into quotes if it is text: YAML 1.1 reads this word as true, 1.2 as text",
    ),
    (
        re.compile(r"(?i)no|off"),
        "write false, or put it into quotes if it is text: YAML 1.1 reads this word as false, 1.2 as text",
    ),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"),
        "write a number with its unit, such as 90s, or put it into quotes if it is text: YAML 1.1 counts it in sixties",
    ),
    (
        re.compile(r"[-+]?0[0-9_]+"),
        "leave out the zero before it, or put it into quotes if it is text: YAML 1.1 reads it as octal",
    ),
    (
        re.compile(r"[-+]?0[bo][0-7_]+"),
        "write a decimal number, or put it into quotes if it is text: one version of YAML reads it as a number",
    ),
)
"""Bare words that two versions of YAML read differently, with what to write."""
_HALF = "whole characters: \\ud800 to \\udfff are halves of pairs, which UTF-8 cannot write"
_NOTHING = "leave out \\x00, the character of number 0: no variable and no path can hold it"
_OBJECT = "kubectl apply takes the object as it is; a job file has its name and the fields of its spec, and no more"
_TOO_DEEP = "nested less deeply; see `stretto schema`"


def read_job(text: str, form: Form = "YAML") -> JobSpec:
    """Return the specification in a job file.

    Raises:
        WireError: with every finding.
    """
    try:
        document, marks, unclear = (*_read_json(text), []) if form == "JSON" else _read_yaml(text)
        if found := [*_unusable(document)]:
            raise WireError.collected([finding(path, part, why, place_of(path, marks)) for path, part, why in found])
        if isinstance(document, dict) and document.get("kind") == "TrainingJob":
            raise WireError.collected([finding(("kind",), "TrainingJob", _OBJECT, place_of(("kind",), marks))])
        return _parsed(document, marks, unclear)
    except RecursionError:
        raise WireError("(document)", "brackets in brackets", _TOO_DEEP) from None


def _parsed(document: Any, marks: Marks, unclear: list[Finding]) -> JobSpec:
    """Return the specification. Raises WireError for what is wrong with it, and for ``unclear`` words.

    Of a word in a field that there is not, it is enough to know that.
    """
    try:
        spec = JobSpec.parse(document, marks)
    except WireError as error:
        if not unclear:
            raise
        words = {each.field: each.value for each in unclear}
        unknown = [
            replace(each, value=words.get(each.field, each.value))
            for each in error.findings
            if each.remedy.startswith(NO_SUCH_FIELD)
        ]
        fields = {each.field for each in unknown}
        found = [*unknown, *(each for each in unclear if each.field not in fields)]
        raise WireError.collected(sorted(found, key=lambda each: (each.line or 0, each.column or 0))) from None
    if unclear:
        raise WireError.collected(unclear)
    return spec


def _unusable(part: Any, path: Path = ()) -> Iterator[tuple[Path, str, str]]:
    """Yield the texts that both forms can escape and nothing can store, or no variable and path can hold, by place."""
    if isinstance(part, str):
        try:
            if b"\0" in part.encode():
                yield path, part, _NOTHING
        except UnicodeEncodeError:
            yield path, part, _HALF
    elif isinstance(part, dict):
        for name, value in part.items():
            yield from _unusable(name, path)
            yield from _unusable(value, (*path, name))
    elif isinstance(part, list):
        for index, item in enumerate(part):
            yield from _unusable(item, (*path, index))


class _Loader(yaml.SafeLoader):
    """Safe YAML loader without tags, merge keys and aliases: a few nested aliases expand to gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event, remedy = self.peek_event(), "YAML aliases are not accepted: write the value out"
            raise WireError.collected([finding((), f"*{event.anchor}", remedy, _place(event.start_mark))])
        event = self.peek_event()
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            remedy = "YAML tags are not accepted: leave it out"
            raise WireError.collected([finding((), tag, remedy, _place(event.start_mark))])
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {  # pyrefly: ignore[instance-var-assign]
    letter: [(tag, pattern) for tag, pattern in found if not tag.endswith((":timestamp", ":merge", ":value"))]
    for letter, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def scalar(text: str) -> Any:
    """Return what a bare text stands for in a job file. Raises ValueError for one that stands for no single value."""
    if _remedy_of(text) is not None:
        raise ValueError(text)
    try:
        found = yaml.load(text, _Loader)
    except (yaml.YAMLError, WireError, OverflowError, RecursionError) as error:
        raise ValueError(text) from error
    if isinstance(found, dict | list):
        raise ValueError(text)
    return found


def _remedy_of(word: str) -> str | None:
    """Return what to write for a bare word that two versions of YAML read differently; None for any other."""
    return next((remedy for pattern, remedy in _OF_ONE_VERSION if pattern.fullmatch(word)), None)


def argument(text: str) -> str | int | float | bool:
    """Return the argument of a model that a bare text stands for: a number or a truth value where it is one.

    Raises WireError for a word that two versions of YAML read differently.
    """
    if (remedy := _remedy_of(text)) is not None:
        raise WireError("(argument)", text, remedy)
    try:
        found = scalar(text)
    except ValueError:
        return text
    return found if isinstance(found, bool | int | float) else text


class _Walk:
    """Places of all nodes, and findings about names that stand twice and words of two meanings."""

    def __init__(self, loader: _Loader) -> None:
        self.marks: dict[Path, tuple[int, int]] = {}
        self.unclear: list[Finding] = []
        self._loader = loader

    def visit(self, node: Any, path: Path = ()) -> None:
        self.marks.setdefault(path, _place(node.start_mark))
        self._check_word(node, path)
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.visit(item, (*path, index))
        if not isinstance(node, yaml.MappingNode):
            return
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # the loader refuses it
            name = self._loader.construct_object(key)
            here, place = (*path, name), _place(key.start_mark)
            self._check_word(key, here)
            if here in self.marks:
                lines = f"line {self.marks[here][0]} and line {place[0]}"
                self.unclear.append(finding(here, lines, "stated twice: keep one of the two", place))
                continue
            self.marks[here] = place
            self.visit(value, here)

    def _check_word(self, node: Any, path: Path) -> None:
        """Note a bare word that two versions of YAML read differently."""
        if not isinstance(node, yaml.ScalarNode) or node.style is not None:
            return
        if (remedy := _remedy_of(node.value)) is not None:
            self.unclear.append(finding(path, node.value, remedy, _place(node.start_mark)))


def _read_yaml(text: str) -> tuple[Any, dict[Path, tuple[int, int]], list[Finding]]:
    walk = None
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None, {}, []
            walk = _Walk(loader)
            walk.visit(node)
            document = loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = _place(mark) if mark else None
        raise WireError.collected([_not_a("YAML", text, error.problem or str(error), place)]) from None
    except (yaml.YAMLError, ValueError, OverflowError, TypeError) as error:
        if isinstance(error, WireError):
            raise
        raise WireError.collected([_not_a("YAML", text, " ".join(str(error).split()), None)]) from None
    return document, walk.marks, walk.unclear


def _read_json(text: str) -> tuple[Any, dict[Path, tuple[int, int]]]:
    twice: list[Finding] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(name for name, _ in pairs)
        remedy = "stated more than once: keep one of them"
        twice.extend(finding((name,), f"{count} times", remedy) for name, count in counts.items() if count > 1)
        return dict(pairs)

    try:
        document = json.loads(text, object_pairs_hook=collect)
    except json.JSONDecodeError as error:
        raise WireError.collected([_not_a("JSON", text, error.msg, (error.lineno, error.colno))]) from None
    except ValueError as error:  # an integer of thousands of digits
        raise WireError.collected([_not_a("JSON", text, str(error), None)]) from None
    if twice:
        raise WireError.collected(twice)
    return document, {}


def _not_a(form: Form, text: str, problem: str, place: tuple[int, int] | None) -> Finding:
    lines = text.splitlines()
    there = lines[place[0] - 1].strip() if place and place[0] <= len(lines) else ""
    return finding((), there or "its end" if place else text[:80], f"not {form}: {problem}", place)


def _place(mark: Any) -> tuple[int, int]:
    return mark.line + 1, mark.column + 1
