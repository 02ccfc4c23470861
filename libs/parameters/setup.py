"""Builds the kernels into the package: beside their source for `pip install -e`, else into the wheel.

A wheel without kernels would be slow wherever it is installed, so it needs a compiler. An editable install goes on
without one: the NumPy reference serves.
"""

import runpy
from pathlib import Path

from setuptools import Command, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

PACKAGE = Path(__file__).parent / "stretto_parameters"
COMPILING = runpy.run_path(str(PACKAGE / "compiling.py"))


class BuildKernels(Command):
    """Build the library of kernels as a step of `build`."""

    def initialize_options(self) -> None:
        self.build_lib: str | None = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self) -> None:
        target = PACKAGE / "libkernels.so"
        if not self.editable_mode:
            target = Path(self.get_outputs()[0])
            target.parent.mkdir(parents=True, exist_ok=True)
        try:
            COMPILING["compile_kernels"](target)
        except COMPILING["NoCompiler"] as error:
            if not self.editable_mode:
                raise
            self.warn(f"{error}; the NumPy reference of the kernels will serve, several times slower")

    def get_outputs(self) -> list[str]:
        return [str(Path(self.build_lib or "") / PACKAGE.name / "libkernels.so")]

    def get_output_mapping(self) -> dict[str, str]:
        return {}

    def get_source_files(self) -> list[str]:
        return [f"{PACKAGE.name}/kernels.c"]


class PlatformWheel(bdist_wheel):
    """A wheel for any Python on one platform: the library knows nothing of Python."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


build.sub_commands.append(("build_kernels", None))
setup(cmdclass={"build_kernels": BuildKernels, "bdist_wheel": PlatformWheel})
