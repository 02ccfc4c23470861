"""One TensorFlow session on one parameter server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..errors import ServerBusy, ServerLost

v1: Any = tf.compat.v1

# the errors of a dead, restarting or overloaded server
_LOST = (
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
    tf.errors.InternalError,
)

# gRPC repeated a request that the server had begun: the first one runs on, and its answer is lost
_BUSY = "request was received twice"


def session_config(timeout_s: float) -> Any:
    """Configure a session. Grappler is off: it delays first runs, and the graphs are small and ordered by hand."""
    config = v1.ConfigProto(operation_timeout_in_ms=int(timeout_s * 1000), inter_op_parallelism_threads=0)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    return config


class Link:
    """A session whose failures are `ServerLost`. Without the timeout a client of a dead server would hang for ever."""

    def __init__(self, graph: Any, server: int, address: str, timeout_s: float) -> None:
        self.server = server
        self.address = address
        self._session = v1.Session(f"grpc://{address}", graph=graph, config=session_config(timeout_s))

    def callable(self, fetches: Any, feeds: list[Any]) -> Callable[..., Any]:
        with self._session.graph.as_default():
            run = self._session.make_callable(fetches, feed_list=feeds)

        def call(*values: Any) -> Any:
            try:
                return run(*values)
            except _LOST as error:
                raise self._failed(error) from error
            except ValueError as error:
                # TensorFlow searches the message for the name of a node, and fails on text that only looks like one
                behind = error.__context__
                if behind is not None and isinstance(behind, _LOST):
                    raise self._failed(behind) from error
                raise

        return call

    def _failed(self, error: BaseException) -> ServerLost:
        first_line = str(error).strip().splitlines()[0][:200] if str(error).strip() else ""
        kind = ServerBusy if _BUSY in str(error) else ServerLost
        return kind(self.server, self.address, f"{type(error).__name__}: {first_line}")

    def close(self) -> None:
        # closing waits for the server, and a dead one must not block its client
        with contextlib.suppress(tf.errors.OpError):
            self._session.close()
