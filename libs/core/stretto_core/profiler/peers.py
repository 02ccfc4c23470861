"""Who is slow beside its peers of the same job: straggling workers, hot parameter servers (DLRover-RM section 5).

Each judgement needs some windows in a row, and another threshold to be taken back. A straggler is told again when its
slowdown has changed, since its shards are cut by it. A hot server stays under watch once it was relieved: it is told
again when it is still too slow after a pause, and cleared when it keeps pace with fewer buckets, so that it gets some
back; each time it was hot it has to keep pace for twice as long before.

On a machine that is overloaded all servers are slow alike, yet the mean over some updates is that of the one that had
to wait: each looks hot now and then. So what speaks against a server is summed up over windows (Page's CUSUM, 1954),

    S <- max(0, S + n / (n + 20) (log2(own / peers') - log2(factor))),    n: updates of a peer in the window,

and it is hot from S = 4 on: after two windows at 30 times its peers', after many at little more than the factor.
``threshold``, for comparison, does without that sum.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from stretto_core.profiler.books import PodBook
from stretto_core.profiler.facts import (
    HotPsCleared,
    HotPsDetected,
    ProfilingRules,
    PsProfile,
    StragglerCleared,
    StragglerDetected,
    WorkerProfile,
)

DOUBLINGS_MAX = 4
EVIDENCE = 4.0
"""doublings beyond the factor, summed up over windows, from which on a server is hot; no window counts for more"""
FEW_UPDATES = 20
"""in a window, which then counts for half of what one with very many would"""
LIGHTER = 0.9
"""a server with fewer buckets than this times its peers' has given some away"""
FORGET = 0.2
"""weight of the last window in what is usual for a server without peers"""


Judgement = StragglerDetected | StragglerCleared | HotPsDetected | HotPsCleared


@dataclass(frozen=True, slots=True)
class Window:
    """What a window of ``seconds`` showed: the workers that trained, the servers unless parameters moved."""

    workers: list[WorkerProfile]
    servers: list[PsProfile]
    batch_size: int
    seconds: float


class Detector(Protocol):
    """Algorithms of the kind ``detect``: what is to be told after a window. ``books`` are those of the job's pods, in
    which it keeps what it has to remember."""

    def __call__(
        self, seen: Window, books: dict[str, PodBook], rules: ProfilingRules, now: float
    ) -> Iterator[Judgement]: ...


def cusum(seen: Window, books: dict[str, PodBook], rules: ProfilingRules, now: float) -> Iterator[Judgement]:
    """Hot is a server against which enough was summed up."""
    yield from judge_workers(seen.workers, books, seen.batch_size, rules)
    yield from judge_servers(seen.servers, books, seen.seconds, rules, now)


def threshold(seen: Window, books: dict[str, PodBook], rules: ProfilingRules, now: float) -> Iterator[Judgement]:
    """Hot is a server beyond the factor for some windows in a row, however many updates they had."""
    yield from judge_workers(seen.workers, books, seen.batch_size, rules)
    yield from judge_servers(seen.servers, books, seen.seconds, rules, now, least_evidence=0.0)


def judge_workers(
    workers: list[WorkerProfile], books: dict[str, PodBook], batch_size: int, rules: ProfilingRules
) -> Iterator[StragglerDetected | StragglerCleared]:
    """What is to be told after a window in which these workers trained."""
    if len(workers) < 2:
        return
    all_s = sorted(worker.step_time_s for worker in workers)
    for worker in workers:
        book, usual_s = books[worker.pod], max(_median_of_others(all_s, worker.step_time_s), 1e-9)
        slowdown = worker.step_time_s / usual_s
        slow, well = slowdown > rules.straggler_slowdown, slowdown < rules.cleared_slowdown
        other = book.told and _differs(slowdown, book.told_slowdown, rules.retold_factor)
        book.bad_windows = book.bad_windows + 1 if (other if book.told else slow) and not well else 0
        book.good_windows = book.good_windows + 1 if well else 0
        if book.told and book.good_windows >= rules.patience:
            book.told = False
            yield StragglerCleared(worker.pod)
        elif book.bad_windows >= rules.patience:
            book.told, book.told_slowdown, book.bad_windows = True, slowdown, 0
            own, of_peers = (batch_size / max(step_s, 1e-9) for step_s in (worker.step_time_s, usual_s))
            yield StragglerDetected(worker.pod, own, of_peers, max(slowdown, 1.0))


