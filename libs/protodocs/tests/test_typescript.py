"""The types of events for TypeScript: every example of every event has its type, and what is wrong has not."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from stretto_messages.base import example_of
from stretto_protodocs.typescript import declarations
from stretto_wire import CHANNELS
from stretto_wire.codec import document_of

ROOT = Path(__file__).parents[3]
COMPILER = ROOT / "libs" / "console" / "node_modules" / "typescript" / "bin" / "tsc"
EVENTS = [channel for channel in CHANNELS if channel.kind == "evt"]


def test_every_event_has_an_interface_with_its_fields() -> None:
    text = declarations()
    for channel in EVENTS:
        name = channel.message.__name__
        found = re.search(rf"^export interface {name} {{\n(.*?)^}}$", text, re.DOTALL | re.MULTILINE)
        assert found is not None, name
        fields = re.findall(r"^  (\w+)(\??): ", found[1], re.MULTILINE)
        always, seldom = ({field for field, mark in fields if mark == wanted} for wanted in ("", "?"))
        assert always <= set(document_of(example_of(channel.message))) <= always | seldom, name
        assert f'"{channel.name}": {name};' in text


def test_every_type_that_is_named_is_declared() -> None:
    text = re.sub(r"/\*\*.*?\*/", "", declarations(), flags=re.DOTALL)
    declared = set(re.findall(r"^export (?:interface|type) (\w+)", text, re.MULTILINE))
    named = set(re.findall(r"\b[A-Z]\w+\b", re.sub(r'"[^"]*"|//.*', "", text)))
    assert named - declared == {"Array", "Record", "Name"}


@pytest.mark.skipif(not COMPILER.exists(), reason="no tsc: `make console` installs it")
def test_the_examples_have_these_types_and_wrong_ones_have_not(tmp_path: Path) -> None:
    """Goal: a program in TypeScript reads every event as it is. Method: tsc, strictly; and the same with a field of
    another kind or without a needed field, which has to be an error in that line."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    (tmp_path / "events.d.ts").write_text(declarations())
    right, wrong = ['import type { Event, Events } from "./events";'], ['import type { Events } from "./events";']
    for channel in EVENTS:
        example = document_of(example_of(channel.message))
        right.append(f"export const {_name(channel.name)}: Events[{json.dumps(channel.name)}] = {json.dumps(example)};")
        other = {**example, "job": 7}
        wrong.append(f"export const {_name(channel.name)}: Events[{json.dumps(channel.name)}] = {json.dumps(other)};")
    stored = {
        "seq": 1,
        "time_s": 1.5,
        "type": "t",
        "service": "s",
        "event": EVENTS[0].name,
        "job": "a",
        "trace_id": None,
    }
    stored["data"] = document_of(example_of(EVENTS[0].message))
    right.append(f"export const stored: Event = {json.dumps(stored)};")
    (tmp_path / "right.ts").write_text("\n".join(right))
    (tmp_path / "wrong.ts").write_text("\n".join(wrong))
    command = [node, str(COMPILER), "--noEmit", "--strict", "--exactOptionalPropertyTypes", "--target"]
    assert _errors(command, tmp_path / "right.ts") == []
    lines = {int(line) for line in re.findall(r"wrong\.ts\((\d+)", "\n".join(_errors(command, tmp_path / "wrong.ts")))}
    assert lines == {*range(2, len(EVENTS) + 2)}


def _name(event: str) -> str:
    return event.replace("-", "_")


def _errors(command: list[str], file: Path) -> list[str]:
    done = subprocess.run([*command, "es2022", str(file)], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()
