"""The stations of the acts with PyTorch, recognised in the events of their jobs."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto_client import figures

from ..stations import DemoCourse, Json, Station, Watched


def _of_ranks() -> dict[str, Station]:
    return {
        "warm-start": Station("started from the history of scripts like it"),
        "profile": Station("measured"),
        "fit": Station("throughput model fitted"),
        "scale-out": Station("a rank more, of the same script"),
        "speed": Station("faster, beside what was predicted"),
        "kill": Station("a rank killed (SIGKILL) and replaced"),
        "completion": Station("each sample counts once in the parameters"),
    }


@dataclass(slots=True)
class RanksCourse(DemoCourse):
    """The script of several ranks, which goes back to its last checkpoint where one of them is lost."""

    stations: dict[str, Station] = field(default_factory=_of_ranks)

    def _on_profile_measured(self, time_s: float, data: Json) -> None:
        DemoCourse._on_profile_measured(self, time_s, data)
        ranks, decided = data["plan"]["workers"], self._pending
        if data["settled"] and ranks > 1 and self.seen("scale-out") and decided:
            predicted = f"; {figures.rate(decided['throughput'])} predicted" if decided["throughput"] else ""
            self._see("speed", time_s, f"{figures.rate(data['throughput'])} with {ranks} ranks{predicted}")

    def _on_job_finished(self, time_s: float, data: Json) -> None:
        self.ended = "finished"
        if data["samples_lost"] == 0 and data["samples_applied"] == data["samples_expected"]:
            self._see("completion", time_s, f"{data['samples_applied']:,} trained, none lost, none counted twice")


@dataclass(slots=True)
class GrowingCourse(Watched):
    """The command that knows nothing of Stretto, and whose memory grows."""

    stations: dict[str, Station] = field(
        default_factory=lambda: {
            "forecast": Station("out-of-memory foreseen"),
            "grown": Station("more memory for it, while it runs"),
            "ended": Station("the command ended by itself"),
        }
    )
    killed: bool = False

    def take(self, name: str, time_s: float, data: Json) -> None:
        """Fold in one event of the job."""
        match name:
            case "job-submitted":
                self._began_s = time_s
            case "plan-decided" if data["kind"] == "memory":
                self._see("forecast", time_s, data["reasons"][0])
            case "pod-resized" if self.seen("forecast"):
                self._see("grown", time_s, f"{data['pod']} now has {figures.size(data['memory_bytes'])}")
            case "pod-exited":
                self.killed |= data["reason"] not in ("completed", "stopped")
            case "job-finished":
                self.ended = "finished"
                if not self.killed:
                    self._see("ended", time_s, "with status 0, in its first process")
            case "job-failed" | "job-cancelled":
                self.ended = name
            case _:
                pass
