"""``stretto version``: the versions of the command and of the gateway."""

from __future__ import annotations

from importlib.metadata import version as version_of
from typing import Any

from ...command import command
from ...errors import CliError
from ...options import GatewayOptions


@command("Installation", "stretto version -o json")
def version(options: GatewayOptions) -> None:
    """Print the version of this command, and the gateway's where one runs; `stretto --version` is the same."""
    found: dict[str, Any] = {"command": version_of("stretto-cli"), "gateway": None, "why": None}
    try:
        with options.connect() as gateway:
            found["gateway"] = gateway.me()["version"]
    except CliError as error:
        found["why"] = str(error)
    options.answer(found, lambda: f"stretto {found['command']}, {_of_gateway(found)}")


def _of_gateway(found: dict[str, Any]) -> str:
    return f"gateway {found['gateway']}" if found["gateway"] else f"no gateway: {found['why']}"
