"""Recommender training jobs on shared nodes: decisions of the services, of users, of Optimus and ES (DLRover-RM).

Arrivals, durations and sizes come from logs of real clusters (Microsoft ITP and Philly). The module
``stretto_sim.cluster.arrivals`` draws the further needs of a recommender from the paper's published figures, the same
for every policy. Nodes are the paper's (32 cores, 192 GiB): at least 20, and so many that the logged jobs would fill
``LOAD`` of them while they come. Pods start in 300 s and a restart takes 180 s more (sections 2.2, 6.2). Completion
times are compared over the jobs that complete under both policies. A bar is for the mean over the traces, from three
places of each log, whose figures are in the note. With disturbances only the middle of each log is played.
"""

from __future__ import annotations

import csv
import gzip
import statistics
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from stretto_sim.cluster import (
    COMPLETED,
    Arrival,
    ClusterOutcome,
    ClusterTraceSettings,
    Policy,
    TraceJob,
    jobs_of,
    simulate,
)
from stretto_sim.cluster.elastic import ELASTIC
from stretto_sim.cluster.optimus import OPTIMUS, Optimus
from stretto_sim.cluster.policies import RESTARTING, STATIC, TUNED
from stretto_sim.cluster.stretto import COLD, STRETTO

from tests.bench.claims import Claim, at_least, at_most
from tests.bench.places import DATA
from tests.bench.rows import Row, row

LEAST_S, LOAD = 300.0, 0.8
JOBS = 50
LOGS = ("itp cluster03", "itp cluster07", "philly")
PLACES = (0.1, 0.5, 0.9)
"""places in each log from which the jobs are taken, as shares of it: near its begin, in the middle, near its end"""
TRACES = tuple((log, place) for log in LOGS for place in PLACES)
MIDDLES = tuple((log, PLACES[1]) for log in LOGS)
FIRST = MIDDLES[0]
Trace = tuple[str, float]
DISTURBED = {"pod_failures_per_day": 0.015, "straggler_rate": 0.07, "hot_rate": 0.08, "bug_rate": 0.05}
"""disturbances of sections 2.2 and 6.3"""
AT_ONCE = replace(OPTIMUS, session=lambda trace, settings: Optimus(trace, settings, step=None), period_s=600.0)
RUNS, RUN_GPUS, RUN_S = 6, 8, 27.74 * 60.0
"""duration of a model like Model-X: its tuned time in Fig. 7"""
ARRIVALS = "arrivals from three places of each of three real logs, the rest drawn from the paper's own figures"
DRAWN = "the disturbances are the paper's, what users ask for is drawn from its Fig. 3 and 14"
CPU = "Eq. 2 and 3 leave a core idle while a step looks up and exchanges: only the ratio compares"
CLAIMS = (
    Claim("DLRover-RM §6.1", "mean completion is below ES' by", "17.7 %", ARRIVALS, at_least(17.7),
          "mean completion below ES"),
    Claim("DLRover-RM §6.1", "mean completion is below Optimus' by", "28.5 %",
          f"{ARRIVALS}; less beside one that jumps to its target and samples for free", at_least(28.5),
          "mean completion below Optimus"),
    Claim("DLRover-RM §6.1", "completion of whole jobs is above the well-tuned ones' by", "1.4 %",
          "the search takes up to a quarter of the cluster for the last per cents; a change for less than 10 % is none",
          at_most(1.4), "completion above the well-tuned"),
    Claim("DLRover-RM §6.2", "warm start finds the last number of workers to", "92 %", "six runs of three models",
          at_least(92), "warm start: workers near the last number"),
    Claim("DLRover-RM §6.2", "and that of servers to", "85 %", "the same", at_least(85),
          "warm start: servers near the last number"),
    Claim("DLRover-RM §6.2", "warm start shortens the time of scaling by", "26 %",
          "here similar jobs always came before", at_least(26), "scaling time below a cold start's"),
    Claim("DLRover-RM §6.2, Fig. 12", "with a hot server, completion is below doing nothing by", "36.4 %",
          "from when it is hot is drawn", at_least(36.4), "completion with a hot server below doing nothing"),
    Claim("DLRover-RM §6.2, Fig. 12", "and below a restart by", "27.6 %",
          "the jobs that restart are tuned ones, and so faster from the start", at_least(27.6),
          "completion with a hot server below a restart"),
    Claim("DLRover-RM §6.2, Fig. 13", "with a straggler, completion is below doing nothing by", "48.5 %",
          "from when it is slow is drawn", at_least(48.5), "completion with a straggler below doing nothing"),
    Claim("DLRover-RM §6.2, Fig. 13", "and below a restart by", "37 %", "the same", at_least(37),
          "completion with a straggler below a restart"),
    Claim("DLRover-RM §6.3, Fig. 14", "jobs complete", "95 %, before 84 %", DRAWN, at_least(95), "jobs that complete"),
    Claim("DLRover-RM §6.3, Table 4", "jobs that run out of memory", "0.23 %, before 4.7 %", DRAWN, at_most(0.23),
          "jobs that run out of memory"),
    Claim("DLRover-RM §6.3, Fig. 14", "cores of workers are used more by", "19 to 40 %", CPU, at_least(40 / 19),
          "cores of workers at work"),
    Claim("DLRover-RM §6.3, Fig. 14", "cores of servers are used more by", "13 to 41.4 %", CPU, at_least(41.4 / 13),
          "cores of servers at work"),
    Claim("DLRover-RM §6.3, Fig. 14", "memory of workers is used more by", "15.2 to 46.8 %",
          "the services never take memory from workers", at_least(46.8 / 15.2), "memory of workers in use"),
    Claim("DLRover-RM §6.3, Fig. 14", "memory of servers is used more by", "13.8 to 31.1 %", DRAWN,
          at_least(31.1 / 13.8), "memory of servers in use"),
    Claim("DLRover-RM §6.3, Fig. 15", "median completion is below what users ask for by", "31 %", ARRIVALS,
          at_least(31), "median completion below what users ask for"),
    Claim("DLRover-RM §6.3, Fig. 15", "90th percentile is below by", "35.7 %", DRAWN, at_least(35.7),
          "90th percentile below what users ask for"),
)  # fmt: skip


