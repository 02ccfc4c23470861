"""Pages for people who open the gateway's address in a browser: the way to the console, and a page for each problem.

The pages are static, load nothing, and need no token.
"""

from __future__ import annotations

import re
from functools import cache
from html import escape
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from ..problems import PROBLEMS_AT
from . import console

_TEXT = "PROBLEMS.md"
_HEADING = "\n## "
_CODE = re.compile("`([^`]*)`")


@cache
def problem_texts() -> dict[str, str]:
    """Return the Markdown text about each kind of problem."""
    _, *sections = files("stretto_gateway").joinpath(_TEXT).read_text().split(_HEADING)
    return {kind.strip(): text.strip() for kind, text in (section.split("\n", 1) for section in sections)}


def routes() -> APIRouter:
    """Make the routes."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def front(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(f"{console.AT}/")
        return RedirectResponse("/openapi.json")

    @router.get(PROBLEMS_AT)
    async def problems() -> HTMLResponse:
        links = "".join(f'<li><a href="{PROBLEMS_AT}/{kind}">{kind}</a></li>' for kind in problem_texts())
        return _page("Problems", f"<ul>{links}</ul>")

    @router.get(f"{PROBLEMS_AT}/{{kind}}")
    async def problem(kind: str) -> HTMLResponse:
        if kind not in problem_texts():
            raise HTTPException(404, f"there is no problem of the kind {kind[:100]}")
        more = f'<p><a href="{PROBLEMS_AT}">All problems</a></p>'
        return _page(f"Problem: {kind}", _html(problem_texts()[kind]) + more)

    return router


def _page(title: str, body: str) -> HTMLResponse:
    return HTMLResponse(_whole(title, body))


def _whole(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><h1>{escape(title)}</h1>{body}</html>\n'
    )


def _html(markdown: str) -> str:
    """Return Markdown paragraphs as HTML, with code marked; the texts have no other markup."""
    paragraphs = (_CODE.sub(r"<code>\1</code>", escape(" ".join(each.split()))) for each in markdown.split("\n\n"))
    return "".join(f"<p>{each}</p>" for each in paragraphs)
