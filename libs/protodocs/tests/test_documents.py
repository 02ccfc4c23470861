"""proto/ matches the code, keeps the v1 compatibility baseline, and has no dangling reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import stretto_wire as wire
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from stretto_protodocs import documents
from stretto_protodocs.compatibility import breaks

PROTO = Path(__file__).parents[3] / "proto"


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    """The generated files by name: making them takes a second."""
    return documents.files()


@pytest.fixture
def made_once(generated: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the command take the files that were made before."""
    monkeypatch.setattr(documents, "files", lambda: dict(generated))


def test_the_committed_documents_break_no_reader_of_v1() -> None:
    assert [str(each) for each in documents.broken(PROTO)] == []


@pytest.mark.usefixtures("made_once")
def test_the_committed_documents_are_what_the_code_generates() -> None:
    assert documents.drift(PROTO) == [], "run `make proto` and commit proto/"


@pytest.mark.proof
def test_generating_twice_gives_the_same(generated: dict[str, str]) -> None:
    assert documents.files() == generated


@pytest.mark.proof
@pytest.mark.usefixtures("made_once")
def test_the_command_writes_checks_and_removes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert documents.main([str(tmp_path)]) == 0
    assert documents.main(["--check", str(tmp_path)]) == 0
    (tmp_path / "schemas" / "old.v1.json").write_text("{}")
    (tmp_path / "README.md").write_text("by hand")
    (tmp_path / "job.schema.json").unlink()
    assert documents.main(["--check", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "job.schema.json is missing: run `make proto`" in said
    assert "schemas/old.v1.json is not generated from the code" in said
    assert "README.md differs from the generated file" in said
    assert documents.main([str(tmp_path)]) == 0
    assert documents.main(["--check", str(tmp_path)]) == 0


@pytest.mark.proof
@pytest.mark.usefixtures("made_once")
def test_a_break_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents.main([str(tmp_path)])
    path = tmp_path / documents.BASELINE
    promised = json.loads(path.read_text())
    promised["messages"]["evt.actuator.pod-exited"]["schema"]["properties"]["node"] = {"type": "string"}
    path.write_text(json.dumps(promised))
    assert documents.main([str(tmp_path)]) == 1
    assert documents.main(["--check", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "evt.actuator.pod-exited: node was removed; keep it in v1" in said
    assert json.loads(path.read_text()) == promised
    assert documents.main([str(tmp_path), "--new-baseline"]) == 0
    assert documents.main(["--check", str(tmp_path)]) == 0


@pytest.mark.usefixtures("made_once")
def test_two_versions_of_the_folder_can_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    documents.main([str(old)])
    documents.main([str(new)])
    assert documents.main(["--check-compatible", str(old), str(new)]) == 0
    changed = json.loads((new / documents.BASELINE).read_text())
    changed["messages"]["evt.oom.oom-forecast"]["schema"]["required"].append("node")
    del changed["messages"]["evt.oom.oom-forecast"]["schema"]["properties"]["reason"]
    (new / documents.BASELINE).write_text(json.dumps(changed))
    assert documents.main(["--check-compatible", str(old), str(new / documents.BASELINE)]) == 1
    assert "evt.oom.oom-forecast: reason was removed" in capsys.readouterr().err
    assert breaks(json.loads((old / documents.BASELINE).read_text()), changed)


@pytest.fixture(scope="module")
def asyncapi() -> dict[str, Any]:
    return yaml.load(
        (PROTO / "asyncapi.yaml").read_text(), yaml.CSafeLoader
    )  # the one in Python takes ten times as long


def test_every_reference_of_the_asyncapi_document_leads_somewhere(asyncapi: dict[str, Any]) -> None:
    references = _references(asyncapi)
    assert len(references) > 200
    for reference in references:
        if reference.startswith("#/"):
            node: Any = asyncapi
            for token in reference[2:].split("/"):
                node = node[token]
        else:
            assert (PROTO / reference).is_file()


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [each for part in node.values() for each in _references(part)]
    return [each for part in node for each in _references(part)] if isinstance(node, list) else []


def test_every_subject_has_a_channel_with_its_parameters(asyncapi: dict[str, Any]) -> None:
    addresses = {}
    for channel in asyncapi["channels"].values():
        if channel["address"] is not None:
            pattern = channel["address"]
            for name in channel["parameters"]:
                assert f"{{{name}}}" in pattern
                pattern = pattern.replace(f"{{{name}}}", "*")
            addresses[pattern] = channel
    assert set(addresses) == {"dlq.*", *(channel.pattern for channel in wire.CHANNELS)}


def test_publisher_and_readers_of_a_subject_have_operations(asyncapi: dict[str, Any]) -> None:
    operations = asyncapi["operations"]
    assert operations["arbiter.send.evt.arbiter.plan-decided"]["action"] == "send"
    assert operations["actuator.receive.evt.arbiter.plan-decided"]["action"] == "receive"
    assert operations["external.receive.evt.arbiter.plan-decided"]["tags"] == [{"name": "external"}]
    asked = operations["worker.send.rpc.dispatcher.next-shard"]
    assert asked["reply"]["messages"][0]["$ref"].endswith("NextShardReply")
    assert operations["dispatcher.receive.rpc.dispatcher.next-shard"]["action"] == "receive"


def test_examples_fit_the_schemas_as_files() -> None:
    """The files alone suffice, as for a reader in another language."""
    schemas = {path.name: json.loads(path.read_text()) for path in (PROTO / "schemas").iterdir()}
    registry = Registry().with_resources((name, Resource.from_contents(each)) for name, each in schemas.items())
    assert {path.name for path in (PROTO / "examples").glob("*.v1.json")} == set(schemas)
    for name, schema in schemas.items():
        assert schema["$id"] == name
        assert schema["title"]
        assert schema["description"]
        Draft202012Validator(schema, registry=registry).validate(json.loads((PROTO / "examples" / name).read_text()))
    headers = json.loads((PROTO / "headers.schema.json").read_text())
    for path in (PROTO / "examples" / "headers").iterdir():
        Draft202012Validator(headers).validate(json.loads(path.read_text()))
    job = json.loads((PROTO / "job.schema.json").read_text())
    Draft202012Validator(job).validate(json.loads((PROTO / "examples" / "job.json").read_text()))
