"""The pages of the console (`libs/console`) and of the documentation (`libs/docs`), whose builds lie in this package.

The build of the console is committed, so that serving it needs no Node; `make docs` makes the documentation. Every
address in them is relative, so that a proxy may serve the gateway below a path of its own.
"""

from __future__ import annotations

import gzip
import mimetypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import RedirectResponse, Response

from ..problems import Problem

AT = "/console"
DOCS_AT = f"{AT}/docs"
_CONSOLE, _DOCS = "console", "docs"
_ASSETS = "assets"
_INDEX = "index.html"


def _headers(trusted_types: str) -> dict[str, str]:
    """Return the headers of every file: only scripts, styles and answers of this gateway are allowed, and none inline.

    ``trusted_types``: name of the one policy by which the script of a page may write HTML.
    """
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        f"require-trusted-types-for 'script'; trusted-types {trusted_types}"
    )
    return {"Content-Security-Policy": policy, "Vary": "Accept-Encoding"}


_HEADERS = {_CONSOLE: _headers("svelte-trusted-html"), _DOCS: _headers("default")}
_IMMUTABLE = "public, max-age=31536000, immutable"
"""Caching of files whose names hold a hash of their content: every asset of the console, some of the documentation."""
_HASHED = re.compile(r"(^|[./])[0-9a-f]{8}\.(min\.)?(css|js)$")
_Encodings = Annotated[str, Header(alias="accept-encoding")]


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    compressed: bytes
    media_type: str
    headers: dict[str, str]

    def response(self, encodings: str, cache_control: str) -> Response:
        headers = self.headers | {"Cache-Control": cache_control}
        if "gzip" not in encodings:
            return Response(self.content, media_type=self.media_type, headers=headers)
        return Response(self.compressed, media_type=self.media_type, headers=headers | {"Content-Encoding": "gzip"})


@cache
def _names(build: str) -> frozenset[str]:
    """Return the paths of the files of a build; none if the build was not made."""
    folder = files("stretto_gateway").joinpath(build)
    return frozenset(_below(folder)) if folder.is_dir() else frozenset()


def _below(folder: Traversable, prefix: str = "") -> Iterator[str]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _below(each, f"{prefix}{each.name}/")
        else:
            yield prefix + each.name


@cache
def _read(build: str, name: str) -> _File:
    content = files("stretto_gateway").joinpath(build, *name.split("/")).read_bytes()
    media_type = mimetypes.guess_type(name)[0] or "text/plain"
    return _File(content, gzip.compress(content, mtime=0), media_type, _HEADERS[build])


def _file(build: str, name: str) -> _File | None:
    """Return a file of a build; None if the build has no such file, in which case nothing is opened."""
    return _read(build, name) if name in _names(build) else None


@lru_cache(maxsize=16)
def _index(way: str) -> _File:
    """Return the page of the console for an address from which ``way`` leads to the console's folder."""
    found = _read(_CONSOLE, _INDEX)
    content = found.content.replace(b'="./' + _ASSETS.encode(), f'="{way}{_ASSETS}'.encode())
    return _File(content, gzip.compress(content, mtime=0), found.media_type, found.headers)


def _missing(detail: str, path: str, remedy: str) -> Problem:
    return Problem(404, "not-found", detail, field="path", value=path, remedy=remedy)


def routes() -> APIRouter:
    """Make the routes. Every address below `/console/` that is no asset and no documentation is a page of the console,
    which the browser draws."""
    router = APIRouter(include_in_schema=False)

    @router.get(f"{AT}/{_ASSETS}/{{name}}")
    async def asset(name: str, encodings: _Encodings = "") -> Response:
        found = _file(_CONSOLE, f"{_ASSETS}/{name}")
        if found is None:
            raise _missing(f"the console has no asset {name[:100]}", name, f"load {AT}/ anew")
        return found.response(encodings, _IMMUTABLE)

    @router.get(DOCS_AT)
    async def documentation() -> Response:
        return RedirectResponse("docs/")

    @router.get(f"{DOCS_AT}/{{path:path}}")
    async def document(path: str, encodings: _Encodings = "") -> Response:
        if _INDEX not in _names(_DOCS):
            remedy = "run `make docs` and start it again"
            raise _missing("this gateway was built without the documentation", path, remedy)
        found = _file(_DOCS, path or _INDEX)
        if found is None and f"{path}.html" in _names(_DOCS):
            return RedirectResponse(f"{path.rpartition('/')[2]}.html")
        if found is None:
            raise _missing(f"the documentation has no page {path[:100]}", path, f"begin at {DOCS_AT}/")
        return found.response(encodings, _IMMUTABLE if _HASHED.search(path) else "no-cache")

    @router.get(AT)
    @router.get(f"{AT}/{{path:path}}")
    async def page(path: str | None = None, encodings: _Encodings = "") -> Response:
        if _INDEX not in _names(_CONSOLE):
            raise _missing("this gateway was built without the console", AT, "run `make console` and start it again")
        way = "./console/" if path is None else "../" * path.count("/") or "./"
        return _index(way).response(encodings, "no-cache")

    return router
