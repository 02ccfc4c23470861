"""A program as anybody has it, that knows nothing of Stretto: it keeps all that it reads."""

import sys
import time

kept = []
for step in range(1, int(sys.argv[1]) + 1):
    kept.append(bytearray(2**18))
    time.sleep(0.1)
    print(f"step {step}", flush=True)
