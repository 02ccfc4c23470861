"""Write the pages of reference that come from the code: `python libs/docs/references.py`; `--check` compares them.

Each page has a function here. A page is Markdown and committed, so that the site is built without the code.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import drawing
import stretto_client
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from stretto.pod.process import EXIT_OK, EXIT_PLATFORM, EXIT_USER
from stretto_cli import render
from stretto_cli.commands.jobs.submit import LAST_EVENTS
from stretto_cli.errors import BadInput, CliError
from stretto_cli.main import COMMANDS, load
from stretto_cli.options import OWN_VARIABLES
from stretto_core.actuator.data_workers import FAILURES_MAX
from stretto_core.actuator.ending import shortfalls
from stretto_core.actuator.observations import CountsTaken
from stretto_core.actuator.state import ActuatorState
from stretto_forwarder.service import EndpointMetrics
from stretto_gateway.http.health import METRICS
from stretto_installation.settings import StreamsSettings
from stretto_messages.actuator import PodExited, PodPending
from stretto_messages.books import CompletedBooks, GivenUp
from stretto_messages.dispatcher import JobCompleted
from stretto_runtime.process.telemetry import Metrics
from stretto_runtime.settings import (
    AllowedSettings,
    ClusterSettings,
    DeviceSettings,
    ExtendedSettings,
    KeptSettings,
    Settings,
    StoreSettings,
    TeamsSettings,
)
from stretto_wire.contract.registry import ANYBODY, CHANNELS, DECIDER, FORWARDER, SERVICES, Channel
from stretto_wire.contract.schemas import message_schema, schema_name
from stretto_wire.jobspec.devices import DeviceTypeSpec
from stretto_wire.jobspec.schema import Schema, job_schema

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGES = HERE / "pages"
RUNBOOK = "charts/runbook"
OURS_ELSEWHERE = ("demo", "chaos")
"""Commands of stretto-drills, which the environment of development has."""
SHARED_SETTINGS = (
    AllowedSettings,
    ExtendedSettings,
    DeviceSettings,
    ClusterSettings,
    StoreSettings,
    TeamsSettings,
    KeptSettings,
)
"""Settings that several services read, the narrower ones first."""
MARKUP = re.compile(r"\[/?(?:bold|dim|italic)\]")
PATH = re.compile(r"\b(?:libs|services|charts|compose|proto)/[\w./-]*?(\w+\.md)\b")
ROLE = re.compile(r":\w+:(`[^`]*`)")
"""A reference of Sphinx, as docstrings have them."""


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table; a cell may hold any text."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(_cell(each) for each in line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: object) -> str:
    """Return inline code, empty for an empty text."""
    return f"`{text}`" if str(text) else ""


def value(default: object) -> str:
    """Return a default as it is written in YAML and in variables."""
    return code(json.dumps(default, ensure_ascii=False)) if default is not None else ""


def page(title: str, about: str, *parts: str) -> str:
    """Return a page from its title, its first paragraph and its parts."""
    return "\n".join((f"# {title}\n", f"{about}\n", *parts))


# the command ----------------------------------------------------------------------------------------------------------


def command() -> str:
    """Return every command with its arguments, options and examples, as Typer has them."""
    parts: list[str] = []
    for name in (*COMMANDS, *OURS_ELSEWHERE):
        parts += _command(name, load(name), "##")
    statuses = [("0", "done"), (str(CliError.status), "failed, or something is not well")]
    statuses += [(str(BadInput.status), "the input cannot be used"), ("130", "interrupted, by SIGTERM, too")]
    return page(
        "The command",
        f"The command reads the variables {', '.join(map(code, OWN_VARIABLES))}, and refuses a misspelt one.",
        table(("exit status", "meaning"), statuses),
        "<!-- body: libs/cli/README.md# -->\n",
        *parts,
    )


def _command(name: str, found: Any, level: str) -> Iterator[str]:
    yield f"{level} stretto {name}\n"
    yield _prose(found.help or "")
    inner: Mapping[str, Any] = getattr(found, "commands", {})
    rows = [_parameter(each) for each in found.params if not each.hidden and each.name != "help"]
    if rows:
        yield table(("parameter", "default", "meaning"), rows)
    if found.epilog:
        lines = [
            MARKUP.sub("", each).removeprefix("Example: ").replace("\\[", "[") for each in found.epilog.split("\n")
        ]
        yield "```text\n" + "\n".join(each for each in lines if each) + "\n```\n"
    for below, one in inner.items():
        yield from _command(f"{name} {below}", one, level + "#")


def _prose(text: str) -> str:
    """Return a docstring, description or help text as Markdown."""
    plain = MARKUP.sub("", inspect.cleandoc(text)).replace("``", "`")
    parts = re.split(r"(`[^`]*`)", ROLE.sub(r"\1", plain))
    return "".join(part if part[:1] == "`" else _linked(re.sub(r"([*<])", r"\\\1", part)) for part in parts) + "\n"


def _linked(text: str) -> str:
    """Make links of the paths of our Markdown files, which a reader of the site does not have."""
    return PATH.sub(r"[\1](../../../../\g<0>)", text)


def _parameter(parameter: Any) -> tuple[str, str, str]:
    is_option = parameter.opts[0].startswith("-")
    names = (
        ", ".join([*parameter.opts, *parameter.secondary_opts]) if is_option else parameter.metavar or parameter.name
    )
    default = parameter.default
    shown = "" if default in (None, False, ()) or callable(default) else str(getattr(default, "value", default))
    variable = f" (variable {code(parameter.envvar)})" if parameter.envvar else ""
    required = "required" if parameter.required else code(shown)
    return code(names if is_option else names.upper()), required, _prose(parameter.help or "").strip() + variable


# the job file ---------------------------------------------------------------------------------------------------------


def job_file() -> str:
    """Return every field of a job file, as the JSON Schema has it."""
    schema = job_schema()
    parts = [table(("field", "type", "default", "meaning"), _fields(schema))]
    stated = [field for part in schema["$defs"].values() for field in part.get("properties", {}).values()]
    inner = [each for field in stated for each in (*field.get("anyOf", ()), field.get("items", {}))]
    in_place = [each for each in inner if "properties" in each]
    for name, part in (schema["$defs"] | {each["title"]: each for each in in_place}).items():
        parts += [f"## {name}\n", f"{part.get('description', '')}\n"]
        parts.append(table(("field", "type", "default", "meaning"), _fields(part)))
    return page(
        "The job file",
        "A job file is YAML or JSON. `name`, `model.entry` and `dataset.samples` are needed, and nothing else is. "
        "`stretto init` writes a file in which every field is explained; `stretto schema` prints the JSON Schema.",
        *parts,
    )


def _fields(part: Schema) -> Iterator[tuple[str, str, str, str]]:
    needed = part.get("required", ())
    for name, field in cast("dict[str, Schema]", part.get("properties", {})).items():
        is_part = isinstance(field.get("default"), dict)  # whose own table has them
        default = "required" if name in needed else "" if is_part else value(field.get("default"))
        yield code(name), _type(field), default, _prose(str(field.get("description", ""))).strip()


def _type(field: Schema) -> str:
    if "$ref" in field:
        name = str(field["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "properties" in field and "title" in field:
        return f"[{field['title']}](#{field['title'].lower()})"
    if choices := [each for each in field.get("anyOf", field.get("oneOf", ())) if each.get("type") != "null"]:
        return " or ".join(dict.fromkeys(map(_type, choices)))
    if "enum" in field or "const" in field:
        return ", ".join(value(each) for each in field.get("enum", [field.get("const")]))
    kind = {"array": "list", "object": "map"}.get(str(field.get("type", "")), str(field.get("type", "any")))
    inner = field.get("items") or field.get("additionalProperties")
    return kind + (f" of {_type(cast(Schema, inner))}" if isinstance(inner, dict) and inner else "") + _bounds(field)


def _bounds(field: Schema) -> str:
    least = field.get("minimum", field.get("exclusiveMinimum"))
    most = field.get("maximum", field.get("exclusiveMaximum"))
    if least is None and most is None:
        return ""
    return f", {least if least is not None else '…'} to {most if most is not None else '…'}"


# settings -------------------------------------------------------------------------------------------------------------


def settings() -> str:
    """Return every setting of each service, as pydantic has it."""
    head = ("variable", "default", "meaning")
    parts = ["## Every service\n", table(head, _settings(Settings, "STRETTO_"))]
    known = set(Settings.model_fields)
    for shared in SHARED_SETTINGS:
        own = set(shared.model_fields) - known
        parts += [f"## {_title(shared)}\n", f"{_first(shared)}\n", table(head, _settings(shared, "STRETTO_", own))]
        if shared is DeviceSettings:
            parts += ["A type of devices has these fields.\n", table(("field", *head[1:]), _of_type(DeviceTypeSpec))]
        known |= own
    for service in (*SERVICES, FORWARDER, DECIDER):
        module = importlib.import_module(f"stretto_{service}.settings")
        found = cast(type[Settings], getattr(module, f"{service.capitalize()}Settings"))
        own = set(found.model_fields) - known
        bases = [each for each in SHARED_SETTINGS if issubclass(found, each)]
        also = ", ".join(f"[{_title(each)}](#{_title(each).lower().replace(' ', '-')})" for each in bases)
        parts += [f"## {service}\n", f"It also reads {also}.\n" if also else ""]
        parts.append(
            table(head, _settings(found, f"STRETTO_{service.upper()}_", own)) if own else "It has no others.\n"
        )
    of_streams = set(StreamsSettings.model_fields) - set(Settings.model_fields)
    parts += ["## Streams\n", f"{_first(StreamsSettings)}\n"]
    parts.append(table(head, _settings(StreamsSettings, "STRETTO_STREAMS_", of_streams)))
    return page(
        "Settings",
        "Services read their settings from the environment, and from nothing else. A misspelt variable is refused with "
        "the nearest name. A setting of a service may also be written without the service's name, for `stretto up` "
        "(also after `--set`) and in the environment of that service alone; each service that has a setting of that "
        "name takes it, and the longer name wins. Lists and maps are JSON where their type says so.",
        *parts,
    )


def _title(shared: type[Settings]) -> str:
    return f"Shared {shared.__name__.removesuffix('Settings').lower()}"


def _first(kind: type[object]) -> str:
    return inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].replace("``", "`").replace("\n", " ")


def _settings(kind: type[BaseModel], prefix: str, only: set[str] | None = None) -> Iterator[tuple[str, str, str]]:
    for name, field in kind.model_fields.items():
        if only is None or name in only:
            yield code(prefix + name.upper()), _default(field), _prose(field.description or "").strip()


def _of_type(kind: type[BaseModel]) -> Iterator[tuple[str, str, str]]:
    for name, field in kind.model_fields.items():
        yield code(name), _default(field), _prose(field.description or "").strip()


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        made = cast(Callable[[], object], field.default_factory)
        return "this machine's" if made.__module__ == "stretto_runtime.settings" else value(made())
    default = field.default
    if default is PydanticUndefined:
        return "required"
    if isinstance(default, Path):
        return code(default)
    return value(default.model_dump() if isinstance(default, BaseModel) else default)


# events ---------------------------------------------------------------------------------------------------------------


def events() -> str:
    """Return every event with its readers and fields, as the registry has it."""
    parts: list[str] = []
    for service in (*SERVICES, DECIDER):
        own = [each for each in CHANNELS if each.kind == "evt" and each.service == service]
        parts += [f"## {service}\n"] if own else []
        for channel in own:
            readers = ", ".join(each for each in channel.readers if each != ANYBODY)
            kept = f"It is kept {channel.kept_s // 3600} hours. " if channel.kept_s else ""
            parts += [f"### {channel.name}\n", f"{_first(channel.message).split('. ')[0].rstrip('.')}.\n"]
            parts.append(f"Subject `{_address(channel)}`. {kept}It is read by {readers} and by anybody.\n")
            parts.append(table(("field", "type", "meaning"), _message(channel)))
    return page(
        "Events",
        "An event states a fact. It is kept for 30 days unless it says otherwise, and anybody may read it. "
        "[The wire protocol](../../../../proto/README.md) has headers, delivery and what v1 promises; "
        "`proto/schemas/` and `proto/examples/` have a JSON Schema and an example of each.",
        "![Events by publisher, and the services that read each](../pictures/events.svg)\n",
        *parts,
    )


def _address(channel: Channel) -> str:
    return channel.pattern.replace("*.*", "{pod}.{job}").replace("*", "{job}")


def _message(channel: Channel) -> Iterator[tuple[str, str, str]]:
    schema = message_schema(channel.message, schema_name(channel))
    for name, field in cast("dict[str, Schema]", schema.get("properties", {})).items():
        yield code(name), _name(field), _prose(str(field.get("description", ""))).strip()


# HTTP -----------------------------------------------------------------------------------------------------------------


def rest() -> str:
    """Return every operation of the gateway, as the OpenAPI document has it."""
    document = json.loads((ROOT / "proto" / "openapi.json").read_text())

    def in_place(schema: Schema) -> Schema:  # the page has no place for types
        return document["components"]["schemas"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema

    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, found in operations.items():
            text = [f"### {found['operationId']}\n", f"`{method.upper()} {path}`\n", _prose(found["description"])]
            parameters = [
                (
                    code(each["name"]),
                    each["in"],
                    _type(in_place(each["schema"])),
                    _prose(each.get("description", "")).strip(),
                )
                for each in found.get("parameters", ())
            ]
            text += [table(("parameter", "in", "type", "meaning"), parameters)] if parameters else []
            body = list(found.get("requestBody", {}).get("content", {}))
            text += [f"Body: {', '.join(map(code, body))}.\n"] if body else []
            answers = "\n".join(
                f"- {code(status)} {_answer(each)}{_remark(each)}"
                for status, each in sorted(found["responses"].items())
                if status not in ("4XX", "5XX")
            )
            by_tag.setdefault(found["tags"][0], []).extend([*text, f"Answers:\n\n{answers}\n"])
    return page(
        "REST",
        "Programs find every type in [the OpenAPI document](../../../../proto/openapi.json), which a running gateway "
        "serves at `/openapi.json`. [The gateway](../../../../services/gateway/README.md) says what the operations do. "
        "Each may also answer a [problem](errors.md#problems-of-the-gateway) with field, value and remedy.",
        *(f"## {tag.capitalize()}\n\n" + "\n".join(texts) for tag, texts in by_tag.items()),
    )


def _answer(answer: Schema) -> str:
    contents = cast("dict[str, Schema]", answer.get("content", {}))
    kinds = {kind: _name(each.get("schema", {})) for kind, each in contents.items()}
    return ", ".join(code(kind) + ("" if name == "any" else f" {name}") for kind, name in kinds.items()) or "no content"


def _remark(answer: Schema) -> str:
    text = str(answer["description"])
    return "" if text == "Successful Response" else f": {_prose(text).strip()}"


def _name(field: Schema) -> str:
    """Return a type without links."""
    return re.sub(r"\[([\w.]+)\]\(#[\w.]+\)", r"\1", _type(field))


# Python ---------------------------------------------------------------------------------------------------------------


def python() -> str:
    """Return every name of the client with its parameters and its docstring."""
    named: dict[str, Any] = {name: getattr(stretto_client, name) for name in stretto_client.__all__}
    functions = [_called(name, each) for name, each in named.items() if inspect.isfunction(each)]
    first = ("Client", "Job", *named)  # whoever begins reads these
    classes = {name: named[name] for name in first if inspect.isclass(named[name]) and not name.startswith("Async")}
    parts = ["## Functions\n", "\n".join(functions) + "\n"]
    for name, found in classes.items():
        if not issubclass(found, Exception):
            parts += [f"## {name}\n", f"{_prose(_first(found)).strip()}\n"]
            names = _names_of_fields(found)
            parts += [f"Fields: {', '.join(map(code, names))}.\n"] if names else []
            parts += ["\n".join(_members(found)) + "\n"]
    errors = [(code(name), _first(each)) for name, each in classes.items() if issubclass(each, Exception)]
    parts += ["## Errors\n", table(("error", "meaning"), errors)]
    return page(
        "Python",
        "Names of the package `stretto_client`; `stretto.connect` is the same function. `connect` returns a `Client`, "
        "which gives `Job`s. `connect_async` returns a client of the same names, whose methods are awaited. "
        "[Use Stretto from Python](../../../client/README.md) shows them in use.",
        *parts,
    )


def _names_of_fields(kind: Any) -> list[str]:
    return [each.name for each in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []


def _members(kind: type[object]) -> Iterator[str]:
    """Yield the public methods and properties of a class and its bases of ours, a line each."""
    for each in kind.__mro__:
        if each.__module__.startswith("stretto_client"):
            for name, member in vars(each).items():
                if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                    yield _called(name, member)


def _called(name: str, member: Any) -> str:
    text = " ".join(_prose(inspect.cleandoc(member.__doc__ or "")).split())
    if isinstance(member, property):
        returned = str(inspect.signature(cast(Any, member.fget)).return_annotation)
        return f"- `{name}: {returned}` – {text}"
    signature = inspect.signature(member)
    parameters = [
        each.replace(annotation=_Annotation(each.annotation))
        for each in signature.parameters.values()
        if each.name != "self"
    ]
    shown = signature.replace(parameters=parameters, return_annotation=_Annotation(signature.return_annotation))
    return f"- `{name}{shown}` – {text}"


class _Annotation(str):
    """An annotation that is shown as it is written, without quotes."""

    def __repr__(self) -> str:
        return str(self)


# metrics and alerts ---------------------------------------------------------------------------------------------------


def metrics() -> str:
    """Return every metric of services, gateway and forwarder, from their registries."""
    head = ("metric", "kind", "labels", "meaning")
    return page(
        "Metrics",
        "Every service answers `/metrics` for Prometheus on its health address. The chart's dashboards "
        "(`charts/stretto/dashboards`) and [alerts](alerts.md) read nothing else.",
        "## Every service but gateway and forwarder\n",
        table(head, sorted(_metrics(Metrics("arbiter").registry))),
        "## gateway\n",
        table(head, [(code(name), kind, ", ".join(labels), text) for name, kind, labels, text in METRICS]),
        "## forwarder\n",
        table(head, sorted(_metrics(EndpointMetrics().registry))),
    )


def _metrics(registry: Any) -> Iterator[tuple[str, str, str, str]]:
    for collector in registry._collector_to_names:
        for family in collector.describe() if hasattr(collector, "describe") else collector.collect():
            name = family.name + ("_total" if family.type == "counter" else "")
            yield code(name), family.type, ", ".join(collector._labelnames), family.documentation


def alerts() -> str:
    """Return every alert with its expression and its page of the runbook, which is included."""
    document = yaml.safe_load((ROOT / "charts/stretto/alerts.yaml").read_text())
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    parts: list[str] = []
    for rule in rules:
        name, held = rule["alert"], f" for {rule['for']}" if "for" in rule else ""
        parts += [f"## {name}\n", f"`{rule['labels']['severity']}`, when this holds{held}:\n"]
        parts += [f"```text\n{rule['expr'].strip()}\n```\n", f"<!-- body: {RUNBOOK}/{name}.md -->\n"]
    return page("Alerts", f"<!-- body: {RUNBOOK}/README.md -->", *parts)


# errors ---------------------------------------------------------------------------------------------------------------


def errors() -> str:
    """Return exit statuses and reasons of pods, and ends of jobs; the problems of the gateway are included."""
    statuses = [
        (str(EXIT_OK), "done, or stopped by a plan"),
        (str(EXIT_PLATFORM), "the platform's fault: the pod is started again (`restarts`)"),
        (str(EXIT_USER), "the fault of code, data or packages: the job ends with field, value and remedy"),
    ]
    return page(
        "Errors",
        "The gateway refuses a request with a problem, a pod ends with a status, and a service states the reason in an "
        "event. [The command](command.md) has its own exit statuses.",
        "## Exit statuses of pods\n",
        table(("status", "meaning"), statuses),
        "## Ends of jobs\n",
        "Words and colour are those of `stretto jobs`, `watch` and the console, the exit status is that of "
        "`stretto submit --follow` and `watch`. The event says in `shortfalls` what a finished job lacks, with reason, "
        "place and remedy, or why it only took longer; webhooks get it as any other event.\n",
        table(("end", "words", "colour", "exit status", "event"), _ends()),
        "## Reasons\n",
        table(
            ("event", "field", "one of"),
            [
                (f"[{name}](events.md#{name})", "`reason`", ", ".join(map(code, _literals(message, "reason"))))
                for name, message in (("pod-pending", PodPending), ("pod-exited", PodExited))
            ],
        ),
        "## Problems of the gateway\n",
        "<!-- body: services/gateway/stretto_gateway/PROBLEMS.md -->\n",
    )


def _ends() -> Iterator[tuple[str, str, str, str, str]]:
    """Return each end of a job, judged as the gateway and the command judge it."""
    lost = GivenUp(shard=3, offset=0, epoch=0, start=600, length=4, reason="row 600")
    books = CompletedBooks(fingerprint="0" * 16, given_up=(lost,), samples_recomputed=640)
    done = JobCompleted(
        job="ctr",
        samples=996,
        samples_abandoned=4,
        epochs=1,
        shards=9,
        requeued=0,
        started_at_s=0,
        books=books,
        stopped="the last 3 evaluations were not better",
    )
    state = ActuatorState(job="ctr", evaluate=50, final_checkpoint_failure="no room")
    state.failures_in_row["data"] = FAILURES_MAX
    found = shortfalls(state, done, CountsTaken(job="ctr", servers=(), evaluation=None))
    links = {name: f"[{name}](events.md#{name})" for name in ("checkpoint-failed", *sorted(LAST_EVENTS))}
    late = f"{links['job-finished']}, or {links['checkpoint-failed']} after it"
    ends = [
        ("finished", "all samples are trained, the result is stored and evaluated as the job file wants it", "", True)
    ]
    ends += [
        (
            "finished",
            f"`{one.kind}`: {one.detail.partition(':')[0].partition('; the last')[0]}",
            one.words,
            not one.lacking,
        )
        for one in found
    ]
    ends += [("failed", "the job could not go on", "", True), ("cancelled", "somebody cancelled it", "", True)]
    for status, what, words, complete in ends:
        view = {"name": "ctr", "status": status, "ending": words, "complete": complete, "reason": ""}
        colour, _, told = render.state(view)[1:].partition("]")
        status_of_exit = CliError.status if render.fault_of(view) else 0
        event = late if "not-stored" in what else links[f"job-{status}"]
        yield what, code(told.partition("[")[0]), colour, str(status_of_exit), event


def _literals(message: type[object], name: str) -> tuple[str, ...]:
    assert dataclasses.is_dataclass(message)
    kind = get_type_hints(message)[name]
    choices = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return next(get_args(each) for each in choices if each is not NoneType and get_origin(each) is Literal)


FILES: dict[str, Callable[[], str]] = {
    "reference/command.md": command,
    "reference/job-file.md": job_file,
    "reference/settings.md": settings,
    "reference/events.md": events,
    "reference/rest.md": rest,
    "reference/python.md": python,
    "reference/metrics.md": metrics,
    "reference/alerts.md": alerts,
    "reference/errors.md": errors,
    "pictures/map.svg": drawing.services,
    "pictures/events.svg": drawing.events,
}
"""The generated files below `pages/`, each with the function that makes it."""


def main(arguments: list[str] | None = None) -> int:
    """The command; exit status 1 where `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args(arguments).check
    stale: list[str] = []
    for name, make in FILES.items():
        path, text = PAGES / name, make().rstrip("\n") + "\n"
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            stale.append(name)
    if stale:
        sys.stdout.write(f"{', '.join(stale)}: differs from the code: run `make references`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
