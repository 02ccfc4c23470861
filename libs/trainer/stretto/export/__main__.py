"""The process of one export: ``python -m stretto.export --spec job.json --checkpoint URL --to FOLDER``.

With ``--json`` every line of its output is a document: {"progress": [what, done, total]} while it works, and at the end
{"result": …} or {"error": …}. Exit status: 0 done, 2 refused, 1 anything else.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stretto_parameters import InputRefused
from stretto_wire import JobSpec, WireError
from stretto_wire.given_file import JOB_BYTES, read_given, text_of
from stretto_wire.jobspec.jobfile import argument, read_job

from ..errors import ExportRefused, StrettoError
from ..progress import speaker
from .run import FORMATS, ExportRequest, export


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one export; return the exit status."""
    options = _parser().parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    signal.signal(signal.SIGTERM, _interrupt)
    say = speaker(as_json=options.json)
    try:
        spec = _spec(options)
        if spec.model.path:
            sys.path.insert(0, spec.model.path)  # the job's environment is not taken: it could name further code
        asked = ExportRequest(spec, options.checkpoint, options.to, options.format, options.since)
        done = export(asked, lambda what, done, total: say({"progress": [what, done, total]}))
    except (StrettoError, InputRefused, WireError) as error:
        say({"error": str(error)})
        return 2
    except KeyboardInterrupt:
        say({"error": "interrupted; nothing was written"})
        return 130
    say({"result": done})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stretto.export", description=__doc__)
    parser.add_argument("--spec", required=True, help="file with the job, as it was submitted; - reads it from stdin")
    parser.add_argument("--checkpoint", required=True, help="URL of the checkpoint's manifest")
    parser.add_argument("--to", required=True, help="folder or URL that does not exist yet")
    parser.add_argument("--format", choices=FORMATS, help="default: keras, for PyTorch safetensors")
    parser.add_argument("--since", default="", help="an earlier export as Parquet: write what changed since")
    parser.add_argument("--path", help="folder with the job's code, instead of model.path")
    parser.add_argument(
        "--set", dest="argument", action="append", default=[], metavar="NAME=VALUE", help="instead of the job's own"
    )
    parser.add_argument("--json", action="store_true", help="print documents, a line each")
    return parser


def _spec(options: argparse.Namespace) -> JobSpec:
    """Return the job, with the code and arguments of this machine. Raises WireError and ExportRefused."""
    try:
        text = text_of(read_given(options.spec, JOB_BYTES))
    except OSError as error:
        raise ExportRefused(f"spec = {options.spec} cannot be read: {error.strerror or error}") from error
    document: dict[str, Any] = read_job(text).model_dump(mode="json", exclude_unset=True)
    model = document["model"]
    if options.path is not None:
        model["path"] = str(Path(options.path).resolve())
    for given in options.argument:
        name, _, value = given.partition("=")
        model.setdefault("arguments", {})[name] = argument(value)
    return JobSpec.parse(document)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(main())
