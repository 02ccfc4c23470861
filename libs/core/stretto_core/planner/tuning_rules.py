"""The thresholds by which the number of data workers is tuned; the gateway tells effects over as many windows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TuningRules:
    """Thresholds of the tuning. Shares are parts of 1."""

    read_share_min: float = 0.05
    """Part of their time that workers wait for batches from which on data workers may pay."""
    busy: float = 0.9
    """Used part of the workers' cores from which on reading takes them from training."""
    cpu_share_min: float = 0.15
    """Part of the workers' cores that reading takes from which on data workers may pay, if the cores are busy."""
    spare: float = 0.1
    """Part by which data workers may prepare more than workers take."""
    same: float = 0.05
    """Part by which equal rates may differ."""
    again_share: float = 0.2
    """Part of their time that workers have to wait for another try, beyond their wait at the try that failed."""
    little: float = 0.25
    """Part of the promised gain below which more data workers bring too little."""
    windows: int = 2
    """Windows one after the other that have to tell the same."""
    silent_s: float = 300.0
    """Time without a lane after which the tuning expects no data worker to serve, and with too few lanes after which it
    expects no further one: an image may have to be pulled, and the user's code is imported, on a machine that is busy
    with others' imports."""
    patience_s: float = 60.0
    """Time for which a job may be slower than alone."""
    payback_s: float = 60.0
    """Least training that is left to a job that gets data workers: they have to import its code first."""
