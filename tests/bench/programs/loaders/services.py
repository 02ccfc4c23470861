"""The service of a loader that has one, as a child process in the loader's own Python; nobody kills it.

python -m tests.bench.programs.loaders.services LOADER
"""

from __future__ import annotations

import os
import sys
from typing import Any

from tests.bench.processes import answer


def tf_data_service(state: dict[str, Any], port: int) -> str:
    """Start a dispatcher and two of its workers in this process; return the address."""
    from tensorflow.data.experimental import service  # pyright: ignore

    state["dispatcher"] = dispatcher = service.DispatchServer(service.DispatcherConfig(port=port))
    address = dispatcher.target.split("://")[1]
    state["workers"] = [service.WorkerServer(service.WorkerConfig(dispatcher_address=address)) for _ in range(2)]
    return dispatcher.target


def dlrover_shards(state: dict[str, Any], port: int) -> str:
    """Start DLRover's local master; return its address."""
    from dlrover.python.common.constants import NodeType  # pyright: ignore
    from dlrover.python.master.local_master import LocalJobMaster  # pyright: ignore
    from dlrover.python.scheduler.factory import new_job_args  # pyright: ignore

    arguments = new_job_args("local", "bench", "default")
    arguments.initilize()
    arguments.node_args[NodeType.WORKER].group_resource.count = 2
    state["master"] = master = LocalJobMaster(port, arguments)
    master.prepare()
    master.pre_check()
    return f"127.0.0.1:{port}"


def ray_data(state: dict[str, Any], port: int) -> str:
    """Start Ray on this machine; return its address."""
    import ray  # pyright: ignore

    given = {"num_cpus": 4, "include_dashboard": False, "object_store_memory": 2**28, "log_to_driver": False}
    context = ray.init(**given, _node_ip_address="127.0.0.1", _temp_dir=os.environ["RAY_TMPDIR"])
    return context.address_info["gcs_address"]


def begin(state: dict[str, Any], port: int) -> str:
    return globals()[sys.argv[1]](state, port)


def lost(state: dict[str, Any], rank: int) -> dict[str, Any]:
    """Do what DLRover's master on Kubernetes does when a worker's pod has failed or is deleted."""
    if "master" in state:
        state["master"].task_manager.recover_tasks("worker", rank)
    return {}


os.environ |= {"DLROVER_MASTER_SERVICE_TYPE": "grpc", "DLROVER_LOG_LEVEL": "WARNING"}
answer({"begin": begin, "lost": lost})
