"""Detection of straggling workers and hot parameter servers by comparison with their peers (DLRover-RM section 5).

Each judgement needs some windows in a row, and another threshold to be taken back. A straggler is published again when
its slowdown has changed, since the size of its shards follows it. A hot server stays under watch once it was relieved:
it is published again when it is still too slow after a pause, and cleared when it keeps pace with fewer buckets, so
that it gets some back. Each time it was hot, it has to keep pace for twice as long before it is cleared.

On an overloaded machine all servers are equally slow, yet the mean over a few updates depends on the one that had to
wait: each server looks hot now and then. Evidence against a server is therefore accumulated over windows (Page's CUSUM,
Biometrika 1954),

    S <- max(0, S + n / (n + 20) (log2(own / peers') - log2(factor))),    n: updates of a peer in the window,

and the server is hot from S = 4 on: after two windows at 30 times its peers' update time, after many at little more
than the factor. The detector ``threshold``, for comparison, does without that sum.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from stretto_messages.profiler import HotPsCleared, HotPsDetected, StragglerCleared, StragglerDetected
from stretto_messages.values import PsProfile, WorkerProfile

from stretto_core.profiler.state import PodWindow, ProfilingRules

DOUBLINGS_MAX = 4
"""The pause before a server is cleared doubles at most this often. Taste."""
EVIDENCE = 4.0
"""Value of the CUSUM, in doublings beyond the factor, from which on a server is hot; no window counts for more."""
FEW_UPDATES = 20
"""Updates at which a window counts for half of a window with very many."""
LIGHTER = 0.9
"""A server with fewer buckets than this share of its peers' median has given some away."""
FORGET = 0.2
"""Weight of the last window in the baseline of a server without peers."""


Judgement = StragglerDetected | StragglerCleared | HotPsDetected | HotPsCleared


@dataclass(frozen=True, slots=True)
class ClosedWindow:
    """One window of a job over ``seconds``: workers that trained; servers, unless parameters moved."""

    job: str
    workers: list[WorkerProfile]
    servers: list[PsProfile]
    batch_size: int
    seconds: float


class Detector(Protocol):
    """Algorithm of the kind ``detect``: judges the pods after each window.

    ``pods`` are those of the job; the detector keeps there what it has to remember.
    """

    def __call__(
        self, window: ClosedWindow, pods: dict[str, PodWindow], rules: ProfilingRules, now: float
    ) -> Iterator[Judgement]: ...


def cusum(window: ClosedWindow, pods: dict[str, PodWindow], rules: ProfilingRules, now: float) -> Iterator[Judgement]:
    """Judge a server hot once enough evidence was accumulated against it."""
    yield from judge_workers(window, pods, rules)
    yield from judge_servers(window, pods, rules, now)


def threshold(
    window: ClosedWindow, pods: dict[str, PodWindow], rules: ProfilingRules, now: float
) -> Iterator[Judgement]:
    """Judge a server hot beyond the factor for some windows in a row, however few updates they had."""
    yield from judge_workers(window, pods, rules)
    yield from judge_servers(window, pods, rules, now, least_evidence=0.0)


def judge_workers(
    window: ClosedWindow, pods: dict[str, PodWindow], rules: ProfilingRules
) -> Iterator[StragglerDetected | StragglerCleared]:
    """Compare each worker with the median of the others that have the same stage and the same devices."""
    for alike in sorted({(worker.stage, worker.device) for worker in window.workers}):
        same = [worker for worker in window.workers if (worker.stage, worker.device) == alike]
        if len(same) > 1:
            yield from _judge_alike(window, same, pods, rules)


def _judge_alike(
    window: ClosedWindow, workers: list[WorkerProfile], pods: dict[str, PodWindow], rules: ProfilingRules
) -> Iterator[StragglerDetected | StragglerCleared]:
    all_s = sorted(worker.step_time_s for worker in workers)
    for worker in workers:
        pod = pods[worker.pod]
        usual_s = max(_median_of_others(all_s, worker.step_time_s), 1e-9)
        slowdown = worker.step_time_s / usual_s
        slow, well = slowdown > rules.straggler_slowdown, slowdown < rules.cleared_slowdown
        changed = pod.published and _differs(slowdown, pod.published_slowdown, rules.repeat_factor)
        pod.bad_windows = pod.bad_windows + 1 if (changed if pod.published else slow) and not well else 0
        pod.good_windows = pod.good_windows + 1 if well else 0
        if pod.published and pod.good_windows >= rules.patience:
            pod.published = False
            yield StragglerCleared(job=window.job, pod=worker.pod)
        elif pod.bad_windows >= rules.patience:
            pod.published, pod.published_slowdown, pod.bad_windows = True, slowdown, 0
            yield StragglerDetected(
                job=window.job,
                pod=worker.pod,
                samples_per_s=window.batch_size / max(worker.step_time_s, 1e-9),
                peers_samples_per_s=window.batch_size / usual_s,
                slowdown=max(slowdown, 1.0),
            )


