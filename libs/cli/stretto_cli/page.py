"""Reports as one HTML file that loads nothing; :mod:`stretto_client.drawing.svg` has the shapes of their drawings."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files


def page(title: str, parts: Iterable[str]) -> str:
    """Return the whole file; the parts are HTML."""
    style = (files("stretto_cli") / "page.css").read_text()
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        f"<style>{style}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def head(title: str, command: str, tiles: Iterable[tuple[str, str]]) -> str:
    """Return the head of a report: a title (HTML), the command, and the main figures as (name, value)."""
    shown = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in tiles)
    return f"<header><h1>{title}</h1><p><code>{escape(command)}</code></p><section>{shown}</section></header>"
