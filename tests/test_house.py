"""House rules beyond linters: the README's commands exist, services have one shape, and prose is plain."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from stretto_cli.main import app
from stretto_cli.options import OWN_VARIABLES
from stretto_installation.settings import StreamsSettings
from stretto_runtime.settings import Settings
from typer.testing import CliRunner

from tests import durations
from tests.waits import wait_until

ROOT = Path(__file__).parents[1]
SERVICES = sorted(path.parent for path in ROOT.glob("services/*/pyproject.toml"))
DISTRIBUTIONS = sorted([*SERVICES, *(path.parent for path in ROOT.glob("libs/*/pyproject.toml"))])
PROMISES = ROOT / "libs" / "runtime" / "PROMISES.md"
LONGEST_FUNCTION_LINES = 70
LONGEST_CLASS_LINES = 250
LONG_CLASSES_MAX = 10
LONGER_CLASS = f"Larger than {LONGEST_CLASS_LINES} lines: "
"""A longer class gives its reason in its docstring, after these words."""
MODULES_MAX = 12
LARGER_ROOMS = {
    "libs/core/stretto_core/actuator": 13,
    "libs/core/stretto_core/arbiter": 15,
    "libs/installation/stretto_installation/one_machine": 13,
    "libs/messages/stretto_messages": 15,
    "libs/plane/stretto_plane": 13,
    "libs/sim/stretto_sim/cluster": 13,
    "libs/trainer/stretto/engine": 15,
}
"""Folders that have more modules still, and how many: none may be added to them."""
GLOSSARY_WORDS_MAX = 60
SIMULATED = re.compile(
    r"libs/(bus|runtime|core)/stretto_|"
    r"services/(profiler|fitter|planner|arbiter|dispatcher|checkpoints|oom|actuator)/stretto_"
)
"""Packages that a simulation runs as they are."""
CLOCKS_AND_CHANCE = {"time", "random", "uuid", "secrets"}
NOW = re.compile(r"\b(urandom|getrandom)\(|\b(datetime|date)\.(now|today|utcnow)\(|\brandom\.default_rng\(\)")
OTHER_CLOCKS = {
    "libs/runtime/stretto_runtime/access/identity.py": {"secrets"},
    "libs/runtime/stretto_runtime/access/tokens.py": {"secrets"},
    "services/actuator/stretto_actuator/pod/credentials.py": {"secrets"},
    "services/actuator/stretto_actuator/local/backend.py": {"time"},
}
"""Files that make secrets, which must not come from a seed, or compare with the kernel's time of boot."""
HOMEPAGE = "https://stretto.dev"
"""The address of the project, in the domain of its Kubernetes API group."""
OTHER_VARIABLES = {
    "STRETTO_VERSION": "compose: the tag of the images",
    "STRETTO_SILENT": "the service that tests and benches of the runtime count with",
    "STRETTO_TEST_KUBECONFIG": "tests with a real cluster",
    "STRETTO_DEMO_REFERENCE": "the demonstration",
    "STRETTO_PIPELINE": "stretto run: off runs the plain program",
    "STRETTO_PLANE_KEY": "pods: the key of their job for the plane",
    "STRETTO_POD_FOLDER": "pods: their own folder",
}
"""Variables that are neither a service's setting nor the command's, with their reader."""
RIDDLES = {"What", "Who", "Of", "As", "Whether"}
BEGINS_WITH_A_PRONOUN = re.compile(
    r"(It|Its|They|Them|Their|That|Those|This|These|He|She|Such|Some|What|Who|Which)(ever)?\b"
)
RELATIVE = re.compile(r"\b(that of|those of|one that|so many|any more)\b")
WRITTEN_INTO_PROTO = ("libs/messages/", "libs/wire/stretto_wire/rest/", "libs/wire/stretto_wire/contract/excerpts.py")
"""Folders and files whose docstrings are descriptions in ``proto/``, which stays as it is."""

# put together here, so that this file does not hold what it forbids
REGISTRY_HOST = re.compile(r"https?://[\w.-]*(" + "|".join(["py" + "pi", "python" + "hosted", "npm" + "js"]) + r")\b")
NOT_IN_A_CLONE = re.compile(r"\b(" + "|".join(["RUN" + r"TIME\.md", "DES" + "IGN"]) + r")\b")
MACHINE_PATH = re.compile(r"(?<![\w./}])/(" + "|".join(["wo" + "rk", "ro" + "ot", "ho" + "me"]) + r")/")


