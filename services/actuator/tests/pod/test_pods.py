"""The environment that a pod inherits, its command, and what its job may ask for."""

from __future__ import annotations

import json
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from stretto_actuator.backend import BackendError, Places, PodSpec
from stretto_actuator.pod.credentials import Issuer, secret_of
from stretto_actuator.pod.spec import inherited, pod_spec
from stretto_actuator.settings import ActuatorSettings
from stretto_core.actuator.state import ActuatorState, Pod
from stretto_installation.access.keys import Keys
from stretto_runtime import SettingsFault
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
    more = OWN | {"AWS_REGION": "eu"}
    assert inherited(more, " AWS_* , STRETTO_*").keys() == harmless | {"AWS_REGION"}, "a pattern names no key"
    assert inherited(OWN, "AWS_SECRET_ACCESS_KEY").keys() == harmless | {"AWS_SECRET_ACCESS_KEY"}


def test_pod_finds_its_specification_where_the_backend_lays_it() -> None:
    state = ActuatorState(job="j", spec=JobSpec.parse(JOB).model_dump_json())
    pod = Pod("ps-0", "ps", 0, 1.0, 2**28, 1, "plan", 0.0)
    places, identity = Places("/run/stretto", "/scratch", ""), {"bus.creds": b"c", "plane.pem": b"k"}
    spec = pod_spec(pod, state, ActuatorSettings(), places, "", identity)
    assert spec.files == {"job.json": state.spec.encode(), **identity}
    names = ("JOB_SPEC", "POD_FOLDER", "STATE_FOLDER", "NATS_CREDENTIALS", "PLANE_KEY")
    assert {name: spec.environment[f"STRETTO_{name}"] for name in names} == {
        "JOB_SPEC": "/run/stretto/job.json",
        "POD_FOLDER": "/scratch",
        "STATE_FOLDER": "",
        "NATS_CREDENTIALS": "/run/stretto/bus.creds",
        "PLANE_KEY": "/run/stretto/plane.pem",
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


def described(settings: ActuatorSettings, **wishes: Any) -> PodSpec:
    """Describe a pod of a job with these wishes. Raises BackendError."""
    state = ActuatorState(job="j", spec=JobSpec.parse({**JOB, **wishes}).model_dump_json())
    pod = Pod("ps-0", "ps", 0, 1.0, 2**28, 1, "plan", 0.0)
    return pod_spec(pod, state, settings, Places("/run/stretto", "/scratch", ""), "", {})


@pytest.mark.parametrize(("resize", "listens"), [("live", ""), ("restart", "STRETTO_PROGRAM_PORT")])
def test_the_program_of_ranks_may_listen_at_a_port(resize: str, listens: str) -> None:
    job = {"name": "j", "program": {"command": ["python"], "resize": resize}, "dataset": {"samples": 320}}
    spec = JobSpec.parse({**job, "resources": {"workers": {"count": {"max": 2}}}})
    state = ActuatorState(job="j", spec=spec.model_dump_json())
    assert [_of_program(role, state).listens for role in ("worker", "data")] == [listens, ""]


def test_a_data_worker_of_a_program_runs_the_program_as_well() -> None:
    job = {"name": "j", "program": {"command": ["python"]}, "dataset": {"samples": 320}}
    state = ActuatorState(job="j", spec=JobSpec.parse(job).model_dump_json())
    for role in ("worker", "data"):
        assert _of_program(role, state).command[1:] == ("-m", "stretto.program")


def _of_program(role: Any, state: ActuatorState) -> PodSpec:
    pod = Pod(f"{role}-0", role, 0, 1.0, 2**28, 1, "plan", 0.0)
    return pod_spec(pod, state, ActuatorSettings(), Places("/run/stretto", "/scratch", ""), "", {})


TYPE = {
    "name": "gpu-a",
    "price_per_hour": 1.2,
    "count": 2,
    "cpu_cores": 8,
    "memory": "32Gi",
    "extended": {"nvidia.com/gpu": 1},
    "node_selector": {"pool": "a"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "environment": {"ISA": "type"},
}


def on_device(backend: Any, types: list[Any]) -> PodSpec:
    """Describe a worker on gpu-a."""
    spec = JobSpec.parse({**JOB, "environment": {"ISA": "job", "OWN": "job"}})
    pod = Pod("worker-0", "worker", 0, 8.0, 2**35, 1, "plan", 0.0, device="gpu-a")
    state = ActuatorState(job="j", spec=spec.model_dump_json())
    settings = ActuatorSettings(backend=backend, device_types=types)
    return pod_spec(pod, state, settings, Places("/run/stretto", "/scratch", ""), "", {})


@pytest.mark.parametrize("backend", ["local", "docker", "kubernetes"])
def test_a_worker_on_devices_has_what_their_type_states(backend: Any) -> None:
    one, other = on_device(backend, [TYPE]), described(ActuatorSettings(backend=backend, device_types=[TYPE]))
    assert {name: one.environment[name] for name in ("ISA", "OWN", "STRETTO_DEVICE")} == {
        "ISA": "type",
        "OWN": "job",
        "STRETTO_DEVICE": "gpu-a",
    }
    assert (one.cpu_cores, one.memory_bytes, one.extended) == (8.0, 2**35, (("nvidia.com/gpu", 1),))
    assert (one.node_selector, [each.key for each in one.tolerations]) == ({"pool": "a"}, ["spot"])
    assert not {"ISA", "STRETTO_DEVICE"} & other.environment.keys()
    assert (other.extended, other.node_selector, other.tolerations) == ((), {}, ())


def test_a_worker_of_a_type_that_is_gone_is_refused_and_says_which_there_are() -> None:
    with pytest.raises(BackendError, match=r"STRETTO_DEVICE_TYPES: gpu-a is not among its types \(gpu-b\)"):
        on_device("local", [TYPE | {"name": "gpu-b"}])


@pytest.mark.parametrize("backend", ["local", "docker", "kubernetes"])
@pytest.mark.parametrize(
    ("wishes", "field", "variable"),
    [
        ({"image": "evil.example/x"}, "image", "IMAGES"),
        ({"kubernetes": {"priority_class": "system-node-critical"}}, "kubernetes.priority_class", "PRIORITY_CLASSES"),
        ({"kubernetes": {"service_account": "admin"}}, "kubernetes.service_account", "SERVICE_ACCOUNTS"),
        ({"kubernetes": {"queue": "others"}}, "kubernetes.queue", "QUEUES"),
        ({"kubernetes": {"image_pull_secrets": ["theirs"]}}, "kubernetes.image_pull_secrets.0", "IMAGE_PULL_SECRETS"),
        ({"kubernetes": {"tolerations": [{"operator": "Exists"}]}}, "kubernetes.tolerations.0", "TOLERATIONS"),
        ({"environment_from": ["theirs"]}, "environment_from.0", "SECRETS"),
        ({"checkpoint": {"url": "s3://theirs"}}, "checkpoint.url", "STORES"),
        ({"volumes": [{"name": "v", "path": "/v", "folder": "/etc"}]}, "volumes.0.folder", "VOLUMES"),
        ({"volumes": [{"name": "v", "path": "/v", "claim": "store"}]}, "volumes.0.claim", "VOLUMES"),
        ({"model": {"entry": "m:M", "requirements": ["evil"]}}, "model.requirements.0", "REQUIREMENTS"),
        (
            {"model": {"entry": "m:M", "code": {"url": "https://evil.example/a.zip", "sha256": "0" * 64}}},
            "model.code.url",
            "CODE",
        ),
    ],
)
def test_no_pod_gets_what_is_not_listed_whichever_way_the_message_came(
    backend: Any, wishes: dict[str, Any], field: str, variable: str
) -> None:
    """The refusal names field, value and the variable that an operator would change."""
    with pytest.raises(BackendError, match=rf"{field} = .*STRETTO_ALLOWED_{variable}"):
        described(ActuatorSettings(backend=backend), **wishes)


@pytest.mark.parametrize(
    ("backend", "wishes", "said"),
    [
        ("local", {"volumes": [{"name": "v", "path": "/v", "claim": "c"}]}, "volumes.0.claim = c: .* by folder"),
        ("docker", {"volumes": [{"name": "v", "path": "/v", "claim": "c"}]}, "by docker_volume or folder"),
        ("kubernetes", {"volumes": [{"name": "v", "path": "/v", "docker_volume": "d"}]}, "by claim or folder"),
        ("local", {"volumes": [{"name": "v", "path": "/v", "folder": "/srv"}]}, "volumes.0.path = /v: .*state /srv"),
        ("local", {"files": {"/etc/ads/x": "a"}}, "files./etc/ads/x: .*a relative path"),
    ],
)
def test_what_a_place_of_pods_does_not_have_is_refused_with_what_it_has(
    backend: Any, wishes: dict[str, Any], said: str
) -> None:
    """The list cannot know where pods run; whoever starts them does."""
    listed = "claim:c,docker_volume:d,folder:/srv"
    with pytest.raises(BackendError, match=said):
        described(ActuatorSettings(backend=backend, allowed_volumes=listed), **wishes)


@pytest.mark.parametrize("backend", ["docker", "kubernetes"])
def test_absolute_files_are_laid_by_the_actuator_and_others_by_the_pod(backend: Any) -> None:
    spec = described(ActuatorSettings(backend=backend), files={"/etc/ads/x": "a", "conf/y": "b"})
    assert spec.texts == {"/etc/ads/x": b"a"}
    assert json.loads(spec.files["job.json"])["files"]["conf/y"] == "b"


def test_a_job_may_repeat_the_settings_of_the_installation() -> None:
    settings = ActuatorSettings.load(
        "actuator",
        {"STRETTO_ACTUATOR_KUBERNETES": '{"queue": "all"}', "STRETTO_ACTUATOR_POD_IMAGE": "stretto/trainer:1"},
    )
    assert described(settings, kubernetes={"queue": "all"}, image="stretto/trainer:1").image == "stretto/trainer:1"


class TestSecrets:
    """Secrets of jobs on places that have none of their own: files that only the actuator's user can read."""

    @staticmethod
    def settings(folder: Path, **more: Any) -> ActuatorSettings:
        return ActuatorSettings(state_folder=folder, allowed_secrets="*", **more)

    @staticmethod
    def laid(folder: Path, text: str = "KEY=canary\n", mode: int = 0o600) -> Path:
        file = folder / "secrets" / "s3"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        return file

    @pytest.mark.parametrize("backend", ["local", "docker"])
    def test_go_into_a_file_of_the_pod_and_not_into_its_environment(self, tmp_path: Path, backend: Any) -> None:
        """An environment would be shown by the engine and by the process's own listing."""
        self.laid(tmp_path, "# for ads\n\nKEY=canary=1\nOTHER= x\n")
        spec = described(self.settings(tmp_path, backend=backend), environment_from=["s3"])
        assert json.loads(spec.files["secrets.json"]) == {"KEY": "canary=1", "OTHER": " x"}
        assert spec.environment["STRETTO_SECRETS"] == "/run/stretto/secrets.json"
        assert not any("canary" in value for value in spec.environment.values())
        assert "canary" not in spec.files["job.json"].decode()
        assert spec.secrets == ()

    def test_are_left_to_kubernetes_where_pods_run_there(self, tmp_path: Path) -> None:
        self.laid(tmp_path)
        spec = described(self.settings(tmp_path, backend="kubernetes"), environment_from=["s3"])
        assert (spec.secrets, spec.files.keys()) == (("s3",), {"job.json"})

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610])
    def test_that_others_could_read_are_refused_with_the_remedy(self, tmp_path: Path, mode: int) -> None:
        file = self.laid(tmp_path, mode=mode)
        with pytest.raises(BackendError, match=f"chmod 600 {file}"):
            described(self.settings(tmp_path), environment_from=["s3"])

    @pytest.mark.parametrize("text", ["canary", "A=1\n=canary", "A B=canary", "STRETTO_JOB=canary", "\x00=canary"])
    def test_that_are_malformed_are_refused_by_line_without_their_text(self, tmp_path: Path, text: str) -> None:
        self.laid(tmp_path, text)
        with pytest.raises(BackendError, match=r"line [12] of .*KEY=value") as refused:
            described(self.settings(tmp_path), environment_from=["s3"])
        assert "canary" not in str(refused.value)

    def test_that_are_links_or_absent_are_refused(self, tmp_path: Path) -> None:
        """A link could lead to another file of the actuator's user, such as its key for the bus."""
        with pytest.raises(BackendError, match="mode 600"):
            described(self.settings(tmp_path), environment_from=["s3"])
        other = self.laid(tmp_path).rename(tmp_path / "other")
        (tmp_path / "secrets/s3").symlink_to(other)
        with pytest.raises(BackendError, match="mode 600"):
            described(self.settings(tmp_path), environment_from=["s3"])

    def test_that_are_not_text_are_refused_without_their_bytes(self, tmp_path: Path) -> None:
        self.laid(tmp_path).write_bytes(b"KEY=canary\xff")
        with pytest.raises(BackendError, match="UTF-8") as refused:
            described(self.settings(tmp_path), environment_from=["s3"])
        assert "canary" not in repr(refused.value.__cause__)


