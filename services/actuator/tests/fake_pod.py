"""A pod without TensorFlow: answers pod.v1.* as parameter servers and workers do. Runs as a real process.

Ownership is kept as they keep it (0 not mine, 1 mine); a move takes a bucket at its source before it owns it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import nats

JOB, POD = os.environ["STRETTO_JOB"], os.environ["STRETTO_POD"]
INDEX = int(POD.split("-")[1])
DELAY_S = float(os.environ.get("FAKE_MOVE_S", "0.002"))


class FakePod:
    def __init__(self, connection: Any) -> None:
        self.nc = connection
        self.buckets, self.slices = [0] * 64, [0] * 12
        self.total = self.done = 0
        self.running = False
        self.told: list[int] = []
        self.evaluations = 0
        self.checkpoints: dict[str, str] = {}

    def handlers(self) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
        return {
            "ping": lambda r: {"ready": True, "address": f"127.0.0.1:{9000 + INDEX}"},
            "claim-buckets": self.claim,
            "import-state": self.restore,
            "empty-server": self.empty,
            "get-ownership": lambda r: {
                "buckets": self.buckets,
                "slices": self.slices,
                "bucket_rows": [10 * b for b in self.buckets],
            },
            "take-buckets": self.take,
            "get-move-status": lambda r: {
                "running": self.running,
                "done": self.done,
                "total": self.total,
                "moved_bytes": 1000 * self.done,
                "longest_freeze_s": 0.01,
            },
            "release": self.release,
            "train-under": lambda r: self.told.append(r["plan_version"]) or {"ok": True},
            "get-told": lambda r: {"told": self.told},
            "evaluate-model": self.evaluate,
            "export-state": self.export,
            "get-export-status": self.exported,
            "get-books": lambda r: {
                "applied_samples": 1000,
                "skipped_repeats": 3,
                "rejected_pushes": 0,
                "owns_dense": bool(sum(self.slices)),
                "rows": sum(self.buckets),
                "checksum": str(INDEX + 1),
                "applied": {
                    "columns_total": 76,
                    "columns": [
                        {
                            "columns": [c for c, own in enumerate((*self.buckets, *self.slices)) if own],
                            "samples": 1000,
                            "fingerprint": "00000000000000aa",
                        }
                    ],
                },
            },
        }

    def claim(self, request: dict[str, Any]) -> dict[str, Any]:
        wanted = [int(b in request["buckets"]) for b in range(64)], [int(s in request["slices"]) for s in range(12)]
        if sum(self.buckets) and (self.buckets, self.slices) != wanted:
            return {"accepted": False, "detail": "owns others already"}
        self.buckets, self.slices = wanted
        return {"accepted": True}

    def restore(self, request: dict[str, Any]) -> dict[str, Any]:
        beside = request["beside"]
        self.buckets = [int(b in request["buckets"] or (beside and own)) for b, own in enumerate(self.buckets)]
        self.slices = [int(s in request["slices"] or (beside and own)) for s, own in enumerate(self.slices)]
        return {"accepted": True, "size_bytes": 100}

    def empty(self, request: dict[str, Any]) -> dict[str, Any]:
        self.buckets, self.slices = [0] * 64, [0] * 12
        return {"accepted": True}

    def export(self, request: dict[str, Any]) -> dict[str, Any]:
        part = {"file": f"{POD}.bin", "columns": [c for c, own in enumerate((*self.buckets, *self.slices)) if own]}
        self.checkpoints[request["checkpoint_id"]] = json.dumps(part)
        return {"accepted": True, "size_bytes": 640, "digest": "abc", "pause_s": 0.02}

    def exported(self, request: dict[str, Any]) -> dict[str, Any]:
        part = self.checkpoints.get(request["checkpoint_id"])
        return {"stage": "stored", "part": part} if part else {"stage": "unknown"}

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        self.evaluations += 1
        if self.evaluations < int(os.environ.get("FAKE_EVALUATIONS", "2")):
            return {"state": "running"}
        return {"state": "done", "evaluation": {"samples": request["samples"], "loss": 0.5, "auc": 0.7}}

    def release(self, request: dict[str, Any]) -> dict[str, Any]:
        own, column = self.column(request["bucket"])
        assert own[column] == 1, "released twice"
        own[column] = 0
        return {}

    def column(self, number: int) -> tuple[list[int], int]:
        return (self.buckets, number) if number < 64 else (self.slices, number - 64)

    def take(self, request: dict[str, Any]) -> dict[str, Any]:
        if self.running:
            return {"accepted": False, "detail": "busy"}
        here = {m["bucket"]: self.column(m["bucket"]) for m in request["moves"]}
        moves = [m for m in request["moves"] if not here[m["bucket"]][0][here[m["bucket"]][1]]]
        self.running, self.done, self.total = True, 0, len(moves)
        self.task = asyncio.create_task(self.move(moves))
        return {"accepted": True}

    async def move(self, moves: list[dict[str, Any]]) -> None:
        for move in moves:
            body = json.dumps({"job": JOB, "bucket": move["bucket"]}).encode()
            await self.nc.request(f"pod.v1.release.ps-{move['source']}.{JOB}", body, timeout=60)
            own, column = self.column(move["bucket"])
            own[column] = 1
            self.done += 1
            await asyncio.sleep(DELAY_S)
        self.running = False


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    connection = await nats.connect(
        os.environ["STRETTO_NATS_URL"], user_credentials=os.environ.get("STRETTO_NATS_CREDENTIALS")
    )
    handlers = FakePod(connection).handlers()

    async def answer(msg: Any) -> None:
        reply = handlers[msg.subject.split(".")[2]](json.loads(msg.data))
        await msg.respond(json.dumps({"job": JOB, **reply}).encode())

    await connection.subscribe(f"pod.v1.*.{POD}.{JOB}", cb=answer)
    sys.stdout.write(f"{POD} serves\n")
    sys.stdout.flush()
    await stop.wait()
    await connection.close()
    sys.stdout.write(f"{POD} has left\n")


if __name__ == "__main__":
    if os.environ.get("FAKE_FAIL") == POD.split("-")[0]:
        sys.stderr.write("canary of a log\nexit 3: column 7 is not a number\n")
        sys.exit(3)
    asyncio.run(main())
