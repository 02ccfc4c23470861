"""Settings of the actuator: STRETTO_ACTUATOR_<FIELD> or STRETTO_<FIELD>."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr
from stretto_runtime.settings import DeviceSettings, ExtendedSettings, KeptSettings, StoreSettings
from stretto_wire.jobspec.extended import Name
from stretto_wire.jobspec.kubernetes import KubernetesSpec
from stretto_wire.policy.allowed import Allowed

Network = IPv4Network | IPv6Network


def networks_of(text: str) -> tuple[Network, ...]:
    """Parse addresses and networks that are separated by commas. Raises ValueError."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def networks_stated(text: str) -> str:
    """Return ``text`` if it is a list of addresses and networks. Raises ValueError."""
    networks_of(text)
    return text


class ActuatorSettings(StoreSettings, ExtendedSettings, DeviceSettings, KeptSettings):
    """The backend of the pods, what jobs may ask for, and the time limits of the actuator."""

    backend: Literal["local", "docker", "kubernetes"] = Field("local", description="where pods run")
    installation: str = Field(
        "stretto",
        pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        description="name of the installation that owns the pods",
    )
    pod_image: str = Field("", description="image of pods in containers whose job names none")
    pod_nats_url: SecretStr | None = Field(None, description="URL at which pods reach the bus; none: nats_url")
    signing_key_file: Path | None = Field(
        None,
        description="file of the seed that signs pods' credentials (`python -m stretto_installation keys` makes it); "
        "none: pods have no credentials",
    )
    connections_credentials: Path | None = Field(
        None,
        description="file of credentials in the server's own account, by which the actuator keeps each pod to its "
        "share of connections (`python -m stretto_installation keys` makes it); none: only all together are bounded",
    )
    credentials_s: float = Field(
        86400.0,
        ge=5,
        le=7 * 86400,
        description="life of a pod's credentials, which it renews every hour; in containers > room_timeout_s + "
        "image_timeout_s",
    )
    plane_encrypted: Literal["auto", "required", "off"] = Field(
        "auto",
        description="encrypt the bulk bytes between the pods of a job. auto: required in containers, off for processes "
        "of this machine; off: also where the network itself encrypts",
    )
    pod_python: str = Field(
        "", description="interpreter that pods run with; empty: the actuator's own, in containers: python"
    )
    pod_environment: str = Field(
        "",
        description="names of further variables that pods inherit, separated by commas; * stands for anything (AWS_*)",
    )
    egress: bool = Field(
        True, description="jobs may ask for a way out of their own network (network.egress); false: such a job fails"
    )
    metadata_addresses: Annotated[str, AfterValidator(networks_stated)] = Field(
        "169.254.169.254,169.254.170.2,100.100.100.200,fd00:ec2::254",
        description="addresses of cloud metadata, closed to all pods, separated by commas; on Kubernetes also networks",
    )
    secrets_folder: Path | None = Field(
        None,
        description="folder of the secrets that jobs name in environment_from, where pods are processes or containers: "
        "files of mode 600 with lines KEY=value; none: secrets in the state folder",
    )
    local_confine: Literal["auto", "required", "off"] = Field(
        "auto",
        description="keep pods that are processes from the installation's state, other jobs, the user's files and "
        "other processes, by Landlock and seccomp. auto: where the kernel can; required: refuse to start elsewhere; "
        "off: never",
    )
    local_writable: str = Field(
        "",
        description="folders that all confined pods may write, such as those of models' outputs, separated by commas",
    )
    cgroups: bool = Field(True, description="limit pods by control groups where the system allows it")
    start_cpu_cores: float = Field(
        2.0, ge=0, le=1024, description="least cores until a pod is ready; not on Kubernetes, where room is promised"
    )
    stop_grace_s: float = Field(15.0, ge=0, le=3600, description="time between asking a pod to leave and ending it")
    start_timeout_s: float = Field(180.0, gt=0, description="a pod that is not ready by then is replaced")
    room_timeout_s: float = Field(
        300.0, gt=0, description="a pod without room or quota by then is given up, and tried again later"
    )
    image_timeout_s: float = Field(600.0, gt=0, description="a job whose image is not there by then fails")
    evaluate_timeout_s: float = Field(600.0, gt=0, description="a job that is not evaluated by then finishes without")
    final_checkpoint_timeout_s: float = Field(
        600.0, gt=0, description="longest time that pods wait for the last checkpoint"
    )
    sweep_s: float = Field(30.0, gt=0.05, description="interval of checks for pods of unknown jobs")
    devices: dict[Name, tuple[str, ...]] = Field(
        default_factory=dict[str, tuple[str, ...]],
        description="devices of this machine that pods get one after the other, by extended resource, as in "
        '{"nvidia.com/gpu": ["2", "3"], "example.com/fpga": ["/dev/fpga0"]}; those not named are numbered from 0; on '
        "Kubernetes device plugins know them",
    )
    docker_url: str = Field("", description="URL of the engine; empty: DOCKER_HOST, or the socket of this machine")
    docker_network: str = Field(
        "", description="network of the pods, made where it is missing; empty: <installation>-pods"
    )
    docker_network_per_job: bool = Field(
        True, description="give each job a network of its own; all containers on docker_network but pods join it"
    )
    docker_reach: Literal["job", "host", "out"] = Field(
        "job",
        description="how far pods of jobs without network.egress reach. job: their own job, and containers on "
        "docker_network; host: also this machine, for a bus that is no container; out: anything, for a bus elsewhere",
    )
    docker_subnets: Annotated[str, AfterValidator(networks_stated)] = Field(
        "",
        description="private ranges that the networks of jobs are cut from, separated by commas, such as "
        "10.64.0.0/12; empty: the engine's default-address-pools, which are for about 30 jobs",
    )
    docker_subnet_bits: int = Field(
        24, ge=16, le=29, description="prefix length of a job's network in docker_subnets; 24 is for 250 pods"
    )
    docker_volumes: str = Field(
        "",
        description="volumes of the store of checkpoints, as name:/path or /folder:/path, separated by commas; "
        "a job sees only its own folder in each",
    )
    kubernetes: KubernetesSpec = Field(
        KubernetesSpec(), description='Kubernetes fields of every job; a job\'s own go before: {"node_selector": {...}}'
    )
    kubernetes_namespace: str = Field("", description="namespace of the pods; empty: the actuator's own")
    kubernetes_config: Path | None = Field(None, description="kubeconfig file; none: the service account of this pod")
    kubernetes_owner: str = Field("", description="ConfigMap whose deletion deletes the pods; empty: they stay")
    kubernetes_network_policies: bool = Field(
        True,
        description="make a NetworkPolicy for each job, beside one of the installation's that opens what all pods "
        "need; false: nothing keeps the pods of two jobs apart",
    )
    kubernetes_dns_searches: str = Field(
        "", description="domains in which pods look up short names, too, separated by commas"
    )
    kubernetes_checkpoints_claim: str = Field("", description="claim of a volume that pods share; empty: none")
    kubernetes_node_lost_s: int = Field(
        30, ge=0, le=3600, description="pods of a node that is silent for longer are removed"
    )
    poll_s: float = Field(1.0, gt=0.01, le=60, description="interval of checks of pods while nothing happens")

    @property
    def plane_encryption(self) -> Literal["required", "off"]:
        """The encryption that all pods of a job are told to use between them."""
        if self.plane_encrypted != "auto":
            return self.plane_encrypted
        return "off" if self.backend == "local" else "required"

    @property
    def allowed_here(self) -> Allowed:
        """The lists, and the installation's own settings of pods, which a job may repeat."""
        return self.allowed.with_own(self.kubernetes, self.pod_image)