@cache
def tracked() -> list[Path]:
    """Every text file that a clone gets, and those that are about to be added."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in names if (ROOT / name).is_file()]


@cache
def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def names_of(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


class Definition(NamedTuple):
    """A module, class, function or docstring of a tracked file."""

    file: str
    node: type[ast.AST]
    name: str
    line: int
    lines: int
    docstring: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.name or self.line}"


class Import(NamedTuple):
    """An import statement: ``import a, b`` names modules, ``from m import a`` names parts of one."""

    file: str
    module: str | None
    names: list[str]
    absolute: bool


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the module and its statements at any depth, without their expressions, which are most of a tree."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        yield (node := waiting.pop())
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, name, ())


@cache
def syntax() -> tuple[list[Definition], list[Import]]:
    """Return every definition, docstring and import of the tracked Python files. The trees are gone: they are large."""
    definitions: list[Definition] = []
    imports: list[Import] = []
    for path in tracked():
        if path.suffix != ".py":
            continue
        file = str(path.relative_to(ROOT))
        for node in statements(ast.parse(text_of(path))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name, line, lines = getattr(node, "name", ""), getattr(node, "lineno", 1), lines_of(node)
                definitions.append(Definition(file, type(node), name, line, lines, ast.get_docstring(node) or ""))
            elif (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                text = " ".join(node.value.value.split())
                definitions.append(Definition(file, ast.Expr, "", node.lineno, lines_of(node), text))
            elif isinstance(node, ast.Import):
                imports.append(Import(file, None, [alias.name for alias in node.names], True))
            elif isinstance(node, ast.ImportFrom):
                imports.append(Import(file, node.module, [alias.name for alias in node.names], node.level == 0))
    return definitions, imports


def definitions_of_product(*nodes: type[ast.AST]) -> list[Definition]:
    """Return the definitions of these kinds outside tests."""
    return [each for each in syntax()[0] if each.node in nodes and "/tests/" not in f"/{each.file}"]


def lines_of(node: ast.AST) -> int:
    return (getattr(node, "end_lineno", 0) or 0) - getattr(node, "lineno", 0) + 1


class TestReadme:
    README = text_of(ROOT / "README.md")

    def test_every_make_target_that_is_named_exists(self) -> None:
        targets = set(re.findall(r"^([a-z]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
        named = set(re.findall(r"(?:^|`)make ([a-z]+)", self.README, re.MULTILINE))
        assert {"demo", "test"} <= named <= targets

    @pytest.mark.proof
    def test_every_command_that_is_named_exists(self) -> None:
        named = set(re.findall(r"^\.venv/bin/stretto ([a-z]+)", self.README, re.MULTILINE))
        shown = CliRunner().invoke(app, ["--help"])
        assert shown.exit_code == 0, shown.output[-2000:]
        missing = [name for name in sorted(named) if not re.search(rf"\b{name}\b", shown.stdout)]
        assert named
        assert missing == []

    def test_every_file_that_is_named_exists(self) -> None:
        linked = re.findall(r"\]\((?!https?:)([^)#]+)\)", self.README)
        submitted = re.findall(r"stretto submit (\S+)", self.README)
        assert [name for name in [*linked, *submitted] if not (ROOT / name).exists()] == []


def test_setup_says_what_to_install_where_python_cannot_create_environments(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    command = ["make", "setup", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "install python3.11 and its package python3.11-venv" in done.stderr
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize("every", [[], ["EVERY_S=1"]])
def test_setup_tells_at_once_what_pip_does_and_that_it_still_does_it(tmp_path: Path, every: list[str]) -> None:
    """Method: the filter of pip's output, whose input stays open."""
    (tmp_path / "lib/python3.11/site-packages/keras.dist-info").mkdir(parents=True)
    command = ["make", "-s", "--eval", "try: ; @$(PROGRESS)", "try", f"VENV={tmp_path}", "PACKAGES=210", *every]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as filtering:
        assert filtering.stdin is not None
        assert filtering.stdout is not None
        for said, told in [
            ("Collecting keras==3 (from -r file)\n" * 20, ["  20 of 210: keras==3", "  still at keras==3: 1 packages"]),
            ("Installing collected packages: keras\n", ["  unpacking all …", "  still unpacking: 1 packages unpacked"]),
        ]:
            filtering.stdin.write(said)
            filtering.stdin.flush()
            for line in told if every else told[:1]:
                assert filtering.stdout.readline().startswith(line)
        filtering.stdin.close()
    assert filtering.returncode == 0


