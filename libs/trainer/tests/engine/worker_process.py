"""A worker process for the tests that kill workers: it trains the shards named on stdin, a line out for each."""

import json
import os
import sys
import threading

import numpy as np
from stretto.engine import Access, Key, Layout, Parameters
from stretto.engine.transfer import Wire


def batch_of(layout, shard, start):
    """Return the batch, a function of shard and offset: a replay relies on that."""
    rng = np.random.default_rng((shard, start))
    keys = layout.index(*(rng.zipf(1.3, (64, 8)) % 5000 for _ in layout.tables))
    rows = [
        rng.normal(size=(len(of), table.dimension)).astype(np.float32)
        for of, table in zip(keys.tables, layout.tables, strict=True)
    ]
    return keys, rows, rng.normal(size=layout.dense_size).astype(np.float32)


def train_shard(parameters, shard, attempt, length, batch=64):
    offset = parameters.progress(shard, attempt)
    while offset < length:
        stop = min(offset + batch, length)
        keys, rows, dense = batch_of(parameters.layout, shard, offset)
        parameters.begin_pull(keys).result()
        parameters.push(keys, rows, dense, shard=shard, attempt=attempt, start=offset, stop=stop)
        offset = stop


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    config = json.loads(sys.stdin.readline())
    servers = {int(s): a for s, a in config["servers"].items()}
    parameters = Parameters(
        Layout.from_dict(config["layout"]),
        servers,
        worker=config["worker"],
        access=Access(Key.of(config["key"].encode())),
        refresh_servers=lambda: servers,
        wire=Wire.of("float32", config["wire"]),
    )
    for line in sys.stdin:
        message = json.loads(line)
        if "servers" in message:
            servers.update({int(s): a for s, a in message["servers"].items()})
            threading.Thread(target=parameters.connect, args=(dict(servers),)).start()
            continue
        train_shard(parameters, message["shard"], message["attempt"], message["length"])
        answers.write(json.dumps({"shard": message["shard"]}) + "\n")
        answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
