"""Plays a generated curve against the memory watch, with an obedient actuator that takes its time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from curves import Curve
from stretto_core.machine import Emit
from stretto_core.memory import (
    LimitChanged,
    MemoryMeasured,
    OomForecast,
    OomMachine,
    ProgressSeen,
    ServerMeasured,
    WatchOpened,
    WatchSettings,
)

STEP_S = 10.0


@dataclass
class Outcome:
    """What happened to one job. ``end_error`` and ``covered``: of the forecast at the first third."""

    would_oom: bool
    oom: bool
    foreseen: bool
    over_provision: float
    worst_request: float
    requests: int
    end_error: float
    covered: bool


def play(curve: Curve, limit_share: float, delay: int = 2, shrink: bool = True) -> Outcome:
    """Start with ``limit_share`` of what the job needs in the end; requests take effect ``delay`` windows later."""
    moments, servers = curve.rows.shape
    limit = int(curve.need_bytes * limit_share)
    initial = limit
    machine = OomMachine(None, WatchSettings(lead_s=4 * STEP_S))
    total = int(curve.samples[-1])
    machine.handle(WatchOpened(total, curve.row_bytes, 2**20, 2**44), 0.0)
    pending: list[tuple[int, int]] = []
    oom = foreseen = False
    requests, worst, third = 0, 0.0, None
    for moment in range(moments):
        now = 1000 + STEP_S * moment
        for due, wanted in [p for p in pending if p[0] <= moment]:
            limit = wanted
            machine.handle(LimitChanged(limit), now)
            pending.remove((due, wanted))
        if (curve.used_bytes[moment] >= limit).any():
            oom = True
            break
        done = int(curve.samples[moment])
        recent = max(0, moment - 5)
        rate = (done - int(curve.samples[recent])) / (STEP_S * max(1, moment - recent)) or 1.0
        machine.handle(ProgressSeen(done, total, rate), now)
        measured = tuple(
            ServerMeasured(f"ps-{i}", int(u), limit, int(r), 64 // servers)
            for i, (u, r) in enumerate(zip(curve.used_bytes[moment], curve.rows[moment], strict=True))
        )
        for action in machine.handle(MemoryMeasured(measured), now):
            assert isinstance(action, Emit)
            said: OomForecast = action.fact
            foreseen |= any(server.oom_at_samples is not None for server in said.servers) or said.action == "grow"
            if said.action == "grow" or (said.action == "shrink" and shrink):
                pending.append((moment + delay, said.recommended_bytes))
                requests += 1
                if said.action == "grow":
                    worst = max(worst, said.recommended_bytes / curve.need_bytes)
            if moment <= moments // 3:
                third = said
    end_error, covered = np.nan, True
    if third is not None:
        need = curve.used_bytes[-1]
        ends = {server.pod: server for server in third.servers}
        largest = int(need.argmax())
        told = ends[f"ps-{largest}"]
        end_error = told.at_end_bytes / need[largest] - 1
        covered = told.at_end_low_bytes <= need[largest] <= told.at_end_high_bytes
    return Outcome(
        would_oom=curve.need_bytes >= initial,
        oom=oom,
        foreseen=foreseen,
        over_provision=limit / curve.need_bytes - 1,
        worst_request=worst,
        requests=requests,
        end_error=end_error,
        covered=bool(covered),
    )
