"""Settings from the environment, and nothing else: a misspelt variable is refused, never ignored.

Fields of ``Settings`` are read from ``STRETTO_<FIELD>``. Fields that a service adds are read from
``STRETTO_<SERVICE>_<FIELD>`` or, shorter, ``STRETTO_<FIELD>``; the longer name wins. Variables that name another
component (``STRETTO_PLANNER_…`` for the fitter), and those that several services read, are ignored by the others, so
one environment serves all. A shorter name of one service is for its own environment; ``stretto up`` sees to it.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from stretto_bus.login import Login, redacted
from stretto_core.model.teams import OTHERS, Quotas, TeamQuota
from stretto_core.model.types import DeviceType
from stretto_messages.base import JOB_PATTERN
from stretto_messages.values import EXTENDED_MAX, Resources, extended_of
from stretto_wire.contract.registry import EVENTS_KEPT_S, USERS
from stretto_wire.findings import findings_of
from stretto_wire.jobspec.devices import DeviceTypes, DeviceTypeSpec
from stretto_wire.jobspec.extended import OfCluster
from stretto_wire.policy.allowed import Allowed, checked_folders, checked_images, entries_of
from stretto_wire.policy.allowed_volumes import checked_volumes
from stretto_wire.stores.urls import canonical

from stretto_runtime.inputs import LARGEST_BYTES
from stretto_runtime.process.faults import SettingsFault

PREFIX = "STRETTO_"
DAY_S = 24 * 3600
EXTENDED_VARIABLE = f"{PREFIX}EXTENDED_RESOURCES"
DEVICE_TYPES_VARIABLE = f"{PREFIX}DEVICE_TYPES"
TEXTS = {str, SecretStr, Path, type(None)}
Rules = TypeVar("Rules")
DAYS_MAX = 36_500
QUOTA_PATTERN = rf"^(\{OTHERS}|{JOB_PATTERN[1:-1]})$"
ALLOWED, TEAMS, EXTENDED, DEVICE, KEPT = "allowed", "teams", "extended", "device", "kept"
SHARED = frozenset({ALLOWED, TEAMS, EXTENDED, DEVICE, KEPT})
"""Begin the names of settings that several services or commands read (:class:`AllowedSettings`,
:class:`TeamsSettings`, :class:`ExtendedSettings`, :class:`DeviceSettings`, :class:`KeptSettings`); the others pass over
them."""
COMPONENTS = frozenset((*USERS, "streams", *SHARED, "cli", "trainer", "pod", "job", "demo"))


class Settings(BaseSettings):
    """Settings of every service; a service adds its own fields in a subclass."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    nats_url: str = Field("nats://127.0.0.1:4222", description="server, or several separated by commas")
    nats_user: str | None = Field(None, description="default: the name of the service, if there is a password")
    nats_password: SecretStr | None = Field(None, description="the user's password, on a bus that has passwords")
    nats_credentials: Path | None = Field(None, description="file of credentials (JWT and nkey), instead of a password")
    nats_ca: Path | None = Field(
        None, description="certificates (PEM) that a tls:// server is verified against; none: the system's"
    )
    state_folder: Path = Field(Path(".stretto"), description="local spans, ports of the health endpoints")
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$")
    health_host: str = "127.0.0.1"
    health_port: int = Field(0, ge=0, le=65535, description="0: any free port, written to run/<service>.json")
    health_listener: int | None = Field(
        None, ge=3, description="descriptor of a socket that the parent listens at for us; none: health_host, _port"
    )
    lease_s: float = Field(2.0, ge=0.2, le=60, description="a replica that is silent for longer counts as dead")
    snapshot_inputs: int = Field(200, ge=1, description="inputs between two snapshots …")
    snapshot_s: float = Field(
        1.0, gt=0, le=60, description="… or seconds between them; 30 times as many if quiet or large"
    )
    journal_ttl_s: int = Field(86400, ge=3600, description="life of journal frames; > the longest outage")
    requests_burst_bytes: int = Field(
        64 << 20,
        ge=LARGEST_BYTES,
        description="bytes of one job's requests that are journalled at once …; least: those of the largest request",
    )
    requests_bytes_per_s: int = Field(
        32 << 10,
        ge=1,
        description="… and in the long run; more are told to ask again. Both shrink while the stream is over half full",
    )
    stream_look_s: float = Field(
        60.0, gt=0, description="interval of checks of the stream's size against its bound, and of webhooks' backlogs"
    )
    spans_bytes: int = Field(32 << 20, ge=1 << 16, description="bound of the local span file of one service")
    spans_per_s: float = Field(100.0, gt=0, description="more spans a second than this are counted, not kept")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take only what ``load`` collected: the environment is read in one place."""
        return (init_settings,)

    @classmethod
    def load(cls, component: str, environ: Mapping[str, str] | None = None) -> Self:
        """Read and check the settings of ``component``.

        Raises:
            SettingsFault: a ``STRETTO_*`` variable is unknown, or a value is refused.
        """
        environ = os.environ if environ is None else environ
        names = cls.names(component)
        given: dict[str, Any] = {}
        used: dict[str, str] = {}
        for variable in sorted(environ, key=len):  # the longer, more particular name overwrites the shorter
            if not variable.startswith(PREFIX):
                continue
            field = names.get(variable)
            if field is None:
                if _concerns_another(variable, component, names):
                    continue
                raise SettingsFault(_unknown(variable, names))
            text = environ[variable]
            given[field] = _value(text, cls.model_fields[field].annotation)
            used[field] = variable
        try:
            return cls(**given)
        except ValidationError as error:
            first = error.errors()[0]
            field = str(first["loc"][0])
            remedy = findings_of([first], cls)[0].remedy
            refused = first.get("input")
            value = repr(redacted(refused) if isinstance(refused, str) else refused)
            if SecretStr in _types(cls.model_fields[field].annotation):
                value = "(a secret)"
            raise SettingsFault(
                f"{used.get(field, PREFIX + field.upper())}={value} is refused: give {remedy}; "
                "correct the variable or unset it to get the default"
            ) from None

    def login(self, user: str) -> Login:
        """The login of ``user``, unless the settings name another one."""
        return Login(self.nats_user or user, self.nats_password, self.nats_credentials, self.nats_ca)

    @classmethod
    def names(cls, component: str) -> dict[str, str]:
        """Return the variables of ``component``, each with its field."""
        names: dict[str, str] = {}
        for field in cls.model_fields:
            names[PREFIX + field.upper()] = field
            if field not in Settings.model_fields:
                names[f"{PREFIX}{component.upper()}_{field.upper()}"] = field
        return names

    @classmethod
    def own(cls, component: str, environ: Mapping[str, str], others: Collection[str]) -> dict[str, str]:
        """Return the variables of ``environ`` that ``component`` should have, its own settings by their longer names.

        ``others`` are the variables of other components, which go. What nobody knows stays, to be refused.
        """
        names = cls.names(component)
        longer = {field: name for name, field in names.items()}
        return {
            longer[names[name]] if name in names else name: environ[name]
            for name in sorted(environ, key=len)  # the longer name overwrites the shorter
            if name.startswith(PREFIX) and (name in names or name not in others)
        }


def machine_memory_bytes() -> int:
    """Return the memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine_settings(rules_type: type[Rules], settings: Settings, **stated: Any) -> Rules:
    """Build a machine's settings, a dataclass of core, from the service's fields of the same names.

    ``stated`` are the fields that the service puts in another form. A field that the service does not offer keeps the
    default of the dataclass.
    """
    offered = type(settings).model_fields.keys()
    names = [field.name for field in fields(rules_type) if field.name in offered]  # type: ignore[arg-type]
    return rules_type(**{name: getattr(settings, name) for name in names} | stated)


