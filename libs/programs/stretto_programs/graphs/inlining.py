"""A graph of TensorFlow without calls: the body of each called function stands in place of the call.

TensorFlow can run the result; tensors keep their values and names. Functional branches and loops are kept whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")

Address = tuple[str, int]
"""A node and the number of an output."""


@dataclass
class _Inlining:
    """The nodes so far. stands_for: for each output of a call, the tensor of the inlined body that replaces it."""

    functions: Mapping[str, Any]
    nodes: list[Any] = field(default_factory=list[Any])
    stands_for: dict[Address, Address] = field(default_factory=dict[Address, Address])

    def add(self, nodes: list[Any]) -> None:
        """Add nodes; a node that is a call is replaced by the body of its function."""
        for node in nodes:
            function = self._called(node)
            if function is None:
                self.nodes.append(node)
            else:
                self._expand(node, function)

    def _called(self, node: Any) -> Any:
        name = node.attr["f"].func.name if node.op in _CALLS else node.op
        function = self.functions.get(name)
        return function if function is not None and not function.signature.attr else None

    def _expand(self, call: Any, function: Any) -> None:
        """Replace a call by the body of its function.

        A node of the call's name remains, without outputs. It comes after everything that the function promises to run,
        so edges of control to the call still hold.
        """
        body, flat = _body_of(function)
        prefix = f"{call.name}/"
        given = [each for each in call.input if not each.startswith("^")]
        before = [each for each in call.input if each.startswith("^")]
        arguments = {each.name: given[place] for place, each in enumerate(function.signature.input_arg)}
        for name, source in arguments.items():
            self.stands_for[prefix + name, 0] = address_of(source)
        inner: list[Any] = []
        if before:
            inner.append(_no_op(f"{prefix}before", before, call.device))
        for node in body:
            if node.name in arguments:
                continue
            node.name = prefix + node.name
            inputs = [_prefixed(each, prefix) for each in node.input]
            if before and not any(address_of(each)[0].removeprefix(prefix) not in arguments for each in inputs):
                inputs.append(f"^{prefix}before")
            del node.input[:]
            node.input.extend(inputs)
            node.device = node.device or call.device
            _place(node, [prefix + each for each in _places(node)])
            inner.append(node)
        after = [f"^{prefix}{name}" for name in function.control_ret.values()]
        for place, each in enumerate(function.signature.output_arg):
            result = address_of(flat[function.ret[each.name]])
            self.stands_for[call.name, place] = prefix + result[0], result[1]
            if result[0] not in arguments:
                after.append(f"^{prefix}{result[0]}")
        self.add(inner)
        self.nodes.append(_no_op(call.name, list(dict.fromkeys(after or before)), call.device))

    def resolved(self, address: Address) -> Address:
        """Return the tensor that replaces an output of a call, or an argument."""
        while address in self.stands_for:
            address = self.stands_for[address]
        return address


def address_of(written: str) -> Address:
    """Return node and output number of an input as GraphDef writes it; the number is -1 for an edge of control."""
    if written.startswith("^"):
        return written[1:], -1
    name, _, number = written.partition(":")
    return name, int(number or 0)


def inlined(graph_def: Any) -> tuple[Any, dict[str, str]]:
    """Return a GraphDef without calls; and for each tensor of a call, by name, the tensor that replaces it."""
    functions = {each.signature.name: each for each in graph_def.library.function}
    work = _Inlining(functions)
    result = type(graph_def)()
    result.CopyFrom(graph_def)
    nodes = list(result.node)
    work.add(nodes)
    made = [_copied(node) for node in work.nodes]
    remaining = frozenset(node.name for node in made)
    for node in made:
        # arguments of calls are not nodes of the result
        _place(node, [each for each in _places(node) if each in remaining])
        inputs = [_written(work, each, remaining) for each in node.input]
        del node.input[:]  # GraphDef has edges of control behind all others
        node.input.extend(each for each in inputs if not each.startswith("^"))
        node.input.extend(dict.fromkeys(each for each in inputs if each.startswith("^")))
    del result.node[:]
    result.node.extend(made)
    names = {f"{name}:{number}": "{}:{}".format(*work.resolved((name, number))) for name, number in work.stands_for}
    return result, names


def _written(work: _Inlining, given: str, remaining: frozenset[str]) -> str:
    name, number = address_of(given)
    if number < 0:  # a node that does not remain was an argument of a call
        return given if name in remaining else f"^{work.resolved((name, 0))[0]}"
    name, number = work.resolved((name, number))
    return f"{name}:{number}" if number else name


def _body_of(function: Any) -> tuple[list[Any], dict[str, str]]:
    from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

    graph_def, flat = function_def_to_graph_def(function)
    return list(graph_def.node), dict(flat)


def _prefixed(written: str, prefix: str) -> str:
    return f"^{prefix}{written[1:]}" if written.startswith("^") else prefix + written


def _places(node: Any) -> list[str]:
    """Return the nodes with which a node must be placed (`_class` of GraphDef)."""
    return [each.decode().removeprefix("loc:@") for each in node.attr["_class"].list.s] if "_class" in node.attr else []


def _place(node: Any, names: list[str]) -> None:
    if "_class" in node.attr:
        del node.attr["_class"]
    if names:
        node.attr["_class"].list.s.extend(f"loc:@{each}".encode() for each in names)


def _no_op(name: str, inputs: list[str], device: str) -> Any:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

    return NodeDef(name=name, op="NoOp", input=inputs, device=device)


def _copied(node: Any) -> Any:
    made = type(node)()
    made.CopyFrom(node)
    return made
