"""The clock of a program that is measured; it imports no framework."""

import json
import time

WAIT_S = 0.1


class Clock:
    """Waits behind each step, as for an accelerator, for `steps` steps after the warm-up; then runs as many without.

    The last line of output has this process's CPU for a step of the first kind, and the steps per second of the second.
    """

    def __init__(self, steps, warm_s):
        self.steps, self.warm_s, self.marks, self.left, self.begun_s = steps, warm_s, [], 0, time.perf_counter()

    def is_over_behind_step(self):
        if len(self.marks) < 2:
            time.sleep(WAIT_S)
        self.left -= 1
        if self.left <= 0 and time.perf_counter() - self.begun_s >= self.warm_s:
            self.marks.append((time.perf_counter(), time.process_time()))
            self.left = self.steps
        if len(self.marks) < 3:
            return False
        (_, begun_cpu_s), (middle_s, middle_cpu_s), (ended_s, _) = self.marks
        cpu_ms = 1000 * (middle_cpu_s - begun_cpu_s) / self.steps
        print(json.dumps({"per_s": self.steps / (ended_s - middle_s), "cpu_ms": cpu_ms}), flush=True)
        return True
