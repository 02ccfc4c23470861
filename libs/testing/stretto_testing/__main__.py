"""``python -m stretto_testing``: histories of seeds, with progress; exit status 1 if a promise is broken."""

from __future__ import annotations

import argparse
import os
import sys
import time

from stretto_testing.history import Ending, History, shortest

SAYS_EVERY_S = 5.0


def main() -> int:
    """Run the histories that the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m stretto_testing", description=__doc__)
    parser.add_argument("--seed", type=int, help="one history")
    parser.add_argument("--seeds", default="0:100", help="histories from the first seed to before the last: 0:100")
    parser.add_argument("--trace", action="store_true", help="print everything that is stored and logged")
    parser.add_argument("--for-s", type=float, default=float("inf"), help="begin no further history after so long")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of a set of texts depends on it
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})
    if options.seed is not None:
        return _one(options.seed, options.trace)
    first, _, end = options.seeds.partition(":")
    return _many(range(int(first), int(end)), options.for_s)


def _one(seed: int, traced: bool) -> int:
    outcome = History(seed, tell=print if traced else None).run()
    _say_broken(outcome) if outcome.broken else _say(f"seed {seed}: every promise held ({outcome.digest:08x})")
    return 1 if outcome.broken else 0


def _many(seeds: range, for_s: float) -> int:
    began_s = said_s = time.monotonic()
    broken: list[Ending] = []
    simulated_s, done = 0.0, 0
    for seed in seeds:
        now_s = time.monotonic()
        if now_s - began_s > for_s:
            break
        outcome = History(seed).run()
        simulated_s, done = simulated_s + outcome.simulated_s, done + 1
        if outcome.broken:
            broken.append(outcome)
            _say_broken(shortest(outcome))
        if now_s - said_s > SAYS_EVERY_S:
            said_s = now_s
            _say(_progress(done, len(seeds), simulated_s, now_s - began_s))
    _say(_progress(done, len(seeds), simulated_s, time.monotonic() - began_s))
    _say(f"{len(broken)} of {done} histories broke a promise" + "".join(f" {each.seed}" for each in broken))
    return 1 if broken else 0


def _progress(done: int, of: int, simulated_s: float, took_s: float) -> str:
    rate = f"{done / took_s:.2f} seeds/s, {simulated_s / took_s:.0f} times real time"
    return f"{done} of {of} seeds, {simulated_s / 3600:.2f} simulated hours, {rate}"


def _say_broken(outcome: Ending) -> None:
    _say(f"seed {outcome.seed} breaks:")
    for text in (*outcome.broken[:10], *(f"  fault: {each}" for each in outcome.injected)):
        _say(f"  {text}")
    _say(f"  again: python -m stretto_testing --seed {outcome.seed} --trace")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
