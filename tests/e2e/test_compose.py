"""`docker compose up` on a real engine: a job trains to its end while its containers die, and nothing is left of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.containers.installation import EVERY_SERVICE, Installation, installed
from tests.containers.prepared import engine_with_compose

SAMPLES = 300_000
JOB = "under-compose"

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.night]


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    with installed(engine_with_compose()) as running:
        yield running
    assert running.left() == []


@pytest.fixture(scope="module")
def trained(installation: Installation) -> Installation:
    """A job that lost its workers and, one after another, every service."""
    installation.submit(JOB, SAMPLES)
    installation.until(lambda: installation.trained_samples(JOB) > 0, "the first samples are trained")
    for container in installation.pods("worker"):
        installation.crash(container)
    for service in EVERY_SERVICE:
        for container in installation.containers(service):
            installation.crash(container)
        installation.until(lambda service=service: installation.ready(service), f"{service} is ready again")
    installation.until(lambda: installation.ended(JOB), "the job ends", 600)
    return installation


def test_the_job_ends_with_exact_books(trained: Installation) -> None:
    assert trained.status(JOB) == "finished"
    books = trained.gateway.audit(JOB)
    assert books["exact"], books["findings"]
    assert (books["samples_done"], books["samples_given_up"]) == (SAMPLES, 0)
    exits = [event.body["data"]["reason"] for event in trained.gateway.events(JOB, follow=False, names=("pod-exited",))]
    assert "killed" in exits


def test_no_pod_is_left_of_a_job_that_has_ended(trained: Installation) -> None:
    trained.until(lambda: trained.pods() == [], "the job's containers are gone", 60)


def test_state_outlives_down_and_up(trained: Installation) -> None:
    trained.project("down", "--timeout", "15")
    trained.up()
    assert trained.status(JOB) == "finished"


def test_services_scale(trained: Installation) -> None:
    scaled = [name for name in EVERY_SERVICE if name != "gateway"]  # it has a port on the host
    trained.up(*(argument for name in scaled for argument in ("--scale", f"{name}=2")))
    assert {name: len(trained.containers(name)) for name in scaled} == dict.fromkeys(scaled, 2)
