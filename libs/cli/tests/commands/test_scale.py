"""``stretto scale`` against a real gateway."""

from __future__ import annotations

from pathlib import Path

from installed_gateway import PLAN, Installed, decided, write_spec


def test_another_number_of_pods_is_asked_for(installed: Installed, tmp_path: Path) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    assert "no plan to change" in installed.stretto("scale", name, "--ps", "2").stderr
    installed.publish(decided(name, 1, PLAN, None))
    while (done := installed.stretto("scale", name, "--ps", "2")).exit_code:
        assert "no plan to change" in done.stderr
    assert "asked for 1w×0.5 2ps×0.5" in done.stdout
    assert "has this plan already" in installed.stretto("scale", name, "--ps", "1").stdout
    assert "--workers, --ps or --data" in installed.stretto("scale", name).stderr
