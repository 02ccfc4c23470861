"""Accounts of tools outside, one for each tool: what it imports, its limits, and its move from the account of all.

Two tools share no subject and no consumer: an account is the server's own boundary.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stretto_bus.login import Claims, claims_of
from stretto_wire.contract.registry import STREAM

from .claims import UNLIMITED

Account = tuple[str, Claims, Claims]
"""Name, limits and further claims of an account."""
EXTERNAL_API = "JS.STRETTO"
"""Prefix under which the account of a tool outside reaches the JetStream API of the account STRETTO."""
EXTERNAL_DELIVERY = "deliver.external"
"""Prefix under which events pass from one account to the others."""
NO_LIMITS = UNLIMITED | {"imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
COMMON = "EXTERNAL"
"""Account that all tools outside shared in former versions, and the file in ``root/`` of its seed."""
COMMON_SEED = "external.seed"
_NAME = "EXTERNAL-"
_SEED = "external-"

_LIMITS = (
    NO_LIMITS
    | {"conn": 8, "subs": 512, "payload": 64 << 10, "leaf": 0}
    | {"mem_storage": 64 << 20, "disk_storage": -1, "streams": 1, "consumer": 16, "max_ack_pending": 4096}
)
"""Limits of one tool outside. Only the keeper makes streams, and sets their bound."""

CONSUME = f"CONSUMER.CREATE.{STREAM}.*.*.evt.v1.>"
"""Request for a consumer of events. Its subject names the only filter: the server refuses a body with another."""


def delivery_of(tool: str) -> str:
    """Return the prefix under which events pass to one tool outside."""
    return f"{EXTERNAL_DELIVERY}.{tool}"


def name_of(tool: str) -> str:
    """Return the name of a tool's account."""
    return f"{_NAME}{tool}"


def seed_of(tool: str) -> str:
    """Return the name, in ``root/`` and without suffix, of the seed of a tool's account."""
    return f"{_SEED}{tool}"


def tools_in(root: Path, trusted: Iterable[str]) -> set[str]:
    """Return the tools that a seed in ``root`` or an account of the server's file, in ``trusted``, belongs to."""
    seeds = {path.stem.removeprefix(_SEED) for path in root.glob(f"{_SEED}*.seed")}
    return seeds | {name.removeprefix(_NAME) for name in trusted if name.startswith(_NAME)}


def account_of_tool(tool: str, stretto: str) -> Account:
    """Return name, limits and claims of the account of one tool outside; ``stretto`` is the account of the events."""
    imports = [
        {"name": "events", "subject": "evt.v1.>", "type": "stream"},
        {"name": "kept-events", "subject": f"{delivery_of(tool)}.>", "type": "stream"},
        {"name": "consume-events", "subject": f"$JS.API.{CONSUME}", "type": "service"}
        | {"local_subject": f"{EXTERNAL_API}.{CONSUME}"},
        {"name": "flow-control", "subject": f"$JS.FC.{STREAM}.>", "type": "service"},
    ]
    return name_of(tool), _LIMITS, {"imports": [{**each, "account": stretto} for each in imports]}


def common_account(token: str, stretto: str) -> Account:
    """Return the account that all tools shared, with limits and imports of its ``token``, if that is known."""
    if not token:
        _, limits, more = account_of_tool("common", stretto)
        return COMMON, limits, more
    nats = claims_of(token)["nats"]
    return COMMON, nats["limits"], {"imports": nats["imports"]}


def notice_of_common(seed: Path) -> str:
    """Say what becomes of the account that all tools shared; it goes when its ``seed`` is gone."""
    if seed.exists():
        return (
            f"the account {COMMON}, which all tools outside shared, stays for credentials of former versions: give "
            f"every tool its new ones, remove {seed}, repeat this command and reload nats-server"
        )
    return (
        f"the account {COMMON}, which all tools outside shared, is gone: once reloaded, nats-server refuses the "
        "credentials that tools got before they had accounts of their own"
    )


def notice_of_move(tool: str, file: Path) -> str:
    """Say what changes for a tool whose credentials in ``file`` another account has signed until now."""
    return (
        f"{tool} moves to an account of its own. With the new {file} it finds the same events in a stream EVENTS of "
        "its own (reload nats-server, then make the streams) and none of its consumers. Its old credentials and "
        f"their consumers stay valid in the account {COMMON}"
    )
