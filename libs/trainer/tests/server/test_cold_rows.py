"""Where rows of a pod's server go that find no room in its memory, by the job file."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from stretto.pod.process import PodSettings, give_back_freed_memory, resident_bytes
from stretto.server import cold_rows
from stretto.server.cold_rows import ColdRows
from stretto_wire.jobspec.spec import JobSpec


def settings_of(spill, warm, folder):
    given = {
        "name": "j",
        "model": {"entry": "m:M"},
        "dataset": {"samples": 1000},
        "rows": {"warm": warm},
        "resources": {"ps": {"spill": spill}},
    }
    none = dict.fromkeys(("nats_credentials", "nats_ca", "state_folder"))
    numbers = {"plan_version": 1, "cpu_cores": 1.0, "memory_bytes": 2**30}
    spec = JobSpec.model_validate(given)
    return PodSettings(
        job="j", pod="ps-0", nats_url="", spec=spec, pod_folder=folder, traceparent="", **none, **numbers
    )


@pytest.mark.parametrize("warm", ["none", "bf16"])
@pytest.mark.parametrize("spill", ["never", "emergency", "auto"])
def test_rows_are_rounded_or_go_to_the_disk_as_the_job_says(spill, warm, tmp_path):
    found = ColdRows(settings_of(spill, warm, tmp_path), lambda: 2**30).spill()
    if spill == "never" and warm == "none":
        assert found is None
    else:
        assert found.warms == (warm == "bf16")
        assert found.folder == (None if spill == "never" else tmp_path / "cold-rows")


def test_freed_memory_goes_back_to_the_system_before_rows_go_to_the_disk(tmp_path, monkeypatch):
    now_s, resident = [0.0], [2**29]
    calls = []

    def give_back():
        calls.append(now_s[0])
        resident[0] = 2**28

    monkeypatch.setattr(cold_rows, "resident_bytes", lambda: resident[0])
    monkeypatch.setattr(cold_rows, "give_back_freed_memory", give_back)
    budget_of = ColdRows(settings_of("auto", "none", tmp_path), lambda: 2**30, lambda: now_s[0]).spill().budget_bytes
    limit = int(0.98 * 2**30)
    assert budget_of(2**28) == limit - 2**28
    assert calls == [], "rows take less than the budget, so nothing is short"
    resident[0] = 2**30
    assert budget_of(2**28) == limit, "the budget is what is left once freed memory is given back"
    resident[0] = 2**30
    assert budget_of(2**28) == limit - 2**30 + 2**28
    assert calls == [0.0], "not each time"
    now_s[0] = 10.0
    budget_of(2**28)
    assert calls == [0.0, 10.0]


def test_memory_that_threads_have_freed_goes_back():
    def use():
        for _ in range(3):
            kept = [np.ones(12_000, np.uint8) for _ in range(2_000)]  # small enough for the heap of a thread
            del kept[1::2]
        return kept

    with ThreadPoolExecutor(4) as pool:
        kept = list(pool.map(lambda _: use(), range(4)))
        kept.clear()
        before = resident_bytes()
        give_back_freed_memory()
        assert resident_bytes() < before
