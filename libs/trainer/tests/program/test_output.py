"""The steps that a program prints, or writes for TensorBoard, are counted, however they come."""

from __future__ import annotations

from pathlib import Path

import pytest
from stretto.program.output import EventSteps, PrintedSteps, ToldSteps
from stretto.worker.step_timer import StepTimer


def told(*chunks: bytes, pattern: str = r"step (\d+)") -> StepTimer:
    meter = StepTimer()
    steps = PrintedSteps(pattern, ToldSteps(meter))
    for second, chunk in enumerate(chunks):
        steps.feed(chunk, float(second))
    return meter


@pytest.mark.parametrize(
    "chunks",
    [
        (b"step 1\n", b"step 3\nloss 5\n", b"step 7\n"),
        (b"step 1\r", b"st", b"ep 7\r"),  # a progress bar, and a line in parts
        (b"step 5\n", b"step 9\n", b"step 2\n"),  # another epoch begins
        (b"step 1\n", b"step 99999999999999999999\n", b"step 7\n"),  # no number of steps
        (b"step 1 of step x\n", b"no step\n", b"step 7 step 7\n"),
    ],
)
def test_steps_are_the_differences_of_what_lines_tell(chunks: tuple[bytes, ...]) -> None:
    assert told(*chunks).steps_total == 6


def test_the_first_line_only_begins_and_its_time_counts_for_the_next() -> None:
    window = told(b"step 100\n", b"", b"step 104\n").window()
    assert (window.steps, window.step_s, window.longest_gap_s) == (4, 0.5, 2.0)
    assert window.samples_total == window.steps_total == 4, "one sample a step, as the profiler expects"


def test_a_line_without_an_end_is_bounded() -> None:
    assert told(b"step 1\n", b"x" * 10_000, b"step 3\n", b"step 4\n").steps_total == 3


OF_TENSORFLOW = (
    b'"\0\0\0\0\0\0\0x\x11=\xfd\tJ\r\xe5\x8d{\xc3\xdaA\x10\xac\x02*\x14\n\x12\n\x04lossB\n\x08\x01\x12\x00"\x04\x00\x00'
    b"\x80?\\\xa8\xc8\xe2"
)
"""A record that ``tf.summary.write`` of TensorFlow 2.21 wrote at step 300."""


def event(step: int, more: bytes = b"x" * 100) -> bytes:
    """Return a record of an event file; a step of 0 is left out, as protocol buffers do."""
    number, rest = bytearray(), step
    while rest > 127:
        number.append(rest & 127 | 128)
        rest >>= 7
    content = b"\x09" + bytes(8) + (b"\x10" + bytes(number) + bytes([rest]) if step else b"") + more
    return len(content).to_bytes(8, "little") + bytes(4) + content + bytes(4)


def test_the_greatest_step_of_event_files_is_that_of_the_program(tmp_path: Path) -> None:
    meter, folders = StepTimer(), [tmp_path / name for name in ("train", "validation")]
    for each in folders:
        each.mkdir()
    train, validation = (each / "events.out.tfevents.1" for each in folders)
    train.write_bytes(event(9_000))
    (tmp_path / "leads.nowhere.tfevents").symlink_to(tmp_path / "gone")
    steps = EventSteps(tmp_path, ToldSteps(meter))

    def look(train_has: bytes, validation_has: bytes, now_s: float) -> int:
        for path, written in ((train, train_has), (validation, validation_has)):
            with path.open("ab") as file:
                file.write(written)
        steps.look(now_s)
        return meter.steps_total

    assert look(b"", event(0), 1.0) == 0, "what was there before is of another run"
    assert look(event(100) + event(200), event(1), 2.0) == 200
    assert look(OF_TENSORFLOW, event(2), 3.0) == 300
    whole = event(500)
    assert look(whole[:20], b"", 4.0) == 300, "a record that is not whole is read later"
    assert look(whole[20:], b"", 5.0) == 500
    assert look(event(2**60), b"", 6.0) == 500, "no number of steps"
