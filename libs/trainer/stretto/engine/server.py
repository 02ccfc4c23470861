"""A parameter server: a TensorFlow server that knows no other process, and its local control session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from ..errors import LayoutError
from .control import Control
from .layout import Layout
from .link import Link
from .ownership import Own
from .state import DEVICE, build_state, initialise

v1: Any = tf.compat.v1


class ParameterServer:
    """A running server with empty state; it owns no column yet.

    index: the n of pod `ps-<n>`. address: port 0 takes any free port. threads: size of TensorFlow's two pools (0 = one
    per core), fixed for the life of the process. TensorFlow's gRPC server listens on every interface, whatever
    `address` says; other processes connect to its host.
    The process should end by `os._exit`: a TensorFlow server cannot be stopped.
    """

    def __init__(self, index: int, layout: Layout, address: str = "127.0.0.1:0", threads: int = 0) -> None:
        host, separator, port = address.rpartition(":")
        if not separator or not port.isdigit():
            raise LayoutError(f"address {address!r} is not host:port; give for example '127.0.0.1:0'")
        self.index = index
        self.layout = layout
        config = v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
        self._server = tf.distribute.Server(
            tf.train.ClusterSpec({"ps": [address]}), job_name="ps", task_index=0, config=config
        )
        self.address = f"{host}:{self._server.target.rpartition(':')[2]}"
        self._initialise()
        self.control = Control(layout, self.address, index, timeout_s=120.0, local=True)

    def _initialise(self) -> None:
        graph = tf.Graph()
        with graph.as_default(), tf.device(DEVICE):
            node = initialise(build_state(self.layout))
        link = Link(graph, self.index, self.address, timeout_s=60.0)
        link.callable(node, [])()
        link.close()

    def own(self, columns: Iterable[int]) -> None:
        """Own these columns, empty: the first placement of a new job."""
        self.control.set_own(columns, Own.MINE, Own.NOT_MINE)
