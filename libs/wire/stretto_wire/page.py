"""The channels as one HTML page for people: it loads nothing, so that it can be read anywhere and by anybody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any, cast

from .asyncapi import address, document
from .base import Record
from .cloudevents import example_headers
from .examples import EXAMPLES
from .registry import CHANNELS, Channel
from .schemas import Schema, message_schema, schema_name

_SECTIONS = (
    ("evt", "Events", "Facts. Stored for 30 days and read by anybody; CloudEvents 1.0 in binary mode."),
    ("tel", "Telemetry", "What pods report. Stored for an hour, read within the installation."),
    ("rpc", "Requests to services", "Answered by the owner of the job, within the installation."),
    ("pod", "Requests to pods", "Answered by one pod, within the installation."),
)
_BOUNDS = {
    "minimum": "≥ {}",
    "maximum": "≤ {}",
    "exclusiveMinimum": "> {}",
    "exclusiveMaximum": "< {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {}",
    "maxItems": "at most {}",
    "pattern": "matches {}",
}
_STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1rem 2rem; color: #1a1a1a; }
h1, h2, h3 { line-height: 1.2; } h3 { font: 600 15px ui-monospace, monospace; margin: 0; display: inline; }
a { color: #0b57a4; } code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: #f5f6f7; padding: .8rem; overflow: auto; max-height: 26rem; }
details.channel { border-top: 1px solid #d8dbde; padding: .5rem 0; } summary { cursor: pointer; }
summary span { color: #555; } table { border-collapse: collapse; margin: .5rem 0 1rem; }
td, th { border-bottom: 1px solid #e3e5e8; padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }
nav { columns: 3 16rem; margin: 1rem 0; } nav a { display: block; }
@media (prefers-color-scheme: dark) {
  body { background: #16181b; color: #e6e6e6; } a { color: #7db8f0; } pre { background: #22262a; }
  summary span { color: #a5a9ad; } td, th, details.channel { border-color: #33383d; }
}
"""


def page() -> str:
    """The whole page."""
    about = document()["info"]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{escape(about['title'])}: every event and message</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(about['title'])}: every event and message</h1>",
        *(f"<p>{_code(paragraph)}</p>" for paragraph in about["description"].split("\n\n")),
        '<p>As <a href="asyncapi.yaml">AsyncAPI 3.0</a>, as <a href="schemas/">JSON Schemas</a>, and how to '
        '<a href="subscribers/README.md">subscribe</a>.</p>',
    ]
    for kind, title, text in _SECTIONS:
        channels = [channel for channel in CHANNELS if channel.kind == kind]
        parts += [f"<h2>{title}</h2>", f"<p>{text}</p>", "<nav>"]
        parts += [f'<a href="#{_anchor(channel)}">{_anchor(channel).partition(".")[2]}</a>' for channel in channels]
        parts += ["</nav>", *(line for channel in channels for line in _channel(channel))]
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _anchor(channel: Channel) -> str:
    return f"{channel.kind}.{channel.service}.{channel.name}"


def _channel(channel: Channel) -> Iterator[str]:
    about = " ".join((channel.message.__doc__ or "").split())
    yield f'<details class="channel" id="{_anchor(channel)}"><summary><h3>{escape(address(channel))}</h3>'
    yield f"<br><span>{_code(about)}</span></summary>"
    readers = ", ".join("anybody" if reader == "*" else reader for reader in channel.readers)
    yield f"<p>{'Asked' if channel.reply else 'Read'} by {escape(readers)}.</p>"
    yield from _message(channel.message, schema_name(channel))
    if channel.kind == "evt":
        headers = example_headers(channel, EXAMPLES[channel.message])
        lines = "\n".join(f"{name}: {value}" for name, value in headers.items())
        yield f"<details><summary>headers</summary><pre>{escape(lines)}</pre></details>"
    if channel.reply is not None:
        yield f"<p>The reply: {_code(' '.join((channel.reply.__doc__ or '').split()))}</p>"
        yield from _message(channel.reply, schema_name(channel, reply=True))
    yield "</details>"


def _message(message: type[Record], name: str) -> Iterator[str]:
    schema = message_schema(cast(Any, message), name)
    yield from _table(schema)
    for title, part in schema.get("$defs", {}).items():
        if "properties" in part:
            yield f"<details><summary>{escape(title)} <span>{_code(_first(part))}</span></summary>"
            yield from _table(part)
            yield "</details>"
    example = json.dumps(EXAMPLES[cast(Any, message)].model_dump(mode="json"), indent=2, ensure_ascii=False)
    yield f"<details><summary>example</summary><pre>{escape(example)}</pre></details>"
    yield f'<p><a href="schemas/{name}">{name}</a></p>'


def _table(schema: Schema) -> Iterator[str]:
    required = schema.get("required", ())
    yield "<table><tr><th>field</th><th>type</th><th></th></tr>"
    for name, field in schema.get("properties", {}).items():
        told = "" if name in required else "optional; "
        yield f"<tr><td><code>{escape(name)}</code></td><td>{escape(_type(field))}</td>"
        yield f"<td>{told}{_code(field.get('description', ''))}</td></tr>"
    yield "</table>"


def _type(schema: Schema) -> str:
    """In words: what it is and what bounds it."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    kind = schema.get("type", "any")
    if kind == "array":
        inner = schema.get("items") or (schema.get("prefixItems") or [{}])[0]
        kind = f"list of {_type(inner)}"
    elif kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        kind = f"map to {_type(schema['additionalProperties'])}"
    bounds = [text.format(schema[key]) for key, text in _BOUNDS.items() if key in schema]
    return f"{kind}, {', '.join(bounds)}" if bounds else kind


def _first(schema: Schema) -> str:
    return " ".join(schema.get("description", "").split("\n\n", maxsplit=1)[0].split())


def _code(text: str) -> str:
    """Escaped, with what stands between backticks as code."""
    parts = escape(text.replace("``", "`")).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
