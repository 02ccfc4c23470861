"""Where rows of a pod's server go that find no room in its memory, by the job file."""

import pytest
from stretto.pod.process import PodSettings
from stretto.server.cold_rows import ColdRows
from stretto_wire.jobspec.spec import JobSpec


def spill_of(spill, warm, folder):
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
    settings = PodSettings(
        job="j", pod="ps-0", nats_url="", spec=spec, pod_folder=folder, traceparent="", **none, **numbers
    )
    return ColdRows(settings, lambda: 2**30).spill()


@pytest.mark.parametrize("warm", ["none", "bf16"])
@pytest.mark.parametrize("spill", ["never", "emergency", "auto"])
def test_rows_are_rounded_or_go_to_the_disk_as_the_job_says(spill, warm, tmp_path):
    found = spill_of(spill, warm, tmp_path)
    if spill == "never" and warm == "none":
        assert found is None
    else:
        assert found.warms == (warm == "bf16")
        assert found.folder == (None if spill == "never" else tmp_path / "cold-rows")
