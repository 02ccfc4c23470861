"""Logs points of metrics to a tracking server of MLflow, by its REST interface (2.0). A job is a run."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

from stretto_bus.reading.ordered_consumer import Stored

from stretto_forwarder.points import Points, points_of
from stretto_forwarder.posting import Poster
from stretto_forwarder.retrying import AttemptOutcome
from stretto_forwarder.settings import EndpointTarget

_TAG = "stretto.job"
_NO_PART_OF_A_NAME = re.compile(r"[^A-Za-z0-9_\-. :/]")
_LONGEST_NAME = 250


class _Refused(Exception):
    def __init__(self, outcome: AttemptOutcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


class Mlflow:
    """A tracking server. Its database keeps a point that comes again once: name, value, time and step are the same.

    The run of a job is found by its tag, so that a forwarder that starts again goes on with it.
    """

    def __init__(self, target: EndpointTarget, poster: Poster) -> None:
        self._experiment = target.endpoint.experiment
        self._poster = poster
        self._headers = {"content-type": "application/json", "user-agent": "stretto-forwarder"}
        for secret in target.secrets[:1]:
            self._headers["authorization"] = f"Bearer {secret.get_secret_value().decode()}"
        self._runs: dict[str, str] = {}

    async def send(self, stored: Stored, traceparent: str) -> AttemptOutcome:
        """Log the points of an event, and the end of its job. Raises WireError."""
        points = points_of(stored)
        try:
            await self._log(points)
        except _Refused as refused:
            self._runs.pop(points.job, None)  # it may have been deleted: it is looked up again
            return refused.outcome
        return AttemptOutcome(200, "logged")

    async def _log(self, points: Points) -> None:
        run = self._runs.get(points.job) or await self._run_of(points)
        if not run:
            return
        self._runs[points.job] = run
        at_ms = int(points.time_s * 1000)
        if points.values:
            metrics = [
                {"key": _NO_PART_OF_A_NAME.sub("_", name)[:_LONGEST_NAME], "value": value, "timestamp": at_ms,
                 "step": points.step}
                for name, value in points.values.items()
            ]  # fmt: skip
            await self._ask("runs/log-batch", {"run_id": run, "metrics": metrics})
        if points.end:
            await self._ask("runs/update", {"run_id": run, "status": points.end, "end_time": at_ms})
            del self._runs[points.job]

    async def _run_of(self, points: Points) -> str:
        """Return the id of a job's run, which is made if there is none; empty if there is nothing to log to it."""
        experiment = await self._experiment_id()
        asked = {"experiment_ids": [experiment], "filter": f"tags.`{_TAG}` = '{points.job}'", "max_results": 1}
        found = (await self._ask("runs/search", asked)).get("runs", [])
        if not found and not points.values:
            return ""
        made = {
            "experiment_id": experiment,
            "run_name": points.job,
            "start_time": int(points.time_s * 1000),
            "tags": [{"key": _TAG, "value": points.job}],
        }
        run: dict[str, Any] = found[0] if found else (await self._ask("runs/create", made))["run"]
        return str(run["info"]["run_id"])

    async def _experiment_id(self) -> str:
        name = self._experiment
        try:
            found = await self._ask(f"experiments/get-by-name?experiment_name={quote(name, safe='')}", None)
        except _Refused as refused:
            if refused.outcome.status != 404:
                raise
            return str((await self._ask("experiments/create", {"name": name}))["experiment_id"])
        return str(found["experiment"]["experiment_id"])

    async def _ask(self, what: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """Post a document, or get one where there is none to post. Raises _Refused."""
        content = b"" if body is None else json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        outcome = await self._poster.post(self._headers, content, f"/api/2.0/mlflow/{what}", method)
        try:
            answer = json.loads(outcome.body or b"{}")
        except ValueError:
            raise _Refused(AttemptOutcome(0, f"{what}: HTTP {outcome.status}, no JSON: is it MLflow?")) from None
        if not 200 <= outcome.status < 300 or not isinstance(answer, dict):
            told = str(answer.get("message", ""))[:300] if isinstance(answer, dict) else ""
            status = 0 if outcome.status < 300 else outcome.status  # an answer of another form is no delivery
            raise _Refused(AttemptOutcome(status, f"{what}: {outcome.reason} {told}", outcome.retry_after_s))
        return answer
