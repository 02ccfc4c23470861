"""A container's configuration shows no secret, and has of the store the folders that are its job's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_actuator.backend import BackendError, PodSpec
from stretto_actuator.docker.manifest import PLACES, config, host, texts_by_folder
from stretto_actuator.docker.volumes import JobFolders, volumes_of
from stretto_actuator.pod.devices import Given
from stretto_wire.pod_files import VolumeSpec

CHECKPOINTS = "/checkpoints"


class Engine:
    """The calls that make a job's folder in a volume; nothing is made."""

    installation = "stretto"

    def __init__(self) -> None:
        self.own: dict[str, str] = {}

    def create(self, *_: Any) -> str:
        return "helper"

    def make_folder(self, *_: Any) -> None:
        return None

    def remove(self, _: str) -> None:
        return None

    def has_volume(self, name: str) -> bool:
        return name != "absent"

    def volume_folder(self, name: str) -> str:
        return f"/var/lib/docker/volumes/{name}/_data"


def folders(setting: str) -> JobFolders:
    engine: Any = Engine()
    return JobFolders(engine, volumes_of(setting), 10001)


def mounted(job: str, *reads: str) -> dict[str, tuple[str, bool]]:
    """Return the place in the container of each mount of the store, with its source and whether it is read-only."""
    found = folders(f"store:{CHECKPOINTS}").mounts(job, reads, "trainer:1")
    return {each["Target"]: (each["Source"], each["ReadOnly"]) for each in found}


def test_a_container_has_its_jobs_folder_alone() -> None:
    """No job can read, change or remove another one's checkpoints: they are not in its containers."""
    assert mounted("ads") == {"/checkpoints/ads": ("/var/lib/docker/volumes/store/_data/ads", False)}


parts = st.lists(st.sampled_from(["checkpoints", "first", "ads", "..", ".", "", "%2e%2e", "etc", "a*"]), max_size=6)


@given(parts, st.sampled_from(["file:///", "/", "file://checkpoints/", "s3://checkpoints/", "FILE:///", "local:///"]))
def test_a_container_reads_no_more_than_a_job_folder_of_the_store(path: list[str], begin: str) -> None:
    """Whatever a job starts from, further mounts are folders just below the store, and to read."""
    others = mounted("ads", begin + "/".join(path))
    assert others.pop("/checkpoints/ads")[1] is False
    for place, (source, read_only) in others.items():
        name = place.removeprefix("/checkpoints/")
        assert read_only
        assert name in ("checkpoints", "first", "etc")
        assert source == f"/var/lib/docker/volumes/store/_data/{name}"


PLAIN = PodSpec("ads", "worker-0", ("python",), {}, 1.0, 2**28)
CLICKS = VolumeSpec(name="clicks", path="/data", docker_volume="clicks")
MODELS = VolumeSpec(name="models", path="models", folder="/srv/models", writable=True)


def test_volumes_are_mounted_and_read_only_unless_stated() -> None:
    """A relative path is below the pod's own folder; the engine takes nothing from the image into a named volume."""
    spec = PodSpec("ads", "ps-0", ("python",), {}, 1.0, 2**28, volumes=(CLICKS, MODELS))
    data, models = host(spec, "pods", [], {})["mounts"][-2:]
    assert (data["Target"], data["Source"], data["Type"], data["ReadOnly"]) == ("/data", "clicks", "volume", True)
    assert data["VolumeOptions"] == {"NoCopy": True}
    place = (models["Target"], models["Source"], models["Type"], models["ReadOnly"])
    assert place == (f"{PLACES.scratch}/models", "/srv/models", "bind", False)


def test_absolute_files_lie_in_volumes_of_the_container() -> None:
    """Its root is read-only: each folder with such files is a volume that goes with the container."""
    texts = {"/etc/ads/model.yaml": b"a", "/etc/ads/units": b"b", "/opt/ads/x": b"c"}
    spec = PodSpec("ads", "ps-0", ("python",), {}, 1.0, 2**28, texts=texts)
    assert texts_by_folder(spec) == {"/etc/ads": {"model.yaml": b"a", "units": b"b"}, "/opt/ads": {"x": b"c"}}
    own = {each["Target"] for each in host(spec, "pods", [], {})["mounts"] if not each["Source"]}
    assert {"/etc/ads", "/opt/ads"} < own


