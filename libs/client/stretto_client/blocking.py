"""Coroutines run without an event loop, and methods that block made of methods to be awaited.

A coroutine whose connection blocks (:class:`~stretto_client.drivers.Driver`) never suspends, so that one step takes it
to its end, in any thread, and also where an event loop runs, as in a notebook.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import update_wrapper
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., Any])


def run(operation: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)  # an event loop of this thread must not close our generators when it ends
    try:
        operation.send(None)
    except StopIteration as end:
        return end.value
    finally:
        sys.set_asyncgen_hooks(*hooks)
    operation.close()
    raise RuntimeError("an operation of the blocking client waits for an event loop")


def iterate(items: AsyncGenerator[T]) -> Generator[T]:
    """Yield the items of an asynchronous generator that never suspends."""
    try:
        while True:
            try:
                item = run(_next(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        run(items.aclose())


async def _next(items: AsyncGenerator[T]) -> T:
    return await anext(items)


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that blocks, made of the coroutine function of another class.

    The object that has it stands in for an object of the other class: it has what ``method`` reads and sets, above all
    a connection, ``_driver``, that blocks.
    """

    def call(self: Any, *args: P.args, **named: P.kwargs) -> T:
        return run(method(self, *args, **named))

    return like(method, call)


def chained(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]]) -> Callable[Concatenate[S, P], S]:
    """Return a method that blocks, made of a coroutine function that returns its own object."""
    return cast(Any, blocking(method))


def streamed(method: Callable[Concatenate[Any, P], AsyncGenerator[T]]) -> Callable[Concatenate[Any, P], Generator[T]]:
    """Return a method that yields and blocks meanwhile, made of a method that returns an asynchronous generator."""

    def call(self: Any, *args: P.args, **named: P.kwargs) -> Generator[T]:
        return iterate(method(self, *args, **named))

    return like(method, call)


def like(method: Callable[..., Any], call: F) -> F:
    """Give a function the name, docstring and signature of a method; the ``AsyncX`` that it returns is an ``X``."""
    made, shown = cast(Any, update_wrapper(call, method)), signature(method)
    made.__qualname__ = method.__qualname__.removeprefix("Async")
    made.__signature__ = shown.replace(return_annotation=shown.return_annotation.removeprefix("Async"))
    return call