@pytest.mark.alone  # an interrupted run reads the environment of each process of this machine, which busy ones delay
def test_an_interrupted_run_ends_its_workers_and_what_their_tests_started(tmp_path: Path) -> None:
    """Method: a terminal's Ctrl-C signals the whole group. One process of each test is in a session of its own."""
    (tmp_path / "test_long.py").write_text(
        "import os, pathlib, subprocess, time, pytest\n"
        "@pytest.mark.parametrize('number', [0, 1])\n"
        "def test_long(number):\n"
        "    apart = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "    pathlib.Path(__file__).with_name(f'{number}.pids').write_text(f'{os.getpid()} {apart.pid}\\n')\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "conftest", "--rootdir", str(tmp_path), str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as running:  # fmt: skip
        noted = [tmp_path / "0.pids", tmp_path / "1.pids"]
        wait_until(lambda: all(each.exists() and each.read_text().endswith("\n") for each in noted))
        os.killpg(running.pid, signal.SIGINT)
        printed = running.communicate(timeout=60)[0]
    assert running.returncode == pytest.ExitCode.INTERRUPTED, printed
    assert "interrupted: ending 2 workers and all that their tests have started" in printed
    pids = [int(pid) for each in noted for pid in each.read_text().split()]
    wait_until(lambda: not any(map(_lives, pids)))  # a signal is not obeyed at once


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_import_rules_hold() -> None:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


@pytest.mark.parametrize(
    "forbidden",
    [REGISTRY_HOST, MACHINE_PATH, NOT_IN_A_CLONE],
    ids=["registry host", "path of one machine", "document outside the repository"],
)
def test_no_file_cites_what_a_clone_does_not_hold(forbidden: re.Pattern[str]) -> None:
    assert names_of([path for path in tracked() if forbidden.search(text_of(path))]) == []


def test_no_function_is_too_long_to_be_read_at_once() -> None:
    """Functions of at most 70 lines; files have no limit."""
    functions = definitions_of_product(ast.FunctionDef, ast.AsyncFunctionDef)
    assert [each.place for each in functions if each.lines > LONGEST_FUNCTION_LINES] == []


def test_a_long_class_says_why_it_is_one() -> None:
    """Classes of at most 250 lines, or a docstring with the reason."""
    unexplained = {
        each.place
        for each in definitions_of_product(ast.ClassDef)
        if each.lines > LONGEST_CLASS_LINES and LONGER_CLASS not in " ".join(each.docstring.split()) + " "
    }
    assert unexplained == set()


def test_there_are_not_more_long_classes() -> None:
    """A class that is long for a reason is still long: their number falls, and this bound with it."""
    long = [each.place for each in definitions_of_product(ast.ClassDef) if each.lines > LONGEST_CLASS_LINES]
    assert len(long) <= LONG_CLASSES_MAX, long


def test_no_room_holds_more_than_a_dozen_modules() -> None:
    """A room is a folder of a package; a larger one may only become smaller, and its bound with it."""
    products = [*ROOT.glob("libs/*/stretto*"), *ROOT.glob("services/*/stretto*")]
    modules = Counter(
        str(path.parent.relative_to(ROOT))
        for product in products
        for path in product.rglob("*.py")
        if not path.name.startswith("__")
    )
    assert {room: count for room, count in modules.items() if count > MODULES_MAX} == LARGER_ROOMS


def test_a_public_class_name_stands_in_at_most_two_packages() -> None:
    """A name that was met in one package means the same in another. A package is a folder below libs or services."""
    packages: dict[str, set[str]] = defaultdict(set)
    for each in definitions_of_product(ast.ClassDef):
        if each.name[0] != "_" and each.file.startswith(("libs/", "services/")):
            packages[each.name].add(each.file.split("/")[1])
    assert {name: sorted(found) for name, found in packages.items() if len(found) > 2} == {}


def test_no_docstring_begins_as_a_riddle() -> None:
    """A docstring stands alone: it begins with a verb or a noun, not with a pronoun that needs the name beside it."""
    riddles = [
        f"{each.file}:{each.line}: {each.docstring.splitlines()[0]}"
        for each in syntax()[0]
        if each.docstring and re.split(r"\W", each.docstring, maxsplit=1)[0] in RIDDLES
    ]
    assert riddles == []


def test_every_docstring_names_its_subject() -> None:
    """Each, also of an attribute, is understood by itself: it begins neither in lower case nor with a pronoun."""
    texts = [each for each in definitions_of_product(ast.Expr) if not each.file.startswith(WRITTEN_INTO_PROTO)]
    unclear = [
        f"{each.place}: {each.docstring[:100]}"
        for each in texts
        if each.docstring[:1].islower()
        or BEGINS_WITH_A_PRONOUN.match(each.docstring)
        or len(RELATIVE.findall(each.docstring)) > 1
    ]
    assert unclear == []


def test_no_module_imports_everything_of_another() -> None:
    assert [each.file for each in syntax()[1] if each.names == ["*"]] == []


def test_what_is_simulated_takes_clocks_and_chance_from_one_module() -> None:
    """A simulation gives both by ``stretto_wire.surroundings``; exceptions that have no cause any more go."""
    taken: dict[str, set[str]] = defaultdict(set)
    for each in syntax()[1]:
        if SIMULATED.match(each.file) and each.absolute:
            modules = {each.module} if each.module else {*each.names}
            taken[each.file] |= {module.partition(".")[0] for module in modules} & CLOCKS_AND_CHANCE
    assert {file: found for file, found in taken.items() if found} == OTHER_CLOCKS
    sources = [path for path in tracked() if path.suffix == ".py" and SIMULATED.match(str(path.relative_to(ROOT)))]
    assert len(sources) > 200
    assert names_of([path for path in sources if NOW.search(text_of(path))]) == []


def test_every_test_that_a_page_cites_exists() -> None:
    """A page cites `path/test_x.py` or `path/test_x.py::test_name`; `…::test_name` means the file before."""
    missing: list[str] = []
    for page in (path for path in tracked() if path.suffix == ".md"):
        source = None
        for name, test in re.findall(r"([\w./-]*\btest_\w+\.py|…)(?:::(\w+))?", text_of(page)):
            if name != "…":
                source = next((one for one in (ROOT / name, page.parent / name) if one.is_file()), None)
            elif not test:
                continue
            if source is None or (test and not re.search(rf"^ *(async )?def {test}\(", text_of(source), re.MULTILINE)):
                missing.append(f"{page.relative_to(ROOT)}: {name}::{test}")
    assert missing == []


@cache
def night_of(path: Path) -> tuple[bool, set[str]]:
    """Return whether the whole file is left to ``make test-night``, and the names of the tests that are."""
    if "night" not in text_of(path):
        return False, set()

    def marks(node: ast.AST) -> bool:
        return any(isinstance(each, ast.Attribute) and each.attr == "night" for each in ast.walk(node))

    body = ast.parse(text_of(path)).body
    whole = any(
        isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark" and marks(node) for node in body
    )
    functions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    decorated = [
        (node.name, one) for node in functions for one in node.decorator_list if isinstance(one, ast.Attribute)
    ]
    return whole, {name for name, one in decorated if marks(one)}


def test_a_promise_names_the_suite_of_each_of_its_tests() -> None:
    """PROMISES.md writes ``(night)`` behind each test that ``make test-night`` runs, and behind no other one."""
    wrong: list[str] = []
    file = ""
    cited = re.findall(r"`([\w./-]*\btest_\w+\.py|…)(?:::(\w+))?`( \(night\))?", text_of(PROMISES))
    for name, test, said in cited:
        file = file if name == "…" else name
        whole, some = night_of(ROOT / file)
        if (whole or test in some) != bool(said):
            wrong.append(f"{file}::{test}")
    assert len(cited) > 100
    assert wrong == []


def test_no_file_and_no_test_is_long_without_its_cause() -> None:
    """DURATIONS.md has the cause of the slowest files, and of every other one that is above a bound."""
    rows = durations.rows()
    assert len(rows) > 100
    assert [row.file for row in rows if not (ROOT / row.file).is_file()] == [], "refresh it: make durations"
    unexplained = [
        row.file for at, row in enumerate(rows) if not row.cause and (at < durations.EXPLAINED or row.is_long)
    ]
    assert unexplained == []


def _variables(settings: type[Settings], component: str) -> set[str]:
    own = settings.model_fields.keys() - Settings.model_fields.keys()
    short = {f"STRETTO_{field}".upper() for field in settings.model_fields}
    return short | {f"STRETTO_{component}_{field}".upper() for field in own}


def test_every_variable_that_is_set_or_explained_exists() -> None:
    """A service refuses an unknown variable; benches, charts and pages name only those that something reads."""
    known = _variables(StreamsSettings, "streams") | {*OWN_VARIABLES, *OTHER_VARIABLES}
    for service in SERVICES:
        module = importlib.import_module(f"stretto_{service.name}.settings")
        known |= _variables(getattr(module, f"{service.name.capitalize()}Settings"), service.name)
    places = re.compile(r"tests/bench/|services/\w+/README\.md|compose/|charts/|libs/docs/pages/|examples/")
    unknown = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in tracked()
        if places.match(str(path.relative_to(ROOT)))
        for name in re.findall(r"STRETTO_[A-Z_]+(?![A-Z_…])(?<!_)", text_of(path))  # a prefix is no name
        if name not in known
    ]
    assert unknown == []


