"""Build of the binaries of a Kubernetes 1.20 node from Debian's source package, outside the repository.

It needs no image registry and no module proxy, only Debian's archive: the source package carries what it depends on.
Nothing is installed: packages are unpacked beside the binaries.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.containers.archive import RELEASE, archive

CACHE = Path(os.environ.get("STRETTO_KUBERNETES_CACHE", Path.home() / ".cache" / "stretto-kubernetes"))
VERSION = "1.20.2"
COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")
REFLECT = "github.com/modern-go/reflect2"
PACKAGES = ("golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev", "etcd-server")
"""The source's own copy of REFLECT corrupts memory where Go is newer than 1.17: it writes maps as JSON."""
TREE = Path("src/k8s.io/kubernetes")
OOM_SCORES = {
    "pkg/kubelet/dockershim/docker_sandbox.go": re.compile(r"(defaultSandboxOOMAdj int = )-\d+"),
    "pkg/kubelet/qos/policy.go": re.compile(r"(guaranteedOOMScoreAdj int = )-\d+"),
}
"""Where a kubelet lowers OOM scores, for which it would need CAP_SYS_RESOURCE; on a node for tests nobody needs it."""


class BuildError(Exception):
    """The node's binaries cannot be built. The text names the failing step and the remedy."""


def built() -> bool:
    """Return True if the binaries are there."""
    return all((CACHE / "bin" / name).exists() for name in (*COMPONENTS, "etcd"))


def binaries() -> Path:
    """The folder of the binaries, built if they are not there (6 minutes of two cores). Raises BuildError."""
    folder = CACHE / "bin"
    if built():
        return folder
    for tool in ("apt-get", "dpkg", "dpkg-source"):
        if shutil.which(tool) is None:
            raise BuildError(f"{tool} is missing: the node is built from Debian's packages, on Debian or Ubuntu")
    CACHE.mkdir(parents=True, exist_ok=True)
    downloads = _download()
    toolchain = _unpack(downloads)
    _source(downloads, toolchain)
    folder.mkdir(exist_ok=True)
    shutil.copy2(toolchain / "usr/bin/etcd", folder / "etcd")
    _generate(toolchain)
    for component in COMPONENTS:
        _go(toolchain, "build", "-ldflags", version_flags(), "-o", str(folder / component), f"./cmd/{component}")
    return folder


def _download() -> Path:
    """The source package and the tools, through lists of packages of our own: the machine's stay as they are."""
    folder = CACHE / "downloads"
    for each in ("lists/partial", "cache/archives/partial"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    sources = folder / "debian.sources"
    sources.write_text(
        f"Types: deb deb-src\nURIs: {archive()}\nSuites: {RELEASE}\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )
    options = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-q", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    _run([*apt, "update"], folder)
    _run([*apt, "source", "--download-only", "kubernetes"], folder)
    _run([*apt, "download", *PACKAGES], folder)
    return folder


def _unpack(downloads: Path) -> Path:
    toolchain = CACHE / "toolchain"
    for package in sorted(downloads.glob("*.deb")):
        _run(["dpkg", "-x", str(package), str(toolchain)], downloads)
    return toolchain


def _source(downloads: Path, toolchain: Path) -> None:
    """Debian's source where Go of the days before modules looks for it."""
    tree = CACHE / TREE
    if tree.exists():
        shutil.rmtree(tree)
    tree.parent.mkdir(parents=True, exist_ok=True)
    (description,) = downloads.glob("kubernetes_*.dsc")
    _run(["dpkg-source", "--no-check", "-x", str(description), str(tree)], downloads)
    for name, pattern in OOM_SCORES.items():
        path = tree / name
        text, changed = pattern.subn(r"\g<1>0", path.read_text())
        if not changed:
            raise BuildError(f"{name} of Kubernetes {VERSION} has no line like {pattern.pattern}: see OOM_SCORES")
        path.write_text(text)
    shutil.rmtree(tree / "vendor" / REFLECT)
    shutil.copytree(toolchain / "usr/share/gocode/src" / REFLECT, tree / "vendor" / REFLECT)


def _generate(toolchain: Path) -> None:
    """Generate the files that upstream's makefiles generate; Debian's source package lacks them."""
    tree = CACHE / TREE
    marked = subprocess.run(
        ["grep", "-rlE", "--include=*.go", r"^// \+k8s:openapi-gen=true", "staging/src/k8s.io", "pkg", "cmd"],
        cwd=tree, capture_output=True, text=True, check=True,
    )  # fmt: skip
    folders = sorted({str(Path(line).parent) for line in marked.stdout.splitlines()})
    packages = [
        folder.removeprefix("staging/src/") if folder.startswith("staging") else f"k8s.io/kubernetes/{folder}"
        for folder in folders
        if "/testdata" not in folder
    ]
    vendored = [f"k8s.io/kubernetes/vendor/{name}" if not name.startswith("k8s.io/kubernetes") else name
                for name in packages]  # fmt: skip
    generator = CACHE / "openapi-gen"
    _go(toolchain, "build", "-o", str(generator), "./vendor/k8s.io/kube-openapi/cmd/openapi-gen")
    command = [
        str(generator), "--logtostderr", "-O", "zz_generated.openapi", "-h",
        "hack/boilerplate/boilerplate.generatego.txt", "-p", "k8s.io/kubernetes/pkg/generated/openapi",
        "-o", str(CACHE / "src"), "-r", str(CACHE / "violations"), "-i", ",".join(vendored),
    ]  # fmt: skip
    _run(command, tree, _environment(toolchain))


def version_flags() -> str:
    """For the linker."""
    major, minor, _ = VERSION.split(".")
    values = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    packages = ("component-base/version", "client-go/pkg/version")  # the API server tells the latter's
    vendored = "k8s.io/kubernetes/vendor/k8s.io"
    said = [f"-X {vendored}/{package}.{name}={value}" for package in packages for name, value in values.items()]
    return " ".join(["-s", "-w", *said])


def _go(toolchain: Path, *arguments: str) -> None:
    go = toolchain / "usr/lib/go-1.19/bin/go"
    _run([str(go), *arguments], CACHE / TREE, _environment(toolchain))


def _environment(toolchain: Path) -> dict[str, str]:
    root = toolchain / "usr/lib/go-1.19"
    return {
        **os.environ,
        "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
        "GOROOT": str(root),
        "GOPATH": str(CACHE),
        "GOCACHE": str(CACHE / "objects"),
        "GO111MODULE": "off",
        "CGO_ENABLED": "0",
    }


def _run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    log = CACHE / "build.log"
    with log.open("ab") as file:
        file.write(f"\n$ {' '.join(command)}\n".encode())
        file.flush()
        done = subprocess.run(command, cwd=folder, env=environment, stdout=file, stderr=file, check=False)
    if done.returncode != 0:
        raise BuildError(f"{Path(command[0]).name} ended with {done.returncode}; {log} tells more, try again")
