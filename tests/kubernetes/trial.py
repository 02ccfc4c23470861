"""Stretto's life on a real Kubernetes: installed, used, hurt, upgraded, uninstalled. Every step waits for what it says.

A job is applied as an object and scaled; it loses a worker and an actuator, goes through an upgrade of everything, and
completes with balanced books. A second one is running when the release is uninstalled, and its pods go with it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx
from helm_python import Config

from tests.charts.rendering import CHART
from tests.containers import images
from tests.kubernetes import cluster
from tests.kubernetes.cluster import NAMESPACE
from tests.kubernetes.node import Node, NodeError

RELEASE = "stretto"
SMALL = {"requests": {"cpu": "20m", "memory": "96Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}}
"""The node's two cores are for pods of jobs."""
INSTALL_S = 600
START_S = 600.0
JOB_S = 1500.0
SAMPLES = 600_000
OBJECTS = f"/apis/stretto.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs"


def run(node: Node) -> int:
    """Run the trial; return 0 if every step succeeded. Raises NodeError with the first failed step."""
    with cluster.named(node):
        token = cluster.prepare(node, node.folder)
        Trial(node, token).run()
    return 0


class Trial:
    """One release of the chart, and the steps of its trial."""

    def __init__(self, node: Node, token: str) -> None:
        self._node = node
        self._token = token
        self._helm = Config(kubeconfig_path=node.kubeconfig, namespace=NAMESPACE)
        self._begin_s = time.monotonic()

    def run(self) -> None:
        self._say(f"Kubernetes {self._node.get('/version')['gitVersion']}, one node, bus with keys and TLS, Redis")
        self._step("helm install: every service is ready", self.install)
        self._step("helm test: every service says so", self.test)
        self._step("kubectl apply: the job trains", lambda: self.apply("trial", SAMPLES))
        self._step("scaled to two workers", self.scale)
        self._step("a worker deleted: another runs in its place", self.lose_worker)
        self._step("an actuator deleted, then a worker: replaced all the same", self.lose_actuator)
        self._step("helm upgrade: all services replaced, the job trains on", self.upgrade)
        self._step("the job has completed", self.complete)
        self._say(f"  its books: {self.books()}")
        self._step("a second job trains", lambda: self.apply("left-behind", 50 * SAMPLES))
        self._step("helm uninstall: no pod of the release or of a job is left", self.uninstall)

    # steps -----------------------------------------------------------------------------------------------------

    def install(self) -> None:
        values = self._values()
        self._helm.install(CHART, RELEASE, values, namespace=NAMESPACE, wait="watcher", timeout=INSTALL_S)

    def test(self) -> None:
        self._helm.test(RELEASE, timeout=60)

    def apply(self, name: str, samples: int) -> None:
        self._node.apply(f"{OBJECTS}/{name}", training_job(name, samples))
        self._until(f"{name} trains", lambda: self._status(name).get("phase") == "Training", START_S)

    def scale(self) -> None:
        reply = self._gateway("POST", "/jobs/trial/plan", {"workers": 2})
        if reply.status_code >= 400:
            raise NodeError(f"the gateway refuses: {reply.text}")
        self._until("two workers run", lambda: len(self._running("worker")) == 2, START_S)
        self._until("the object says so", lambda: self._status("trial").get("workers") == 2)

    def lose_worker(self) -> None:
        before = self._running("worker")
        self._delete(before[0])
        self._until(
            "another worker runs", lambda: len(now := self._running("worker")) == 2 and before[0] not in now, START_S
        )

    def lose_actuator(self) -> None:
        actuators = [pod["metadata"]["name"] for pod in self._pods("app.kubernetes.io/component=actuator")]
        self._delete(actuators[0])
        self.lose_worker()

    def upgrade(self) -> None:
        old = {pod["metadata"]["uid"] for pod in self._services()}
        done = self._progress()
        values = self._values()
        values["defaults"]["podAnnotations"] = {"trial": "upgraded"}
        self._helm.upgrade(CHART, RELEASE, values, namespace=NAMESPACE, wait="watcher", timeout=INSTALL_S)
        self._until("the old pods are gone", lambda: not old & {pod["metadata"]["uid"] for pod in self._services()})
        self._until("training goes on", lambda: self._progress() > done)

    def complete(self) -> None:
        self._until("the job is over", lambda: self._status("trial").get("phase") not in ("Training", None), JOB_S)
        self._until("it has finished", lambda: self._status("trial").get("phase") == "Finished", 300)

    def uninstall(self) -> None:
        self._helm.uninstall(RELEASE, wait="watcher", timeout=INSTALL_S)
        ours = "app.kubernetes.io/part-of=stretto"
        self._until("no pod is left", lambda: not self._pods(ours), 120)

    # looking ---------------------------------------------------------------------------------------------------

    def books(self) -> str:
        audit = self._gateway("GET", "/jobs/trial/audit").json()
        if not audit.get("exact"):
            raise NodeError(f"the books of the job do not balance: {audit}")
        told = ("samples_total", "samples_done", "samples_lost", "samples_repeated", "columns", "columns_exact")
        return "exact, " + ", ".join(f"{name.replace('_', ' ')} {audit[name]}" for name in told)

    def _values(self) -> dict[str, Any]:
        return cluster.values(os.environ.get("STRETTO_VERSION", images.VERSION), SMALL)

    def _status(self, name: str) -> dict[str, Any]:
        found = self._node.get(f"{OBJECTS}/{name}") or {}
        status: dict[str, Any] = found.get("status") or {}
        if status.get("phase") in ("Failed", "Refused"):
            raise NodeError(f"{name}: {status}")
        return status

    def _progress(self) -> int:
        return int(self._status("trial").get("samplesDone") or 0)

    def _pods(self, selector: str) -> list[dict[str, Any]]:
        return self._node.pods(NAMESPACE, selector)

    def _services(self) -> list[dict[str, Any]]:
        return self._pods(f"app.kubernetes.io/instance={RELEASE}")

    def _running(self, role: str) -> list[str]:
        found = self._pods(f"stretto.dev/job=trial,stretto.dev/role={role}")
        return [
            pod["metadata"]["name"]
            for pod in found
            if pod["status"]["phase"] == "Running" and not pod["metadata"].get("deletionTimestamp")
        ]

    def _delete(self, pod: str) -> None:
        self._node.delete(cluster.path("pods", pod), params={"gracePeriodSeconds": 0})

    def _gateway(self, method: str, path: str, body: Any = None) -> httpx.Response:
        (address, *_) = cluster.addresses(self._node, f"{RELEASE}-gateway")
        headers = {"Authorization": f"Bearer {self._token}"}
        return httpx.request(method, f"http://{address}:8000/api/v1{path}", json=body, headers=headers, timeout=60)

    # telling ---------------------------------------------------------------------------------------------------

    def _until(self, what: str, true: Callable[[], Any], limit_s: float = 120.0) -> None:
        self._node.until(what, true, limit_s)

    def _step(self, what: str, act: Callable[[], None]) -> None:
        begin_s = time.monotonic()
        act()
        self._say(f"{what} ({time.monotonic() - begin_s:.1f} s)")

    def _say(self, line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._begin_s:7.1f} s  {line}\n")
        sys.stdout.flush()


def training_job(name: str, samples: int) -> dict[str, Any]:
    """Return a job with a small Wide & Deep model that fits one node."""
    arguments = {"samples": samples, "categories": 20000, "new_categories": 100000, "seed": 1}
    memory = {"min": "1Gi", "max": "2Gi"}
    spec = {
        "model": {"entry": "stretto.examples.wide_deep:WideDeep", "arguments": arguments},
        "dataset": {"samples": samples, "batch_size": 512, "batches_per_shard": 16, "seed": 1},
        "resources": {
            "workers": {"count": {"min": 1, "max": 2}, "cpu_cores": {"min": 0.4, "max": 0.4}, "memory": memory},
            "ps": {"count": {"min": 1, "max": 1}, "cpu_cores": {"min": 0.3, "max": 0.3}, "memory": memory},
        },
        "checkpoint": {"every_s": 30},
    }
    return {"apiVersion": "stretto.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": spec}
