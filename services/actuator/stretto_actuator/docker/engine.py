"""The Docker engine's API as the backend needs it: blocking calls, containers parsed at the boundary.

Whatever the engine refuses becomes a BackendError. Its clients know nothing of threads; each call stands for itself.
"""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import docker
import docker.errors
import docker.utils
import requests
import urllib3.exceptions
from docker.types import IPAMConfig, IPAMPool
from stretto_wire.jobspec.kubernetes import INSTALLATION, JOB, POD, ROLE

from ..backend import BackendError
from ..pod.devices import Given

MANAGED = {"app.kubernetes.io/managed-by": "stretto", "app.kubernetes.io/part-of": "stretto"}
DEVICES = "stretto.dev/devices"
"""Label with the devices that a container holds."""
TIMEOUT_S = 60
PERIOD_US = 100_000
QUOTA_LEAST_US = 1_000
NOBODY = "65534"
Reach = Literal["job", "host", "out"]
"""Reach of a network: containers on it alone, the engine's machine too, or anything."""
FORBIDDEN = 403
NOT_FOUND = 404
CONFLICT = 409
CHANGES = ("create", "start", "die", "oom", "update", "destroy")
STATES: dict[str, Literal["created", "running", "exited"]] = {
    "created": "created",
    "running": "running",
    "paused": "running",
    "restarting": "running",
    "exited": "exited",
    "dead": "exited",
}


class ImageMissing(BackendError):
    """The engine does not have the image."""


class NameTaken(BackendError):
    """There is a container of this name."""


class SubnetTaken(BackendError):
    """Another network of the engine or of its machine overlaps."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container, as the engine describes it."""

    id: str
    job: str
    pod: str
    state: Literal["created", "running", "exited"]
    created_at_s: float
    started_at_s: float
    cpu_cores: float
    memory_bytes: int
    exit_code: int
    oom_killed: bool
    devices: Given