def test_the_glossary_is_short_and_each_word_has_one_meaning() -> None:
    section = text_of(ROOT / "libs/core/README.md").split("## Words\n", 1)[1].split("\n## ", 1)[0]
    words = re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE)[2:]  # below the two rows of the head
    assert 10 < len(words) <= GLOSSARY_WORDS_MAX
    assert len(set(words)) == len(words)


def test_every_library_has_a_page() -> None:
    libraries = sorted(path for path in ROOT.glob("libs/*") if (path / "pyproject.toml").exists())
    assert [path.name for path in libraries if not (path / "README.md").is_file()] == []


@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.name)
class TestEveryService:
    def test_has_the_one_shape(self, service: Path) -> None:
        package = f"stretto_{service.name}"
        wanted = ["pyproject.toml", "README.md"]
        wanted += [f"{package}/{name}.py" for name in ("__init__", "__main__", "service", "settings")]
        assert [name for name in wanted if not (service / name).is_file()] == []
        assert list(service.glob("tests/test_*.py")), "no tests"

    def test_its_decision_stands_under_its_name(self, service: Path) -> None:
        if service.name not in ("gateway", "forwarder"):  # they decide nothing that a machine remembers
            room = ROOT / "libs" / "core" / "stretto_core" / service.name
            assert (room / "machine.py").is_file()

    def test_readme_says_what_it_is_and_how_it_dies(self, service: Path) -> None:
        readme = text_of(service / "README.md").lower()
        said = {word: word in readme for word in ("in", "out", "state", "dies")}
        assert all(said.values()), said


