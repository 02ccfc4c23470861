"""Parts of the trial that need no node: names, the job, the node's own arguments."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from stretto_wire import JobSpec

from tests.charts.rendering import CHART
from tests.kubernetes import build, configuration
from tests.kubernetes.names import NO_SUCH_NAME, Names, answer
from tests.kubernetes.trial import training_job

A, AAAA = 1, 28


def query(name: str, kind: int = A) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def lookup(service: str, namespace: str) -> list[str] | None:
    return {("nats", "stretto"): ["10.0.0.1"], ("pods", "stretto"): ["10.0.0.2", "10.0.0.3"]}.get((service, namespace))


class TestNames:
    @pytest.mark.parametrize(
        ("name", "addresses"), [("nats.stretto", ["10.0.0.1"]), ("PODS.stretto", ["10.0.0.2", "10.0.0.3"])]
    )
    def test_of_services_are_their_addresses(self, name: str, addresses: list[str]) -> None:
        reply = answer(query(f"{name}.svc.cluster.local"), lookup)
        count = len(addresses)
        assert struct.unpack_from("!HHHHH", reply, 2)[1:3] == (1, count)
        records = reply[-16 * count :]
        assert [socket.inet_ntoa(records[16 * n + 12 : 16 * n + 16]) for n in range(count)] == addresses

    @pytest.mark.parametrize("name", ["nobody.stretto.svc.cluster.local", "example.com", "nats"])
    def test_that_nobody_has_do_not_exist(self, name: str) -> None:
        reply = answer(query(name), lookup)
        assert reply[3] & 0xF == NO_SUCH_NAME

    def test_have_no_other_addresses_but_exist(self) -> None:
        reply = answer(query("nats.stretto.svc.cluster.local", AAAA), lookup)
        assert (reply[3] & 0xF, struct.unpack_from("!H", reply, 6)[0]) == (0, 0)

    def test_are_asked_by_udp_and_survive_a_lookup_that_fails(self) -> None:
        asked: list[str] = []

        def flaky(service: str, namespace: str) -> list[str] | None:
            asked.append(service)
            if len(asked) == 1:
                raise ValueError("the API server is away")
            return lookup(service, namespace)

        with Names("127.0.0.1", flaky) as names, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            asker.settimeout(60)
            for _ in range(2):
                asker.sendto(query("nats.stretto.svc.cluster.local"), ("127.0.0.1", names.port))
            assert socket.inet_ntoa(asker.recv(512)[-4:]) == "10.0.0.1"


class TestTheJob:
    def test_is_one_that_stretto_takes(self) -> None:
        job = training_job("trial", 1000)
        assert JobSpec.parse({**job["spec"], "name": "trial"}).dataset.samples == 1000

    def test_is_one_that_the_cluster_takes(self) -> None:
        definition: dict[str, Any] = yaml.safe_load((CHART / "crds" / "trainingjob.yaml").read_text())
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        jsonschema.Draft4Validator(schema["properties"]["spec"]).validate(training_job("trial", 1000)["spec"])


def test_the_binaries_tell_their_version() -> None:
    assert f"component-base/version.gitVersion=v{build.VERSION}" in build.version_flags()


def test_secrets_of_a_node_are_its_owners_alone(tmp_path: Path) -> None:
    secrets = configuration.Secrets.in_folder(tmp_path, "token")
    ports = configuration.Ports(*range(1, 6))
    configuration.write(tmp_path, ports, secrets, "172.17.0.0/16", "node")
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}
