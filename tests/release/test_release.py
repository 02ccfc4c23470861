"""A release states one version and its changes; its chart has digests, and its workflows are sound."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
import yaml
from helm_python import Chart

from tests.charts.rendering import EVERYTHING, NAMESPACE, NEEDED, RELEASE, merged
from tests.release import changelog, chart, versions
from tests.release.versions import ROOT, ReleaseRefused

DAY = date(2030, 2, 1)
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
USED = re.compile(r"uses: (?!\./)([^@\s]+)@(\S+)(.*)")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for place in versions.places():
        target = tmp_path / place.path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(place.path, target)
    return tmp_path


class TestVersion:
    def test_one_is_stated(self) -> None:
        assert versions.RELEASED.fullmatch(versions.current())

    def test_every_requirement_between_our_distributions_is_exact(self) -> None:
        for folder in ("libs", "services"):
            for path in ROOT.glob(f"{folder}/*/pyproject.toml"):
                loose = re.findall(r'^[^\n]*"(stretto-[a-z]+(?:\[[a-z,]+\])?)"', path.read_text(), re.MULTILINE)
                named = re.search(r'^name = "(.+)"$', path.read_text(), re.MULTILINE)
                assert named is not None
                assert set(loose) <= {named[1]}, path

    def test_no_other_file_states_it(self) -> None:
        """Locks, and packages that are never published, have versions of their own."""
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        stated = re.compile(rf"(?<![\d.]){re.escape(versions.current())}(?![\d.])")
        own = re.compile(
            r"constraints\.txt|compose/pins/.*|.*package(-lock)?\.json|CHANGELOG\.md|tests/DURATIONS\.md|examples/equal_shares/.*"
        )
        paths = [ROOT / name for name in listed.split("\0") if name and own.fullmatch(name) is None]
        known = {place.path for place in versions.places()}
        texts = {path: path.read_bytes().decode(errors="replace") for path in paths if path.is_file()}
        assert [str(path) for path, text in texts.items() if path not in known and stated.search(text)] == []

    def test_another_is_stated_in_every_place(self, copy: Path) -> None:
        before = {place.path: place.path.read_text() for place in versions.places(copy)}
        count = versions.write("12.0.345", copy)
        assert count == len(list(versions.places()))
        assert versions.current(copy) == "12.0.345"
        old = versions.current()
        assert {path: path.read_text().replace("12.0.345", old) for path in before} == before

    @pytest.mark.parametrize("version", ["", "1.2", "v1.2.3", "1.2.3rc1", "01.2.3", "1.2.3\n"])
    def test_what_is_no_version_is_refused(self, copy: Path, version: str) -> None:
        with pytest.raises(ReleaseRefused, match="such as 1\\.4\\.0"):
            versions.write(version, copy)
        assert versions.current(copy) == versions.current()

    def test_places_that_differ_are_told(self, copy: Path) -> None:
        path = copy / "compose" / ".env"
        path.write_text(path.read_text().replace(versions.current(), "9.9.9"))
        with pytest.raises(ReleaseRefused, match=r"9\.9\.9 in compose/\.env"):
            versions.current(copy)


TEXT = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- a thing\n\n## [0.0.9] - 2029-01-01\n\n### Fixed\n\n- a bug\n"
DIGESTS = {image: f"sha256:{number:064x}" for number, image in enumerate(chart.image_names())}


class TestChangelog:
    def test_what_is_unreleased_becomes_the_section_of_the_version(self) -> None:
        text = changelog.released(TEXT, "0.2.0", DAY)
        assert changelog.sections(text) == {
            "Unreleased": ("", ""),
            "0.2.0": ("2030-02-01", "### Added\n\n- a thing"),
            "0.0.9": ("2029-01-01", "### Fixed\n\n- a bug"),
        }
        assert changelog.notes(text, "0.2.0") == "### Added\n\n- a thing"

    @pytest.mark.parametrize("version", ["0.0.9", "0.2.0"])
    def test_nothing_new_and_versions_of_the_past_are_refused(self, version: str) -> None:
        text = TEXT if version == "0.0.9" else TEXT.replace("### Added\n\n- a thing\n\n", "")
        with pytest.raises(ReleaseRefused):
            changelog.released(text, version, DAY)

    @pytest.mark.parametrize("version", ["0.2.0", "Unreleased"])
    def test_notes_are_of_a_released_version(self, version: str) -> None:
        with pytest.raises(ReleaseRefused, match="make release"):
            changelog.notes(TEXT, version)

    def test_ours_has_kinds_that_are_known(self) -> None:
        found = changelog.sections(changelog.CHANGELOG.read_text())
        assert next(iter(found)) == changelog.UNRELEASED
        kinds = {kind for _, changes in found.values() for kind in re.findall(r"^### (.+)$", changes, re.MULTILINE)}
        assert kinds <= set(changelog.KINDS)


class TestChart:
    def rendered(self, folder: Path, image: dict[str, object]) -> str:
        values = {**merged(NEEDED, EVERYTHING), "image": image}
        return "".join(Chart.load(folder).render(values, name=RELEASE, namespace=NAMESPACE).values())

    def test_its_defaults_are_the_images_of_the_release(self, tmp_path: Path) -> None:
        made = chart.write(tmp_path, "registry.example.com:5000", DIGESTS)
        text = self.rendered(made, {"registry": ""})
        images = set(re.findall(r"registry\.example\.com:5000/[^\"\s]+", text))
        assert images == {f"registry.example.com:5000/stretto/{name}@{DIGESTS[name]}" for name in DIGESTS}

    @pytest.mark.parametrize(
        ("image", "planner"),
        [
            ({"registry": "", "tag": "mine"}, "registry.example.com:5000/stretto/planner:mine"),
            ({"registry": "elsewhere.example"}, f"elsewhere.example/stretto/planner:{versions.current()}"),
            ({"registry": "", "repository": "one.example/ads"}, f"one.example/ads/planner:{versions.current()}"),
        ],
        ids=["tag", "registry", "repository"],
    )
    def test_images_of_ones_own_have_no_digests_of_the_release(
        self, tmp_path: Path, image: dict[str, object], planner: str
    ) -> None:
        made = chart.write(tmp_path, "registry.example.com:5000", DIGESTS)
        text = self.rendered(made, image)
        assert "sha256:" not in text
        assert planner in text

    @pytest.mark.parametrize("digest", ["", "sha256:12", "latest"])
    def test_what_is_no_digest_is_refused(self, tmp_path: Path, digest: str) -> None:
        with pytest.raises(ReleaseRefused, match="planner"):
            chart.write(tmp_path, "registry.example.com", {**DIGESTS, "planner": digest})
        with pytest.raises(ReleaseRefused, match="planner"):
            chart.write(tmp_path, "registry.example.com", {k: v for k, v in DIGESTS.items() if k != "planner"})


class TestWorkflows:
    def test_every_action_is_named_by_its_commit_and_tag(self) -> None:
        used = [match for path in WORKFLOWS for match in USED.findall(path.read_text())]
        assert used
        assert [name for name, commit, _ in used if not re.fullmatch(r"[0-9a-f]{40}", commit)] == []
        assert [name for name, _, tag in used if not re.fullmatch(r"  # v[\d.]+", tag)] == []
        assert len({(name, commit) for name, commit, _ in used}) == len({name for name, _, _ in used})

    def test_they_are_valid_and_nothing_in_them_is_known_to_be_dangerous(self) -> None:
        bin_ = Path(sys.executable).parent
        for command in (
            [bin_ / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS],
            [bin_ / "zizmor", "--offline", "--no-progress", "--persona=pedantic", ROOT / ".github"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr

    def test_every_target_of_make_and_every_command_of_ours_exists(self) -> None:
        text = "".join(path.read_text() for path in WORKFLOWS)
        text = text.replace('"image-$NAME"', "image-trainer image-planner")
        made = {name for names in re.findall(r"\bmake ((?:[a-z-]+ ?)+)", text) for name in names.split()}
        targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert made - {"image-planner"} <= targets, "image-planner is one of image-%"
        for command in set(re.findall(r"tests\.release ([a-z]+)", text)):
            asked = [sys.executable, "-m", "tests.release", command, "--help"]
            assert subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).returncode == 0, command

    def test_the_tag_of_another_version_is_refused(self) -> None:
        asked = [sys.executable, "-m", "tests.release", "tagged", "v99.0.0"]
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "make release VERSION" in done.stderr


def test_templates_of_issues_are_forms() -> None:
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        assert path.name == "config.yml" or {"name", "description", "body"} <= form.keys()
