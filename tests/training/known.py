"""A training whose times are known by hand: what the tests of predictions, devices and cost share."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lolat.device.file import DeviceFile, new_document
from lolat.errors import InputError
from lolat.graph import Graph
from lolat.graph.modes import DEFAULT_MODE, Mode
from lolat.optimizers import Optimizer
from lolat.training.memory import memory_at_peak, saved_parts
from lolat.training.predictor import Iteration, TrainedBatch, TrainingPredictor
from lolat.training.recipe import recipe_for


def memory_bytes(
    graph: Graph, batch_size: int, optimizer: Optimizer, mode: Mode = DEFAULT_MODE, several: bool = False
) -> int:  # fmt: skip
    """All bytes of an iteration in the recipe of a mode."""
    recipe = recipe_for(graph, optimizer, mode)
    return sum(memory_at_peak(graph, batch_size, recipe, mode, several)[1].values())


def saved_bytes(graph: Graph, batch_size: int, mode: Mode = DEFAULT_MODE) -> int:
    """All bytes that are kept for the backward pass."""
    return int(saved_parts(graph, batch_size, mode)[0].sum())


def saved_by_pytorch(network: Any, *inputs: Any, **named: Any) -> int:
    """Bytes of the tensors that autograd keeps after a forward pass, none of the network's own."""
    import torch

    class Held:
        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor.detach()  # which does not keep the step alive

    held: list[Any] = []

    def keep(tensor: Any) -> Any:
        box = Held(tensor)
        held.append(weakref.ref(box))
        return box

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda box: box.tensor):
        result = network(*inputs, **named)
    boxes = [box for reference in held if (box := reference()) is not None]
    storages = [box.tensor.untyped_storage() for box in boxes]
    own = {t.untyped_storage().data_ptr() for t in (*network.parameters(), *network.buffers())}
    saved = {s.data_ptr(): s.nbytes() for s in storages if s.data_ptr() not in own}
    del result  # until here it holds what is saved
    return sum(saved.values())


def live_bytes(call: Callable[[], object], *held: object) -> tuple[int, object]:
    """The largest sum of storages that live at once, with those of the tensors `held`; the result."""
    import torch
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    alive: dict[int, int] = {}
    most = 0

    def note(tensor: object) -> None:
        if (
            isinstance(tensor, torch.Tensor)
            and (it := tensor.untyped_storage())._cdata not in alive
        ):
            alive[it._cdata] = it.nbytes()
            weakref.finalize(it, alive.pop, it._cdata)

    class Live(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal most
            result = f(*args, **(kwargs or {}))
            pytree.tree_map(note, result)
            most = max(most, sum(alive.values()))
            return result

    pytree.tree_map(note, held)
    with torch.no_grad(), Live():
        made = call()
    return most, made


def peak_by_pytorch(network: Any, *inputs: Any, loss: Any = None) -> int:
    """Most bytes of tensors at once in a step without an optimizer, with parameters, buffers and inputs.

    `loss`: of the result; None: its sum.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    alive, sizes, most = set[int](), 0, 0

    def freed(key: int, size: int) -> None:
        nonlocal sizes
        alive.discard(key)
        sizes -= size

    def counted(tensor: Any) -> None:
        nonlocal sizes, most
        storage = tensor.untyped_storage()
        if storage._cdata not in alive:
            alive.add(storage._cdata)
            sizes += storage.nbytes()
            most = max(most, sizes)
            weakref.finalize(storage, freed, storage._cdata, storage.nbytes()).atexit = False

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = op(*args, **(kwargs or {}))
            torch.utils._pytree.tree_map_only(torch.Tensor, counted, result)
            return result

    for tensor in (*network.parameters(), *network.buffers(), *inputs):
        counted(tensor)
    with Watched():
        (loss or torch.sum)(network(*inputs)).backward()
    return most


@dataclass
class KnownTraining(TrainingPredictor):
    """`sample_ms`: of each sample of an iteration; `passes`: instead, forward and backward of an iteration,
    shared out among the operations by `each`, alike if not given. `factor`: of the interval's upper end;
    None: no interval.
    """

    file: DeviceFile = field(default_factory=lambda: DeviceFile(new_document("desk", "desk", {})))
    epoch_ms: float = 0.0
    sample_ms: float = 10.0
    passes: tuple[float, float] | None = None
    each: Sequence[float] | None = None
    factor: float | None = 1.25
    remarks: tuple[str, ...] = ()

    def batch(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> TrainedBatch:
        return TrainedBatch(self.iteration(graph, batch_size), self.remarks, self.half_width)

    def iteration(self, graph: Graph, batch_size: int) -> Iteration:
        shares = np.ones(len(graph.operations)) if self.each is None else np.array(self.each)
        shares = shares / shares.sum()
        if self.passes is None:
            return Iteration(self.sample_ms * batch_size, None, 0.0)
        forward, backward = self.passes
        return Iteration(forward, shares * backward, 10.0)

    def half_width(self, coverage: float) -> float:
        if self.factor is None:
            raise InputError("too few points")
        return math.log(self.factor)