class Engine:
    """One installation's containers. ``url``: where the engine listens; empty: as the environment says."""

    def __init__(self, url: str, installation: str) -> None:
        self._url = url
        self.installation = installation
        self.own = {**MANAGED, INSTALLATION: installation}
        """Labels of everything that belongs to the installation."""
        self._filters = {"label": [f"{INSTALLATION}={installation}", JOB, POD]}
        self._client: Any = None

    def open(self) -> None:
        """Connect to the engine, again if connected before."""
        with refusals("the engine cannot be reached"):
            given: Any = {"base_url": self._url} if self._url else dict(docker.utils.kwargs_from_env())
            self._client = docker.APIClient(**given, version="auto", timeout=TIMEOUT_S)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    # what is there -------------------------------------------------------------------------------------------------

    def events(self) -> Any:
        """Names of containers that change from now on: an iterator of (job, pod, id) with ``close``."""
        filters = {**self._filters, "type": ["container"], "event": [*CHANGES]}
        with refusals("the engine does not tell what happens"):
            return self._client.events(decode=True, filters=filters)

    def containers(self) -> list[Container]:
        with refusals("the engine does not tell which containers there are"):
            known = self._client.containers(all=True, filters=self._filters)
        found = (self.inspect(each["Id"]) for each in known)
        return [container for container in found if container is not None]

    def inspect(self, container: str) -> Container | None:
        """By id or name; None: there is none, or none of ours."""
        with refusals(f"the engine does not tell of {container}"), _absent_is_none():
            return _container_of(self._client.inspect_container(container), self.installation)
        return None

    def used_bytes(self, container: str) -> int:
        """Memory that cannot be taken away: without the page cache that the kernel gives back."""
        with refusals(f"the engine does not tell what {container} uses"):
            memory = self._client.stats(container, stream=False, one_shot=True)["memory_stats"]
        answer = memory.get("stats", {})
        return max(memory.get("usage", 0) - answer.get("total_inactive_file", answer.get("inactive_file", 0)), 0)

    def log(self, container: str, lines: int) -> str:
        with refusals(f"the engine does not show the log of {container}"), _absent_is_none():
            answer: bytes = self._client.logs(container, tail=lines)
            return answer.decode(errors="replace").rstrip("\n")
        return ""

    # what is done --------------------------------------------------------------------------------------------------

    def create(self, name: str, image: str, config: Mapping[str, Any], host: Mapping[str, Any]) -> str:
        """A container that does not run yet; its id. Raises ImageMissing, NameTaken."""
        with refusals(f"{name} cannot be made of {image}"):
            made = self._client.create_host_config(**host)
            try:
                return str(self._client.create_container(image, name=name, host_config=made, **config)["Id"])
            except docker.errors.ImageNotFound as error:
                raise ImageMissing(f"{image} is not here") from error
            except docker.errors.APIError as error:
                if error.status_code == CONFLICT:
                    raise NameTaken(f"{name} is there") from error
                raise

    def lay(self, container: str, folder: str, files: Mapping[str, bytes], owner: int) -> None:
        """Files for ``owner`` alone, into a volume that the container has at ``folder``."""
        with refusals(f"the files of {container} cannot be laid into {folder}"):
            self._client.put_archive(container, folder, _archive(files, owner))

    def make_folder(self, container: str, parent: str, name: str, owner: int) -> None:
        """Make a folder that only ``owner`` can use, in the container's volume at ``parent``."""
        with refusals(f"{parent}/{name} cannot be made"):
            self._client.put_archive(container, parent, _archive({name: None}, owner))

    def start(self, container: str) -> None:
        with refusals(f"{container} cannot be started"):
            self._client.start(container)

    def signal(self, container: str, number: int) -> None:
        """Nothing, when it does not run any more."""
        with refusals(f"{container} cannot be signalled"), _absent_is_none(CONFLICT):
            self._client.kill(container, number)

    def limit(self, container: str, cpu_cores: float, memory_bytes: int) -> None:
        with refusals(f"{container} cannot get {cpu_cores} cores and {memory_bytes} bytes"):
            self._client.update_container(container, **limits(cpu_cores, memory_bytes))

    def remove(self, container: str) -> None:
        """Remove a container, running or not, and its volumes."""
        with refusals(f"{container} cannot be removed"), _absent_is_none(CONFLICT):
            self._client.remove_container(container, v=True, force=True)

    def pull(self, image: str) -> None:
        """Pull an image with the client's own credentials for its registry."""
        with refusals(f"{image} cannot be pulled"):
            repository, tag = docker.utils.parse_repository_tag(image)
            for answer in self._client.pull(repository, tag=tag or "latest", stream=True, decode=True):
                if "error" in answer:  # the engine notices only after it has begun to answer
                    raise BackendError(f"{image} cannot be pulled: {answer['error']}")

    def output(self, image: str, command: list[str], network: str) -> str:
        """Run a command in a container without rights, to its end, and return what it printed.

        Raises:
            ImageMissing: the engine does not have the image.
            BackendError: the command cannot be run, or fails.
        """
        with refusals(f"{command[0]} of {image} cannot be run on {network}"):
            rights = {"cap_drop": ["ALL"], "security_opt": ["no-new-privileges"], "read_only": True}
            place = self._client.create_host_config(network_mode=network, **rights)
            given: Any = {"entrypoint": [], "labels": self.own, "user": NOBODY}
            try:
                made = self._client.create_container(image, command, host_config=place, **given)["Id"]
            except docker.errors.ImageNotFound as error:
                raise ImageMissing(f"{image} is not here") from error
            try:
                self._client.start(made)
                code = self._client.wait(made)["StatusCode"]
                printed: bytes = self._client.logs(made)
            finally:
                self._client.remove_container(made, v=True, force=True)
        if code != 0:
            raise BackendError(f"{command[0]} of {image} fails on {network}: {printed.decode(errors='replace')[-500:]}")
        return printed.decode(errors="replace")

    # networks ------------------------------------------------------------------------------------------------------

    def has_network(self, name: str) -> bool:
        with refusals(f"the engine does not tell whether there is a network {name}"):
            return bool(self._client.networks(names=[f"^{name}$"]))

    def make_network(self, name: str, labels: Mapping[str, str], reach: Reach, subnet: str = "") -> None:
        """Make a bridge; without ``subnet``, in the engine's own address pools.

        An internal bridge leads nowhere, but its containers reach every service of the engine's machine at the bridge's
        own address; ``inhibit_ipv4`` gives it none.

        Raises:
            SubnetTaken: another network overlaps.
            BackendError: the engine refuses.
        """
        made: Any = {"driver": "bridge", "check_duplicate": True, "labels": {**self.own, **labels}}
        made["internal"] = reach != "out"
        if reach == "job":
            made["options"] = {"com.docker.network.bridge.inhibit_ipv4": "true"}
        if subnet:
            made["ipam"] = IPAMConfig(pool_configs=[IPAMPool(subnet=subnet)])
        with refusals(f"the network {name} cannot be made"):
            try:
                self._client.create_network(name, **made)
            except docker.errors.APIError as error:
                said = str(error.explanation or error)
                if "overlap" in said and subnet:
                    raise SubnetTaken(f"{subnet} is taken: {said}") from error
                if "address pool" in said:
                    raise BackendError(
                        f"the network {name} cannot be made: {said}; give STRETTO_ACTUATOR_DOCKER_SUBNETS a private "
                        "range for jobs, such as 10.64.0.0/12, or the engine more default-address-pools"
                    ) from error
                raise

    def subnets(self) -> list[str]:
        """Subnets of all networks of the engine."""
        with refusals("the engine does not tell which networks there are"):
            known = self._client.networks()
        configs = (config for each in known for config in each["IPAM"]["Config"] or [])
        return [str(config["Subnet"]) for config in configs if config.get("Subnet")]

    def networks(self, labels: Mapping[str, str]) -> list[str]:
        """Names of those with these labels."""
        with refusals("the engine does not tell which networks there are"):
            filters = {"label": [f"{key}={value}" for key, value in labels.items()]}
            return [str(each["Name"]) for each in self._client.networks(filters=filters)]

    def members(self, network: str) -> dict[str, dict[str, str]]:
        """Containers that run on a network, with their labels."""
        with refusals(f"the engine does not tell who is on {network}"):
            known = self._client.containers(filters={"network": network})
        return {str(each["Id"]): each["Labels"] or {} for each in known}

    def names_on(self, network: str, container: str) -> list[str]:
        """By which others find a container on a network."""
        with refusals(f"the engine does not tell of {container}"), _absent_is_none():
            answer = self._client.inspect_container(container)
            there = answer["NetworkSettings"]["Networks"].get(network)
            return [] if there is None else [answer["Name"].lstrip("/"), *(there["Aliases"] or [])]
        return []

    def join(self, network: str, container: str, names: list[str]) -> None:
        with refusals(f"{container} cannot join {network}"), _absent_is_none(FORBIDDEN):  # it has joined meanwhile
            self._client.connect_container_to_network(container, network, aliases=names)

    def part(self, network: str, container: str) -> None:
        with refusals(f"{container} cannot leave {network}"), _absent_is_none():
            self._client.disconnect_container_from_network(container, network, force=True)

    def remove_network(self, name: str) -> None:
        with refusals(f"the network {name} cannot be removed"), _absent_is_none():
            self._client.remove_network(name)

    # volumes -------------------------------------------------------------------------------------------------------

    def volume_folder(self, name: str) -> str:
        """Return the folder of a volume on the engine's machine.

        Raises:
            BackendError: there is no volume of this name, or it is not on that disk.
        """
        with refusals(f"the volume {name} cannot be used"):
            answer = self._client.inspect_volume(name)
        if answer["Driver"] != "local" or answer["Options"]:
            raise BackendError(
                f"the volume {name} (driver {answer['Driver']}, options {answer['Options']}) is no folder of the "
                "engine's machine, of which a part could be mounted; use a plain local volume, or a folder"
            )
        return str(answer["Mountpoint"])

    def has_volume(self, name: str) -> bool:
        """Return True if the engine has a volume of this name."""
        with refusals(f"the volume {name} cannot be used"), _absent_is_none():
            return bool(self._client.inspect_volume(name))
        return False

    def labels(self, job: str, pod: str, devices: Given) -> dict[str, str]:
        """Return the labels of a pod's container, which holds these devices."""
        held = {DEVICES: json.dumps(devices)} if devices else {}
        return {**self.own, JOB: job, POD: pod, ROLE: pod.partition("-")[0], **held}


