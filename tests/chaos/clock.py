"""The wall clock of one process, stepped: the machine's own clock stays, and so does everybody else's.

Programs read the clock from code that the kernel maps into each of them (vdso(7)). Here that function is replaced, in
one running process, by the system call and an addition to CLOCK_REALTIME; the monotonic clock stays as it is, as it
does when an administrator or NTP steps the clock. libfaketime cannot do that to a Go program, a time namespace has no
CLOCK_REALTIME.
"""

from __future__ import annotations

import os
import platform
import signal
import struct
import sys
import time
from pathlib import Path

SYMBOLS = 11  # SHT_DYNSYM, elf(5)
STOPPED_S = 5.0


def missing() -> str:
    """Why no clock can be stepped here; empty if one can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"clocks are stepped by a few instructions for Linux on x86-64, this is {platform.machine()}"
    return ""


def step(pid: int, seconds: int) -> None:
    """From now on the wall clock of ``pid`` is ``seconds`` ahead of the machine's (negative: behind)."""
    code = (
        b"\xb8\xe4\x00\x00\x00"  # mov eax, 228            clock_gettime
        b"\x0f\x05"  # syscall                             rdi: which clock, rsi: where to
        b"\x85\xff"  # test edi, edi                       CLOCK_REALTIME is 0
        b"\x75\x07"  # jne to the return
        b"\x48\x81\x06" + struct.pack("<i", seconds) + b"\xc3"  # add qword ptr [rsi], seconds  # ret
    )
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        start, size = _clock_gettime(pid, memory)
        if len(code) > size:
            raise RuntimeError(f"clock_gettime has {size} bytes, {len(code)} are needed")
        deadline_s = time.monotonic() + STOPPED_S
        while True:
            os.kill(pid, signal.SIGSTOP)
            try:
                if not _inside(pid, start, start + size):
                    memory.seek(start)
                    memory.write(code)
                    return
            finally:
                os.kill(pid, signal.SIGCONT)
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"process {pid} is always reading the clock")
            time.sleep(0.001)


def _inside(pid: int, start: int, end: int) -> bool:
    """Return True if a thread is not stopped yet, or is inside the code that will be replaced."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        if (thread / "stat").read_text().rpartition(")")[2].split()[0] != "T":
            return True
        words = (thread / "syscall").read_text().split()
        if words[0] == "running" or start <= int(words[-1], 16) < end:
            return True
    return False


def _clock_gettime(pid: int, memory: object) -> tuple[int, int]:
    """Address and size of the function in ``pid``."""
    line = next(line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if line.endswith("[vdso]"))
    base, end = (int(word, 16) for word in line.split()[0].split("-"))
    memory.seek(base)  # type: ignore[attr-defined]
    image: bytes = memory.read(end - base)  # type: ignore[attr-defined]
    sections_at, size, count = *struct.unpack_from("<Q", image, 0x28), *struct.unpack_from("<HH", image, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, sections_at + n * size) for n in range(count)]
    symbols = next(section for section in sections if section[1] == SYMBOLS)
    names = sections[symbols[6]][4]
    for offset in range(symbols[4], symbols[4] + symbols[5], 24):
        name, _, _, _, value, length = struct.unpack_from("<IBBHQQ", image, offset)
        if image[names + name :].split(b"\0", 1)[0] == b"__vdso_clock_gettime":
            return base + value, length
    raise RuntimeError("the vdso has no clock_gettime")
