"""Live through histories of seeds, with progress; the exit status is 1 if a promise is broken."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import time

from stretto_testing.faults.injected import PAIRS
from stretto_testing.history import Ending, History, shortest

SAYS_EVERY_S = 5.0


def main() -> int:
    """Run the histories that the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m stretto_testing", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="one history")
    which.add_argument(
        "--seeds", type=_range, default="0:100", help="histories from a seed to before another one; without it 0:100"
    )
    parser.add_argument("--trace", action="store_true", help="of one history, print all that is stored and logged")
    parser.add_argument("--for-s", type=float, default=float("inf"), help="seconds after which no history begins")
    options = parser.parse_args()
    if options.trace and options.seed is None:
        parser.error("--trace is of one history: give its --seed")
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of a set of texts depends on it
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})
    if options.seed is not None:
        with contextlib.suppress(BrokenPipeError):  # `| head`
            return _one(options.seed, options.trace)
        os._exit(0)
    return _many(options.seeds, options.for_s)


def _range(text: str) -> range:
    """Parse FIRST:END. Raises ArgumentTypeError."""
    found = re.fullmatch(r"([0-9]+):([0-9]+)", text)
    seeds = range(int(found[1]), int(found[2])) if found else range(0)
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text} names no seed; give FIRST:END, as in 0:100")
    return seeds


def _one(seed: int, traced: bool) -> int:
    outcome = History(seed, tell=print if traced else None).run()
    _say_broken(outcome) if outcome.broken else _say(f"seed {seed}: every promise held ({outcome.digest:08x})")
    return 1 if outcome.broken else 0


def _many(seeds: range, for_s: float) -> int:
    began_s = said_s = time.monotonic()
    broken: list[Ending] = []
    covered: set[tuple[str, str]] = set()
    simulated_s, done = 0.0, 0
    for seed in seeds:
        now_s = time.monotonic()
        if now_s - began_s > for_s:
            break
        outcome = History(seed).run()
        simulated_s, done = simulated_s + outcome.simulated_s, done + 1
        covered |= outcome.covered
        if outcome.broken:
            broken.append(outcome)
            _say_broken(shortest(outcome))
        if now_s - said_s > SAYS_EVERY_S:
            said_s = now_s
            _say(_progress(done, len(seeds), simulated_s, now_s - began_s))
    _say(_progress(done, len(seeds), simulated_s, time.monotonic() - began_s))
    _say(f"{len(covered)} of {PAIRS} pairs of a fault and the state that it found")
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
