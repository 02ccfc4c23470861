"""Callers with a token of the gateway's file, made for a test."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import httpx
from stretto_messages.base import DEFAULT_TEAM
from stretto_messages.gateway import CallerRole
from stretto_runtime.access.tokens import FILE, issue, read_tokens, write_tokens

from .gateway_process import Running

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def given(
    folder: Path, name: str, role: CallerRole, expires_at: datetime | None = None, team: str = DEFAULT_TEAM
) -> str:
    token, entry = issue(name, role, NOW, expires_at, team)
    write_tokens(folder / FILE, (*read_tokens(folder / FILE), entry))
    return token


def client(running: Running, token: str | None) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.Client(base_url=f"{running.url}/api/v1", headers=headers, timeout=60, trust_env=False)
