"""The REST interface as an OpenAPI 3.1 document.

``python -m stretto_gateway.http.openapi proto`` writes ``openapi.json`` into the folder, ``--check`` compares both.

The committed document is the baseline of v1, too: a change that breaks a client is refused, and nothing is written.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

from stretto_protodocs.compatibility import Baseline, Break, breaks, without_prose
from stretto_protodocs.documents import OPENAPI
from stretto_wire.jobspec.schema import Schema

from ..access.callers import Access
from ..service import Gateway
from ..settings import GatewaySettings
from ..streams.bus import StreamBus
from .app import routed
from .components import AT, EVENT

METHODS = ("get", "post", "put", "patch", "delete")


def baseline(document: Schema) -> Baseline:
    """Return what clients of v1 rely on, as the comparison of messages reads it: each operation's request, its answers
    by status, and each event of the streams."""
    moved = json.loads(json.dumps(document).replace(f'"{AT}', '"#/$defs/'))
    definitions = {name: without_prose(schema) for name, schema in moved["components"]["schemas"].items()}
    entries: Schema = {}
    for path, operations in moved["paths"].items():
        for method in METHODS:
            if (operation := operations.get(method)) is not None:
                for name, kind, schema in _parts(operation):
                    entries[f"{operation['operationId']} {name}"] = {
                        "kind": kind,
                        "subject": f"{method.upper()} {path}",
                        "type": "",
                        "schema": {**without_prose(schema), "$defs": definitions},
                    }
    for one in definitions[EVENT]["oneOf"]:
        title = one["$ref"].rpartition("/")[2]
        schema = {**definitions[title], "$defs": definitions}
        entries[title] = {"kind": "reply", "subject": "", "type": "", "schema": schema}
    return {"messages": entries}


def _parts(operation: Schema) -> Iterator[tuple[str, str, Schema]]:
    """Yield name, kind and schema of the request and of each answer. Events are compared one by one."""
    fields: Schema = {f"{one['in']}.{one['name']}": one["schema"] for one in operation.get("parameters", ())}
    needed = [f"{one['in']}.{one['name']}" for one in operation.get("parameters", ()) if one.get("required")]
    body = cast(Schema, operation.get("requestBody", {}))
    for media_type, found in cast(Schema, body.get("content", {})).items():
        fields[media_type] = found["schema"]
    needed += [*fields][-1:] if body.get("required") and len(body["content"]) == 1 else []
    yield "request", "rpc", {"type": "object", "properties": fields, "required": needed}
    for status, answer in operation["responses"].items():
        for media_type, found in answer.get("content", {}).items():
            if found.get("schema") != {"$ref": f"#/$defs/{EVENT}"}:
                yield f"{status} {media_type}", "reply", found.get("schema", {})


def committed(folder: Path) -> Schema | None:
    """Return the document in a folder; None if the folder has none."""
    path = folder / OPENAPI
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def broken(old: Schema | None, new: Schema) -> list[Break]:
    """Return the breaks of v1 between two documents; none if there is no old one."""
    return [] if old is None else breaks(baseline(old), baseline(new))


def text(document: Schema) -> str:
    """Return the document as it is committed."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def described() -> Schema:
    """Return the document of the code as it is now. The gateway behind it serves no request: it has no bus and no
    access."""

    async def lines() -> AsyncIterator[bytes]:
        for line in ():
            yield line

    gateway = Gateway(cast(StreamBus, None), GatewaySettings.model_validate({}), time.time)
    return routed(gateway, cast(Access, None), lines).openapi()


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns 1 if the document differs or breaks v1, else 0."""
    parser = argparse.ArgumentParser(prog="python -m stretto_gateway.http.openapi", description=__doc__)
    parser.add_argument("folder", type=Path, help=f"folder of {OPENAPI}")
    parser.add_argument("--check", action="store_true", help="compare it with the code, and write nothing")
    parser.add_argument("--new-baseline", action="store_true", help="accept breaks: nobody reads v1 yet")
    options = parser.parse_args(arguments)
    old, new = committed(options.folder), described()
    findings = [] if options.new_baseline else [str(each) for each in broken(old, new)]
    if options.check and old != new:
        findings.append(f"{OPENAPI} differs from the generated file: run `make proto`")
    if not findings and not options.check:
        (options.folder / OPENAPI).write_text(text(new), encoding="utf-8")
    sys.stderr.write("".join(f"{each}\n" for each in findings))
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
