"""The wire as documents: ``python -m stretto_protodocs.documents proto`` writes them, ``--check proto`` compares.

``proto/compatibility/v1.json`` is the v1 compatibility baseline. It grows with additions; a change that breaks v1 is
refused, and nothing is written. ``--new-baseline`` replaces the baseline and is for use before the first release only.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from stretto_messages.base import Message, example_of
from stretto_messages.refusals import Refused
from stretto_wire.codec import document_of
from stretto_wire.contract.cloudevents import example_headers, headers_schema
from stretto_wire.contract.registry import CHANNELS, PARTITIONS, PATTERN_OF_STREAM, STORED_AS, STREAM, Channel
from stretto_wire.contract.schemas import REFUSED, message_schema, schema_name
from stretto_wire.contract.submission import SPEC
from stretto_wire.jobspec.schema import DIALECT, JOB_SCHEMA, job_schema

from .asyncapi import address, channel_key, document
from .compatibility import Baseline, Break, breaks, without_prose
from .typescript import declarations

BASELINE = "compatibility/v1.json"
HEADERS_SCHEMA = "headers.schema.json"
TYPES = "types/events.d.ts"
"""The events as types of TypeScript."""
OPENAPI = "openapi.json"
"""The REST interface, which the gateway describes (``python -m stretto_gateway.http.openapi proto``)."""
NOT_OURS = ("subscribers", OPENAPI)
"""Entries of ``proto/`` that are not generated here; the first is written by hand."""


def files() -> dict[str, str]:
    """Return every generated file by its path below ``proto/``, the baseline included."""
    generated: dict[str, str] = {
        "README.md": _readme(),
        "asyncapi.yaml": asyncapi_text(),
        JOB_SCHEMA: _json(job_schema()),
        HEADERS_SCHEMA: _json({"$schema": DIALECT, "$id": HEADERS_SCHEMA, **headers_schema()}),
        "examples/job.json": _json(SPEC.model_dump(mode="json")),
        f"schemas/{REFUSED}": _json(message_schema(Refused, REFUSED)),
        f"examples/{REFUSED}": _json(document_of(example_of(Refused))),
        TYPES: declarations(),
        BASELINE: _json(baseline()),
    }
    for channel in CHANNELS:
        for message_type, name in _documents_of(channel):
            generated[f"schemas/{name}"] = _json(message_schema(message_type, name))
            generated[f"examples/{name}"] = _json(document_of(example_of(message_type)))
        if channel.kind == "evt":
            name = f"headers/{schema_name(channel)}"
            generated[f"examples/{name}"] = _json(example_headers(channel, example_of(channel.message)))
    return generated


@cache
def asyncapi_text() -> str:
    """Return the AsyncAPI document of the whole system."""
    return _yaml(document())


def baseline() -> Baseline:
    """Return the compatibility baseline of the code as it is now."""
    messages: dict[str, Any] = {}
    for channel in CHANNELS:
        for message_type, name in _documents_of(channel):
            reply = message_type is channel.reply
            messages[channel_key(channel) + (".reply" if reply else "")] = {
                "kind": "reply" if reply else channel.kind,
                "subject": channel.pattern,
                "type": channel.type_name,
                "schema": _compared(message_schema(message_type, name)),
            }
    refused = _compared(message_schema(Refused, REFUSED))
    messages["refused"] = {"kind": "reply", "subject": "", "type": "stretto.refused.v1", "schema": refused}
    messages["job"] = {"kind": "job", "subject": "", "type": "stretto/v1", "schema": _compared(job_schema())}
    return {"messages": messages}


def drift(folder: Path) -> list[str]:
    """Return the differences between ``folder`` and the generated files, one sentence per file."""
    wanted = files()
    present = set(_present(folder))
    found = [f"{name} is missing" for name in sorted(wanted.keys() - present)]
    found += [f"{name} is not generated from the code" for name in sorted(present - wanted.keys())]
    for name in sorted(wanted.keys() & present):
        if (folder / name).read_text(encoding="utf-8") != wanted[name]:
            found.append(f"{name} differs from the generated file")
    return found


def broken(folder: Path) -> list[Break]:
    """Return the breaks between the baseline in ``folder`` and the code; none if there is no baseline yet."""
    path = folder / BASELINE
    return breaks(_load(path), baseline()) if path.exists() else []


def write(folder: Path) -> None:
    """Generate ``folder``; obsolete files are removed."""
    wanted = files()
    for name in _present(folder):
        if name not in wanted:
            (folder / name).unlink()
    for name, text in wanted.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _present(folder: Path) -> list[str]:
    """Return the paths of all files below ``folder``, without those that are not generated here."""
    below = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    return [str(path) for path in below if path.parts[0] not in NOT_OURS]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; exit status 1 if something differs or breaks."""
    parser = argparse.ArgumentParser(prog="python -m stretto_protodocs.documents", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="generate this folder")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="compare it with the code")
    parser.add_argument(
        "--check-compatible",
        nargs=2,
        type=Path,
        metavar=("OLD", "NEW"),
        help="compare two baselines (or proto folders)",
    )
    parser.add_argument("--new-baseline", action="store_true", help="accept breaks: nobody reads v1 yet")
    options = parser.parse_args(arguments)
    if options.check_compatible:
        old, new = options.check_compatible
        return _report([str(each) for each in breaks(_load(old), _load(new))])
    if options.check:
        findings = [str(each) for each in broken(options.check)]
        findings += [f"{each}: run `make proto`" for each in drift(options.check)]
        return _report(findings)
    if options.folder is None:
        parser.error("a folder, --check or --check-compatible is needed")
    findings = [] if options.new_baseline else [str(each) for each in broken(options.folder)]
    if not findings:
        write(options.folder)
    return _report(findings)


