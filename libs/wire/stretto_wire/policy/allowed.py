"""Lists of what a job may ask for beyond the installation's own things. By default it may ask for nothing.

The gateway looks here when a job is submitted. Whoever acts looks again (the actuator, the checkpoints service),
because a message may come another way.

An entry that ends with ``*`` stands for everything that begins like it. In URLs and images the star follows a slash.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..findings import Finding, finding
from ..jobspec.kubernetes import KubernetesSpec, Toleration
from ..jobspec.spec import JobSpec
from ..jobspec.training_code import is_remote, normal_name, normal_spelling
from ..stores.urls import canonical, within
from .allowed_volumes import shown, volumes_allow

VARIABLES = "STRETTO_ALLOWED_"
"""Prefix of the variables that hold the lists, one for each field of :class:`Allowed`."""

_TOLERATION = re.compile(r"(?P<key>[^=:]+)(=(?P<value>[^:]*))?(:(?P<effect>[A-Za-z]+))?")
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?"
_IMAGE = re.compile(
    rf"(?:(?P<host>{_HOST})/)??(?P<path>{_COMPONENT}(?:/{_COMPONENT})*)(?P<version>(?::[\w][\w.-]{{0,127}})?(?:@[\w+.:-]+)?)"
)
_DOCKER = "docker.io"

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Allowed:
    """The lists of an installation; an empty one allows nothing."""

    stores: tuple[str, ...] = ()
    """Folders that a job may name in ``checkpoint.url``: exactly, or with ``/*`` also what is below."""
    restores: tuple[str, ...] = ()
    """Folders; every job may start from what is below them."""
    images: tuple[str, ...] = ()
    priority_classes: tuple[str, ...] = ()
    tolerations: tuple[str, ...] = ()
    """``key``, ``key=value`` or ``key=value:Effect``; ``*``: all."""
    image_pull_secrets: tuple[str, ...] = ()
    service_accounts: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    """``name``, or ``name=submitter`` for the jobs of one submitter."""
    volumes: tuple[str, ...] = ()
    """Sources of volumes, as :mod:`stretto_wire.policy.allowed_volumes` reads them."""
    code: tuple[str, ...] = ()
    """URLs of training code: exactly, or with ``/*`` also what is below."""
    requirements: tuple[str, ...] = ()
    """Names of packages that pods install."""

    def findings(self, spec: JobSpec, submitter: str | None = None) -> list[Finding]:
        """Return a finding for everything in ``spec`` that is not allowed.

        ``submitter``: whose job it is; None where it is not known, then a secret is judged by its name alone.
        """
        wishes = spec.kubernetes or KubernetesSpec()
        return [
            *self._store(spec),
            *self._unlisted("images", ("image",), spec.image, _image_fits),
            *self._unlisted("priority_classes", ("kubernetes", "priority_class"), wishes.priority_class, _fits),
            *self._unlisted("service_accounts", ("kubernetes", "service_account"), wishes.service_account, _fits),
            *self._unlisted("queues", ("kubernetes", "queue"), wishes.queue, _fits),
            *(
                found
                for index, toleration in enumerate(wishes.tolerations)
                for found in self._toleration(index, toleration)
            ),
            *(
                found
                for index, name in enumerate(wishes.image_pull_secrets)
                for found in self._unlisted(
                    "image_pull_secrets", ("kubernetes", "image_pull_secrets", index), name, _fits
                )
            ),
            *(
                found
                for index, name in enumerate(spec.environment_from)
                for found in self._unlisted(
                    "secrets", ("environment_from", index), name, lambda name, entry: _owned(name, entry, submitter)
                )
            ),
            *self._volumes(spec, submitter),
            *self._code(spec),
        ]

    def stores_at(self, url: str) -> bool:
        """Return True if a job may keep its checkpoints at ``url``."""
        return any(_url_fits(url, entry) for entry in self.stores)

    def restores_from(self, url: str) -> bool:
        """Return True if every job may start from the manifest at ``url``."""
        return any(within(url, entry.removesuffix("/*")) for entry in self.restores)

    def with_own(self, kubernetes: KubernetesSpec, image: str) -> Allowed:
        """Return the lists with the installation's own image and Kubernetes settings, which a job may repeat."""
        return replace(
            self,
            images=(*self.images, *((image,) if image else ())),
            priority_classes=(*self.priority_classes, *_named(kubernetes.priority_class)),
            tolerations=(*self.tolerations, *(_entry(each) for each in kubernetes.tolerations)),
            image_pull_secrets=(*self.image_pull_secrets, *kubernetes.image_pull_secrets),
            service_accounts=(*self.service_accounts, *_named(kubernetes.service_account)),
            queues=(*self.queues, *_named(kubernetes.queue)),
        )

    def _store(self, spec: JobSpec) -> Iterator[Finding]:
        url = spec.checkpoint.url
        if url is not None and not self.stores_at(url):
            yield self._refused(
                "stores", ("checkpoint", "url"), url, "leave it out: the installation has its own store"
            )

    def _volumes(self, spec: JobSpec, submitter: str | None) -> Iterator[Finding]:
        for index, volume in enumerate(spec.volumes):
            if not volumes_allow(self.volumes, volume, submitter):
                yield self._refused("volumes", ("volumes", index, volume.kind), shown(volume))

    def _code(self, spec: JobSpec) -> Iterator[Finding]:
        code = spec.model.code
        if code is not None and is_remote(code.url):
            yield from self._unlisted("code", ("model", "code", "url"), code.url, _url_fits)
        for index, requirement in enumerate(spec.model.requirements):
            path = ("model", "requirements", index)
            yield from self._unlisted("requirements", path, requirement, _requirement_fits)

    def _toleration(self, index: int, toleration: Toleration) -> Iterator[Finding]:
        if not any(_tolerates(entry, toleration) for entry in self.tolerations):
            yield self._refused("tolerations", ("kubernetes", "tolerations", index), _entry(toleration))

    def _unlisted(
        self, name: str, path: Path, value: str | None, fits: Callable[[str, str], bool]
    ) -> Iterator[Finding]:
        if value is not None and not any(fits(value, entry) for entry in getattr(self, name)):
            yield self._refused(name, path, value)

    def _refused(self, name: str, path: Path, value: str, instead: str = "") -> Finding:
        listed = ", ".join(getattr(self, name))
        take = instead or (f"take one of {listed}" if listed else "leave it out: jobs may name none here")
        return finding(path, value, f"{take}; an operator may add it to {VARIABLES}{name.upper()}")


def entries_of(text: str) -> tuple[str, ...]:
    """Return the entries of a list as a setting holds it, separated by commas."""
    return tuple(entry for part in text.split(",") if (entry := part.strip()))


def checked_folders(text: str) -> str:
    """Return the setting if each entry is a canonical URL, perhaps with ``/*``. Raises ValueError, with the remedy."""
    for entry in entries_of(text):
        folder = entry.removesuffix("/*")
        if canonical(folder) != folder:
            raise ValueError(f"{canonical(folder)} instead of {folder}: one spelling for each folder")
    return text


def checked_images(text: str) -> str:
    """Return the setting if each entry is an image, ``…/*`` or ``*``. Raises ValueError, with the remedy."""
    for entry in entries_of(text):
        if entry != "*" and _image(entry.removesuffix("/*")) is None:
            raise ValueError(f"registry/name, registry/name:tag, registry/* or *, instead of {entry}")
    return text


def _named(name: str | None) -> Sequence[str]:
    return () if name is None else (name,)


def _fits(value: str, entry: str) -> bool:
    return value == entry or (entry.endswith("*") and value.startswith(entry[:-1]))


def _owned(name: str, entry: str, submitter: str | None) -> bool:
    pattern, _, owner = entry.partition("=")
    return _fits(name, pattern) and (not owner or submitter in (None, owner))


def _url_fits(url: str, entry: str) -> bool:
    try:
        place = canonical(url)
    except ValueError:
        return False
    folder = entry.removesuffix("/*")
    return place == folder or (folder != entry and place.startswith(f"{folder.rstrip('/')}/"))


def _requirement_fits(requirement: str, entry: str) -> bool:
    return _fits(normal_name(requirement), normal_spelling(entry))


def _image(reference: str) -> tuple[str, str] | None:
    """Return the full name of an image, and its tag and digest; None if no engine would take the reference."""
    found = _IMAGE.fullmatch(reference)
    if found is None:
        return None
    host, path, version = found["host"] or "", found["path"], found["version"]
    if not host:
        first, _, rest = path.partition("/")
        if rest and ("." in first or first == "localhost"):
            host, path = first, rest
    elif "." not in host and ":" not in host and host != "localhost":
        return None  # an engine takes it for a part of the name, which has no capitals
    host = host.lower() if host.lower() not in ("", f"index.{_DOCKER}") else _DOCKER
    if host == _DOCKER and "/" not in path:
        path = f"library/{path}"
    return f"{host}/{path}", version


def _image_fits(reference: str, entry: str) -> bool:
    image = _image(reference)
    if image is None:
        return False
    if entry == "*":
        return True
    name, version = image
    if entry.endswith("/*"):
        folder = entry.removesuffix("/*")
        first = folder.partition("/")[0]
        is_host = "." in first or ":" in first or first == "localhost"
        folder = f"{first.lower()}{folder[len(first) :]}" if is_host else f"{_DOCKER}/{folder}"
        return name.startswith(f"{folder}/")
    listed = _image(entry)
    return listed is not None and listed[0] == name and listed[1] in ("", version)


def _entry(toleration: Toleration) -> str:
    """Return a toleration as entries of the list are written."""
    value = f"={toleration.value}" if toleration.operator == "Equal" else ""
    return f"{toleration.key or '*'}{value}{f':{toleration.effect}' if toleration.effect else ''}"


def _tolerates(entry: str, toleration: Toleration) -> bool:
    """Return True if ``entry`` covers every taint that the toleration covers."""
    if entry == "*":
        return True
    found = _TOLERATION.fullmatch(entry)
    if found is None or toleration.key is None or toleration.key != found["key"]:
        return False
    if found["effect"] is not None and toleration.effect != found["effect"]:
        return False
    return found["value"] is None or (toleration.operator == "Equal" and toleration.value == found["value"])
