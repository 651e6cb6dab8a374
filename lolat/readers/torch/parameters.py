"""Assigns the parameters of a PyTorch module to operations, and marks which parameters are trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lolat.graph import Operation, kinds
from lolat.graph.backward import has_trained_parameters
from lolat.readers.torch.running import Running
from lolat.readers.torch.tensors import Tensors

Key = tuple[int, int, int]
"""(elements, storage offset, id) of a parameter or a part of it."""


class Ledger:
    """Counts the elements of parameters in operations' weights; a shared parameter counts once.

    `made_of`: constant -> {id: elements} of the parameters that it is, or is computed from. `taken`: id of
    a parameter -> its elements in operations; `inside`: id -> its elements in computed weights; `cut`: id
    -> the result of the operation that computes smaller weights from the parameter.
    """

    def __init__(self) -> None:
        self.made_of: dict[int, dict[int, int]] = {}
        self.taken, self.inside = Counter[int](), Counter[int]()
        self.cut: dict[int, int] = {}

    def parts(self, constants: Iterable[int]) -> dict[int, int]:
        """{id: elements} of the parameters that some constants are, or are computed from."""
        every = [self.made_of[i] for i in constants if i in self.made_of]
        return {key: elements for one in every for key, elements in one.items()}

    def take(self, parts: Mapping[int, int], room: int, result: int = -1) -> int:
        """Assign parameters to weights of `room` elements; return the number of newly assigned elements."""
        found = 0
        for key, elements in parts.items():
            new = max(min(elements - self.taken[key], room - found), 0)
            self.taken[key] += new
            self.inside[key] += new
            found += new
            if self.taken[key] < elements:  # such as weight_norm, which also trains scales
                self.cut[key] = result
        return found


class Parameters:
    """The parameters that a trace uses, and the weights that its operations compute from parameters.

    `trained`: ledger of trained parameters; `every`: ledger of all parameters and buffers; `untrained`:
    frozen constants; `computed`: constants computed from others; `aside`: number of their elements; `anew`:
    number of operations with computed weights; `learned`: (id of a parameter, tensors that its operation
    writes, True if they give it a gradient); `asked`: results whose gradient the code requests
    (requires_grad_).
    """

    def __init__(self, modules: Mapping[Any, str], tensors: Tensors, running: Running) -> None:
        self.tensors, self.writer, self.running = tensors, tensors.writer, running
        attentions = (m for m in modules if isinstance(m, torch.nn.MultiheadAttention))
        self._packed = {id(p) for m in attentions for p in m.parameters(recurse=False)}
        self.trained, self.every = Ledger(), Ledger()
        self.untrained, self.computed = set[int](), set[int]()
        self.anew = self.aside = 0
        self.learned: list[tuple[int, list[int], bool]] = []
        self.asked: set[int] = set()
        # Key of a parameter -> for each use: positions of its operations, whether it is learned there.
        self._uses: dict[Key, list[tuple[range, bool]]] = {}
        self._biases: set[Key] = set()  # all parameters of operations except the largest of each
        self._in_buffers: set[Key] = set()
        self._fixed: list[list[int]] = []  # results of operations without trained weights
        self._bare: set[int] = set()  # results of normalizations without parameters

    def own(self, value: Any) -> int:
        """Add a constant for a tensor that no operation wrote, maybe a parameter; return its index."""
        made, elements = self.tensors.constant(value), {id(value): value.numel()}
        if isinstance(value, torch.nn.Parameter):
            self.every.made_of[made] = elements
        if value.requires_grad:
            self._train(made, elements)
        elif isinstance(value, torch.nn.Parameter):
            self.untrained.add(made)
        return made

    def _train(self, constant: int, parameters: dict[int, int]) -> None:
        """Record {id: elements} of the trained parameters that a constant is, or is computed from."""
        self.trained.made_of[constant] = parameters
        if not self.writer.shape(constant):
            self.writer.scalars.add(constant)

    def compute(self, constant: int, op: str, sources: Sequence[int], is_view: bool) -> None:
        """Record that an operation computed a constant from other constants."""
        made_of = [] if op.startswith("new_") else sources
        learned = [] if self.running.stops(op) else made_of
        if parts := self.trained.parts(learned):
            self._train(constant, parts)
        self.every.made_of[constant] = self.every.parts(made_of)
        self.aside += self.writer.elements(constant) * (bool(made_of) and not is_view)
        if (made_of and not is_view) or self.computed.intersection(made_of):
            self.computed.add(constant)

    def give(
        self, start: int, named: Mapping[str, Any], sources: Sequence[int], written: list[int],
        grows: bool,
    ) -> None:  # fmt: skip
        """Assign parameters to the operations from position `start` on, which write the tensors `written`.

        `named`: the arguments of PyTorch's operation; `sources`: the tensors among them; `grows`: True if
        its result grows with the batch.
        """
        weights = self._weights(sources, start)
        owned = self._parameters(named, weights, start)
        *others, largest = sorted(key for key, _ in owned) or [(0, 0, 0)]
        own_bias = not self._biases.issuperset(others)
        self._biases.update(others)
        every = self.writer.builder.operations
        if owned and self.writer.tie(start, largest[::-1], own_bias=own_bias):
            use = range(start, len(every)), any(yes for _, yes in owned)
            self._uses.setdefault(largest, []).append(use)
            gradients = self.running.gradients
            self.learned += [(key[-1], written, yes and gradients) for key, yes in owned]
        self.anew += not self.computed.isdisjoint(weights)
        is_fixed = not self.untrained.issuperset(weights)
        is_fixed &= self.trained.made_of.keys().isdisjoint(weights)
        if grows and is_fixed:
            self._fixed.append(written)
        new = every[start:]
        if any(map(has_trained_parameters, new)):
            constants, taken = self.writer.constants.intersection(sources), self.trained.taken
            constants.difference_update(*(o.inputs for o in new))
            taken.update(dict.fromkeys(self.trained.parts(constants), 0))
            taken.update({key[-1]: key[0] for key, is_learned in owned if is_learned})
        self._mark(start, owned, is_fixed, weights)
        self._mark_autocast(start, named)

    def _mark(
        self, start: int, owned: Sequence[tuple[Key, bool]], is_fixed: bool, weights: Sequence[int]
    ) -> None:
        """Store in operations from `start` on their number of trained parameters, unless all train.

        `owned`: their parameters; `is_fixed`: True if none of their `weights` is trained. Trained
        parameters inside a computed weight count for the first operation that uses them. A checkpointed
        part is marked too.
        """
        trained = sum(key[0] for key, is_learned in owned if is_learned)
        rest = sum(key[0] for key, _ in owned) - trained
        inside, computed = dict[int, int](), self.computed.intersection(weights)
        for i in computed:
            parts = self.trained.parts((i,))
            if parts.keys().isdisjoint(key[-1] for key, _ in owned):
                rest += self.writer.elements(i)
                inside |= parts if self.running.gradients else {}
        number = self._count(owned, computed)
        every, part = self.writer.builder.operations, self.running.part
        is_tied = bool(inside) and "tied" in every[-1].attributes  # has them from its first use
        is_first = bool(inside) and not is_tied
        found = self.trained.take(inside, rest, every[-1].outputs[0]) if is_first else 0
        made: dict[str, Any] = {"owns": number} if number is not None and not is_tied else {}
        if is_fixed or found < rest:
            made |= {kinds.TRAINED: trained + found} | ({kinds.COMPUTED: True} if inside else {})
        if buffer := sum(key[0] for key, _ in owned if key in self._in_buffers):
            made |= {kinds.BUFFER: buffer}
        if any(key[-1] in self._packed for key, _ in owned):
            made |= {kinds.PACKED: True}
        made |= {kinds.REMADE: sum(map(self.writer.elements, computed))} if computed else {}
        if part is not None:
            made |= {kinds.CHECKPOINT: part[0]} | ({kinds.REENTRANT: True} if part[1] else {})
        for i in range(start, len(every)) if made else ():
            every[i] = every[i].changed(**made)
        if not owned:
            self._bare.update(
                t for o in every[start:] for t in o.outputs if kinds.kind_of(o.kind).vectors
            )

    def _count(self, owned: Sequence[tuple[Key, bool]], computed: Set[int]) -> int | None:
        """The number of an operation's parameters, if its `computed` weights have more elements; else None.

        `owned`: the parameters that it reads. Parameters of earlier operations are not counted again.
        """
        taken = self.every.taken
        for key, _ in owned:
            taken[key[-1]] = max(key[0], taken[key[-1]])
        room = sum(map(self.writer.elements, computed))
        new = self.every.take(self.every.parts(computed), room)
        return sum(key[0] for key, _ in owned) + new if new < room else None

    def _weights(self, sources: Sequence[int], start: int) -> list[int]:
        """The constant matrices, kernels and tables that the operations from position `start` on read."""
        every, tensors = self.writer.builder.operations, self.writer.builder.tensors
        written = [o for o in every[start:] if o.kind in (*kinds.KERNELS, "embedding")]
        if any(o.attributes.get("in_features") == 1 for o in written):
            return []  # sums nothing, such as the angles of positions
        read = {i for o in written for i in o.inputs}
        return [
            i for i in sources if written and i in self.writer.constants and i not in read
            and "float" in tensors[i].dtype and len(tensors[i].shape) > 1
        ]  # fmt: skip

    def _parameters(
        self, named: Mapping[str, Any], weights: Sequence[int], start: int
    ) -> list[tuple[Key, bool]]:
        """The parameters of the operation at position `start`, as (key, True if the parameter is trained).

        A buffer among its `weights` is a parameter that is not trained. A tensor that the kernel
        multiplies, such as learned queries, is an operand and not a parameter.
        """
        new = self.writer.builder.operations[start:]
        multiplied = {i for o in new if o.kind in kinds.KERNELS for i in o.inputs}
        buffers = {i for i in weights if i not in self.computed and not self.every.made_of.get(i)}
        known, found = self.tensors.known, []
        for value in pytree.tree_leaves(dict(named)):
            if isinstance(value, torch.Tensor) and known.get(value) in multiplied:
                continue
            *seen, root = self.tensors.viewed(value)
            is_learned = self.writer.detached.isdisjoint(known[t] for t in seen)
            is_buffer = (
                isinstance(value, torch.Tensor)
                and known[value] in buffers
                and any(root is one for one in self.tensors.constants)
            )
            if isinstance(root, torch.nn.Parameter) or is_buffer:
                key = (value.numel(), value.storage_offset(), id(root))
                self._in_buffers.update(() if isinstance(root, torch.nn.Parameter) else (key,))
                found.append((key, is_learned and root.requires_grad))
        return found

    def _mark_autocast(self, start: int, named: Mapping[str, Any]) -> None:
        """Mark operations from `start` on for which autocast is off, or caches no half-precision kernel.

        With autocast off, products are `wide`, except outer products (angles of positions), and other
        operations keep the data types of their inputs. With autocast on, products may be `recast`.
        """
        operations = self.writer.builder.operations
        for i, o in enumerate(operations[start:], start):
            if all(self.running.autocasts[-1:]):
                if self._is_recast(o, named):
                    operations[i] = o.changed(**{kinds.RECAST: True})
            elif o.kind in kinds.MULTIPLYING:
                terms = o.attributes.get("contracted", o.attributes.get("in_features"))
                operations[i] = o.changed(**{kinds.KEPT_FLOAT32: terms != 1 or None})
            elif kinds.kind_of(o.kind).autocast:
                operations[i] = o.changed(autocast="")

    def _is_recast(self, operation: Operation, named: Mapping[str, Any]) -> bool:
        """True if autocast converts an operation's kernel to half precision in each call, uncached.

        It caches kernels that are whole parameters with a gradient (cached_cast in ATen/autocast_mode.cpp).
        False for kernels that the network computes, and for recurrent layers, whose kernels cuDNN always
        copies.
        """
        is_copied = operation.kind in kinds.KERNELS - kinds.GATES.keys()
        if not is_copied or "bits" in operation.attributes:
            return False
        read = [t for t in pytree.tree_leaves(dict(named)) if isinstance(t, torch.Tensor)]
        weights = self.writer.constants - self.computed - {*operation.inputs}
        own = (t for t in read if self.tensors.known[t] in weights)
        kernel = max(own, key=torch.Tensor.numel, default=None)
        if kernel is None or kernel.dtype != torch.float32:
            return False
        return not kernel.requires_grad or len(self.tensors.viewed(kernel)) > 1

    def is_whole(self, outputs: Sequence[int]) -> bool:
        """True if all weights that `outputs` depend on are trained in all their uses."""
        needed, reached = self.writer.reached(outputs)
        still = any(
            not (needed.isdisjoint(written) or (yes and not reached.isdisjoint(written)))
            for _, written, yes in self.learned
        )  # a use of a parameter without a gradient
        return not (still or any(not needed.isdisjoint(one) for one in self._fixed))

    def loose(self) -> list[tuple[int, tuple[int, ...]]]:
        """Each trained parameter outside of weights: (elements in no operation, constants made from it).

        If a parameter has more elements than the weights computed from it, the result of the operation that
        computes them stands for the constants.
        """
        trained, every = self.trained, self.every
        found: dict[int, tuple[int, list[int]]] = {}
        for constant, made_of in trained.made_of.items():
            for key in made_of.keys() - trained.taken:
                if rest := made_of[key] - every.inside[key]:  # a detached kernel has them
                    found.setdefault(key, (rest, []))[1].append(constant)
            for key in made_of.keys() & trained.cut:
                if (rest := made_of[key] - trained.taken[key]) > 0:
                    found[key] = rest, [trained.cut[key]]
        return [(elements, tuple(constants)) for elements, constants in found.values()]

    def _hand_over(self, outputs: Sequence[int]) -> None:
        """Assign a shared parameter to its first use with a gradient, if its first use has no gradient."""
        _, reached = self.writer.reached(outputs)
        every = self.writer.builder.operations
        for uses in self._uses.values():
            first, live = uses[0][0], (use for use, is_learned in uses if is_learned)
            of_use = ((u, {t for i in u for t in every[i].outputs}) for u in live)
            found = next((u for u, written in of_use if not reached.isdisjoint(written)), first)
            if found != first and not any("tied" in every[i].attributes for i in first):
                for i in first:
                    every[i] = every[i].changed(tied=True)
                for i in found:
                    every[i] = every[i].changed(tied=None)

    def mark_parts(self, outputs: Sequence[int]) -> None:
        """Mark operations with and without a gradient in a partly trained network."""
        self._hand_over(outputs)
        every = self.writer.builder.operations
        for i, o in enumerate(every):
            if not self._bare.isdisjoint(o.outputs):
                every[i] = o.changed(**{kinds.TRAINED: 0})
            if not self.asked.isdisjoint(o.outputs):
                every[i] = every[i].changed(**{kinds.ASKED: True})
