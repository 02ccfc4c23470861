"""Common to all tests of the trainer: their helpers on the path, and processes that start warm."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# not the folder of the tests itself: `import torch` would find the folder of that name where PyTorch is not installed
sys.path.insert(0, str(Path(__file__).parent / "helpers"))

from warm_processes import WarmProcesses


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmProcesses]:
    processes = WarmProcesses(
        "stretto.engine", "stretto.model.evaluate", "stretto.server.flash_checkpoint", "stretto.keras.program",
        "stretto.build", "stretto.worker.step",
    )  # fmt: skip
    yield processes
    processes.close()


@pytest.fixture
def run_warm(warm: WarmProcesses, tmp_path: Path) -> Callable[[str], None]:
    """Function (program) that runs it to a good end, in a process that has TensorFlow imported."""

    def run(program: str) -> None:
        (tmp_path / "program.py").write_text(program)
        with open(tmp_path / "printed", "w") as printed:
            status = warm.start(str(tmp_path / "program.py"), stdout=printed, stderr=printed).wait()
        assert status == 0, (tmp_path / "printed").read_text()[-3000:]

    return run


@pytest.fixture
def started(tmp_path: Path, warm: WarmProcesses) -> Iterator[Callable[..., Any]]:
    """Function (specification) -> a job with a bus and no pod yet. Pods find modules that lie in ``tmp_path``.

    ``cold``: pods start as the product starts them.
    """
    from trainer_harness import Cluster  # most tests need none of its imports

    clusters: list[Cluster] = []

    def start(spec: Any, cold: bool = False) -> Cluster:
        folder = tmp_path / f"cluster{len(clusters)}"
        folder.mkdir()
        clusters.append(Cluster(folder, spec, None if cold else warm))
        clusters[-1].environment = {"PYTHONPATH": str(tmp_path)}
        clusters[-1].start()
        return clusters[-1]

    yield start
    for cluster in clusters:
        cluster.stop()


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """(url, process) of a real Redis."""
    import redis
    from stretto_installation.server import free_port
    from trainer_harness import wait_for

    binary = shutil.which("redis-server") or str(Path(sys.executable).parent / "redis-server")
    port = free_port()
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    url = f"redis://127.0.0.1:{port}/0"

    def answers() -> bool:
        try:
            with redis.Redis.from_url(url) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    wait_for(answers)
    yield url, process
    process.kill()
    process.wait(60)