@cache
def distributions() -> dict[str, set[str]]:
    """The distributions that bring each top-level module, in the spelling of requirements."""
    return {top: {_normal(each) for each in names} for top, names in packages_distributions().items()}


@cache
def files_of(name: str) -> frozenset[str]:
    return frozenset(str(path) for path in distribution(name).files or [])


def bringers(module: str) -> set[str]:
    """Return the distributions that contain a module. In a shared namespace: those that contain this part."""
    found = distributions().get(module.partition(".")[0], set())
    if len(found) < 2:
        return found
    path = module.replace(".", "/")
    exact = {name for name in found if {f"{path}.py", f"{path}/__init__.py"} & files_of(name)}
    return exact or ((module.count(".") and bringers(module.rpartition(".")[0])) or found)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _imported(folder: Path) -> set[str]:
    """Modules that a distribution's package imports, those of type checking and of fallbacks included."""
    files = set(names_of(list(folder.glob("stretto*/**/*.py"))))
    found: set[str] = set()
    for each in syntax()[1]:
        if each.file in files and each.absolute:
            found |= {f"{each.module}.{name}" if each.module else name for name in each.names}
    own = {path.name for path in folder.glob("stretto*") if (path / "__init__.py").exists()}
    return {module for module in found if module.partition(".")[0] not in own | set(sys.stdlib_module_names)}


def _required(entries: list[str]) -> set[str]:
    return {_normal(re.split(r"[\[<>=!~; ]", each)[0]) for each in entries}


def _project(folder: Path) -> dict[str, Any]:
    return tomllib.loads(text_of(folder / "pyproject.toml"))["project"]