def test_pods_know_how_long_they_have_to_leave() -> None:
    environment = described(ActuatorSettings(stop_grace_s=6.5)).environment
    assert environment["STRETTO_STOP_GRACE_S"] == "6.5"


@pytest.mark.parametrize(
    ("backend", "setting", "told"),
    [
        ("local", "auto", "off"),
        ("docker", "auto", "required"),
        ("kubernetes", "auto", "required"),
        ("local", "required", "required"),
        ("kubernetes", "off", "off"),
    ],
)
def test_pods_are_told_to_encrypt_where_a_network_is_crossed(backend: Any, setting: Any, told: str) -> None:
    environment = described(ActuatorSettings(backend=backend, plane_encrypted=setting)).environment
    assert environment["STRETTO_PLANE_ENCRYPTED"] == told
    assert "STRETTO_PLANE_KEY" not in environment


def test_each_job_has_a_key_that_every_replica_lays(tmp_path: Path) -> None:
    settings = ActuatorSettings(state_folder=tmp_path / "state")
    laid = Issuer(settings).files("j", "ps-0", 0.0)["plane.pem"]
    assert Issuer(settings).files("j", "worker-7", 99.0)["plane.pem"] == laid
    assert Issuer(settings).files("k", "ps-0", 0.0)["plane.pem"] != laid
    assert Issuer(ActuatorSettings(state_folder=tmp_path / "other")).files("j", "ps-0", 0.0)["plane.pem"] != laid
    secret = tmp_path / "state" / "plane.secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert [path.name for path in secret.parent.iterdir()] == ["plane.secret"]
    secret.write_bytes(b"short")
    with pytest.raises(SettingsFault, match=r"plane\.secret has 5 bytes"):
        Issuer(settings)


def test_replicas_that_start_together_make_one_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        made = {*pool.map(secret_of, [tmp_path / "state"] * 64)}
    assert len(made) == 1


def test_the_key_comes_from_the_signing_key_where_there_is_one(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys", time.time())
    files = [
        Issuer(
            ActuatorSettings(
                backend="kubernetes",
                state_folder=tmp_path / name,
                signing_key_file=keys.signing_file,
                nats_credentials=keys.credentials("actuator"),
            )
        ).files("j", "ps-0", 0.0)
        for name in ("a", "b")
    ]
    assert files[0]["plane.pem"] == files[1]["plane.pem"]
    assert keys.signing_file.read_bytes().strip() not in files[0]["plane.pem"]
    assert not (tmp_path / "a").exists()
    without = [Issuer(ActuatorSettings(backend="kubernetes", state_folder=tmp_path / name)) for name in ("c", "d")]
    opened = [each.files(job, "ps-0", 0.0)["plane.pem"] for each in without for job in ("j", "other")]
    assert opened[:2] == opened[2:], "where the bus is open to everybody, replicas still lay the same"
    assert len({*opened, files[0]["plane.pem"]}) == 3