def _container_of(answer: dict[str, Any], installation: str) -> Container | None:
    """Return the container that the engine describes; None for one of another installation, or of none."""
    labels = answer["Config"]["Labels"] or {}
    state = STATES.get(answer["State"]["Status"])
    if state is None or labels.get(INSTALLATION) != installation or JOB not in labels or POD not in labels:
        return None
    host = answer["HostConfig"]
    return Container(
        id=answer["Id"],
        job=labels[JOB],
        pod=labels[POD],
        state=state,
        created_at_s=_seconds(answer["Created"]),
        started_at_s=_seconds(answer["State"]["StartedAt"]),
        cpu_cores=host["CpuQuota"] / (host["CpuPeriod"] or PERIOD_US),
        memory_bytes=host["Memory"],
        exit_code=answer["State"]["ExitCode"],
        oom_killed=answer["State"]["OOMKilled"],
        devices={name: tuple(each) for name, each in json.loads(labels.get(DEVICES, "{}")).items()},
    )


def limits(cpu_cores: float, memory_bytes: int) -> dict[str, int]:
    """Quota and period, which can be changed live, unlike NanoCpus; no swap beyond the memory."""
    quota = max(int(cpu_cores * PERIOD_US), QUOTA_LEAST_US)
    return {
        "cpu_period": PERIOD_US,
        "cpu_quota": quota,
        "mem_limit": memory_bytes,
        "memswap_limit": memory_bytes,
    }