def run() -> list[Row]:
    """Return the rows; one without figures where the data are absent."""
    if not DATA.exists():
        return [row("cluster of recommenders", float("nan"), "", "", None, "public data not found: not measured")]
    calm = {trace: _played(trace, {"stretto": STRETTO, "static": STATIC, "es": ELASTIC, "optimus": OPTIMUS,
                                   "at once": AT_ONCE}) for trace in TRACES}  # fmt: skip
    return [*_against(calm), *_dearer(), *_warm(calm), *_disturbed(), *_slow_pods()]


@cache
def _log(name: str) -> list[tuple[float, float, int]]:
    """Return submission (s), duration (s) and GPUs of the jobs that ran for ``LEAST_S`` on GPUs, by submission."""
    if name == "philly":
        rows = [
            (datetime.fromisoformat(row["timestamp"]).timestamp(), float(row["duration"]), int(row["num_gpus"]))
            for row in _read(DATA / "philly" / "philly_vcs_a.csv.gz")
        ]
    else:
        file = DATA / "microsoft-itp" / "raw" / f"{name.split()[-1]}.csv.gz"
        rows = [(float(r["submission_time"]), float(r["duration"]), int(r["num_gpu"])) for r in _read(file)]
    return sorted(row for row in rows if row[1] >= LEAST_S and row[2] >= 1)


def arrivals(trace: Trace, count: int = JOBS) -> list[Arrival]:
    """Return consecutive jobs of a real log; the first is submitted at 0."""
    log, place = _log(trace[0]), trace[1]
    skipped = round(place * (len(log) - count))
    kept = log[skipped : skipped + count]
    return [Arrival(when - kept[0][0], took, gpus) for when, took, gpus in kept]


