"""Files of jobs on the disk: what may be removed, and what never is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stretto_installation.one_machine.disk import CHECKPOINTS, PODS, SPANS, JobFolder, folders, removable

KINDS = (PODS, SPANS, CHECKPOINTS)


def laid(folder: Path) -> None:
    for kind in KINDS:
        for job in ("ended", "live", "unknown", ".logs"):
            (folder / kind / job / "deep").mkdir(parents=True)
            (folder / kind / job / "deep" / "file").write_bytes(bytes(5000))
            os.utime(folder / kind / job, (100.0, 100.0))


@pytest.mark.parametrize(
    ("kinds", "needed", "before_s", "gone"),
    [
        (KINDS, (), 1000.0, {("ended", kind) for kind in KINDS} | {("unknown", PODS), ("unknown", SPANS)}),
        ((PODS, SPANS), (), 1000.0, {(job, kind) for job in ("ended", "unknown") for kind in (PODS, SPANS)}),
        (KINDS, ("ended", "unknown"), 1000.0, {(job, kind) for job in ("ended", "unknown") for kind in (PODS, SPANS)}),
        (KINDS, (), 500.0, {("unknown", PODS), ("unknown", SPANS)}),
        (KINDS, (), 50.0, set[tuple[str, str]]()),
    ],
    ids=["old", "without checkpoints", "a live job starts from them", "younger", "all are younger"],
)
def test_nothing_goes_of_a_job_that_lives_nor_what_a_live_job_starts_from(
    tmp_path: Path, kinds: tuple[str, ...], needed: tuple[str, ...], before_s: float, gone: set[tuple[str, str]]
) -> None:
    laid(tmp_path)
    found = folders(tmp_path)
    chosen = removable(found, {"ended": 600.0, "live": None}, needed, dict.fromkeys(kinds, before_s))
    assert {(each.job, each.kind) for each in chosen} == gone
    for each in chosen:
        assert 5000 <= each.size_bytes() < 100_000
        each.remove()
    assert {(each.job, each.kind) for each in found if not each.path.exists()} == gone


def test_each_kind_of_folder_has_its_own_age(tmp_path: Path) -> None:
    laid(tmp_path)
    ages = {PODS: 601.0, SPANS: 600.0, CHECKPOINTS: 599.0}
    for kinds in ((PODS,), (PODS, SPANS), KINDS):
        before_s = {kind: ages[kind] + (1 if kind == kinds[-1] else 0) for kind in kinds}
        chosen = removable(folders(tmp_path), {"ended": 600.0, "live": None}, (), before_s)
        assert [each.kind for each in chosen if each.job == "ended"] == [
            PODS,
            *([SPANS] if kinds == (PODS, SPANS) else []),
        ]


def test_a_folder_of_no_known_job_goes_from_a_store_only_if_it_is_named_and_has_checkpoints(tmp_path: Path) -> None:
    for job in ("datasets", "lost"):
        (tmp_path / "checkpoints" / job / "000001").mkdir(parents=True)
    (tmp_path / "checkpoints" / "lost" / "000001" / "manifest.json").touch()
    found = folders(tmp_path)
    for named, gone in (((), []), (("datasets",), []), (("datasets", "lost"), ["lost"])):
        assert [each.job for each in removable(found, {}, (), dict.fromkeys(KINDS, 1e12), named)] == gone


def test_a_link_that_a_pod_has_laid_leads_nowhere(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_bytes(bytes(10**6))
    (tmp_path / "pods" / "a").mkdir(parents=True)
    (tmp_path / "pods" / "a" / "link").symlink_to(precious)
    (tmp_path / "pods" / "b").symlink_to(precious)
    (found,) = folders(tmp_path)
    assert found == JobFolder("a", PODS, tmp_path / "pods" / "a", found.changed_s)
    assert found.size_bytes() < 10**5
    found.remove()
    assert (precious / "file").exists()
