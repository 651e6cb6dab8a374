"""Whether the shapes that a `.pt2` file states are those that its operations make.

The file says of each tensor what shape it has, and counts go by that: a damaged one would be counted as a
network that cannot be. So each operation of ATen is asked once more, as torch.export did when it wrote the
file, on tensors that have a shape and no contents.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

from lolat.errors import NetworkError
from lolat.readers.torch.calls import base_name
from lolat.readers.torch.program import tensors_of
from lolat.readers.torch.rules import GATES
from lolat.units import one_line


def check_shapes(graph_module: Any, number: Callable[[Any], int], name: str) -> None:
    """NetworkError where an operation makes other shapes than the file of the network `name` says, or
    cannot be on those that it reads. `number`: of a size, which may be a symbol.
    """
    import torch
    from torch._subclasses import fake_tensor as fake
    from torch.utils._pytree import tree_map

    def like(value: Any) -> Any:
        """What an operation is given: sizes are numbers, and everything is on one device."""
        if isinstance(value, torch.fx.Node):
            return tree_map(like, value.meta["val"])
        if isinstance(value, torch.Tensor):
            return torch.empty([*map(number, value.shape)], dtype=value.dtype)
        if isinstance(value, torch.SymInt):
            return number(value)
        return torch.device("cpu") if isinstance(value, torch.device) else value

    asks_for_more = (
        NotImplementedError, fake.UnsupportedFakeTensorException, fake.UnsupportedOperatorException,
        fake.DynamicOutputShapeException, fake.DataDependentOutputException,
    )  # fmt: skip
    # Otherwise an operation of which PyTorch does not know a shape would be run.
    with torch.no_grad(), fake.FakeTensorMode(allow_fallback_kernels=False):
        for node in _operations(graph_module):
            if base_name(node) in GATES:
                continue  # it would be taken apart into as many operations as there are steps
            try:
                args, kwargs, stated = tree_map(like, (node.args, node.kwargs, node.meta["val"]))
            except (KeyError, TypeError):
                continue  # a size that depends on contents, which the reader says
            try:
                made = node.target(*args, **kwargs)
            except asks_for_more:
                continue
            except Exception as error:  # of many kinds
                raise _refusal(node, name, f"cannot be ({one_line(error)})") from error
            pairs = [*zip(tensors_of(made), tensors_of(stated), strict=True)]
            for ours, theirs in (pairs[at] for at in _read(node, len(pairs))):
                if ours is not None and theirs is not None and ours.shape != theirs.shape:
                    raise _refusal(
                        node, name, f"makes {tuple(ours.shape)}, not {tuple(theirs.shape)}"
                    )


def _operations(graph_module: Any) -> Iterator[Any]:
    """The nodes of a graph and those inside it that make tensors of tensors by an operation of ATen."""
    for module in graph_module.modules():
        for node in module.graph.nodes if hasattr(module, "graph") else ():
            aten = getattr(node.target, "namespace", "") == "aten" and hasattr(
                node.target, "_schema"
            )
            read = [v for n in node.all_input_nodes for v in tensors_of(n.meta.get("val"))]
            tensors = any(v is not None for v in tensors_of(node.meta.get("val")))
            if aten and tensors and any(v is not None for v in read):
                yield node


def _read(node: Any, count: int) -> list[int]:
    """Which of what a node makes is read: the rest differs between devices."""
    if count == 1:
        return [0]
    return [user.args[1] for user in node.users if user.target is operator.getitem]


def _refusal(node: Any, name: str, what: str) -> NetworkError:
    return NetworkError(
        f"{node.name} ({base_name(node)}) of {name!r} {what} by the shapes that the file says: it is "
        "damaged or was tampered with; write it again with torch.export.save"
    )
