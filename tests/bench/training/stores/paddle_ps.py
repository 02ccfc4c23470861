"""Paddle's parameter server on loopback: one server, one trainer, a program of a lookup and its gradient.

    paddle_ps.py                                            the trainer, a side
    paddle_ps.py serve PORT TABLE_CLASS FOLDER              the server, which ends with the trainer

Its accessor keeps 15 weights and one beside them, each with its sum of squares, and `show` and `click`. In its mode
`a_sync` the trainer waits for no push, those that wait in its queue are merged, and a round ends when it is empty.
Its other mode ends in a fault (2.6.2).

The SSD table takes no row out of memory while it trains; that is a part of saving a model, which does not come back in
2.6.2. So rows are loaded from a model of text, three quarters of them unseen for days, which it puts on the disk. A
model of more than eight parts is not loaded to the end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import numpy as np
import paddle
from paddle.distributed import fleet

from tests.bench.training.stores.side import DISK, RATE, WIDTH, Side, resident_bytes, serve, versions

SHARDS, START_S = 8, 60.0
PR_SET_PDEATHSIG = 1
HOT, COLD = 0, 5
"""Days unseen."""
SPARSE = {
    "sparse_shard_num": SHARDS,
    "sparse_accessor_class": "DownpourCtrAccessor",
    "sparse_embedx_dim": WIDTH - 1,
    "sparse_embedx_threshold": 0,
    "sparse_optimizer": "std_adagrad",
    "sparse_learning_rate": RATE,
    "sparse_delete_threshold": 0,
    "sparse_delete_after_unseen_days": 10**4,
    "sparse_show_click_decay_rate": 1.0,
    "sparse_enable_cache": False,
}


def built(role: str, port: int, ssd: bool) -> Any:
    """Return the variable of a batch's weights, in a program that is the same at the trainer and the server."""
    os.environ |= {
        "PADDLE_PSERVERS_IP_PORT_LIST": f"127.0.0.1:{port}",
        "PADDLE_TRAINER_ENDPOINTS": f"127.0.0.1:{port + 1}",
        "PADDLE_TRAINERS_NUM": "1",
        "PADDLE_TRAINER_ID": "0",
        "PADDLE_WITH_GLOO": "0",
        "TRAINING_ROLE": role,
        "POD_IP": "127.0.0.1",
        "PADDLE_PORT": str(port),
    }
    paddle.enable_static()
    fleet.init(is_collective=False)
    table_class = "SSDSparseTable" if ssd else "MemorySparseTable"
    keys = paddle.static.data("keys", [-1, 1], "int64")
    seen = paddle.static.data("seen", [-1, 2], "float32")
    upstream = paddle.static.data("upstream", [-1, WIDTH], "float32")
    zeros = paddle.ParamAttr(name="table", initializer=paddle.nn.initializer.Constant(0.0))
    found = paddle.static.nn.sparse_embedding(keys, [2**20, WIDTH + 2], table_class=table_class, param_attr=zeros)
    rows = paddle.static.nn.continuous_value_model(paddle.reshape(found, [-1, WIDTH + 2]), seen, False)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    kind = "DownpourSparseSSDTable" if ssd else "DownpourSparseTable"
    strategy.fleet_desc_configs = {"table": SPARSE | {"sparse_table_class": kind}, "use_cvm": True}
    optimizer = fleet.distributed_optimizer(paddle.optimizer.SGD(RATE), strategy)
    optimizer.minimize(paddle.sum(paddle.multiply(rows, upstream)))
    return rows


def run_server(port: int, ssd: bool) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    built("PSERVER", port, ssd)
    fleet.init_server()
    fleet.run_server()


class PaddlePs(Side):
    pause_s = 0.1

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        with socket.create_server(("127.0.0.1", 0)) as holder:
            port = holder.getsockname()[1]
        ssd = self.mode == DISK
        command = [sys.executable, "-m", "tests.bench.training.stores.paddle_ps", "serve", str(port), str(int(ssd))]
        environment = os.environ | {"FLAGS_rocksdb_path": str(self.folder / "db")}
        self.server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.pids = (self.server.pid,)
        self.rows = built("TRAINER", port, ssd)
        self._await(port)
        self.executor = paddle.static.Executor(paddle.CPUPlace())
        self.executor.run(paddle.static.default_startup_program())
        fleet.init_worker()
        self.worker = fleet.fleet._runtime_handle._worker
        self.empty_bytes = resident_bytes(self.pids)

    def _await(self, port: int) -> None:
        give_up = time.monotonic() + START_S
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port)).close()
            except OSError:
                if self.server.poll() is not None or time.monotonic() > give_up:
                    raise RuntimeError("the server did not start") from None
                time.sleep(0.1)

    def step(self, keys: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        seen = np.ones((len(keys), 2), np.float32)
        # it multiplies gradients by the size of the batch
        given = {"keys": keys.view(np.int64)[:, None], "seen": seen, "upstream": gradients / np.float32(len(keys))}
        return self.executor.run(paddle.static.default_main_program(), feed=given, fetch_list=[self.rows])[0]

    def settle(self) -> None:
        self.worker.client_flush()

    def fill(self, keys: np.ndarray) -> None:
        if self.mode != DISK:
            return super().fill(keys)
        parts = self.folder / "model" / "000"
        parts.mkdir(parents=True)
        rest = f" 1 1 0 -0.05 1{' -0.05' * (WIDTH - 1)}{' 1' * (WIDTH - 1)}\n"
        hot = np.arange(len(keys)) < len(keys) // 4
        for shard in range(SHARDS):
            own = keys % np.uint64(SHARDS) == shard
            lines = (
                f"{key} 0 {HOT if is_hot else COLD}{rest}" for key, is_hot in zip(keys[own], hot[own], strict=True)
            )
            (parts / f"part-000-{shard:05d}").write_text("".join(lines))
        self.worker.load_one_table(0, str(self.folder / "model"), 4)
        return None

    def told(self) -> dict[str, Any]:
        return {"versions": versions("paddlepaddle", "protobuf")}


if sys.argv[1:2] == ["serve"]:
    run_server(int(sys.argv[2]), sys.argv[3] == "1")
else:
    serve(PaddlePs)