def _report(findings: list[str]) -> int:
    sys.stderr.write("".join(f"{each}\n" for each in findings))
    return 1 if findings else 0


def _load(path: Path) -> Baseline:
    return json.loads((path / BASELINE if path.is_dir() else path).read_text(encoding="utf-8"))


def _documents_of(channel: Channel) -> list[tuple[type[Message], str]]:
    found: list[tuple[type[Message], str]] = [(channel.message, schema_name(channel))]
    if channel.reply is not None:
        found.append((channel.reply, schema_name(channel, reply=True)))
    return found


def _compared(schema: dict[str, Any]) -> dict[str, Any]:
    definitions = {name: without_prose(part) for name, part in schema.get("$defs", {}).items()}
    return {**without_prose(schema), **({"$defs": definitions} if definitions else {})}


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _yaml(value: Any) -> str:
    import yaml  # only generating documents needs it

    class Dumper(yaml.SafeDumper):
        """Writes paragraphs as literal blocks, and no aliases."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)

    Dumper.add_representer(str, text)
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)


def _readme() -> str:
    rows = [
        f"| `{address(channel)}` | [{channel.message.__name__}](schemas/{schema_name(channel)}) | {_reply(channel)} "
        f"| {', '.join('anybody' if reader == '*' else reader for reader in channel.readers)} |"
        for channel in CHANNELS
    ]
    return _README.format(
        rows="\n".join(rows),
        stream=STREAM,
        partitions=PARTITIONS,
        pattern=PATTERN_OF_STREAM,
        partitioned=STORED_AS,
        job=JOB_SCHEMA,
        headers=HEADERS_SCHEMA,
        openapi=OPENAPI,
        types=TYPES,
        baseline=BASELINE,
        refused=REFUSED,
    )


def _reply(channel: Channel) -> str:
    if channel.reply is None:
        return "–"
    return f"[{channel.reply.__name__}](schemas/{schema_name(channel, reply=True)})"


_README = """\
# The wire protocol

Generated from `libs/wire` and the gateway by `make proto`. `make lint` and the tests check that these files match the
code.

- `{openapi}`: the REST interface of the gateway, as an OpenAPI 3.1 document; it is its own v1 compatibility baseline
- `asyncapi.yaml`: every channel and message, as an AsyncAPI 3.0 document
- [`subscribers/`](subscribers): three working subscribers, in Python, in Node and by the command `nats` (not generated)
- `schemas/`: JSON Schema 2020-12 of every message and reply
- `{job}`: JSON Schema of job files; `{headers}`: JSON Schema of the headers of events
- `examples/`: one valid, realistic example of each message; `examples/headers/`: the CloudEvents headers of events
- `{types}`: the types of all events for TypeScript; those for Python are the package `stretto-messages`
- `{baseline}`: the v1 compatibility baseline

## Subscribe to events

Events are CloudEvents 1.0 in binary mode: attributes in `ce-*` headers, the body is plain JSON. An external tool uses
credentials of an account of its own. It may do two things:

- subscribe to `evt.v1.>`, live;
- read the stream `EVENTS`, which keeps 30 days: from the first event, from a sequence, from a time, or by a durable
  consumer that remembers its position.

An event may arrive twice, with the same `ce-id`. The [subscribers](subscribers) show how, in three languages.

Inside the installation the stream is `{stream}`, and the filter is `*.evt.v1.>`: it stores `{pattern}` as
`{partitioned}`, in one of {partitions} partitions chosen by the job's name. Sequences are the same in both streams.
Ignore unknown fields and events. The unit of a field stands in its name (`_s` seconds, `_bytes`, `_cores`,
`_per_hour`).

## Requests

A request (`rpc.v1.…`, `pod.v1.…`) is answered by its reply, or by [Refused](schemas/{refused}) with the header
`error`. A repeated request with the same header `request-id` gets the same reply. Messages that could not be read or
used go to `dlq.<subject>` with the reason in their headers.

## Compatibility of v1

New events, requests and optional fields may be added. Nothing is removed or renamed, no unit or default changes, and

| | may become narrower | may become wider |
| --- | --- | --- |
| events and telemetry (stored; anybody may read them) | no | no |
| requests (the answering side is upgraded first) | no | yes |
| replies (the caller is upgraded last) | yes | no |
| job files | no | yes |
| bodies and parameters of REST | no | yes |
| answers of REST | yes | no |

Every other change needs a v2 beside v1. `make proto` refuses to write a break;
`python -m stretto_protodocs.documents --check-compatible OLD NEW` compares two versions of `proto/`.

## Channels

| subject | message | reply | read or called by |
| --- | --- | --- | --- |
{rows}
"""

if __name__ == "__main__":
    raise SystemExit(main())
