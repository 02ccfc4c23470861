"""The event stream of a real gateway: it resumes where it broke."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import httpx
from stretto_gateway.callers import FILE_CHECK_S
from stretto_gateway.sse import ALLOWED_S
from stretto_messages.dispatcher import JobProgressed
from stretto_runtime.access.tokens import FILE, issue, write_tokens

from .conftest import Running


def parse_frames(text: str) -> list[tuple[int, str]]:
    frames = [dict(line.split(": ", 1) for line in frame.splitlines()) for frame in text.strip().split("\n\n")]
    return [(int(frame["id"]), frame["event"]) for frame in frames if "id" in frame]


def publish_progress(gateway: Running, job: str, numbers: range) -> None:
    async def publish() -> None:
        client = await gateway.operator()
        for number in numbers:
            await client.publish(
                JobProgressed(
                    job=job, samples_done=number, samples_total=1000, epoch=0, samples_per_s=1.0, shards_leased=1,
                    shards_requeued_total=0,
                )
            )  # fmt: skip
        await client.close()

    asyncio.run(publish())


def test_an_event_stream_resumes_where_it_broke_and_goes_on_live(gateway: Running) -> None:
    job = f"job-{uuid.uuid4().hex[:12]}"
    document = {"name": job, "model": {"entry": "m:M"}, "dataset": {"samples": 1000}}
    with gateway.http() as http:
        http.post("/jobs", json=document)
        publish_progress(gateway, job, range(1, 6))
        everything = parse_frames(http.get(f"/jobs/{job}/events", params={"follow": False}).text)
        assert [name for _, name in everything] == ["job-submitted"] + ["job-progressed"] * 5
        sequences = [seq for seq, _ in everything]
        assert sequences == sorted(set(sequences))
        gateway.restart()  # the stream is the bus's: another gateway continues it
    with gateway.http() as http:
        got: list[int] = []
        later = threading.Timer(0.3, publish_progress, (gateway, job, range(6, 9)))
        later.start()
        headers = {"Last-Event-ID": str(sequences[2])}
        with http.stream("GET", f"/jobs/{job}/events", headers=headers) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            for line in response.iter_lines():
                if line.startswith("id: "):
                    got.append(int(line[4:]))
                if len(got) == 6:
                    break
        later.join()
        assert got[:3] == sequences[3:]
        rest = parse_frames(http.get("/events", params={"follow": False, "job": job, "after": sequences[-1]}).text)
        assert [seq for seq, _ in rest] == got[3:]
        named = parse_frames(http.get(f"/jobs/{job}/events", params={"follow": False, "event": "job-submitted"}).text)
        assert named == [everything[0]]


def test_an_event_stream_ends_with_the_token_that_it_was_opened_with(gateway: Running) -> None:
    file, now = gateway.folder / FILE, datetime.now(UTC)
    made = {
        "revoked": issue("revoked", "viewer", now),
        "expiring": issue("expiring", "viewer", now, now + timedelta(seconds=4)),
        "lasting": issue("lasting", "viewer", now),
    }
    entries = {name: entry for name, (_, entry) in made.items()}
    write_tokens(file, (*entries.values(),))
    ended: dict[str, float] = {}
    opened = threading.Barrier(4, timeout=30)

    def listen(name: str) -> None:
        with httpx.Client(base_url=f"{gateway.url}/api/v1", timeout=30, trust_env=False) as http:
            headers = {"Authorization": f"Bearer {made[name][0]}"}
            wait_until(lambda: http.get("/status", headers=headers).status_code == 200)
            with contextlib.suppress(httpx.TransportError), http.stream("GET", "/events", headers=headers) as response:
                for number, _ in enumerate(response.iter_lines()):
                    if number == 0:
                        opened.wait()
            ended[name] = time.monotonic()

    listeners = [threading.Thread(target=listen, args=(name,), daemon=True) for name in made]
    for listener in listeners:
        listener.start()
    opened.wait()
    revoked_s = time.monotonic()
    write_tokens(file, (entries["expiring"], entries["lasting"]))
    wait_until(lambda: len(ended) == 2)
    assert ended.keys() == {"revoked", "expiring"}
    assert ended["revoked"] - revoked_s < 2 * (ALLOWED_S + FILE_CHECK_S)
    write_tokens(file, ())
    wait_until(lambda: len(ended) == 3)


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)
