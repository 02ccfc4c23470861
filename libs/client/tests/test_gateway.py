"""Both clients against a real gateway."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from installed_gateway import PLAN, Installed, decided, write_spec
from stretto_client import Event, Refused, connect
from stretto_client.errors import NotReady, PackageMissing, Unusable
from stretto_installation.one_machine.state import read_state
from stretto_messages.actuator import JobFailed, PodStarted
from stretto_messages.base import example_of
from stretto_wire import JobSpec


def name_of(tmp_path: Path) -> str:
    return write_spec(tmp_path)[0]


def document(name: str) -> dict[str, Any]:
    return {"name": name, "model": {"entry": "m:M"}, "dataset": {"samples": 1000}}


@pytest.mark.parametrize("form", ["path", "path as text", "mapping", "text", "JSON", "specification"])
def test_a_job_is_submitted_in_any_form(client: Any, tmp_path: Path, form: str) -> None:
    name, file = write_spec(tmp_path)
    forms: dict[str, Any] = {
        "path": Path(file),
        "path as text": file,
        "mapping": document(name),
        "text": yaml.safe_dump(document(name)),
        "JSON": json.dumps(document(name)),
        "specification": JobSpec.parse(document(name)),
    }
    job = client.submit(forms[form])
    assert (job.name, job.status, job.view.spec.dataset.samples) == (name, "submitted", 1000)
    assert job.view.submitted_by == "admin"
    assert client.submit(forms[form]).name == name  # the same again changes nothing


def test_a_job_gets_another_name(client: Any, tmp_path: Path) -> None:
    name, file = write_spec(tmp_path)
    assert client.submit(file, f"{name}-2").name == f"{name}-2"
    assert client.submit(document(name), f"{name}-3").name == f"{name}-3"


def test_what_is_wrong_with_a_job_has_its_place(client: Any) -> None:
    text = "name: x\nmodel: {entry: 'm:M'}\ndataset: {samples: -1}\n"
    with pytest.raises(Refused) as caught:
        client.submit(text)
    refused = caught.value
    assert (refused.kind, refused.status, refused.findings[0].line) == ("bad-job", 422, 3)
    assert refused.field == "dataset.samples"
    assert refused.page.endswith("/problems/bad-job")
    with pytest.raises(Unusable, match="cannot read"):
        client.submit("no-such-file.yaml")
    with pytest.raises(Unusable, match="no JSON"):
        client.submit({"name": object()})


def test_lists_and_the_caller_are_typed(client: Any, tmp_path: Path) -> None:
    names = sorted(client.submit(document(f"{name_of(tmp_path)}")).name for _ in range(3))
    found = client.jobs(order="name")
    assert set(names) <= {job.name for job in found}
    assert [job.name for job in client.jobs(q=names[0])] == [names[0]]
    assert client.jobs("finished", owner="nobody") == [] or len(client.jobs("finished", owner="nobody")) == 0
    me = client.me()
    assert (me.name, me.role) == ("admin", "admin")
    assert client.status().ready
    assert list(client.history()) == []
    assert b'"submit"' in client.audit_log()
    assert client.url.startswith("http://127.0.0.1:")


def test_no_service_behind_the_gateway_is_a_problem(client: Any, tmp_path: Path) -> None:
    """Goal: problems of every operation come through. Method: only the gateway runs, so what others know is missing."""
    job = client.submit(document(name_of(tmp_path)))
    for ask in (job.audit, job.checkpoint, lambda: job.whatif(workers=2), lambda: job.scale(workers=2), client.cluster):
        with pytest.raises(Refused) as refused:
            ask()
        assert refused.value.kind != "foreign"
        assert refused.value.remedy
    assert client.job(job.name).cancel("enough").status == "cancelled"
    assert job.refresh().is_over
    with pytest.raises(Refused, match="no-such-job"):
        client.job("never-submitted")


def test_a_wait_ends_with_the_state_and_gives_every_event_once(
    client: Any, installed: Installed, tmp_path: Path
) -> None:
    job = client.submit(document(name_of(tmp_path)))
    seen: list[Event] = []
    publisher = Thread(target=installed.publish, args=(decided(job.name, 1, PLAN, None), started(job.name)))
    publisher.start()
    job.wait(30, until=lambda view: view.plan is not None and view.pods, on_event=seen.append)
    publisher.join()
    assert job.plan == PLAN
    with pytest.raises(NotReady, match="goes on"):
        job.wait(0.6, until="finished")
    with pytest.raises(Unusable, match=r"'traning'.*training"):
        job.wait(30, until="traning")
    installed.publish(JobFailed(job=job.name, reason="a reason"))
    job.wait(30, on_event=seen.append)
    assert (job.status, job.view.reason) == ("failed", "a reason")
    assert [event.name for event in seen] == ["job-submitted", "plan-decided", "pod-started", "job-failed"]
    assert [event.id for event in job.stored_events()] == [event.id for event in seen]
    with pytest.raises(NotReady, match="does not reach"):
        job.wait(30, until="training")


def started(job: str) -> PodStarted:
    return replace(example_of(PodStarted), job=job, pod="worker-0")


def test_events_are_selected_and_followed(client: Any, installed: Installed, tmp_path: Path) -> None:
    job = client.submit(document(name_of(tmp_path)))
    installed.publish(decided(job.name, 1, PLAN, None), *(decided(job.name, n, PLAN, PLAN) for n in (2, 3)))
    job.wait(30, until=lambda view: view.plan_version == 3)
    found = job.stored_events(names=["plan-decided"])
    assert [event.data["version"] for event in found] == [1, 2, 3]
    assert [event.id for event in job.events(after=found[0].id, follow=False)] == [event.id for event in found[1:]]
    first, *_ = client.events(job.name, follow=False)
    assert first.id < found[0].id
    followed = job.events(after=found[1].id)
    assert next(followed).id == found[2].id
    publisher = Thread(target=installed.publish, args=(decided(job.name, 4, PLAN, PLAN),))
    publisher.start()
    assert next(followed).data["version"] == 4
    publisher.join()
    followed.close()


def test_a_decision_explains_itself(client: Any, installed: Installed, tmp_path: Path) -> None:
    job = client.submit(document(name_of(tmp_path)))
    wider = replace(PLAN, workers=2)
    installed.publish(decided(job.name, 1, PLAN, None), decided(job.name, 2, wider, PLAN))
    job.wait(30, until=lambda view: view.plan_version == 2)
    why = job.decisions[-1].why()
    for words in ("v2 improve", "2 × worker", "instead of   1 × worker", "a reason with [brackets] in it", "too dear",
                  "180/s [150 … 210]", "not measured yet"):  # fmt: skip
        assert words in why, words


def test_a_live_job_is_updated_in_the_same_output(
    client: Any, tmp_path: Path, installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = client.submit(document(name_of(tmp_path)))
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(PackageMissing, match="pip install ipython"):
        job.live()
    displayed: list[str] = []

    class Output:
        def update(self, job: Any) -> None:
            displayed.append(job.status)

    def display(job: Any, display_id: bool) -> Output:
        assert display_id
        return Output()

    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    publisher = Thread(target=installed.publish, args=(JobFailed(job=job.name, reason="a reason"),))
    publisher.start()
    job.live(interval_s=0.05)
    publisher.join()
    assert displayed[-1] == job.status == "failed"


def test_the_blocking_client_works_inside_a_running_loop(installed: Installed, tmp_path: Path) -> None:
    async def cell() -> str:
        with connect(folder=installed.folder) as s:
            job = s.submit(document(name_of(tmp_path)))
            job.cancel()
            return job.wait(60).status

    assert asyncio.run(cell()) == "cancelled"


def test_several_threads_share_the_blocking_client(installed: Installed) -> None:
    with connect(folder=installed.folder) as s, ThreadPoolExecutor(8) as pool:
        assert {me.name for me in pool.map(lambda _: s.me(), range(64))} == {"admin"}


def test_a_stream_goes_on_over_a_restart_of_the_gateway(client: Any, installed: Installed, tmp_path: Path) -> None:
    job = client.submit(document(name_of(tmp_path)))
    installed.publish(decided(job.name, 1, PLAN, None))
    job.wait(30, until=lambda view: view.plan_version == 1)
    stream = job.events()
    assert [next(stream).name for _ in range(2)] == ["job-submitted", "plan-decided"]
    os.kill(read_state(installed.folder)["processes"]["gateway"]["pid"], signal.SIGKILL)
    publisher = Thread(target=installed.publish, args=(decided(job.name, 2, PLAN, PLAN),))
    publisher.start()
    assert next(stream).data["version"] == 2
    publisher.join()
    stream.close()
    assert [event.name for event in job.stored_events()] == ["job-submitted", "plan-decided", "plan-decided"]
