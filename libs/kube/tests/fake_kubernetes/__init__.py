"""A small Kubernetes for tests: a real HTTP server that checks what it is sent by the official schemas, numbers every
change, and runs pods as processes. It can be made to lose watches, forget history, die, run out of room and quota."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from .admission import delete_pod
from .kubelet import Kubelet
from .merging import Object
from .server import Resource, Server
from .storage import Storage, now_text

__all__ = ["Cluster", "Object", "Resource", "Server", "Storage", "running_cluster"]


class Cluster:
    """The API server and its nodes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.server = Server()
        self.storage = self.server.storage
        self.kubelet = Kubelet(self.storage, folder / "pods", self.server.logs)

    def kubeconfig(self, token: str = "admin") -> Path:
        """Write a kubeconfig that authenticates as ``token``."""
        file = self.folder / f"kubeconfig-{token}"
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.server.url}}],
            "users": [{"name": token, "user": {"token": token}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": token}}],
        }
        file.write_text(yaml.safe_dump(body))
        return file

    def install(self, definition: Object) -> None:
        """Define a custom resource."""
        spec = definition["spec"]
        version = next(each for each in spec["versions"] if each["served"])
        schema = version["schema"]["openAPIV3Schema"]
        api_version = f"{spec['group']}/{version['name']}"
        self.server.resources[spec["names"]["plural"]] = Resource(spec["names"]["kind"], api_version, schema)

    def pods(self) -> list[Object]:
        return self.storage.all("pods")

    def disrupt(self, name: str, reason: str, grace_s: int = 1) -> None:
        """Evict or preempt a pod: ``reason`` of the condition DisruptionTarget."""
        pod = self._pod(name)
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": now_text()}
        conditions = [*pod["status"].get("conditions", []), condition]
        marked = self.storage.put("pods", {**pod, "status": {**pod["status"], "conditions": conditions}})
        delete_pod(self.storage, marked, grace_s)

    def lose(self, node: str) -> None:
        """Silence a node and mark its pods, as the taint manager does."""
        self.kubelet.lost.add(node)
        for pod in self.pods():
            if pod["spec"].get("nodeName") == node:
                self.disrupt(pod["metadata"]["name"], "DeletionByTaintManager")

    def _pod(self, name: str) -> Object:
        pod = self.storage.get("pods", name)
        assert pod is not None, name
        return pod


@contextlib.asynccontextmanager
async def running_cluster(folder: Path) -> AsyncIterator[Cluster]:
    """Run a cluster from start to end, and leave nothing behind."""
    cluster = Cluster(folder)
    await cluster.server.start()
    nodes = asyncio.create_task(cluster.kubelet.run(), name="nodes")
    try:
        yield cluster
    finally:
        nodes.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await nodes
        await cluster.kubelet.close()
        await cluster.server.stop()
