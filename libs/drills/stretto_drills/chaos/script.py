"""``stretto chaos`` from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto_bus import Client
from stretto_cli.errors import CliError
from stretto_cli.options import connect, print_json
from stretto_installation.one_machine.state import read_state
from stretto_installation.server import keys_of
from stretto_runtime.process.telemetry import configure_logs

from ..story import Story
from . import job, place, report, timeline
from .course import ChaosCourse, JobEnd
from .place import PlaceUnderFire
from .record import StreamRecord
from .schedule import SPILLING, STAGED, Intensity, Schedule, draw, kinds_for, samples_for, training_s_for
from .target import ChaosTarget

READY_S = 60.0
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wish:
    """The user's options. ``folder``: a running installation; None: one of its own.

    The own installation is removed when every job was exact, unless ``keep``.
    """

    seed: int
    schedules: int
    undisturbed: int
    intensity: Intensity
    only: tuple[str, ...]
    without: tuple[str, ...]
    model: str
    samples: int | None
    folder: Path | None
    report: Path | None
    keep: bool = False

    @property
    def command(self) -> str:
        """Return the command line that gives the same schedules again."""
        words = ["stretto chaos", f"--seed {self.seed}", f"--intensity {self.intensity}"]
        words += [f"--schedules {self.schedules}"] if self.schedules > 1 else []
        words += [f"--undisturbed {self.undisturbed}"] if self.undisturbed else []
        words += [f"--only {kind}" for kind in self.only] + [f"--without {kind}" for kind in self.without]
        words += [f"--model {self.model}"] if self.model != "wide_deep" else []
        words += [f"--samples {self.samples}"] if self.samples else []
        return " ".join(words)


def main(wish: Wish, quiet: bool) -> int:
    """Run all jobs; returns exit status 0 only if every one completed with nothing lost and nothing repeated."""
    story = Story(quiet)
    configure_logs("chaos", "critical")  # the bus breaks on purpose here
    story.tell(f"[bold]{wish.command}[/bold]")
    chosen = place.of_our_own(story.tell) if wish.folder is None else place.of_the_user(wish.folder, story.tell)
    with chosen as where:
        document = asyncio.run(_Runs(wish, where, story).all())
        where.spent = document["passed"] and not wish.keep
    if quiet:
        print_json(document)
    else:
        if len(document["runs"]) > 1:
            story.console.print()
            story.console.print(report.summary(document))
        story.console.print(f"\n{document['timeline']}")
    return 0 if document["passed"] else 1


@dataclass(slots=True)
class _Runs:
    """All jobs of a run, one after another, in one installation."""

    wish: Wish
    place: PlaceUnderFire
    story: Story

    async def all(self) -> Json:
        """Run all jobs and return the report, which is rewritten after each: an interrupted run keeps it."""
        wish, story = self.wish, self.story
        kinds = kinds_for(wish.only, wish.without)
        seeds = range(wish.seed, wish.seed + wish.schedules)
        schedules = [*[None] * wish.undisturbed, *(draw(seed, wish.intensity, kinds) for seed in seeds)]
        outcomes: list[JobEnd] = []
        document: Json = {}
        for number, schedule in enumerate(schedules, start=1):
            outcome = await self._one(number, schedule)
            outcomes.append(outcome)
            document = self._write(outcomes)
            story.console.print()
            story.console.print(report.of_run(document["runs"][-1]))
            if not outcome.record.ended:
                break  # it may still hold resources that the next job needs
        return document

    def _write(self, outcomes: list[JobEnd]) -> Json:
        wish = self.wish
        page = (wish.report or self.place.page).resolve()
        where = {"command": wish.command, "seed": wish.seed, "folder": str(self.place.folder), "timeline": str(page)}
        document = report.build(outcomes, where)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(timeline.page(document, outcomes))
        page.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n")
        return document

    async def _one(self, number: int, schedule: Schedule | None) -> JobEnd:
        name = f"calm-{number}" if schedule is None else f"chaos-{schedule.seed}"
        if self.wish.folder is not None:  # a name belongs to one job for ever
            name = f"{name}-{secrets.token_hex(3)}"
        what = (
            "undisturbed"
            if schedule is None
            else (f"seed {schedule.seed}, {schedule.intensity}: {len(schedule.planned)} faults and changes")
        )
        self.story.chapter(f"{name}, {what}")
        self.place.mark(name)
        folder = self.place.folder
        nats_url = read_state(folder)["nats_url"]
        client = await Client.connect(nats_url, keys_of(folder / "nats").login(), "chaos")
        try:
            target = ChaosTarget(
                folder, StreamRecord(name), client, self.place.memory, shared=self.wish.folder is not None
            )
            await self._ready(target)
            intensity = self.wish.intensity
            samples = self.wish.samples or samples_for(intensity)
            kinds = {each.kind for each in schedule.planned} if schedule else set[str]()
            spills = bool(kinds & SPILLING)
            has_policy = spills and schedule is not None and schedule.seed % 2 == 1
            # types of devices are those of our own installation; steps of stages push each batch by itself
            is_staged = bool(kinds & STAGED) and self.wish.folder is None and not has_policy
            where = {"data_workers": job.DATA_WORKERS, "spills": spills, "has_policy": has_policy}
            where["is_staged"] = is_staged
            spec = job.spec(name, self.wish.model, samples, training_s_for(intensity), **where)
            return await ChaosCourse(target, schedule, self.story.tell).run(spec)
        except asyncio.CancelledError:
            if self.wish.folder is not None:  # our own installation is taken down with all its jobs
                await asyncio.to_thread(self._end, name)
            raise
        finally:
            await client.close()

    def _end(self, name: str) -> None:
        """Cancel our job."""
        with contextlib.suppress(CliError), connect(self.place.folder, None, None) as gateway:
            gateway.cancel(name, "the chaos run was interrupted")

    async def _ready(self, target: ChaosTarget) -> None:
        """Wait until all processes are ready: the last fault of the previous job must not hit this one."""
        deadline = asyncio.get_running_loop().time() + READY_S
        for name in read_state(target.folder)["processes"]:
            while not await target.ready(name):
                if asyncio.get_running_loop().time() > deadline:
                    raise CliError(f"{name} is not ready after {READY_S:.0f} s; see {target.folder / 'logs'}")
                await asyncio.sleep(0.1)