def _read(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", newline="") as opened:
        return list(csv.DictReader(opened))


def cluster_for(coming: Sequence[Arrival], load: float = LOAD) -> ClusterTraceSettings:
    """Return a cluster whose nodes the jobs keep busy to that share, from the first submission to the last."""
    core_s = sum(8.0 * min(each.gpus, 16) * each.duration_s for each in coming)
    return ClusterTraceSettings(max(20, round(core_s / load / max(coming[-1].submit_s, 1.0) / 32)))


def _played(trace: Trace, policies: dict[str, Policy], **changes: float) -> dict[str, ClusterOutcome]:
    coming = arrivals(trace)
    jobs, settings = jobs_of(coming), replace(cluster_for(coming), **changes)  # type: ignore[arg-type]
    return {policy: simulate(jobs, how, settings) for policy, how in policies.items()}


def _paired(one: ClusterOutcome, other: ClusterOutcome) -> tuple[list[float], list[float]]:
    """Return the completion times of the jobs that complete in both outcomes."""
    both = [
        (a.completion_s, b.completion_s)
        for a, b in zip(one.jobs, other.jobs, strict=True)
        if a.how == b.how == COMPLETED
    ]
    return [a for a, _ in both], [b for _, b in both]


def less(one: ClusterOutcome, other: ClusterOutcome, of: Any = statistics.fmean) -> float:
    """Return the share by which ``one`` is shorter."""
    here, there = _paired(one, other)
    return 1 - of(here) / of(there)


def _against(calm: dict[Trace, dict[str, ClusterOutcome]]) -> list[Row]:
    """Compare the decisions alone: no pod dies, as in section 6.1."""
    rows = list[Row]()
    for other, title, of, bar in (
        ("es", "mean completion below ES", statistics.fmean, 0.177),
        ("optimus", "mean completion below Optimus", statistics.fmean, 0.285),
        ("static", "median completion below what users ask for", statistics.median, 0.31),
        ("at once", "mean completion below an Optimus that jumps", statistics.fmean, None),
    ):
        gains = {trace: less(found["stretto"], found[other], of) for trace, found in calm.items()}
        value = statistics.fmean(gains.values())
        note = "; ".join(f"{log} {' '.join(f'{gains[log, place]:.0%}' for place in PLACES)}" for log in LOGS)
        note += f"; above in {sum(gain < 0 for gain in gains.values())} of {len(gains)}"
        if bar is None:
            note += "; to its target in one step, every 10 min, five samples of every job for free"
        rows.append(row(title, 100 * value, "%", f"> {bar:.1%}" if bar else "", value > bar if bar else None,
                         f"{note}; {JOBS} jobs each, on {_nodes(calm)} nodes"))  # fmt: skip
    return rows


def _nodes(calm: dict[Trace, dict[str, ClusterOutcome]]) -> str:
    return " / ".join(str(found["stretto"].settings.nodes) for found in calm.values())


def _dearer() -> list[Row]:
    """Repeat with almost free restarts and pods; the remaining difference is not their price."""
    gains = list[str]()
    least = 1.0
    policies = {"stretto": STRETTO, "es": ELASTIC, "optimus": OPTIMUS, "static": STATIC}
    found = _played(FIRST, policies, pod_start_s=30.0, restart_s=15.0)
    for other, of in (("es", statistics.fmean), ("optimus", statistics.fmean), ("static", statistics.median)):
        gain = less(found["stretto"], found[other], of)
        least = min(least, gain)
        gains.append(f"{other} {gain:.1%}")
    note = f"{'; '.join(gains)}; pods start in 30 s, a restart takes 15 s; {FIRST[0]}"
    return [row("completion below the others', cheap restarts", 100 * least, "%", "", None, note)]


def _warm(calm: dict[Trace, dict[str, ClusterOutcome]]) -> list[Row]:
    """Run three models several times, one after another; compare the first plans of the last runs with a search."""
    jobs = _runs(3, RUNS)
    settings = ClusterTraceSettings(20)
    warm, cold, tuned = (simulate(jobs, policy, settings) for policy in (STRETTO, COLD, TUNED))
    last = range(3 * (RUNS - 1), 3 * RUNS)
    ratio = statistics.fmean(warm.jobs[n].completion_s / tuned.jobs[n].completion_s for n in last) - 1
    near = [_near(warm.jobs[n].first, warm.jobs[n].last) for n in last]
    workers, servers = (statistics.fmean(each[index] for each in near) for index in (0, 1))
    scaled, unscaled = (statistics.fmean(found.jobs[n].scaling_s for n in last) for found in (warm, cold))
    shorter = less(calm[FIRST]["stretto"], _played(FIRST, {"cold": COLD})["cold"])
    return [
        row("completion above the well-tuned", 100 * ratio, "%", "", None,
             f"published 1.4 %; last of {RUNS} runs of three models, on 20 nodes"),
        row("warm start: workers near the last number", 100 * workers, "%", "", None, "published 92 %"),
        row("warm start: servers near the last number", 100 * servers, "%", "", None, "published 85 %"),
        row("scaling time below a cold start's", 100 * (1 - scaled / max(unscaled, 1e-9)), "%", "> 26%",
             1 - scaled / max(unscaled, 1e-9) > 0.26,
             f"until the last change of counts or cores; completion {shorter:.1%} below, {FIRST[0]}"),
    ]  # fmt: skip


def _near(first: Any, last: Any) -> tuple[float, float]:
    """Return the ratios of the numbers of workers and of servers, the smaller over the larger."""
    return min(first[0], last[0]) / max(first[0], last[0]), min(first[1], last[1]) / max(first[1], last[1])


def _runs(models: int, runs: int, apart_s: float = 3 * 3600.0) -> list[TraceJob]:
    """Return the given number of runs of each model, one after another."""
    drawn = [jobs_of([Arrival(0.0, RUN_S, RUN_GPUS) for _ in range(runs)], seed) for seed in range(models)]
    return [replace(drawn[m][r], submit_s=r * apart_s,
                    metadata={**drawn[m][r].metadata, "model": f"model {m}"})
            for r in range(runs) for m in range(models)]  # fmt: skip


def _disturbed() -> list[Row]:
    """Repeat with pods that die or turn slow and jobs with bugs, at the paper's rates (sections 2.2, 6.3)."""
    found = [_played(trace, {"stretto": STRETTO, "static": STATIC}, **DISTURBED) for trace in MIDDLES]
    ours, theirs = ([each[name] for each in found] for name in ("stretto", "static"))

    def rate(outcomes: list[ClusterOutcome], cause: str = "") -> float:
        jobs = [job for outcome in outcomes for job in outcome.jobs]
        return sum(job.how == (cause or COMPLETED) for job in jobs) / len(jobs)

    def used(outcomes: list[ClusterOutcome], resource: str) -> float:
        return statistics.fmean(outcome.utilisation(resource) for outcome in outcomes)

    rows = [
        row("jobs that complete", 100 * rate(ours), "%", "> static's", rate(ours) > rate(theirs),
             f"static {rate(theirs):.1%}; published 95 % against 84 % below 100 cores; 5 % fail by their own fault"),
        row("jobs that run out of memory", 100 * rate(ours, "out of memory"), "%", "<= 0.23%",
             rate(ours, "out of memory") <= 0.0023,
             f"static {rate(theirs, 'out of memory'):.1%}; published 0.23 % against 4.7 %"),
    ]  # fmt: skip
    for resource, title, published in (
        ("worker_core", "cores of workers at work", "40 % against 19 %"),
        ("ps_core", "cores of servers at work", "41.4 % against 13 %"),
        ("worker_byte", "memory of workers in use", "46.8 % against 15.2 %"),
        ("ps_byte", "memory of servers in use", "31.1 % against 13.8 %"),
    ):
        here, there = used(ours, resource), used(theirs, resource)
        note = f"of what was given, beside static's; published {published}"
        rows.append(row(title, 100 * here, "%", "", None, note, baseline=100 * there))
    p90 = statistics.fmean(less(each["stretto"], each["static"], _p90) for each in found)
    rows.append(row("90th percentile below what users ask for", 100 * p90, "%", "", None,
                     "with these disturbances; published 35.7 %"))  # fmt: skip
    return rows


def _p90(values: list[float]) -> float:
    return sorted(values)[int(0.9 * (len(values) - 1))]


def _slow_pods() -> list[Row]:
    """Leave one pod 3 % of its cores from some moment on (section 6.2): no reaction, a restart, Stretto."""
    rows = list[Row]()
    for kind, slow, published in (("hot", "a hot server", (36.4, 27.6)), ("straggler", "a straggler", (48.5, 37.0))):
        settings = ClusterTraceSettings(20, **{f"{kind}_rate": 1.0})  # type: ignore[arg-type]
        jobs = [replace(job, submit_s=n * 86_400.0) for n, job in enumerate(_runs(4, 3))]
        played = [simulate(jobs, policy, settings) for policy in (STRETTO, TUNED, RESTARTING)]
        late = slice(8, None)
        ours, *others = (statistics.fmean(job.completion_s for job in found.jobs[late]) for found in played)
        for other, what, figure in zip(others, ("doing nothing", "a restart"), published, strict=True):
            note = f"published {figure:g} %; last runs of four models; the others' plans are tuned"
            rows.append(row(f"completion with {slow} below {what}", 100 * (1 - ours / other), "%", "", None, note))
    return rows