def _median_of_others(ordered: list[float], own: float) -> float:
    """Return the median of ``ordered``, at least two values, without one ``own`` of them."""
    others, place = len(ordered) - 1, bisect_left(ordered, own)
    high = others // 2
    upper = ordered[high + (high >= place)]
    return upper if others % 2 else (ordered[high - 1 + (high - 1 >= place)] + upper) / 2


def _differs(now: float, before: float, factor: float) -> bool:
    return not before / factor <= now <= before * factor


def judge_servers(
    window: ClosedWindow,
    pods: dict[str, PodWindow],
    rules: ProfilingRules,
    now: float,
    least_evidence: float = EVIDENCE,
) -> Iterator[HotPsDetected | HotPsCleared]:
    """Compare each server with the median of the others, or with its own baseline where there are none."""
    servers = window.servers
    for server in servers:
        pod = pods[server.pod]
        peers = [other for other in servers if other.pod != server.pod and other.update_time_s > 0]
        own_s = server.update_time_s
        if peers and not own_s and server.buckets:
            own_s = window.seconds  # it finished no update in the window, while its peers did
        usual_s = median(peer.update_time_s for peer in peers) if peers else pod.baseline_update_s
        hot, well = _hot(server, own_s, peers, usual_s, rules), 0 < own_s <= rules.cleared_slowdown * usual_s
        pod.bad_windows = pod.bad_windows + 1 if hot else 0
        pod.good_windows = pod.good_windows + 1 if well and not hot else 0
        if peers:
            updates = median(pods[peer.pod].sums.count for peer in peers)
            added = EVIDENCE if _busy(server, peers, rules) else _doublings(own_s, rules.hot_factor * usual_s, updates)
            pod.evidence = min(max(pod.evidence + added, 0.0), EVIDENCE)
        paused = pod.published and now - pod.published_at_s < rules.hot_pause_s
        if len(servers) == 1 and own_s and not hot:
            usual_s = usual_s or own_s
            pod.baseline_update_s = usual_s + FORGET * (own_s - usual_s)
        sure = pod.evidence >= least_evidence if peers else pod.bad_windows >= 2 * rules.patience
        if sure and pod.bad_windows >= rules.patience and not paused:
            pod.published, pod.published_at_s, pod.times_hot = True, now, pod.times_hot + 1
            yield HotPsDetected(
                job=window.job,
                pod=server.pod,
                update_time_s=own_s,
                peers_update_time_s=usual_s,
                cpu_used_cores=server.cpu_used_cores,
                cpu_limit_cores=server.cpu_limit_cores,
            )
        elif pod.published and pod.good_windows >= _windows_to_clear(pod, window.seconds, rules):
            lighter = bool(peers) and server.buckets < LIGHTER * median(peer.buckets for peer in peers)
            pod.published, pod.good_windows = lighter, 0
            yield HotPsCleared(job=window.job, pod=server.pod, update_time_s=own_s, peers_update_time_s=usual_s)


def _hot(server: PsProfile, own_s: float, peers: list[PsProfile], usual_s: float, rules: ProfilingRules) -> bool:
    factor = rules.hot_factor if peers else rules.hot_alone_factor
    slow = usual_s > 0 and own_s > factor * usual_s
    return slow or _busy(server, peers, rules)


def _busy(server: PsProfile, peers: list[PsProfile], rules: ProfilingRules) -> bool:
    return bool(peers) and _load(server) > rules.hot_cpu and median(_load(peer) for peer in peers) < rules.cool_cpu


def _doublings(own_s: float, least_s: float, updates: float) -> float:
    """Return log2(own_s / least_s), weighted by the number of updates behind it."""
    if own_s <= 0:
        return 0.0
    return min(math.log2(own_s / least_s), EVIDENCE) * updates / (updates + FEW_UPDATES)


def _load(server: PsProfile) -> float:
    return server.cpu_used_cores / server.cpu_limit_cores if server.cpu_limit_cores > 0 else 0.0


def _windows_to_clear(pod: PodWindow, window_s: float, rules: ProfilingRules) -> int:
    """Return the pause in windows; it doubles with each time that the server was hot."""
    doublings = min(max(pod.times_hot - 1, 0), DOUBLINGS_MAX)
    return math.ceil(rules.hot_pause_s * 2**doublings / max(window_s, 1e-9))
