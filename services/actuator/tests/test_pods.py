"""The environment that a pod inherits, and its command."""

from __future__ import annotations

import pytest
from stretto_actuator.backend import BackendError, Places
from stretto_actuator.pods import inherited, pod_spec
from stretto_actuator.settings import ActuatorSettings
from stretto_core.actuator import ActuatorState, Pod
from stretto_wire import JobSpec

JOB = {"name": "j", "model": {"entry": "m:M"}, "dataset": {"samples": 1000}}
OWN = {
    "PATH": "/bin",
    "LC_ALL": "C",
    "OMP_NUM_THREADS": "2",
    "TF_CPP_MIN_LOG_LEVEL": "1",
    "PYTHONPATH": "/src",
    "AWS_SECRET_ACCESS_KEY": "s",
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=s",
    "GITHUB_TOKEN": "s",
    "STRETTO_NATS_PASSWORD": "s",
}


def test_pods_inherit_what_is_harmless_and_what_is_named() -> None:
    harmless = {"PATH", "LC_ALL", "OMP_NUM_THREADS", "TF_CPP_MIN_LOG_LEVEL", "PYTHONPATH"}
    assert inherited(OWN, "").keys() == harmless
    assert inherited(OWN, " AWS_* , STRETTO_*").keys() == harmless | {"AWS_SECRET_ACCESS_KEY"}


def test_pod_finds_its_specification_where_the_backend_lays_it() -> None:
    state = ActuatorState(job="j", spec=JobSpec.parse(JOB).model_dump_json())
    pod = Pod("ps-0", "ps", 0, 1.0, 2**28, 1, "plan", 0.0)
    places, identity = Places("/run/stretto", "/scratch", ""), {"bus.creds": b"c"}
    spec = pod_spec(pod, state, ActuatorSettings(), places, "", identity)
    assert spec.files == {"job.json": state.spec.encode(), **identity}
    names = ("JOB_SPEC", "POD_FOLDER", "STATE_FOLDER", "NATS_CREDENTIALS")
    assert {name: spec.environment[f"STRETTO_{name}"] for name in names} == {
        "JOB_SPEC": "/run/stretto/job.json",
        "POD_FOLDER": "/scratch",
        "STATE_FOLDER": "",
        "NATS_CREDENTIALS": "/run/stretto/bus.creds",
    }
    assert "STRETTO_NATS_CA" not in spec.environment


def test_egress_is_given_to_the_jobs_that_ask_and_to_none_where_it_is_forbidden() -> None:
    """Describe the same pod for a job that asks and one that does not, under both values of the setting."""
    pod = Pod("ps-0", "ps", 0, 1.0, 2**28, 1, "plan", 0.0)

    def egress(allowed: bool, network: dict[str, bool]) -> bool:
        state = ActuatorState(job="j", spec=JobSpec.parse({**JOB, "network": network}).model_dump_json())
        settings = ActuatorSettings(egress=allowed)
        return pod_spec(pod, state, settings, Places("/run/stretto", "/scratch", ""), "", {}).egress

    assert [egress(True, {}), egress(True, {"egress": True}), egress(False, {})] == [False, True, False]
    with pytest.raises(BackendError, match=r"network\.egress=true of j: .*STRETTO_ACTUATOR_EGRESS=true"):
        egress(False, {"egress": True})
