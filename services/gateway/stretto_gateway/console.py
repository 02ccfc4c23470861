"""The console: the pages of `libs/console`, whose build lies in this package and needs no Node to be served."""

from __future__ import annotations

import gzip
import mimetypes
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import Response
from starlette.exceptions import HTTPException

AT = "/console"
_FOLDER = "console"
_ASSETS = "assets"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types svelte-trusted-html",
    "Vary": "Accept-Encoding",
}
_IMMUTABLE = "public, max-age=31536000, immutable"
"""Names of assets hold a hash of their content."""
_Encodings = Annotated[str, Header(alias="accept-encoding")]


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    compressed: bytes
    media_type: str

    def response(self, encodings: str, cache_control: str) -> Response:
        headers = _HEADERS | {"Cache-Control": cache_control}
        if "gzip" not in encodings:
            return Response(self.content, media_type=self.media_type, headers=headers)
        return Response(self.compressed, media_type=self.media_type, headers=headers | {"Content-Encoding": "gzip"})


@cache
def _file(*path: str) -> _File | None:
    """Return a file of the build, None without it. Names come from the build's own listing, never from a request."""
    place = files("stretto_gateway").joinpath(_FOLDER, *path)
    if not place.is_file():
        return None
    content = place.read_bytes()
    return _File(content, gzip.compress(content, mtime=0), mimetypes.guess_type(path[-1])[0] or "text/plain")


@cache
def _assets() -> frozenset[str]:
    folder = files("stretto_gateway").joinpath(_FOLDER, _ASSETS)
    return frozenset(each.name for each in folder.iterdir()) if folder.is_dir() else frozenset()


def routes() -> APIRouter:
    """Make the routes. Every address below `/console/` that is no asset is a page: the browser draws it."""
    router = APIRouter(include_in_schema=False)

    @router.get(f"{AT}/{_ASSETS}/{{name}}")
    async def asset(name: str, encodings: _Encodings = "") -> Response:
        found = _file(_ASSETS, name) if name in _assets() else None
        if found is None:
            raise HTTPException(404, f"the console has no asset {name[:100]}")
        return found.response(encodings, _IMMUTABLE)

    @router.get(AT)
    @router.get(f"{AT}/{{path:path}}")
    async def page(encodings: _Encodings = "") -> Response:
        index = _file("index.html")
        if index is None:
            raise HTTPException(404, "this gateway was built without the console: run `make console`")
        return index.response(encodings, "no-cache")

    return router