def _median_of_others(ordered: list[float], own: float) -> float:
    """The median of ``ordered``, at least two values, without one ``own`` of them."""
    others, place = len(ordered) - 1, bisect_left(ordered, own)
    high = others // 2
    upper = ordered[high + (high >= place)]
    return upper if others % 2 else (ordered[high - 1 + (high - 1 >= place)] + upper) / 2


def _differs(now: float, before: float, factor: float) -> bool:
    return not before / factor <= now <= before * factor


def judge_servers(
    servers: list[PsProfile],
    books: dict[str, PodBook],
    window_s: float,
    rules: ProfilingRules,
    now: float,
    least_evidence: float = EVIDENCE,
) -> Iterator[HotPsDetected | HotPsCleared]:
    """What is to be told after a window of ``window_s`` in which parameters did not move."""
    for server in servers:
        book = books[server.pod]
        peers = [other for other in servers if other.pod != server.pod and other.update_time_s > 0]
        own_s = server.update_time_s
        if peers and not own_s and server.buckets:
            own_s = window_s  # none ended in the window, while its peers' did
        usual_s = median(peer.update_time_s for peer in peers) if peers else book.usual_update_s
        hot, well = _hot(server, own_s, peers, usual_s, rules), 0 < own_s <= rules.cleared_slowdown * usual_s
        book.bad_windows = book.bad_windows + 1 if hot else 0
        book.good_windows = book.good_windows + 1 if well and not hot else 0
        if peers:
            updates = median(books[peer.pod].sums.count for peer in peers)
            said = EVIDENCE if _busy(server, peers, rules) else _doublings(own_s, rules.hot_factor * usual_s, updates)
            book.evidence = min(max(book.evidence + said, 0.0), EVIDENCE)
        paused = book.told and now - book.told_at_s < rules.hot_pause_s
        if len(servers) == 1 and own_s and not hot:
            usual_s = usual_s or own_s
            book.usual_update_s = usual_s + FORGET * (own_s - usual_s)
        sure = book.evidence >= least_evidence if peers else book.bad_windows >= 2 * rules.patience
        if sure and book.bad_windows >= rules.patience and not paused:
            book.told, book.told_at_s, book.times_hot = True, now, book.times_hot + 1
            yield HotPsDetected(server.pod, own_s, usual_s, server.cpu_used_cores, server.cpu_limit_cores)
        elif book.told and book.good_windows >= _long(book, window_s, rules):
            lighter = bool(peers) and server.buckets < LIGHTER * median(peer.buckets for peer in peers)
            book.told, book.good_windows = lighter, 0
            yield HotPsCleared(server.pod, own_s, usual_s)


def _hot(server: PsProfile, own_s: float, peers: list[PsProfile], usual_s: float, rules: ProfilingRules) -> bool:
    factor = rules.hot_factor if peers else rules.hot_alone_factor
    slow = usual_s > 0 and own_s > factor * usual_s
    return slow or _busy(server, peers, rules)


def _busy(server: PsProfile, peers: list[PsProfile], rules: ProfilingRules) -> bool:
    return bool(peers) and _load(server) > rules.hot_cpu and median(_load(peer) for peer in peers) < rules.cool_cpu


def _doublings(own_s: float, least_s: float, updates: float) -> float:
    """How often ``least_s`` has to be doubled to be ``own_s``, as far as so many updates tell."""
    if own_s <= 0:
        return 0.0
    return min(math.log2(own_s / least_s), EVIDENCE) * updates / (updates + FEW_UPDATES)


def _load(server: PsProfile) -> float:
    return server.cpu_used_cores / server.cpu_limit_cores if server.cpu_limit_cores > 0 else 0.0


def _long(book: PodBook, window_s: float, rules: ProfilingRules) -> int:
    """Windows: the pause, twice as long for each time that it was hot."""
    doublings = min(max(book.times_hot - 1, 0), DOUBLINGS_MAX)
    return math.ceil(rules.hot_pause_s * 2**doublings / max(window_s, 1e-9))
