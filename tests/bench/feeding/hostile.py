"""A trainer that lanes feed while another process attacks them: steps per second beside those without the attacker.

The attacker (the trainer's hostile_peers.py) tries other keys, a replayed handshake, requests beyond the limit,
slow strangers and 10,000 damaged frames with the job's key. A lane of its own answers the trainer's requests with
arrays of objects, with shapes that do not fit, and with schemas that are too large. It has the lowest priority, since
it would run elsewhere: measured is the cost to lanes and trainer. The slow store of the module ``feeding`` sets the
pace. Rounds with and without it take turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import Any

from stretto.batches.preparation import fingerprint_of

from tests.bench.feeding.feeding import BATCH, HIDDEN, STORE_S, WARM, Bench, bench
from tests.bench.places import ROOT
from tests.bench.rows import Row, row

ATTACKER = ROOT / "libs" / "trainer" / "tests" / "helpers" / "hostile_peers.py"
LANES, ROUNDS, FRAMES, STEPS = 4, 4, 10_000, 500
FRAMES_PER_S = 250.0
RATIO_BAR = 0.95


def run() -> list[Row]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with bench(LANES, hidden=HIDDEN, samples_per_s=BATCH / STORE_S) as fed:
        command = ["nice", "-n", "19", sys.executable, str(ATTACKER), *fed.lanes.addresses]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attacker:
            try:
                return _measured(fed, attacker)
            finally:
                attacker.kill()


def _measured(fed: Bench, attacker: subprocess.Popen[str]) -> list[Row]:
    _say(attacker, fed.access.key.pem.decode())
    wrong = _heard(attacker)
    before = fed.lanes.pids
    fed.use(fed.lanes.addresses)
    fed.steps(WARM)
    quiet, attacked, told = [], [], []
    for number in range(ROUNDS):
        quiet.append(fed.per_s(STEPS))
        _use(fed, (*fed.lanes.addresses, wrong))
        _say(attacker, {"frames": FRAMES // ROUNDS, "per_s": FRAMES_PER_S, "seed": number})
        attacked.append(fed.per_s(STEPS))
        told.append(_heard(attacker))
        _use(fed, fed.lanes.addresses)
    tried = {name: sum(each["tried"][name] for each in told) for name in told[0]["tried"]}
    accepted = sum(each["accepted"] for each in told)
    stayed = fed.lanes.pids == before and not fed.feed.differing and all(each["honest"] for each in told)
    ratio = statistics.median(one / other for one, other in zip(attacked, quiet, strict=True))
    attempts = ", ".join(f"{count} {name}" for name, count in tried.items())
    took_s = statistics.median(each["took_s"] for each in told)
    note = (
        f"{FRAMES / ROUNDS / took_s:.0f} damaged frames/s, {told[-1]['nonsense']} answers of a wrong lane; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    return [
        row("hostile peers and frames accepted by lanes", accepted, "", "0", accepted == 0, attempts),
        row("lanes and trainer that stayed up under attack", float(stayed), "", "1", stayed, "no lane began anew"),
        row("steps/s with lanes, attacked / not", statistics.median(attacked), "1/s", f">= {RATIO_BAR:g} ×",
            ratio >= RATIO_BAR, note, statistics.median(quiet), ratio),
    ]  # fmt: skip


def _use(fed: Bench, addresses: tuple[str, ...]) -> None:
    """Use these lanes from now on; those that stay are asked without a break."""
    fed.feed.use(addresses, fed.access, fingerprint_of(fed.spec.model_dump(mode="json"), fed.program.task))


def _say(attacker: subprocess.Popen[str], message: Any) -> None:
    assert attacker.stdin is not None
    print(json.dumps(message), file=attacker.stdin, flush=True)


def _heard(attacker: subprocess.Popen[str]) -> Any:
    assert attacker.stdout is not None
    return json.loads(attacker.stdout.readline())


if __name__ == "__main__":
    for each in run():
        print(each)