@pytest.mark.parametrize(
    ("volume", "said"),
    [
        (VolumeSpec(name="v", path="/v", docker_volume="store"), "checkpoints of all jobs"),
        (VolumeSpec(name="v", path="/v", folder="/srv/store"), "checkpoints of all jobs"),
        (VolumeSpec(name="v", path="/v", folder="/srv/store/other"), "checkpoints of all jobs"),
        (VolumeSpec(name="v", path="/v", folder="/srv"), "checkpoints of all jobs"),
        (VolumeSpec(name="v", path="/v", docker_volume="absent"), "docker volume create absent"),
    ],
)
def test_no_volume_is_the_store_or_made_by_the_engine(volume: VolumeSpec, said: str) -> None:
    """A list that names too much opens no other job's checkpoints."""
    with pytest.raises(BackendError, match=rf"volumes\.v = {volume.kind}:.*{said}"):
        folders(f"store:{CHECKPOINTS},/srv/store:/more").check([volume])
    folders(f"store:{CHECKPOINTS},/srv/store:/more").check([CLICKS, MODELS])


def test_a_container_gets_its_gpus_from_the_engine_and_other_devices_as_files() -> None:
    """The engine numbers the GPUs of a container anew; the pod learns the devices of every kind by a variable."""
    given = {"nvidia.com/gpu": ("1", "GPU-8f2"), "example.com/fpga": ("/dev/fpga0",)}
    place = host(PLAIN, "pods", [], given)
    (request,) = place["device_requests"]
    assert (request["DeviceIDs"], request["Capabilities"], request["Count"]) == (["1", "GPU-8f2"], [["gpu"]], 0)
    assert place["devices"] == ["/dev/fpga0:/dev/fpga0:rwm"]
    environment = config(PLAIN, "worker-0.ads.stretto", {}, given)["environment"]
    assert environment["STRETTO_DEVICES_EXAMPLE_COM_FPGA"] == "/dev/fpga0"
    assert environment["STRETTO_DEVICES_NVIDIA_COM_GPU"] == "1,GPU-8f2"
    assert "CUDA_VISIBLE_DEVICES" not in environment


def test_a_device_without_a_file_is_refused_with_the_setting_that_names_files() -> None:
    with pytest.raises(BackendError, match=r"example.com/fpga = 0: .*STRETTO_ACTUATOR_DEVICES"):
        host(PLAIN, "pods", [], {"example.com/fpga": ("0",)})


def test_no_pod_is_given_the_logs_of_all() -> None:
    """A job that is let start from anywhere in the store gets folders of jobs, and no job's name begins with a dot."""
    assert mounted("ads", "file:///checkpoints/.logs/other/manifest.json").keys() == {"/checkpoints/ads"}


def test_the_engine_is_told_no_secret() -> None:
    """The engine shows a container's configuration to whoever may ask it; files are laid beside it."""
    files = {"secrets.json": b'{"KEY": "canary"}', "bus.creds": b"canary"}
    spec = PodSpec("ads", "ps-0", ("python",), {"STRETTO_SECRETS": f"{PLACES.files}/secrets.json"}, 1.0, 2**28, files)
    whole = [config(spec, "ps-0.ads.stretto", {}, {}), host(spec, "pods", [], {})]
    assert "canary" not in json.dumps(whole, default=str)


@pytest.mark.parametrize(("devices", "visible"), [({}, "void"), ({"nvidia.com/gpu": ("0", "2")}, "0,2")])
def test_a_runtime_that_reads_variables_gives_no_other_gpus(devices: Given, visible: str) -> None:
    """Images of CUDA ask for all of them by this variable, and a job may."""
    spec = PodSpec("ads", "worker-0", ("python",), {"NVIDIA_VISIBLE_DEVICES": "all"}, 1.0, 2**28)
    assert config(spec, "worker-0.ads", {}, devices)["environment"]["NVIDIA_VISIBLE_DEVICES"] == visible
