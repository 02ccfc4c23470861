"""Every image, run as Compose and Kubernetes run it: no root, nothing to write on, no privilege."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.containers.bases import STAND_INS, docker
from tests.containers.engine import Engine
from tests.containers.images import HARDENED, IMAGES, SERVICES, VERSION, added_bytes, described, name_of
from tests.containers.prepared import engine

ADDED_MAX_BYTES = 250e6
LARGER_MAX_BYTES = {"actuator": 360e6, "trainer": 1400e6, "tools": 330e6}
"""The actuator has the clients of Kubernetes (126 MB), of Docker and of every store (126 MB). The trainer has
TensorFlow (1,000 MB) and the stores, the tools have SciPy (111 MB), the bus and the cache."""
WAIT_S = 60.0
STOPPED_S = 10.0
TESTED = [name for name in SERVICES if name not in ("forwarder", "decider")]  # these wait for others of their own

pytestmark = [pytest.mark.slow, pytest.mark.night]


@pytest.fixture(scope="module")
def place() -> Engine:
    return engine()


@pytest.fixture(scope="module")
def network(place: Engine) -> Iterator[str]:
    """A network with a bus named ``nats`` that needs no credentials."""
    name = f"stretto-images-{uuid.uuid4().hex[:8]}"
    docker(place, "network", "create", name)
    try:
        bus = docker(place, "run", "--detach", "--rm", "--network", name, "--network-alias", "nats",
                     STAND_INS["nats"], "nats-server", "--jetstream", "--store_dir", "/tmp/nats")  # fmt: skip
        try:
            provision = ["run", "--rm", "--network", name, *HARDENED, "--env", "STRETTO_NATS_URL=nats://nats:4222"]
            docker(place, *provision, "--entrypoint", "python", name_of("tools"), "-m", "stretto_installation")
            yield name
        finally:
            docker(place, "stop", "--time", "1", bus)
    finally:
        docker(place, "network", "rm", name)


def until(condition: Callable[[], bool], limit_s: float = WAIT_S) -> bool:
    deadline = time.monotonic() + limit_s
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return met


@pytest.fixture
def container(place: Engine, network: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The service that the test is about."""
    service = request.getfixturevalue("service")
    started = docker(place, "run", "--detach", "--network", network, *HARDENED, "--env",
                     "STRETTO_NATS_URL=nats://nats:4222", "--env", "STRETTO_ACTUATOR_BACKEND=local",
                     name_of(service))  # fmt: skip
    yield started
    docker(place, "rm", "--force", "--volumes", started)


@pytest.mark.parametrize("service", TESTED)
def test_a_service_runs_without_privileges_and_leaves_in_order(place: Engine, container: str, service: str) -> None:
    def health() -> str:
        return str(described(place, "container", container)["State"]["Health"]["Status"])

    assert until(lambda: health() == "healthy"), docker(place, "logs", "--tail", "20", container) or health()
    who = docker(place, "exec", container, "python", "-c", "import os; print(os.getuid(), os.getgid())")
    assert who == "10001 10001"
    looked = "import os; print([path for path in ('/', '/etc', '/opt/stretto', '/run') if os.access(path, os.W_OK)])"
    assert docker(place, "exec", container, "python", "-c", looked) == "[]"
    began = time.monotonic()
    docker(place, "stop", "--time", "30", container)
    assert time.monotonic() - began < STOPPED_S
    assert described(place, "container", container)["State"]["ExitCode"] == 0


@pytest.mark.parametrize("service", SERVICES)
class TestImage:
    def test_says_what_it_is(self, place: Engine, service: str) -> None:
        config = described(place, "image", name_of(service))["Config"]
        labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
        assert (labels["title"], labels["version"]) == (f"stretto {service}", VERSION)
        assert labels.keys() >= {"description", "revision", "base.name"}
        assert config["User"] == "10001:10001"
        assert config["StopSignal"] == "SIGTERM"
        assert config["Healthcheck"]["Test"] == ["CMD", "stretto-ready"]
        assert config["Entrypoint"] == ["stretto-service"]

    def test_has_nothing_of_the_other_services(self, place: Engine, service: str) -> None:
        listing = "import importlib.metadata as m, json; print(json.dumps([d.name for d in m.distributions()]))"
        names = set(json.loads(docker(place, "run", "--rm", "--entrypoint", "python", name_of(service), "-c", listing)))
        assert {name.removeprefix("stretto-") for name in names if name.startswith("stretto-")} & set(SERVICES) == {
            service
        }
        assert not names & {"tensorflow_cpu", "pytest", "pip", "setuptools"}


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_is_small(place: Engine, image: str) -> None:
    assert added_bytes(place, image) <= LARGER_MAX_BYTES.get(image, ADDED_MAX_BYTES)


def test_the_trainer_imports_its_roles_without_privileges(place: Engine) -> None:
    run = ["run", "--rm", "--network=none", *HARDENED, name_of("trainer")]
    said = docker(place, *run, "python", "-c", "import os, stretto.worker, stretto.ps; print('uid', os.getuid())")
    assert said.splitlines()[-1] == "uid 10001"


def test_the_tools_are_the_command_and_the_keys(place: Engine) -> None:
    run = ["run", "--rm", "--network=none", *HARDENED]
    assert "stretto" in docker(place, *run, name_of("tools"), "--help")
    made = docker(place, *run, "--entrypoint", "python", name_of("tools"), "-m", "stretto_installation", "keys",
                  "/var/lib/stretto/keys", "--tls", "nats")  # fmt: skip
    assert "keys/planner: for the service and nobody else\n    bus.creds, ca.crt" in made


def test_a_misspelt_service_is_named_with_those_that_there_are(place: Engine) -> None:
    done = subprocess.run(
        ["docker", "build", "-f", "compose/Dockerfile", "--build-arg", f"BASE={STAND_INS['python']}",
         "--build-arg", "SERVICE=planer", "."],
        env=place.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "SERVICE=planer: no folder of that name; there are actuator, arbiter" in done.stdout + done.stderr
