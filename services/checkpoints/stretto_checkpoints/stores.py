"""Places where checkpoints may be: the installation's own store, and those that an operator has listed.

The gateway has judged a job's wishes before; its message may be older than the lists, or have come another way. So no
URL is opened, written or removed that is not judged here. A refusal is the same whether there is anything or not.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto_wire.policy.allowed import VARIABLES, Allowed
from stretto_wire.stores.urls import canonical, within

from .manifest import ManifestDamaged


class StoreRefused(ManifestDamaged):
    """A checkpoint would be at a place that is none of the installation's."""


@dataclass(frozen=True, slots=True)
class Stores:
    """The store of the installation, and the lists of what else is allowed."""

    own: str
    allowed: Allowed

    def folder_of(self, job: str, url: str | None) -> str:
        """Return the folder of a job that names ``url`` for its checkpoints, or none."""
        return f"{self.own if url is None else spelt(url)}/{job}"

    def check_own(self, job: str, url: str) -> None:
        """Raise StoreRefused unless ``url`` is a manifest of the job, in a store that it may use."""
        folder, *rest = url.rsplit("/", 3)
        known = folder == self.own or (spelt(url) == url and self.allowed.stores_at(folder))
        if rest[:1] != [job] or ".." in rest or not known:
            raise StoreRefused(
                f"checkpoint.url={folder} is no store of this installation; leave it out, {_add('STORES')}"
            )

    def check_start(self, job: str, url: str) -> None:
        """Raise StoreRefused unless the job may read the manifest at ``url``, its own or another one."""
        folders = (self.own, *(entry.removesuffix("/*") for entry in self.allowed.stores))
        listed = self.allowed.restores_from(url) or any(within(url, folder) for folder in folders)
        if listed and spelt(url) == url:  # of `s3://bucket//ads` an object store opens another key than was judged
            return
        try:
            self.check_own(job, url)
        except StoreRefused:
            raise StoreRefused(
                f"checkpoint.restore_from={url} is in no store of this installation; take a checkpoint of your own "
                f"jobs, {_add('RESTORES')}"
            ) from None


def spelt(url: str) -> str:
    """Return the URL in its one spelling; one that has none stays, and is refused when it is used."""
    try:
        return canonical(url)
    except ValueError:
        return url


def _add(name: str) -> str:
    return f"or have its folder added to {VARIABLES}{name}"
