"""``stretto console``: open the pages of the gateway in a browser."""

from __future__ import annotations

import json
import os
import tempfile
import webbrowser
from html import escape
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from ...command import command
from ...options import GatewayOptions, located

DOOR = "console.html"


@command("Jobs", "stretto console --no-browser", name="console")
def open_console(
    options: GatewayOptions,
    browser: Annotated[bool, typer.Option(help="Open a browser; without it, only the file is written.")] = True,
) -> None:
    """Open the console in a browser, signed in.

    The browser is given a file that only you can read, since arguments of programs and addresses can be seen by others.
    """
    with options.connect() as gateway:
        gateway.status()  # the browser would tell less of a wrong address or token
        found = located(options.folder, options.url, options.token)
    address = f"{found.url}/console/"
    file = door(options.folder if options.url is None else None, address, found.token)
    opened = browser and webbrowser.open(file.as_uri())
    report = {"url": address, "file": str(file), "opened": opened}
    options.answer(report, lambda: f"{report['url']}\n{file} signs a browser in; it holds the token")


def door(folder: Path | None, address: str, token: str) -> Path:
    """Write the file that forwards a browser to the console with the token; returns its path."""
    if folder is None:
        handle, name = tempfile.mkstemp(prefix="stretto-", suffix=f"-{DOOR}")
        path = Path(name)
    else:
        path = folder.resolve() / DOOR
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    target = f"{address}#token={quote(token, safe='')}" if token else address
    script = json.dumps(target).replace("<", "\\u003c")
    with os.fdopen(handle, "w") as file:
        file.write(
            f"<!doctype html><title>Stretto</title><script>location.replace({script})</script>{escape(address)}\n"
        )
    return path
