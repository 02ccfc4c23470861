"""Objects of one namespace as the API server sends them: plain JSON, whatever its version.

The official client provides credentials, TLS and connections. Its models are not used, because they refuse objects of
newer and older servers.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.client.rest import RESTResponse
from kubernetes.aio.config.config_exception import ConfigException

from .faults import UNREACHABLE, KubeFault

Object = dict[str, Any]

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REQUEST_S = 15.0
CONNECT_S = 5.0
WATCH_S = 240
SILENCE_S = 90.0
"""Silence after which a watch has lost its server: bookmarks arrive about every minute."""
_LOG_GONE = re.compile(r"unable to retrieve container logs for [\w.-]+://\w*\s*")
"""A kubelet's answer, with status 200, for a container that it has removed."""
PAGE = 500
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects, of a namespace or of the whole cluster."""

    group: str
    version: str
    plural: str
    name: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, *rest: str) -> str:
        root = f"/apis/{self.group}" if self.group else "/api"
        where = ["namespaces", namespace] if self.namespaced else []
        return "/".join([root, self.version, *where, self.plural, *(part for part in rest if part)])


PODS = Kind("", "v1", "pods", "Pod")
SECRETS = Kind("", "v1", "secrets", "Secret")


class Api:
    """One namespace, with the permissions of ``client``'s account. Every call may raise KubeFault."""

    def __init__(self, client: ApiClient, namespace: str, manager: str) -> None:
        self.client = client
        self.namespace = namespace
        self._manager = manager

    @classmethod
    async def connect(cls, manager: str, namespace: str = "", kubeconfig: Path | None = None) -> Api:
        """Connect with the pod's service account, or by ``kubeconfig``; ``manager`` owns the applied fields."""
        configuration = Configuration()
        try:
            if kubeconfig is not None:
                await config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)
            else:
                config.load_incluster_config(client_configuration=configuration)
                namespace = namespace or (ACCOUNT / "namespace").read_text().strip()
        except (ConfigException, OSError) as error:
            where = f"kubeconfig {kubeconfig}" if kubeconfig is not None else "the service account of this pod"
            raise KubeFault(f"reading {where}", UNREACHABLE, "Configuration", str(error)) from error
        return cls(ApiClient(configuration), namespace or "default", manager)

    async def close(self) -> None:
        await self.client.close()

    async def get(self, kind: Kind, name: str) -> Object | None:
        """Return the object, or None if there is none."""
        try:
            return await self._ask("GET", kind.path(self.namespace, name))
        except KubeFault as fault:
            if fault.status == 404:
                return None
            raise

    async def list(self, kind: Kind, labels: str = "") -> tuple[Sequence[Object], int]:
        """Return all objects at one moment, and the version of that moment."""
        found: list[Object] = []
        query: dict[str, Any] = {"limit": PAGE, **_selecting(labels)}
        while True:
            page = await self._ask("GET", kind.path(self.namespace), query)
            found += page.get("items") or []
            more = page["metadata"].get("continue")
            if not more:
                return found, int(page["metadata"]["resourceVersion"])
            query["continue"] = more

    async def watch(self, kind: Kind, labels: str, version: int) -> AsyncIterator[Object]:
        """Yield the events since ``version`` until the server ends the watch; bookmarks show that it is alive."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(version),
            "timeoutSeconds": WATCH_S,
            **_selecting(labels),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
        doing = f"watch {kind.plural}"
        response = await self._send("GET", kind.path(self.namespace), query, timeout=timeout)
        try:
            async for line in response.response.content:
                yield json.loads(line)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise KubeFault(doing, UNREACHABLE, type(error).__name__, str(error)) from error
        finally:
            response.response.close()

    async def apply(self, kind: Kind, one: Object, subresource: str = "", force: bool = False) -> Object:
        """Set the fields that ``one`` has, and no others; without ``force``, those of other managers are refused."""
        body = {"apiVersion": kind.api_version, "kind": kind.name, **one}
        query = {"fieldManager": self._manager, "force": str(force).lower()}
        return await self.patch(kind, one["metadata"]["name"], body, APPLY, subresource, query)

    async def patch(
        self,
        kind: Kind,
        name: str,
        body: Object,
        form: str = MERGE,
        subresource: str = "",
        query: Mapping[str, Any] | None = None,
    ) -> Object:
        """Change an object or its ``subresource``."""
        query = query or {"fieldManager": self._manager}
        return await self._ask("PATCH", kind.path(self.namespace, name, subresource), query, body, form)

    async def create(self, kind: Kind, one: Object) -> Object:
        """Create an object. Status 409: it exists already."""
        body = {"apiVersion": kind.api_version, "kind": kind.name, **one}
        return await self._ask("POST", kind.path(self.namespace), {"fieldManager": self._manager}, body)

    async def replace(self, kind: Kind, one: Object) -> Object:
        """Replace an object. Status 409: it changed since ``one`` was read."""
        query = {"fieldManager": self._manager}
        return await self._ask("PUT", kind.path(self.namespace, one["metadata"]["name"]), query, one)

    async def delete(self, kind: Kind, name: str, grace_s: int | None = None) -> None:
        """Delete an object; it is no error if there is none."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self._ask("DELETE", kind.path(self.namespace, name), body=body)
        except KubeFault as fault:
            if fault.status != 404:
                raise

    async def logs(self, pod: str, lines: int) -> str:
        """Return the last lines that a pod wrote; empty if it does not exist, or its container not yet or no more."""
        try:
            response = await self._send("GET", PODS.path(self.namespace, pod, "log"), {"tailLines": lines})
            text = (await response.read()).decode(errors="replace")
            return "" if _LOG_GONE.fullmatch(text) else text
        except KubeFault as fault:
            if fault.status in (400, 404):
                return ""
            raise

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Object | None = None,
        form: str = "application/json",
    ) -> Any:
        response = await self._send(method, path, query, body, form)
        try:
            return json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise KubeFault(f"{method} {path}", UNREACHABLE, type(error).__name__, str(error)) from error

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Object | None = None,
        form: str = "application/json",
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> RESTResponse:
        doing = f"{method} {path}"
        timeout = timeout or aiohttp.ClientTimeout(total=REQUEST_S, sock_connect=CONNECT_S)
        try:
            prepared = await self.client.param_serialize(
                method,
                path,
                query_params=[*(query or {}).items()],
                header_params={"Accept": "application/json", "Content-Type": form},
                body=body,
                auth_settings=["BearerToken"],
            )
            response = await self.client.call_api(*prepared, _request_timeout=timeout)
            if response.status < 400:
                return response
            raise _refusal(doing, response.status, str(response.reason), await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError, ApiException) as error:
            raise KubeFault(doing, UNREACHABLE, type(error).__name__, str(error)) from error


def _selecting(labels: str) -> dict[str, str]:
    return {"labelSelector": labels} if labels else {}


def _refusal(doing: str, status: int, reason: str, body: bytes) -> KubeFault:
    """Make the fault from the server's Status object; a proxy before the server may answer with anything else."""
    try:
        answer = json.loads(body)
        return KubeFault(doing, status, str(answer.get("reason") or reason), str(answer.get("message") or ""))
    except (ValueError, AttributeError):
        return KubeFault(doing, status, reason, body[:500].decode(errors="replace"))
