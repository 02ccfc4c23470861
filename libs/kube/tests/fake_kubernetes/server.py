"""The HTTP side: verbs, watches, and all faults that a test can inject."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from . import schemas
from .admission import Refused, admit, delete_pod, resize
from .merging import Conflict, Object, apply, leaves, merge
from .storage import Expired, Storage

APPLY, STRATEGIC = "application/apply-patch+yaml", "application/strategic-merge-patch+json"
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass
class Resource:
    """A kind of objects. ``schema``: the schema of a custom resource, whose status is a subresource.

    ``webhook``: what a validating webhook says of a change from one object to another; empty: nothing.
    """

    kind: str
    api_version: str
    schema: Object | None = None
    webhook: Callable[[Object, Object], str] = lambda known, one: ""


@dataclass
class Server:
    """One API server of one namespace. Tests may change its public fields."""

    namespace: str = "training"
    storage: Storage = field(default_factory=Storage)
    resources: dict[str, Resource] = field(default_factory=lambda: {
        "pods": Resource("Pod", "v1"),
        "secrets": Resource("Secret", "v1"),
        "configmaps": Resource("ConfigMap", "v1"),
        "leases": Resource("Lease", "coordination.k8s.io/v1"),
        "networkpolicies": Resource("NetworkPolicy", "networking.k8s.io/v1"),
    })  # fmt: skip
    quota: dict[str, float] = field(default_factory=dict)
    """Quota: the most pods, cpu and memory in all."""
    resizable: bool = True
    bookmark_s: float = 0.1
    failures: list[int] = field(default_factory=list)
    """The answers to the next requests."""
    allowed: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    """Token -> allowed (verb, resource); any other token is allowed everything."""
    used: set[tuple[str, str]] = field(default_factory=set)
    """The (verb, resource) of all requests so far."""
    logs: dict[str, str] = field(default_factory=dict)
    """Pod name -> the file with its log."""
    url: str = ""
    _runner: web.AppRunner | None = None
    _port: int = 0
    _watches: set[asyncio.Task[Any]] = field(default_factory=set)

    async def start(self) -> None:
        """Listen; after ``stop``, at the same port again."""
        app = web.Application(client_max_size=4 << 20)
        for root in ("/api/v1", "/apis/{group}/{version}"):
            for rest in ("", "/{name}", "/{name}/{sub}"):
                app.router.add_route("*", f"{root}/namespaces/{{namespace}}/{{plural}}{rest}", self._handle)
        for rest in ("", "/{name}"):  # of the whole cluster
            app.router.add_route("*", f"/apis/{{group}}/{{version}}/{{plural}}{rest}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = site._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """Stop as if the server had died: watches break off."""
        self.cut()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def cut(self) -> None:
        """Break off every watch."""
        for watch in self._watches:
            watch.cancel()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        plural, sub = request.match_info["plural"], request.match_info.get("sub", "")
        try:
            self._authorize(request, plural, sub)
            if self.failures:
                raise Refused(self.failures.pop(0), "InternalError", "as the test wants it")
            if plural not in self.resources or request.match_info.get("namespace", self.namespace) != self.namespace:
                raise Refused(404, "NotFound", "the server could not find the requested resource")
            return await self._answer(request, plural, request.match_info.get("name", ""), sub)
        except Refused as refused:
            return web.json_response(refused.status_object(), status=refused.status)
        except Conflict as conflict:
            return web.json_response(Refused(409, "Conflict", str(conflict)).status_object(), status=409)
        except schemas.Invalid as invalid:
            return web.json_response(Refused(422, "Invalid", str(invalid)).status_object(), status=422)

    def _authorize(self, request: web.Request, plural: str, sub: str) -> None:
        verb = VERBS[request.method]
        if verb == "get" and "name" not in request.match_info:
            verb = "watch" if request.query.get("watch") else "list"
        asked = (verb, f"{plural}/{sub}" if sub else plural)
        self.used.add(asked)
        token = request.headers.get("Authorization", "").lower().removeprefix("bearer ")
        if asked not in self.allowed.get(token, {asked}):
            raise Refused(
                403, "Forbidden", f'{asked[1]} is forbidden: User "{token}" cannot {verb} resource "{asked[1]}"'
            )

    async def _answer(self, request: web.Request, plural: str, name: str, sub: str) -> web.StreamResponse:
        if request.method == "GET" and not name:
            return await self._watch(request, plural) if request.query.get("watch") else self._list(request, plural)
        if request.method == "POST":
            return self._written(request, plural, (await request.json())["metadata"]["name"], await request.json(), "")
        if request.method == "PATCH":
            return self._patch(request, plural, name, sub, await request.json())
        known = self.storage.get(plural, name)
        if known is None:
            raise Refused(404, "NotFound", f'{plural} "{name}" not found')
        if request.method == "PUT":
            one = await request.json()
            if one["metadata"].get("resourceVersion") not in (None, known["metadata"]["resourceVersion"]):
                raise Refused(409, "Conflict", f'Operation cannot be fulfilled on {plural} "{name}": it was modified')
            return self._written(request, plural, name, one, sub)
        if request.method == "DELETE":
            return self._delete(plural, known, await request.json() if request.can_read_body else {})
        if sub == "log":
            return self._log(name, int(request.query.get("tailLines", "100000")))
        return web.json_response(known)

    def _list(self, request: web.Request, plural: str) -> web.Response:
        found = [one for one in self.storage.all(plural) if _selected(request, one)]
        start, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", 10**6))
        more = {"continue": str(start + limit)} if start + limit < len(found) else {}
        meta = {"resourceVersion": str(self.storage.version), **more}
        return web.json_response({"metadata": meta, "items": found[start : start + limit]})

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        task, heard = asyncio.current_task(), asyncio.Event()
        assert task is not None
        self._watches.add(task)
        self.storage.listeners.add(heard)
        at = int(request.query["resourceVersion"])
        try:
            while True:
                heard.clear()
                events = self.storage.since(plural, at)
                for version, kind, one in events:
                    at = version
                    if _selected(request, one):
                        await _send(response, kind, one)
                if not events:
                    at = max(at, self.storage.version)
                    await _send(response, "BOOKMARK", {"metadata": {"resourceVersion": str(at)}})
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.bookmark_s):
                        await heard.wait()
        except Expired as expired:
            await _send(response, "ERROR", Refused(410, "Expired", str(expired)).status_object())
            return response
        except ConnectionError:
            return response
        except asyncio.CancelledError:
            if request.transport is not None:
                request.transport.abort()
            raise
        finally:
            self._watches.discard(task)
            self.storage.listeners.discard(heard)

    def _patch(self, request: web.Request, plural: str, name: str, sub: str, patch: Object) -> web.Response:
        form, known = request.content_type, self.storage.get(plural, name)
        if sub == "resize":
            if not self.resizable:
                raise Refused(404, "NotFound", "the server could not find the requested resource")
            if known is None:
                raise Refused(404, "NotFound", f'pods "{name}" not found')
            resized = resize(known, merge(known, patch, strategic=form == STRATEGIC), self.quota, self.storage)
            return web.json_response(self.storage.put(plural, resized))
        if form == APPLY:
            return self._applied(request, plural, name, sub, patch, known)
        if known is None:
            raise Refused(404, "NotFound", f'{plural} "{name}" not found')
        return self._written(request, plural, name, merge(known, patch, strategic=form == STRATEGIC), sub)

    def _applied(
        self, request: web.Request, plural: str, name: str, sub: str, wanted: Object, known: Object | None
    ) -> web.Response:
        manager, force = f"{request.query['fieldManager']} {sub}".strip(), request.query.get("force") == "true"
        if known is None:
            if sub:
                raise Refused(404, "NotFound", f'{plural} "{name}" not found')
            answer = self._written(request, plural, name, wanted, "")
            made = self.storage.get(plural, name)
            assert made is not None
            self.storage.owners_of(made).fields = {manager: set(leaves(wanted))}
            return answer
        if wanted["metadata"].get("resourceVersion") not in (None, known["metadata"]["resourceVersion"]):
            raise Refused(409, "Conflict", f'Operation cannot be fulfilled on {plural} "{name}": it was modified')
        one = apply(known, wanted, self.storage.owners_of(known), manager, force)
        return web.json_response(self._stored(plural, name, one, sub))

    def _written(self, request: web.Request, plural: str, name: str, one: Object, sub: str) -> web.Response:
        known = self.storage.get(plural, name)
        if request.method == "POST" and known is not None:
            raise Refused(409, "AlreadyExists", f'{plural} "{name}" already exists')
        stored = self._stored(plural, name, one, sub)
        before = leaves(known) if known is not None else {}
        changed = {path for path, value in leaves(stored).items() if before.get(path) != value}
        self.storage.owners_of(stored).take(request.query.get("fieldManager", "unknown") + " (update)", changed)
        return web.json_response(stored, status=200 if known is not None else 201)

    def _stored(self, plural: str, name: str, one: Object, sub: str) -> Object:
        resource, known = self.resources[plural], self.storage.get(plural, name)
        one = {"apiVersion": resource.api_version, "kind": resource.kind, **one}
        meta = dict(one["metadata"]) | ({"namespace": self.namespace} if known is None else {})
        if resource.schema is None:
            schemas.check({**one, "metadata": {k: v for k, v in meta.items() if k != "deletionGracePeriodSeconds"}})
        else:
            one = schemas.check_custom(resource.schema, one) | {"metadata": meta}
            if sub == "status":
                one = {**(known or {}), "status": one.get("status", {})}
                meta = dict(one["metadata"])
            else:
                one = {**one, "status": (known or {}).get("status", {})}
                changed = known is None or known.get("spec") != one.get("spec")
                meta["generation"] = (known["metadata"]["generation"] if known else 0) + changed
        one = {**one, "metadata": meta}
        if known is not None and (denied := resource.webhook(known, one)):
            raise schemas.Invalid(denied)
        if plural == "pods":
            one = admit(one, known, self.quota, self.storage)
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and plural != "pods":
            return self.storage.remove(plural, name) or one
        return self.storage.put(plural, one)

    def _delete(self, plural: str, known: Object, options: Object) -> web.Response:
        if plural == "pods":
            return web.json_response(delete_pod(self.storage, known, options.get("gracePeriodSeconds")))
        name = known["metadata"]["name"]
        if known["metadata"].get("finalizers"):
            meta = known["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}
            return web.json_response(self.storage.put(plural, {**known, "metadata": meta}))
        return web.json_response(self.storage.remove(plural, name))

    def _log(self, name: str, lines: int) -> web.Response:
        if name not in self.logs:
            raise Refused(400, "BadRequest", f'container "pod" in pod "{name}" is waiting to start')
        if not os.path.exists(self.logs[name]):
            return web.Response(text=f"unable to retrieve container logs for containerd://{'0' * 64}")
        with open(self.logs[name], errors="replace") as file:
            return web.Response(text="".join(file.readlines()[-lines:]))


def _selected(request: web.Request, one: Object) -> bool:
    labels = one["metadata"].get("labels") or {}
    for term in filter(None, request.query.get("labelSelector", "").split(",")):
        key, equals, value = term.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    return True


async def _send(response: web.StreamResponse, kind: str, one: Object) -> None:
    await response.write(json.dumps({"type": kind, "object": one}).encode() + b"\n")
