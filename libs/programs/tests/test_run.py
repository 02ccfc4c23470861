"""A program that is run, and that no framework is in: arguments, streams, hashes, imports and forks are its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOST = "the program ran without data workers"


def run(folder: Path, text: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program; return how it ended."""
    script = folder / "train.py"
    script.write_text(text)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONHASHSEED"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-m", "stretto_programs.run", str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, cwd=cwd or folder)


def test_all_behind_the_script_is_its_own(tmp_path: Path) -> None:
    ended = run(tmp_path, "import sys; print(sys.argv[1:])", "--", "--exact", "--data-workers")
    assert ended.stdout == "['--', '--exact', '--data-workers']\n"


def test_the_environment_is_the_programs_own(tmp_path: Path) -> None:
    text = "import os; print([each for each in os.environ if 'HASH' in each]); print(hash('text'))"
    ended = [run(tmp_path, text).stdout.splitlines() for _ in range(2)]
    assert [lines[0] for lines in ended] == ["[]", "[]"]
    assert ended[0][1] != ended[1][1], "the salt is drawn anew, as alone"


def test_modules_of_the_current_folder_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "random.py").write_text("raise SystemExit('the wrong one')")
    ended = run(tmp_path / "sub", "import random; print(random.random() < 1)", cwd=tmp_path)
    assert ended.stdout == "True\n"


def test_a_program_may_close_stderr(tmp_path: Path) -> None:
    ended = run(tmp_path, "import sys; sys.stderr.close()")
    assert ended.returncode == 0
    assert LOST in ended.stderr


def test_looking_for_a_framework_hooks_nothing_and_loses_no_hook(tmp_path: Path) -> None:
    text = """
import importlib.util, sys
from stretto_programs.import_hooks import AfterImport
hooked = []
AfterImport([{"colorsys": hooked.append}], print)
assert "colorsys" not in sys.modules
importlib.util.find_spec("colorsys")
assert not hooked
import colorsys
print(hooked == [colorsys])
"""
    assert run(tmp_path, text).stdout == "True\n"


@pytest.mark.parametrize("leave", ["sys.exit(0)", "pass"])
def test_a_forked_child_ends_by_itself_and_says_nothing(tmp_path: Path, leave: str) -> None:
    text = f"""
import os, sys
if os.fork() == 0:
    {leave}
else:
    os.wait()
    print("parent")
"""
    ended = run(tmp_path, text)
    assert (ended.returncode, ended.stdout) == (0, "parent\n")
    assert ended.stderr.count(LOST) == 1
