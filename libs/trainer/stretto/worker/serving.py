"""A worker of a later stage: it computes steps for others, and leases no shard."""

from __future__ import annotations

import logging
import threading
import time

from ..engine.client import Parameters
from ..engine.link import Access
from ..errors import ModelRefused
from ..model.program import Program
from ..parts import FIRST_LAYER
from ..pod.process import EXIT_OK, PodSettings
from ..stages.asking import NextStage
from ..stages.serving import Served, Stage, StageServer
from .step_timer import StepTime, StepTimer

log = logging.getLogger("stretto.worker")


class ServedSteps:
    """The steps that a worker serves, and their times, which go to a timer of steps that are apart.

    ``address``: where the others reach it. It is warm from the beginning, for the next stage as it is known then.
    """

    def __init__(
        self, program: Program, settings: PodSettings, access: Access, following: NextStage, meter: StepTimer
    ) -> None:
        """Raises ModelRefused for a model that cannot be cut at the first layer."""
        self._meter = meter
        first = settings.first_layer
        if settings.stage == 1 and first != FIRST_LAYER:
            raise ModelRefused(
                f"STRETTO_FIRST_LAYER = {first} of stage 1: workers of stage 0 have the rows alone, layer 0; give the "
                f"group of stage 1 first_layer = {FIRST_LAYER}, and cut further between it and a stage 2"
            )
        self._stage = Stage(program.part, program.layout, first, following, time.monotonic, self._count)
        self._stage.part(following.first_layer).warm()
        self._server = StageServer(self._stage, settings.plane_address, access)
        self.address = self._server.address
        names = program.layers
        log.info("stage %d: layers from %d on, of %d (%s)", settings.stage, first, len(names), names[first].name)

    def run(self, parameters: Parameters, leaving: threading.Event) -> int:
        """Serve until the worker is to leave; return the exit code of its process."""
        self._stage.parameters = parameters
        leaving.wait()
        self._server.leave()
        return EXIT_OK

    def _count(self, served: Served) -> None:
        begun_s = served.ended_s - served.compute_s - served.exchange_s
        self._meter.step(begun_s, served.ended_s, 0, StepTime(gradient_s=served.compute_s, sync_s=served.exchange_s))