class ExtendedSettings(Settings):
    """Settings of a service that counts extended resources. Every such service reads the same variable."""

    extended_resources: OfCluster = Field(
        default_factory=dict[str, int],
        description='extended resources of the cluster for pods, by name, as in {"nvidia.com/gpu": 8}; empty: none',
    )


class DeviceSettings(Settings):
    """Settings of a service that knows types of devices. Every such service reads the same variable."""

    device_types: DeviceTypes = Field(
        default=(),
        description="types of devices that workers may have beside the cluster's own cores, each with its price, as in "
        '[{"name": "gpu-a", "price_per_hour": 1.2, "count": 4, "cpu_cores": 8, "memory": "64Gi", "extended": '
        '{"nvidia.com/gpu": 1}}]; empty: none',
    )

    def device_type(self, name: str) -> DeviceTypeSpec | None:
        """Return the type of that name; None for workers on cores.

        Raises:
            SettingsFault: the installation has no such type.
        """
        known = {each.name: each for each in self.device_types}
        if name and name not in known:
            there = ", ".join(known) or "none"
            raise SettingsFault(f"{DEVICE_TYPES_VARIABLE}: {name} is not among its types ({there}); state it again")
        return known.get(name)


class ClusterSettings(ExtendedSettings, DeviceSettings):
    """Settings of a service that shares out the cluster; the defaults are those of an installation on one machine."""

    cpu_cores: float = Field(
        default_factory=lambda: float(os.cpu_count() or 1), gt=0, description="cores of the cluster for pods"
    )
    memory_bytes: int = Field(
        default_factory=machine_memory_bytes, ge=2**20, description="memory of the cluster for pods"
    )

    @field_validator("extended_resources")
    @classmethod
    def _countable(cls, extended: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        """Refuse more names than an amount of messages has room for: types are counted beside extended resources."""
        if len(extended) + len(types := info.data.get("device_types", ())) > EXTENDED_MAX:
            most = EXTENDED_MAX - len(types)
            raise ValueError(f"at most {most} of them beside {len(types)} types in {DEVICE_TYPES_VARIABLE}")
        return extended

    @property
    def devices(self) -> tuple[DeviceType, ...]:
        """The types as decisions know them."""
        return tuple(
            DeviceType(
                each.name,
                each.price_per_hour,
                each.count,
                each.cpu_cores,
                each.memory,
                each.speed,
                each.interruptions_per_hour,
            )
            for each in self.device_types
        )

    @property
    def capacity(self) -> Resources:
        """All resources of the cluster for pods, the units of devices beside the cores that belong to nobody."""
        units = {device.resource: device.count for device in self.devices}
        return Resources(self.cpu_cores, self.memory_bytes, extended_of(self.extended_resources | units))


class AllowedSettings(Settings):
    """Settings of a service that checks what a job asks for. Every such service reads the same ``STRETTO_ALLOWED_…``.

    All are lists separated by commas; an entry that ends with ``*`` stands for all that begin so.
    """

    allowed_stores: Annotated[str, AfterValidator(checked_folders)] = Field(
        "", description="folders that a job may name in checkpoint.url, as URLs; /* at the end: also folders below"
    )
    allowed_restores: Annotated[str, AfterValidator(checked_folders)] = Field(
        "", description="folders of checkpoints that every job may start from, as URLs"
    )
    allowed_images: Annotated[str, AfterValidator(checked_images)] = Field(
        "", description="images that a job may name: registry/name, registry/name:tag, registry/* or *"
    )
    allowed_priority_classes: str = Field("", description="PriorityClasses that a job may name")
    allowed_tolerations: str = Field(
        "", description="taints that a job may tolerate: key, key=value or key=value:Effect; *: all"
    )
    allowed_image_pull_secrets: str = Field("", description="Secrets that a job may name to pull its image")
    allowed_service_accounts: str = Field("", description="service accounts that a job may name")
    allowed_queues: str = Field("", description="queues of Kueue that a job may name")
    allowed_secrets: str = Field(
        "", description="secrets that a job may name in environment_from; name=submitter: only this submitter's jobs"
    )
    allowed_volumes: Annotated[str, AfterValidator(checked_volumes)] = Field(
        "",
        description="sources of volumes that a job may name: claim:NAME, docker_volume:NAME, folder:/PATH, and with /* "
        "the folders below; :write after it: pods may write; =submitter: only this submitter's jobs",
    )
    allowed_code: Annotated[str, AfterValidator(checked_folders)] = Field(
        "", description="URLs of training code that a job may name; /* at the end: also what is below"
    )
    allowed_requirements: str = Field(
        "", description="names of packages that a job may have installed at the start of its workers; *: any"
    )

    @property
    def allowed(self) -> Allowed:
        """The lists."""
        return Allowed(**{each.name: entries_of(getattr(self, f"{ALLOWED}_{each.name}")) for each in fields(Allowed)})


class StoreSettings(AllowedSettings):
    """Settings of a service that finds the checkpoints of jobs."""

    store_url: Annotated[str, AfterValidator(lambda url: canonical(url) if url else url)] = Field(
        "", description="fsspec URL of a folder; empty: <state folder>/checkpoints"
    )
    memory_folder: Path | None = Field(
        None, description="shared memory that all pods see (one machine: /dev/shm); none: images pass their disk"
    )

    @property
    def store(self) -> str:
        """The installation's own store."""
        return self.store_url or f"file://{self.state_folder.resolve() / 'checkpoints'}"


class KeptSettings(Settings):
    """How long the files of ended jobs stay. Folders of pods with their logs, and spans, go by themselves; by `stretto
    clean`, which reads the same ``STRETTO_KEPT_…`` from its own environment, all that are on its machine.
    """

    kept_pods_days: float = Field(
        EVENTS_KEPT_S / DAY_S,
        ge=1,
        le=DAYS_MAX,
        description="days after which folders of ended pods, and their logs, go",
    )
    kept_spans_days: float = Field(
        EVENTS_KEPT_S / DAY_S, ge=1, le=DAYS_MAX, description="days after which spans of ended jobs go"
    )
    kept_checkpoints_days: float | None = Field(
        None,
        ge=1,
        le=DAYS_MAX,
        description="days after a job's end after which `stretto clean`, and nothing else, removes its checkpoints, "
        "the final one too; none: only if it is told to",
    )


def images_folder(memory: Path, installation: Path, job: str) -> Path:
    """Return the folder in shared memory for the images of a job; installations may have jobs of the same name."""
    home = hashlib.sha256(str(installation.resolve()).encode()).hexdigest()[:8]
    return memory / f"stretto.{job}.{home}"


def groups_name(pods: Path) -> str:
    """Return the name of the control groups, in each hierarchy, of the local pods whose records are in this folder."""
    return "stretto-" + hashlib.sha256(str(pods).encode()).hexdigest()[:10]


EVICTED = "evicted"
"""File in the folder of a local pod: the end of its installation ended it, which is no fault of its job."""


class TeamsSettings(Settings):
    """Settings of a service that applies the quotas of teams. Every such service reads the same ``STRETTO_TEAMS_…``."""

    teams_quotas: dict[Annotated[str, StringConstraints(pattern=QUOTA_PATTERN)], TeamQuota] = Field(
        default_factory=dict[str, TeamQuota],
        description="quota of each team, *: of every other one; cores, memory_gib, extended, jobs, priority_max, "
        'weight, borrow, e.g. {"ads": {"cores": 64, "jobs": 20}, "*": {"cores": 8}}; empty: none',
    )
    teams_quota_holder: Literal["stretto", "kueue"] = Field(
        "stretto",
        description="who applies quotas and fair shares; kueue: its queues do, and teams_quotas has no effect",
    )

    @property
    def quotas(self) -> Quotas:
        """The quotas that Stretto applies: none if Kueue holds them."""
        return self.teams_quotas if self.teams_quota_holder == "stretto" else {}


OF_SEVERAL = frozenset(
    name
    for kind in (AllowedSettings, ClusterSettings, StoreSettings, TeamsSettings, KeptSettings)
    for name in kind.names(kind.__name__)
)
"""Variables that several services read, by their shorter names; a service without such a setting passes over them."""


def _value(text: str, annotation: Any) -> Any:
    """Parse JSON, unless the field holds texts, which may look like JSON. An empty name of a file is None."""
    if not text and {Path, type(None)} <= _types(annotation):
        return None
    if text[:1] not in ("[", "{") or _types(annotation) <= TEXTS:
        return text
    with contextlib.suppress(ValueError):  # refused as it stands, then
        return json.loads(text)
    return text


def _types(annotation: Any) -> set[Any]:
    return set(get_args(annotation)) or {annotation}


def _concerns_another(variable: str, component: str, names: Mapping[str, str]) -> bool:
    if variable in OF_SEVERAL:
        return True
    owner = variable.removeprefix(PREFIX).split("_", 1)[0].lower()
    if owner in SHARED and any(name.startswith(f"{PREFIX}{owner.upper()}_") for name in names):
        return False  # we read such settings: it is misspelt
    return owner in COMPONENTS and owner != component


def _unknown(variable: str, names: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(variable, names, n=1, cutoff=0.5)
    remedy = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(names))}"
    return f"{variable} is not a setting; {remedy}"
