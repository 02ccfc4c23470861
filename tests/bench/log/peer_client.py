"""Clients of the peer's master, run by the peer's own Python: ``peer_client.py PORT FIRST COUNT WARM_S MEASURED_S``.

``COUNT`` threads take a task, report it done, and so on; the first process also describes the data set. Prints
``ready``, waits for the end of its input, then prints the pairs within ``MEASURED_S`` seconds after ``WARM_S``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

os.environ |= {"DLROVER_MASTER_SERVICE_TYPE": "grpc", "NODE_TYPE": "worker"}

from dlrover.python.elastic_agent.master_client import build_master_client  # reads the environment

DATASET, BATCH_SIZE, SHARDS, TRAINING = "bench", 512, 200_000, 0


def work(port: int, number: int, start: float, end: float, pairs: list[int]) -> None:
    os.environ["WORKER_RANK"] = str(number)
    client, done = build_master_client(f"127.0.0.1:{port}"), 0
    while time.perf_counter() < end:
        ok, task = client.get_task(DATASET)
        if not ok or task.task_id < 0:
            raise RuntimeError(f"no task: {task}")
        client.report_task_result(DATASET, task.task_id, "")
        done += time.perf_counter() >= start
    pairs.append(done)


def main() -> None:
    port, first, count, warm_s, measured_s = (int(text) for text in sys.argv[1:])
    client = build_master_client(f"127.0.0.1:{port}")
    if first == 0:
        client.report_dataset_shard_params(BATCH_SIZE, 1, BATCH_SIZE * SHARDS, False, 1, DATASET, TRAINING, "table")
    print("ready", flush=True)
    sys.stdin.read()
    start, pairs = time.perf_counter() + warm_s, list[int]()
    threads = [
        threading.Thread(target=work, args=(port, first + index, start, start + measured_s, pairs))
        for index in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(pairs) < count:
        raise SystemExit(f"{count - len(pairs)} of {count} clients failed")
    print(json.dumps(sum(pairs)))


main()
