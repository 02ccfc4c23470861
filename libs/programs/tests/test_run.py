"""A program that is run, and that no framework is in: arguments, streams, hashes, imports and forks are its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stretto_programs.lanes.data_workers import DataWorkers
from stretto_programs.lanes.feed import Feed
from stretto_programs.run import brought, options_of

LOST = "the program ran without data workers"


def run(
    folder: Path, text: str, *arguments: str, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program; return how it ended."""
    script = folder / "train.py"
    script.write_text(text)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONHASHSEED"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), **variables}
    command = [sys.executable, "-P", "-m", "stretto_programs.run", str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, cwd=cwd or folder)


PLAIN = """
import sys
print(sys.argv, __name__, sys.path[0] == __file__.rpartition("/")[0] or sys.path[0])
raise SystemExit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("switch", ["on", "off"])
def test_a_program_without_a_framework_runs_untouched_and_one_line_says_so(tmp_path: Path, switch: str) -> None:
    ended = run(tmp_path, PLAIN, "3", "--an-option", STRETTO_PIPELINE=switch)
    assert ended.returncode == 3
    assert ended.stdout == f"['{tmp_path}/train.py', '3', '--an-option'] __main__ True\n"
    ways = "no Keras fit, no loop over 8 elements or more of a data set"
    assert ended.stderr == ("" if switch == "off" else f"stretto: {LOST}: it called {ways}\n")


def test_a_program_that_ends_before_a_data_worker_is_ready_is_told_so() -> None:
    workers = DataWorkers(1, [], {}, print)
    workers.feed, workers.steps_alone = Feed(1, print), 2000
    told = "data workers prepared 0 of 2000 steps; the program ended before a data worker was ready"
    assert brought(workers, [], 1.4, has_sessions=False).startswith(told)
    workers.feed.counts.answers = 1
    assert "was ready" not in brought(workers, [], 1.4, has_sessions=False)
    workers.close()


def test_an_error_of_the_program_is_its_own(tmp_path: Path) -> None:
    ended = run(tmp_path, "raise KeyError('mine')")
    assert ended.returncode == 1
    assert "KeyError: 'mine'" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--data-workers", "0", __file__], "--data-workers 0: give 1 to 64"),
        (["--data-worker", "1", __file__], "unrecognized arguments: --data-worker"),
        (["nowhere.py"], "nowhere.py is no file: name a Python script"),
    ],
)
def test_options_that_cannot_be_used_are_refused_by_name(
    capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    with pytest.raises(SystemExit) as refused:
        options_of(arguments, cores=2)
    assert refused.value.code == 2
    assert reason in " ".join(capsys.readouterr().err.split())


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
