"""The stations of the demonstration, recognised in the events of the job: nothing is taken on trust."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from stretto_messages.base import counted

Json = dict[str, Any]


@dataclass(slots=True)
class Station:
    """One thing that must happen. ``seen_s``: seconds after the job's submission."""

    title: str
    seen_s: float | None = None
    what: str = ""


@dataclass(slots=True)
class Watched(ABC):
    """A job of the demonstration, and the stations that its events have passed."""

    stations: dict[str, Station]
    ended: str | None = None
    _began_s: float = 0.0

    @abstractmethod
    def take(self, name: str, time_s: float, data: Json) -> None:
        """Fold in one event of the job."""

    def seen(self, name: str) -> bool:
        """Return whether a station has been passed."""
        return self.stations[name].seen_s is not None

    def _see(self, name: str, time_s: float, what: str) -> None:
        station = self.stations[name]
        if station.seen_s is None:
            station.seen_s, station.what = time_s - self._began_s, what


def _stations() -> dict[str, Station]:
    return {
        "warm-start": Station("started from the history"),
        "profile": Station("measured"),
        "fit": Station("throughput model fitted"),
        "scale-out": Station("a worker more, while it trains"),
        "migration": Station("number of parameter servers changed by live migration"),
        "memory": Station("out-of-memory foreseen and acted on"),
        "kill": Station("a worker killed (SIGKILL) and replaced"),
        "loss": Station("a parameter server killed (SIGKILL), its part back from a checkpoint"),
        "completion": Station("every sample trained exactly once"),
    }


@dataclass(slots=True)
class StoreCourse(Watched):
    """The job whose store turns slow, and fast again, and the data workers that come and go meanwhile."""

    stations: dict[str, Station] = field(
        default_factory=lambda: {
            "feeding": Station("the store turned slow: data workers came by themselves"),
            "fed": Station("workers waited no more"),
            "unfed": Station("the store was fast again: spare data workers went"),
            "spilled": Station("the model outgrew its server's memory: rows that are used least are on the disk"),
            "exact": Station("every sample of this job trained exactly once"),
        }
    )
    settled: int = 0
    """Settled windows before the store turned slow."""
    wanted: int = 0
    most: int = 0
    """Data workers that prepared batches at once."""
    alone_per_s: float = 0.0

    def take(self, name: str, time_s: float, data: Json) -> None:
        """Fold in one event of the job."""
        match name:
            case "job-submitted":
                self._began_s = time_s
            case "profile-measured" if data["settled"]:
                self._measured(time_s, data)
            case "data-workers-decided":
                self.wanted = data["count"]
            case "data-workers-changed":
                count = len(data["data_workers"])
                if count and count == self.wanted:
                    self._see("feeding", time_s, f"{count} of them prepare batches")
                if count < self.most and self.seen("fed"):
                    self._see("unfed", time_s, f"{self.most - count} of {self.most} were given back")
                self.most = max(self.most, count)
            case "job-finished":
                self.ended = "finished"
                if data["samples_lost"] == data["samples_repeated"] == 0:
                    self._see("exact", time_s, f"{data['samples_applied']:,} applied, none lost, none repeated")
            case "job-failed" | "job-cancelled":
                self.ended = name
            case _:
                pass

    def _measured(self, time_s: float, data: Json) -> None:
        self.settled += 1
        cold, pulled = (sum(server[name] for server in data["ps"]) for name in ("cold_rows", "rows_pulled"))
        if cold and pulled:
            rows, read = (sum(server[name] for server in data["ps"]) for name in ("categories", "rows_read"))
            self._see(
                "spilled", time_s, f"{cold:,} of {rows:,} rows; {read / pulled:.1%} of the rows of a step are read"
            )
        queue = data["feed"]
        if queue is None:
            return
        if not queue["lanes"] and queue["read_share"] > WAITING:
            self.alone_per_s = data["throughput"]
        if queue["lanes"] and self.seen("feeding") and data["throughput"] > self.alone_per_s > 0:
            rates = f"{self.alone_per_s:,.0f} → {data['throughput']:,.0f} samples/s"
            self._see("fed", time_s, f"{rates}, {data['prepared_elsewhere']:.0%} of the batches from data workers")


WAITING = 0.3
"""Part of their time that workers wait for batches from which on the store is the limit."""