def changed(events: Any) -> Iterator[tuple[str, str, str]]:
    """(job, pod, container) of each event, until the stream is cut. Raises BackendError."""
    with refusals("the engine's events are cut off"):
        for event in events:
            answer = event["Actor"]
            yield answer["Attributes"][JOB], answer["Attributes"][POD], answer["ID"]


def cut(events: Any) -> None:
    """End them. A connection that the engine has reset cannot be shut down, nor can one by SSH: it is left alone."""
    with contextlib.suppress(docker.errors.DockerException, OSError, AttributeError):  # the last: it just ended
        events.close()


@contextlib.contextmanager
def refusals(what: str) -> Generator[None]:
    """Raise every fault of the engine as a BackendError that begins with ``what``."""
    try:
        yield
    except docker.errors.APIError as error:
        raise BackendError(f"{what}: {error.explanation or error}") from error
    except (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise BackendError(f"{what}: {error}; see that the engine runs and that we may use it") from error


@contextlib.contextmanager
def _absent_is_none(*more: int) -> Generator[None]:
    try:
        yield
    except docker.errors.APIError as error:
        if error.status_code not in (NOT_FOUND, *more):
            raise


def _archive(entries: Mapping[str, bytes | None], owner: int) -> bytes:
    """A tar with files and, where there is no content, folders."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in entries.items():
            entry = tarfile.TarInfo(name)
            entry.uid = owner
            entry.gid = owner
            if content is None:
                entry.type = tarfile.DIRTYPE
                entry.mode = 0o700
            else:
                entry.size = len(content)
                entry.mode = 0o400
            archive.addfile(entry, io.BytesIO(content or b""))
    return packed.getvalue()


def _seconds(time: str) -> float:
    """Convert a time of RFC 3339, with nanoseconds, to seconds since the epoch."""
    return max(datetime.fromisoformat(time).timestamp(), 0.0)
