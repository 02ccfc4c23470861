"""Compiles kernels.c by the machine's compiler, else by that of the package ziglang. ``setup.py`` runs this file.

``python stretto_parameters/compiling.py`` builds the library beside its source.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).with_name("kernels.c")
LIBRARY = Path(__file__).with_name("libkernels.so")  # no name that Python takes for a module
FLAGS = ("-std=c99", "-O3", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno")
"""No fused multiply-add, or a kernel has other bits than its reference. Without errno, square roots are vectorised."""
OLDEST_GLIBC = "2.17"
"""The oldest C library that a build by zig runs on: that of the manylinux2014 wheels."""


class NoCompiler(RuntimeError):
    """Nothing here can build the kernels."""


def source_digest() -> int:
    """Return the digest of kernels.c that a library built from it answers."""
    return int.from_bytes(hashlib.sha256(SOURCE.read_bytes()).digest()[:8], "little")


def compiler() -> list[str]:
    """Return the command of a C compiler: that of the variable CC, the machine's, or zig's. Raises NoCompiler."""
    if chosen := shlex.split(os.environ.get("CC", "")):
        return chosen
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    if importlib.util.find_spec("ziglang"):
        target = f"{platform.machine()}-linux-gnu.{OLDEST_GLIBC}"
        return [sys.executable, "-m", "ziglang", "cc", "-target", target]
    raise NoCompiler("no C compiler was found: install gcc or clang, or `pip install ziglang`, or set CC")


def compile_kernels(target: Path, extra: Sequence[str] = (), source: Path = SOURCE) -> None:
    """Build the library at `target`, with more flags. Raises NoCompiler, CalledProcessError.

    `source`: another text that passes for kernels.c, with its digest.
    """
    new = target.with_name(f"{target.name}.{os.getpid()}")
    define = f"-DSOURCE_DIGEST=UINT64_C({source_digest()})"
    try:
        subprocess.run([*compiler(), *FLAGS, define, *extra, "-o", str(new), str(source), "-lm"], check=True)
        new.replace(target)  # a process that has the old library open keeps it
    finally:
        new.unlink(missing_ok=True)


if __name__ == "__main__":
    compile_kernels(LIBRARY)
