"""Real parameter-server processes, started once per session; each test gets fresh servers inside them."""

import contextlib
import importlib.util
import json
import os
from pathlib import Path

import pytest
from shipped_planner import first_columns

HERE = Path(__file__).parent


class Process:
    """A child that answers each JSON line with one."""

    def __init__(self, warm, script, *first):
        read_commands, self._commands = self._pipe()
        self._answers, write_answers = self._pipe()
        with read_commands, write_answers, open(os.devnull, "w") as errors:
            self.child = warm.start(str(HERE / script), stdin=read_commands, stdout=write_answers, stderr=errors)
        for message in first:
            self.send(message)

    @staticmethod
    def _pipe():
        read, write = os.pipe()
        return open(read), open(write, "w")

    def send(self, message):
        self._commands.write(json.dumps(message) + "\n")
        self._commands.flush()

    def receive(self):
        line = self._answers.readline()
        if not line:
            raise EOFError("the process ended")
        return json.loads(line)

    def ask(self, do, **arguments):
        self.send({"do": do, **arguments})
        return self.receive()

    def kill(self):
        self.child.kill()
        self.child.wait()
        self._answers.close()
        with contextlib.suppress(BrokenPipeError):
            self._commands.close()


class Pool:
    """Running processes; the n-th serves as ps-n of every cluster."""

    def __init__(self, warm):
        self._warm, self.processes = warm, []

    def get(self, index):
        while index >= len(self.processes):
            self.processes.append(Process(self._warm, "ps_process.py"))
        return self.processes[index]

    def kill(self, index):
        self.processes.pop(index).kill()


class Cluster:
    """Parameter servers 0..n-1 of one layout; `add` starts one more."""

    def __init__(self, pool, layout, count):
        from stretto.engine import Access, Key

        self.pool, self.layout, self.access = pool, layout, Access(Key.random())
        self.processes, self.addresses, self._controls, self._workers = {}, {}, {}, []
        for _ in range(count):
            self.add()

    def add(self):
        from stretto.engine import Control

        index = len(self.processes)
        process = self.pool.get(index)
        self.processes[index] = process
        self.addresses[index] = process.ask("start", index=index, key=self.access.key.pem.decode())["address"]
        self._controls[index] = Control(self.layout, self.addresses[index], index, access=self.access)
        return index

    def place(self):
        for index, columns in first_columns(self.layout, self.processes).items():
            self.processes[index].ask("own", columns=columns)
        return self

    def worker(self, number=0, **options):
        """A worker's view of the parameters, in this process."""
        from stretto.engine import Parameters

        options.setdefault("refresh_servers", lambda: dict(self.addresses))
        self._workers.append(
            Parameters(self.layout, dict(self.addresses), worker=number, access=self.access, **options)
        )
        return self._workers[-1]

    def lose(self, index):
        """Kill the process of one server."""
        self._controls.pop(index).close()
        self.pool.kill(index)
        del self.processes[index], self.addresses[index]

    def close(self):
        for opened in (*self._workers, *self._controls.values()):
            opened.close()

    def control(self, index):
        return self._controls[index]

    def controls(self):
        return list(self._controls.values())

    def columns(self):
        return {index: control.columns() for index, control in self._controls.items()}

    def checksum(self):
        return sum(control.checksum() for control in self.controls()) % 2**64

    def samples(self):
        """Return the samples applied, wherever the column is: [columns]."""
        return sum(control.applied().samples for control in self.controls())

    def prints(self):
        """Return their fingerprints, wherever the column is: [columns]."""
        return sum(control.applied().fingerprints for control in self.controls())


class ClusterHere(Cluster):
    """A cluster in this process, where images are taken: its controls are those of the servers."""

    def __init__(self, pool, layout, count, **options):
        self._options = options
        super().__init__(pool, layout, count)

    def add(self):
        from stretto.engine import ParameterServer

        index = len(self.processes)
        self.processes[index] = server = ParameterServer(index, self.layout, key=self.access.key, **self._options)
        self.addresses[index], self._controls[index] = server.address, server.store
        return index

    def place(self):
        for index, columns in first_columns(self.layout, self.processes).items():
            self.processes[index].own(columns)
        return self

    def close(self):
        for opened in (*self._workers, *self.processes.values()):
            opened.close()


@pytest.fixture(scope="session")
def ps_pool(warm):
    pool = Pool(warm)
    yield pool
    for process in pool.processes:
        process.kill()


def making(kind, *first):
    """Make clusters by a function (layout, count), and close them in the end."""
    made = []

    def make(layout, count, **options):
        made.append(kind(*first, layout, count, **options))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def bare_cluster(ps_pool):
    """Function (layout, count) -> servers that own nothing."""
    yield from making(Cluster, ps_pool)


@pytest.fixture
def bare_here():
    """Function (layout, count) -> servers in this process that own nothing."""
    yield from making(ClusterHere, None)


@pytest.fixture
def cluster_here(bare_here):
    """Function (layout, count) -> servers in this process that own everything between them."""
    return lambda layout, count=2: bare_here(layout, count).place()


@pytest.fixture
def cluster(bare_cluster):
    """Function (layout, count) -> servers that own everything between them."""
    return lambda layout, count=2: bare_cluster(layout, count).place()


@pytest.fixture
def start_worker(warm):
    started = []

    def start(servers, worker, wire=None):
        config = {"servers": servers.addresses, "layout": servers.layout.to_dict(), "worker": worker}
        config |= {"key": servers.access.key.pem.decode(), "wire": wire or {}}
        started.append(Process(warm, "worker_process.py", config))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture(scope="session")
def training():
    """The module worker_process: the same deterministic batches for threads of the test."""
    spec = importlib.util.spec_from_file_location("engine_worker_process", HERE / "worker_process.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