@dataclass(slots=True)
class DemoCourse(Watched):
    """The stations of one job, and the state that the next ones wait for."""

    stations: dict[str, Station] = field(default_factory=_stations)
    killed_pod: str | None = None
    killed_requeued: bool = False
    killed_gone: bool = False
    killed_server: str | None = None
    _lost_s: float | None = None
    """When the killed server was gone."""
    applying: bool = False
    workers: int = 0
    ps: int = 0
    samples_done: int = 0
    samples_total: int = 1
    _pending: Json | None = None
    _memory_grown: bool = False

    def take(self, name: str, time_s: float, data: Json) -> None:
        """Fold in one event of the job."""
        if name == "job-submitted":
            self._began_s = time_s
        handle = getattr(self, "_on_" + name.replace("-", "_"), None)
        if handle is not None:
            handle(time_s, data)

    @property
    def complete(self) -> bool:
        """Return whether every station has been passed."""
        return all(station.seen_s is not None for station in self.stations.values())

    @property
    def share(self) -> float:
        """Return the share of the samples that are trained."""
        return self.samples_done / self.samples_total

    def _on_plan_decided(self, time_s: float, data: Json) -> None:
        self.applying, self._pending = True, data
        if data["kind"] == "warm-start" and len(data["reasons"]) > 1:
            self._see("warm-start", time_s, data["reasons"][0])
        previous = data["previous"]
        if data["kind"] == "memory" and previous and data["plan"]["ps_memory_bytes"] > previous["ps_memory_bytes"]:
            self._memory_grown = True

    def _on_pod_resized(self, time_s: float, data: Json) -> None:
        if self._memory_grown and data["pod"].startswith("ps-"):
            self._see("memory", time_s, f"{data['pod']} now has {data['memory_bytes'] / 2**20:.0f} MiB")

    def _on_plan_applied(self, time_s: float, data: Json) -> None:
        self.applying = False
        plan, decided = data["plan"], self._pending
        if decided and decided["version"] == data["version"] and decided["previous"]:
            before = decided["previous"]["workers"]
            if plan["workers"] > before:
                self._see("scale-out", time_s, f"{before} → {plan['workers']} workers in {data['took_s']:.1f} s")
        self.workers, self.ps = plan["workers"], plan["ps"]

    def _on_profile_measured(self, time_s: float, data: Json) -> None:
        if data["settled"]:
            self._see(
                "profile",
                time_s,
                f"{data['throughput']:,.0f} samples/s with {counted(data['plan']['workers'], 'worker')}",
            )

    def _on_model_fitted(self, time_s: float, data: Json) -> None:
        self._see("fit", time_s, f"RMSLE {data['rmsle']:.3f} over {counted(data['points'], 'window')}")

    def _on_migration_finished(self, time_s: float, data: Json) -> None:
        decided = self._pending
        if decided is None or not decided["previous"] or data["moved_bytes"] == 0:
            return
        if decided["plan"]["ps"] != decided["previous"]["ps"]:
            self._see(
                "migration",
                time_s,
                f"{decided['previous']['ps']} → {decided['plan']['ps']}, {data['moved_bytes'] / 2**20:.0f} MiB in "
                f"{data['took_s']:.1f} s, longest freeze {data['longest_freeze_s'] * 1000:.0f} ms",
            )

    def _on_pod_exited(self, time_s: float, data: Json) -> None:
        if data["pod"] == self.killed_pod and data["reason"] in ("killed", "vanished"):
            self.killed_gone = True
        if data["pod"] == self.killed_server and data["reason"] in ("killed", "vanished"):
            self._lost_s = time_s

    def _on_columns_restored(self, time_s: float, data: Json) -> None:
        if self._lost_s is not None:
            self._see(
                "loss", time_s, f"{data['columns']} columns after {time_s - self._lost_s:.1f} s; nobody else stopped"
            )

    def _on_checkpoint_restored(self, time_s: float, data: Json) -> None:
        if self._lost_s is not None:
            self._see("loss", time_s, f"all parameters and the books after {time_s - self._lost_s:.1f} s")

    def _on_shard_requeued(self, time_s: float, data: Json) -> None:
        if data["pod"] == self.killed_pod:
            self.killed_requeued = True

    def _on_pod_started(self, time_s: float, data: Json) -> None:
        if self.killed_gone and data["role"] == "worker" and data["cause"] == "relaunch":
            rest = "; the rest of its shard went to another" if self.killed_requeued else ""
            self._see("kill", time_s, f"{self.killed_pod} killed, {data['pod']} trains in its place{rest}")

    def _on_job_progressed(self, time_s: float, data: Json) -> None:
        self.samples_done, self.samples_total = data["samples_done"], data["samples_total"]

    def _on_job_finished(self, time_s: float, data: Json) -> None:
        self.ended = "finished"
        exact = (
            data["samples_lost"] == 0
            and data["samples_repeated"] == 0
            and data["samples_applied"] == data["samples_expected"]
        )
        if exact:
            self._see("completion", time_s, f"{data['samples_applied']:,} applied, none lost, none repeated")

    def _on_job_failed(self, time_s: float, data: Json) -> None:
        self.ended = "failed: " + data["reason"]

    def _on_job_cancelled(self, time_s: float, data: Json) -> None:
        self.ended = "cancelled"