def test_no_code_of_the_parameter_servers_is_run_by_tests_only() -> None:
    """Tests must exercise what ships. A second planner of moves once stood in the engine: only tests called it, and
    the planner that the product runs moved buckets in no test.

    A public function or class of the engine must be named in its own file, or imported by another one of the trainer
    (a list of names in ``__init__`` is no use), or stand in the example of the engine's README. A public method must be
    named in any file of the product, or among the operations that a server is asked for by name.
    """
    from stretto.engine.server import CONTROL

    example = set(re.findall(r"\w+", text_of(ROOT / "libs/trainer/stretto/engine/README.md").split("```python")[1]))
    trees = {path: ast.parse(text_of(path)) for path in ROOT.glob("libs/trainer/stretto/**/*.py")}
    imported = {
        (str(node.module).rpartition(".")[2], alias.name)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and path.name != "__init__.py"
        for alias in node.names
    }
    named = {node.attr for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    named |= {*CONTROL}
    unused: list[str] = []
    for path, tree in trees.items():
        if path.parent.name != "engine":
            continue
        own = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | example
        top = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        shipped = own | {name for module, name in imported if module in ("engine", path.stem)}
        methods = {
            node.name
            for each in ast.walk(tree)
            if isinstance(each, ast.ClassDef)
            for node in each.body
            if isinstance(node, ast.FunctionDef)
        }
        unused += [f"{path.name}: {name}" for name in sorted(((top - shipped) | methods) - named) if name[0] != "_"]
    assert unused == [], "only tests or benches use these: delete them, or use them"


@pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=lambda path: path.name)
def test_a_distribution_declares_what_it_imports(folder: Path) -> None:
    project = _project(folder)
    groups = [project.get("dependencies", []), *project.get("optional-dependencies", {}).values()]
    names = _required([each for group in groups for each in group])
    names |= {"tensorflow"} if "tensorflow-cpu" in names else set()
    missing = {
        module: sorted(bringers(module)) or ["not installed"]
        for module in sorted(_imported(folder))
        if not (bringers(module) or {_normal(module.partition(".")[0])}) & names  # an extra need not be installed
    }
    assert missing == {}


def test_the_parts_of_a_shared_package_are_told_apart() -> None:
    assert bringers("opentelemetry.sdk.trace.TracerProvider") == {"opentelemetry-sdk"}
    assert bringers("opentelemetry.trace") == {"opentelemetry-api"}


@pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=lambda path: path.name)
def test_a_distribution_may_be_used_and_says_what_it_is(folder: Path) -> None:
    project = _project(folder)
    assert project["license"] == "Apache-2.0"
    assert project["license-files"] == ["LICENSE", "NOTICE"]
    assert project["authors"]
    assert project["urls"]["Homepage"] == HOMEPAGE
    assert len(project["description"]) > 10
    assert text_of(folder / project["readme"]).startswith("# ")
    for name in project["license-files"]:
        assert (folder / name).resolve() == ROOT / name, f"make it a link: ln -s ../../{name}"


@pytest.mark.proof
def test_a_wheel_carries_the_licence_and_the_readme(tmp_path: Path) -> None:
    copy = tmp_path / "kube"  # building leaves files beside the sources
    shutil.copytree(ROOT / "libs" / "kube", copy, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*command, "-w", str(tmp_path), str(copy)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        texts = {name.rpartition("/")[2]: packed.read(name).decode() for name in packed.namelist()}
    assert texts["LICENSE"] == text_of(ROOT / "LICENSE")
    assert texts["NOTICE"] == text_of(ROOT / "NOTICE")
    assert "License-Expression: Apache-2.0" in texts["METADATA"]
    assert f"Project-URL: Homepage, {HOMEPAGE}" in texts["METADATA"]
    assert text_of(copy / "README.md").strip() in texts["METADATA"]


def test_no_distribution_brings_one_that_is_optional() -> None:
    """Whoever wants `stretto run` installs stretto-programs; no other installation and no image has it."""
    bringing = {
        folder.name
        for folder in DISTRIBUTIONS
        for group in [
            _project(folder).get("dependencies", []),
            *_project(folder).get("optional-dependencies", {}).values(),
        ]
        if "stretto-programs" in _required(group)
    }
    assert bringing == set()


def test_the_embedded_extra_of_the_command_is_everything_that_it_starts() -> None:
    extra = _required(_project(ROOT / "libs" / "cli")["optional-dependencies"]["embedded"])
    started = {f"stretto-{service.name}" for service in SERVICES if service.name != "decider"}  # that has a cluster
    assert extra == started | {"stretto"}
