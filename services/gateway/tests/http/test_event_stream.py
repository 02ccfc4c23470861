"""The event stream of a real gateway: it resumes where it broke."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from stretto_gateway.http.event_stream import ALLOWED_S
from stretto_messages.base import example_of
from stretto_messages.dispatcher import JobProgressed
from stretto_runtime.access.tokens import FILE, issue, write_tokens

from tests.waits import wait_until

from ..gateway_process import Running


def parse_frames(text: str) -> list[tuple[int, str]]:
    frames = [dict(line.split(": ", 1) for line in frame.splitlines()) for frame in text.strip().split("\n\n")]
    return [(int(frame["id"]), frame["event"]) for frame in frames if "id" in frame]


def publish_progress(gateway: Running, job: str, numbers: range) -> None:
    told = replace(example_of(JobProgressed), job=job, samples_total=1000)
    gateway.publish(*(replace(told, samples_done=number) for number in numbers))


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
        with httpx.Client(base_url=f"{gateway.url}/api/v1", timeout=60, trust_env=False) as http:
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
    assert ended["revoked"] - revoked_s < 3 * ALLOWED_S
    write_tokens(file, ())
    wait_until(lambda: len(ended) == 3)


def test_the_newest_events_come_first_and_page_back_to_the_oldest(gateway: Running) -> None:
    """Goal: the pages are the stream backwards. Method: a rare event between many others, in pages of each size."""
    job = f"job-{uuid.uuid4().hex[:12]}"
    document = {"name": job, "model": {"entry": "m:M"}, "dataset": {"samples": 1000}}
    with gateway.http() as http:
        http.post("/jobs", json=document)
        publish_progress(gateway, job, range(1, 60))
        http.delete(f"/jobs/{job}")
        publish_progress(gateway, job, range(60, 100))
        forwards = parse_frames(http.get(f"/jobs/{job}/events", params={"follow": False}).text)

        def pages(limit: int, **more: Any) -> list[tuple[int, str]]:
            seen, before = list[tuple[int, str]](), None
            while True:
                params = {"job": job, "limit": limit, **more, **({"before": before} if before else {})}
                page = http.get("/events/newest", params=params).json()
                assert len(page["events"]) <= limit
                seen += [(event["seq"], event["event"]) for event in page["events"]]
                if (before := page["before"]) is None:
                    return seen

        for limit in (1, 7, 200):
            assert pages(limit) == forwards[::-1]
        own = ["job-cancelled", "job-submitted"]
        assert [name for _, name in pages(1, event=own)] == own
        assert [name for _, name in pages(50, event=["job-cancelled", "job-cancelled"])] == own[:1]
        assert pages(50, event=["no-such-event"]) == []
        events = http.get("/events/newest", params={"job": job, "limit": 200}).json()["events"]
        middle = events[40]["time_s"]
        late = pages(10, since=middle)
        assert late == [
            pair for pair in forwards[::-1] if pair[0] in {e["seq"] for e in events if e["time_s"] >= middle}
        ]
        assert http.get("/events/newest", params={"limit": 1}).json()["events"][0]["seq"] >= forwards[-1][0]
        for wrong in ({"limit": 0}, {"before": "x"}, {"event": "*"}, {"event": "a.b"}, {"job": "No"}):
            assert http.get("/events/newest", params=wrong).status_code == 422
        assert http.get("/events/newest", params={"job": "no-such-job"}).status_code == 404


def test_names_of_events_are_selected_by_the_bus(gateway: Running) -> None:
    job = f"job-{uuid.uuid4().hex[:12]}"
    with gateway.http() as http:
        http.post("/jobs", json={"name": job, "model": {"entry": "m:M"}, "dataset": {"samples": 1000}})
        publish_progress(gateway, job, range(1, 4))
        http.delete(f"/jobs/{job}")
        for names in (["job-cancelled", "job-submitted"], ["job-progressed"], ["no-such-event"]):
            text = http.get(f"/jobs/{job}/events", params={"follow": False, "event": names}).text
            assert {name for _, name in parse_frames(text)} == {*names} - {"no-such-event"}
