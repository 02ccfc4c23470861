"""Files of places beside checkpoints: at whatever moment a program dies, the file has the places of its checkpoint."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_programs.resume.places import (
    SUFFIX,
    DatasetPlace,
    Kept,
    PlacesRefused,
    begun,
    ended,
    kept_of,
    of_checkpoint,
    text_of,
)
from stretto_programs.resume.resume import Identity, Resume, digest_of

COUNTS = st.integers(0, 10**9)
TEXTS = st.text(max_size=5)
ORDERS = st.lists(COUNTS, max_size=2).map(tuple)
PLACES = st.builds(DatasetPlace, TEXTS, TEXTS, ORDERS, COUNTS, COUNTS, st.integers(-2, 10**9), TEXTS)
SEEDS = st.dictionaries(st.integers(0, 9), st.lists(COUNTS, min_size=2, max_size=2), max_size=2)
KEPT = st.builds(Kept, TEXTS, TEXTS, st.lists(PLACES, max_size=2).map(tuple), SEEDS)
VALUES = st.none() | st.integers() | TEXTS
JSON = (
    VALUES
    | st.just({"version": 1, "checkpoints": [{"seeds": {"0": [float("inf")]}}]})
    | st.lists(VALUES, max_size=2)
    | st.dictionaries(st.sampled_from(["version", "checkpoints"]), VALUES)
)


@given(st.lists(KEPT, max_size=2).map(tuple))
def test_a_file_is_read_as_it_was_written(kept: tuple[Kept, ...]) -> None:
    assert kept_of(text_of(kept, "train.py")) == kept


@given(st.one_of(TEXTS, JSON.map(json.dumps)))
def test_no_other_text_is_read(text: str) -> None:
    with pytest.raises(PlacesRefused):
        kept_of(text)


@given(st.lists(st.sampled_from(["before", "between", "behind"]), min_size=1, max_size=6))
def test_a_program_that_dies_while_it_writes_has_the_places_of_its_checkpoint(deaths: list[str]) -> None:
    """Method: each run writes the same checkpoint twice, and dies at a third time, before or after it is written."""
    file: tuple[Kept, ...] = ()
    content = ""
    for run, death in enumerate(deaths):
        for step in range(3):
            name = f"{run} {step}"
            now = Kept(f"run {run}", "", (DatasetPlace(name, name),))
            file = begun(file, now)
            if (step, death) == (2, "before"):
                break
            content = name
            if (step, death) == (2, "between"):
                break
            file = ended(file, Kept(now.run, content, now.places))
        found = of_checkpoint(file, content)
        assert found is not None
        assert found.places[0].source == content


class Program:
    """A program with one checkpoint `saved`, one data set, and what it was told."""

    def __init__(self, folder: Path, *places: DatasetPlace) -> None:
        self.told: list[str] = []
        self.places = list(places)
        self.checkpoint = folder / "saved"
        self.resume = Resume("train.py", self.told.append, is_on=True)
        self.resume.add_source(lambda: self.places)

    def save(self, content: str) -> None:
        with self.resume.writing(self.checkpoint):
            self.checkpoint.write_text(content)

    def claimed(self, length: int = 100, digest: str = "data") -> DatasetPlace | None:
        return self.resume.claim(Identity("Range", digest, length, length, ""))

    def restored(self, length: int = 100, digest: str = "data") -> DatasetPlace | None:
        self.resume.read(self.checkpoint)
        return self.claimed(length, digest)


PLACE = DatasetPlace("Range → Shuffle", "data", (3,), 40, 5, 100)


def test_the_next_process_goes_on_at_the_place_of_the_checkpoint(tmp_path: Path) -> None:
    Program(tmp_path, PLACE).save("one")
    again = Program(tmp_path)
    assert again.restored() == PLACE
    assert again.restored() is None, "a place is claimed once"
    assert again.told == []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["saved", f"saved{SUFFIX}"]


def test_places_that_wait_are_kept_until_they_are_claimed(tmp_path: Path) -> None:
    """A program may write a checkpoint right after it has restored one."""
    Program(tmp_path, PLACE).save("one")
    between = Program(tmp_path)
    between.resume.read(between.checkpoint)
    between.save("two")
    assert Program(tmp_path).restored() == PLACE


def test_a_process_that_goes_back_to_its_own_checkpoint_is_no_restart(tmp_path: Path) -> None:
    program = Program(tmp_path, PLACE)
    program.save("one")
    assert program.restored() is None
    assert program.told == []


def test_a_place_is_not_given_to_a_data_set_of_another_length(tmp_path: Path) -> None:
    Program(tmp_path, PLACE).save("one")
    again = Program(tmp_path)
    assert again.restored(length=60) is None
    assert again.claimed() == PLACE


def test_a_resumed_process_that_goes_back_to_an_older_checkpoint_is_no_restart(tmp_path: Path) -> None:
    older, another = replace(PLACE, consumed=20), replace(PLACE, identity="another")
    program = Program(tmp_path, PLACE)
    program.save("one")
    program.checkpoint, program.places = tmp_path / "best", [older, another]
    program.save("two")
    again = Program(tmp_path)
    again.resume.read(again.checkpoint)
    again.resume.read(tmp_path / "best")
    assert again.claimed() == PLACE, "a second file does not displace what waits"
    again.resume.read(tmp_path / "best")
    assert again.claimed() is None
    assert again.claimed(digest="another") == another


def test_data_that_are_trained_do_not_go_on_elsewhere(tmp_path: Path) -> None:
    Program(tmp_path, PLACE).save("one")
    assert Program(tmp_path, replace(PLACE, consumed=30)).restored() is None
    assert Program(tmp_path, replace(PLACE, consumed=1)).restored() == PLACE, "an element was looked at"


def test_a_checkpoint_that_is_removed_takes_its_file_with_it(tmp_path: Path) -> None:
    program = Program(tmp_path, PLACE)
    program.save("one")
    program.checkpoint.unlink()
    program.checkpoint = tmp_path / "another"
    program.save("two")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["another", f"another{SUFFIX}"]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda file: file.unlink(), "saved.stretto.json is not there: the data begin anew. It is written where"),
        (lambda file: file.write_text("{"), "the data begin anew. Remove it, or restore an older checkpoint"),
        (lambda file: file.write_bytes(b"\xff\xfe{"), "the data begin anew. Remove it, or restore an older checkpoint"),
        (lambda file: file.with_name("saved").write_text("?"), "belongs to another checkpoint of this name: the data"),
    ],
)
def test_a_file_that_does_not_help_is_named_with_the_remedy(
    tmp_path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    Program(tmp_path, PLACE).save("one")
    spoil(tmp_path / f"saved{SUFFIX}")
    again = Program(tmp_path)
    assert again.restored() is None
    [told] = again.told
    assert reason in told


@pytest.mark.parametrize(
    ("length", "digest", "reason"),
    [
        (
            30,
            "data",
            "Range → Shuffle begins anew: with 30 elements at its source it is not the one that had 100. Give",
        ),
        (101, "data", "with 101 elements at its source it is not the one that had 100. Give the data that it had"),
        (100, "another", "has no place for Range, but for Range → Shuffle: the data begin anew. Restore"),
    ],
)
def test_data_that_are_others_begin_anew(tmp_path: Path, length: int, digest: str, reason: str) -> None:
    Program(tmp_path, PLACE).save("one")
    again = Program(tmp_path)
    assert again.restored(length, digest) is None
    [told] = again.told
    assert reason in told
    assert f"{tmp_path}/saved.stretto.json" in told


def test_a_checkpoint_is_written_where_its_file_cannot_be(tmp_path: Path) -> None:
    program = Program(tmp_path, PLACE)
    (tmp_path / f"saved{SUFFIX}").mkdir()
    program.save("one")
    assert program.checkpoint.read_text() == "one"
    [told] = program.told
    assert "saved.stretto.json is not written" in told


def test_a_damaged_file_is_written_anew(tmp_path: Path) -> None:
    program = Program(tmp_path, PLACE)
    (tmp_path / f"saved{SUFFIX}").write_bytes(b"\xff\xfe{")
    program.save("one")
    assert Program(tmp_path).restored() == PLACE


def test_saves_of_two_threads_each_have_a_file_with_the_places_of_their_beginning(tmp_path: Path) -> None:
    program = Program(tmp_path, PLACE)
    another = tmp_path / "another"

    def save() -> None:
        with program.resume.writing(another):
            another.write_text("two")

    with program.resume.writing(program.checkpoint):
        thread = threading.Thread(target=save)
        thread.start()
        thread.join()
        program.checkpoint.write_text("one")
        program.places = [replace(PLACE, consumed=41)]
    assert another.with_name(f"another{SUFFIX}").is_file()
    assert Program(tmp_path).restored() == PLACE


def test_a_place_that_nobody_can_tell_any_more_at_the_end_of_a_save_is_not_kept(tmp_path: Path) -> None:
    program = Program(tmp_path, PLACE)
    with program.resume.writing(program.checkpoint):
        program.checkpoint.write_text("one")
        program.places = [replace(PLACE, unknown="its iterator is lost")]
    assert Program(tmp_path).restored() is None


def test_an_exported_model_has_no_file(tmp_path: Path) -> None:
    program = Program(tmp_path, PLACE)
    program.checkpoint = tmp_path / "variables" / "variables"
    program.checkpoint.parent.mkdir()
    program.save("one")
    assert program.restored() is None
    assert [*program.checkpoint.parent.iterdir()] == [program.checkpoint]
    assert program.told == []


def test_a_file_that_is_not_there_is_told_once_data_begin(tmp_path: Path) -> None:
    program = Program(tmp_path)
    program.resume.read(program.checkpoint)
    assert program.told == []
    assert program.restored() is None
    assert len(program.told) == 1


def test_of_tensorflows_checkpoints_the_index_tells_the_content(tmp_path: Path) -> None:
    (tmp_path / "saved.index").write_text("sums")
    assert digest_of(f"{tmp_path}/saved") != ""
    assert digest_of(f"{tmp_path}/none") == ""
