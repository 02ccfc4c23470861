"""``stretto explain-graph``: the part of a training program that data workers could prepare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from stretto_cli.options import OutputForm, OutputOption, answer, console, example
from stretto_cli.render import table
from stretto_cli.trainer_process import run
from stretto_client import figures

TENSORS_SHOWN = 12
STAYS_SHOWN = 6


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "explain-graph",
        rich_help_panel="Your model",
        context_settings={"ignore_unknown_options": True},
        epilog=example(
            "stretto explain-graph train.py --epochs 3",
            "stretto explain-graph train.py --step 2 --dot step.dot",
            "stretto explain-graph train.py -o json -- -o an-option-of-the-script",
        ),
    )(explain_graph)


def explain_graph(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The training program, a Python script.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGUMENTS",
            help="The script's own arguments. Options that are also options of this command stand after `--`.",
        ),
    ] = None,
    dot: Annotated[Path | None, typer.Option(help="File for a drawing of the step, for Graphviz.")] = None,
    step: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of the step to explain: each call of fit and each function that trains counts once.",
        ),
    ] = 1,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Run a training program up to a step, and tell which part of the step data workers could prepare.

    The step, of Keras `fit` or of a `tf.function`, is the first one, unless --step names a later one: then the program
    trains until there. The program runs in a process of its own, without changes. Some steps are measured; then the
    process ends. Nothing is prepared elsewhere; `stretto run` does that.

    Exit status 2 if the program fails before that step, or has none.
    """
    asked = {
        "script": str(script),
        "arguments": arguments or [],
        "dot": dot is not None,
        "step": step,
    }
    what = f"{script} was not explained"
    found = run(["stretto_programs.explain"], json.dumps(asked), quiet=output is OutputForm.JSON, what=what)
    if dot is not None:
        dot.write_text(found.pop("dot"))
    answer(output, found, lambda: _shown(found))


def _shown(found: dict[str, Any]) -> str:
    colour = "green" if found["moves"] else "yellow"
    console.print(f"[{colour}]{escape(found['verdict'])}[/{colour}]")
    console.print(f"[bold]{escape(found['step'])}[/bold]  {found['kind']}, {found['operations']} operations")
    for source in found["sources"]:
        console.print(f"  source  {escape(source)}", highlight=False)
    for pipeline in found["pipelines"]:
        _print_pipeline(pipeline)
    for note in found["notes"]:
        console.print(f"  note    {escape(note)}", highlight=False)
    if found["moved"]:
        console.print(_moved(found))
        console.print(_crossings(found))
    if found["frozen"]:
        console.print(
            f"copied with a version, since nothing was seen to write it: {escape(', '.join(found['frozen']))}"
        )
    if found["stays"]:
        console.print(_staying(found["stays"]))
    rates = found["steps_per_s"]
    console.print(
        f"CPU of a step {found['home_ms']:.2f} ms, {found['other_ms']:.2f} ms of it in no operation; left at home "
        f"{found['left_ms']:.2f} ms: {rates['home']:,.0f} steps/s now, at most {rates['predicted']:,.0f} with "
        f"{figures.cores(found['data_worker_cores'])} of data workers",
        highlight=False,
    )
    return f"[dim]costs {found['costs']}; bytes {escape(found['sizes'])}[/dim]"


def _print_pipeline(pipeline: dict[str, Any]) -> None:
    movable = set(pipeline["movable"])
    names = [f"[green]{escape(each)}[/green]" if each in movable else escape(each) for each in pipeline["operations"]]
    console.print(f"  tf.data {' → '.join(names)}", highlight=False)
    console.print(f"          opened up to {escape(pipeline['ended_by'])}", style="dim", highlight=False)


def _moved(found: dict[str, Any]) -> Any:
    shown = table("moves", "CPU ms", "dearest", right=("CPU ms",), wrapped="dearest")
    moved = found["moved"]
    dearest = "; ".join(f"{each['node']} {each['cost_ms']:.3f} ms" for each in moved["dearest"])
    shown.add_row(f"{len(moved['nodes'])} operations", f"{found['moved_ms']:.3f}", escape(dearest))
    return shown


def _crossings(found: dict[str, Any]) -> Any:
    shown = table("crossing", "tensor", "type", "bytes", right=("bytes",))
    for way in ("sent", "received"):
        tensors = sorted(found[way], key=lambda each: -each["bytes"])
        for each in tensors[:TENSORS_SHOWN]:
            shown.add_row(way, escape(each["tensor"]), each["dtype"], f"{each['bytes']:,}")
        rest = tensors[TENSORS_SHOWN:]
        if rest:
            shown.add_row(way, f"and {len(rest)} more", "", f"{sum(each['bytes'] for each in rest):,}")
        shown.add_row(way, "in sum", "", figures.size(sum(each["bytes"] for each in tensors)))
    return shown


def _staying(stays: list[dict[str, Any]]) -> Any:
    shown = table("stays", "CPU ms", "nodes", "path", right=("CPU ms", "nodes"), wrapped="path")
    for each in stays[:STAYS_SHOWN]:
        path = " → ".join(each["path"])
        shown.add_row(each["effect"], f"{each['cost_ms']:.3f}", str(each["nodes"]), escape(f"{each['reason']}: {path}"))
    if len(stays) > STAYS_SHOWN:
        shown.add_row("", "", "", f"and {len(stays) - STAYS_SHOWN} more reasons: -o json has all")
    return shown
