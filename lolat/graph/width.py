"""A network with scaled channel counts, and all sizes that follow from them.

The output channels of a layer with weights are free, unless they reach the network's output, or are added
to its input, before another such layer reads them. Each axis of a tensor follows the layers that determine
its size, by a rule for the kind of operation. No equations are solved: if rounding makes sizes differ that
should be equal, the result takes their mean. Counts are within 2 % of a network that is built with that
width.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import product
from math import floor, gcd, lcm, prod

from msgspec.structs import replace

from lolat.errors import InputError
from lolat.graph import Graph, Operation, cached_on_graph
from lolat.graph.kinds import CONVOLUTIONS, ELEMENTWISE, GATES, KERNELS, PACKED, VIEWS

STEP = 8  # channel counts are multiples of this, which fill vector instructions
NOTE = "counts at another width are scaled, within about 2 %"
HEADS = (
    "the head size changes, not the number of heads; code with a fixed head size, such as "
    "view(b, n, 8, 64), must change too"
)
LAYERS = KERNELS | {"embedding"}
JOINS = ELEMENTWISE | {"concatenate", "stack"}

Place = tuple[int, int]  # (tensor, axis)
Shape = tuple[int, ...]


def scaled(size: int, factor: float, multiple: int = 1) -> int:
    """Round `size` x `factor` to the nearest multiple of both STEP and `multiple`, but not to 0.

    Rounding never crosses `size`: 23 channels x 0.99 give 23, not 24; 4 channels x 0.5 give 4. A larger
    factor therefore never gives fewer channels. If the least common multiple exceeds `size`, only
    `multiple` is kept.
    """
    if factor == 1:
        return size
    step = lcm(STEP, multiple)
    step = multiple if step > size and multiple > 1 else step
    new = max(1, floor(size * factor / step + 0.5)) * step
    return min(new, size) if factor < 1 else max(new, size)


class Widths:
    """Axes whose sizes follow from layers' output channels; `positions`: the layers, None for all.

    `scalable`: the layers whose channel counts may change. The inputs and outputs of the network (or of the
    operations at `positions`), the groups of convolutions and the number of heads stay.
    """

    def __init__(self, graph: Graph, positions: Collection[int] | None = None) -> None:
        operations = graph.operations
        inside = range(len(operations)) if positions is None else sorted(positions)
        outside = [o for p, o in enumerate(operations) if p not in set(inside)]
        written = {t for o in operations for t in o.outputs}
        self.graph = graph
        self.constants = set(range(len(graph.tensors))) - written - set(graph.inputs)
        self.lost: set[int] = set()  # tensors whose channel axis is not known
        self.layers: dict[Place, set[Place]] = {}  # axis -> the layers that its size comes from
        self.sources: dict[Place, list[Place]] = {}  # axis -> the axes that it follows; a layer: []
        self.attributes: list[tuple[int, str, Place]] = []  # (position, attribute, axis it follows)
        self.tied: dict[Place, Place] = {}  # layer -> another: both are free, or neither
        self.dense: dict[Place, Place] = {}  # dense layer -> the axis that it reads
        self.heads: list[tuple[Place, int]] = []  # (queries, their heads)
        self.multiple: dict[Place, int] = {}  # layer -> its channels are a multiple of this
        self.fixed: set[Place] = set()
        for p in inside:
            self._pass(p, operations[p])
        if graph.framework != "keras":  # in Keras, attention's heads have sizes of their own
            for query, heads in self.heads:
                self._divide(query, heads)
        leaving = {t for o in outside for t in o.inputs}.union(graph.outputs)
        ends = (layers for (t, _), layers in self.layers.items() if t in leaving)
        fixed = {self._root(layer) for layer in self.fixed.union(*ends)}
        self.scalable = {
            layer
            for layer, sources in self.sources.items()
            if not sources and self._size(layer) > 1 and self._root(layer) not in fixed
        }

    # ---- Other sizes

    def _scaled(self, layer: Place, factor: float) -> int:
        return scaled(self._size(layer), factor, self.multiple.get(self._root(layer), 1))

    def pairs(self, factor: float) -> tuple[tuple[int, int], ...]:
        """The free channel counts as sorted pairs (now, after scaling by `factor`)."""
        return tuple(sorted({(self._size(p), self._scaled(p, factor)) for p in self.scalable}))

    def at(self, factor: float) -> Graph:
        """The network with its free channel counts multiplied by `factor` and rounded by `scaled`."""
        new: dict[Place, int] = {}

        def resized(size: int, places: Sequence[Place]) -> int:
            """`size` scaled by the same ratio as the sum of the sizes of `places`."""
            before = sum(map(self._size, places))
            return max(1, round(size * sum(new.get(p, self._size(p)) for p in places) / before))

        for place, sources in self.sources.items():
            if sources:
                new[place] = resized(self._size(place), sources)
            elif place in self.scalable:
                new[place] = self._scaled(place, factor)
        for o in self.graph.operations:
            for t in self.constants.intersection(o.inputs):
                ranks = [len(self.graph.tensors[x].shape) for x in (t, o.outputs[0])]
                for back in range(1, min(ranks) + 1):  # counts axes from the last one
                    axis, other = ranks[0] - back, (o.outputs[0], ranks[1] - back)
                    if other in new and self._size((t, axis)) == self._size(other):
                        new[t, axis] = new[other]
        tensors = list(self.graph.tensors)
        for (t, axis), size in new.items():
            shape = tensors[t].shape
            tensors[t] = replace(tensors[t], shape=(*shape[:axis], size, *shape[axis + 1 :]))
        operations = list(self.graph.operations)
        for p, name, place in self.attributes:
            o = operations[p]
            operations[p] = o.changed(
                **{name: resized(self.graph.operations[p].attributes[name], [place])}
            )
        return replace(self.graph, tensors=tuple(tensors), operations=tuple(operations))

    # ---- Where sizes come from

    def _size(self, place: Place) -> int:
        return self.graph.tensors[place[0]].shape[place[1]]

    def _root(self, layer: Place) -> Place:
        while layer in self.tied:
            layer = self.tied[layer]
        return layer

    def _open(self, tensor: int) -> list[int]:
        """The axes of a tensor whose sizes follow from layers."""
        rank = len(self.graph.tensors[tensor].shape)
        return [axis for axis in range(rank) if (tensor, axis) in self.layers]

    def _follow(self, place: Place, sources: Sequence[Place]) -> None:
        """Make a size follow the sizes of `sources`, if one of them can change."""
        layers = {self._root(layer) for s in sources for layer in self.layers.get(s, ())}
        layers -= self.fixed
        if layers:
            self.layers[place], self.sources[place] = layers, list(sources)

    def _tie(self, places: Sequence[Place]) -> None:
        """Keep equal sizes equal: if one of them cannot change, the layers of none are free."""
        found = [set(map(self._root, self.layers.get(place, ()))) for place in places]
        if any(p not in self.layers and p[0] not in self.lost for p in places):
            self.fixed.update(*found)
        sizes = {self._size(place) for place in places}
        alone = (x for layers in found if len(layers) == 1 for x in layers)
        single = [x for x in alone if {self._size(x)} == sizes]
        for other in single[1:]:
            if (one := self._root(single[0])) != (two := self._root(other)):
                self.tied[two] = one
                self._need([one], self.multiple.get(two, 1))

    def _need(self, layers: Iterable[Place], multiple: int) -> None:
        """Keep the channel counts of layers multiples of `multiple`."""
        for layer in map(self._root, layers):
            self.multiple[layer] = lcm(self.multiple.get(layer, 1), multiple)

    def _split(self, place: Place, parts: int) -> None:
        """Keep a size divisible into `parts` equal parts that are multiples of STEP."""
        layers = self.layers.get(place, ())
        for layer in layers:
            whole = self._size(place) // self._size(layer) if len(layers) == 1 else 1
            each = parts // gcd(parts, max(whole, 1))
            self._need([layer], STEP * each if each > 1 else 1)

    def _divide(self, query: Place, heads: int) -> None:
        """Make `heads` divide the input of the dense layer of queries, or of queries, keys and values."""
        for layer in self.layers.get(query, ()):
            source = self.dense.get(layer, query)
            ratio, rest = divmod(self._size(layer), self._size(source))
            if (
                source in self.layers
                and ratio in (1, 3)
                and rest == self._size(source) % heads == 0
            ):
                pairs = [(layer, ratio * heads), *((one, heads) for one in self.layers[source])]
                for one, parts in pairs:
                    if lcm(STEP * parts, self.multiple.get(self._root(one), 1)) <= self._size(one):
                        self._need([one], STEP * parts)

    def _pass(self, position: int, o: Operation) -> None:
        """Follow the channels through an operation, into its outputs and attributes."""
        if o.kind not in LAYERS and self.constants.issuperset(o.inputs):
            self.constants.update(o.outputs)
            return
        for out in o.outputs:
            if o.kind in LAYERS:
                self._layer(position, o, out)
            elif o.kind in VIEWS - {"identity", "dropout"}:
                self._view(o.inputs[0], out)
            elif o.kind == "matmul":
                self._product(position, o, out)
            elif o.kind == "attention" and out == o.outputs[0]:
                self._attention(position, o, out)
            elif o.kind == "transpose":
                self._transposed(o.inputs[0], out)
            else:
                self._axis_by_axis(o, out)
        unclear = any(map(self._open, o.inputs)) and o.kind not in ("reduce", "matmul")
        if unclear or not self.lost.isdisjoint(o.inputs):
            self.lost.update(t for t in o.outputs if not self._open(t))

    def _layer(self, position: int, o: Operation, out: int) -> None:
        """Make the output channels of a layer free; those of a depthwise convolution follow its input."""
        a, source = o.attributes, o.inputs[0]
        before, after = self.graph.shapes((source, out))
        read, made, names = len(before) - 1, len(after) - 1, ("in_features", "out_features")
        if o.kind in CONVOLUTIONS:
            names = ("in_channels", "out_channels")
            read, made = self.graph.channel_axis(source), self.graph.channel_axis(out)
        elif o.kind in GATES:
            names = ("in_features", "projection" if "projection" in a else "units")
        elif o.kind == "dense":
            for axis in range(min(read, made)):
                if before[axis] == after[axis]:
                    self._follow((out, axis), [(source, axis)])
        groups = a.get("groups", 1)
        is_depthwise = 1 < groups == a["in_channels"]
        if is_depthwise or PACKED in a:  # PACKED: queries, keys and values, three times the input
            self._follow((out, made), [(source, read)])
            if is_depthwise:
                self.attributes.append((position, "groups", (source, read)))
        elif out != o.outputs[0]:  # a state, beside the sequence
            first = o.outputs[0], len(self.graph.tensors[o.outputs[0]].shape) - 1
            self._follow((out, made), [first])
        else:
            self.layers[out, made], self.sources[out, made] = {(out, made)}, []
            if o.kind == "dense":
                self.dense[out, made] = source, read
            self._need({(out, made), *self.layers.get((source, read), ())}, groups)
        places = ((source, read), (out, made))
        self.attributes += [(position, n, p) for n, p in zip(names, places, strict=True) if n in a]

    def _view(self, source: int, out: int) -> None:
        """Follow the channels through a view; if a view splits an axis, only the last part changes."""
        before, after = self.graph.shapes((source, out))
        for old, new in _same_elements(before, after):
            among = [(source, x) for x in old if (source, x) in self.layers]
            if among:
                size = self._size(among[0])
                last = max(new, key=lambda x: (after[x] == size, after[x] > 1, x))
                self._follow((out, last), among[:1])
                self._split(among[0], size // after[last])

    def _transposed(self, source: int, out: int) -> None:
        """Follow the channels through a transpose; an axis is recognized by its size.

        If several axes have that size, the axis at the same place is chosen, else one whose size changed. A
        pixel shuffle or its inverse keeps the channels on their axis.
        """
        before, after = self.graph.shapes((source, out))
        channels = self.graph.channel_axis(source)
        others = [x for x in range(len(before)) if x != channels]
        is_shuffle = len(before) == len(after) > 3 and all(
            before[x] != after[x] for x in others[1:]
        )
        for axis in self._open(source):
            if axis == channels and is_shuffle and before[axis] != after[axis]:
                self._follow((out, axis), [(source, axis)])
                self._split((source, axis), max(before[axis] // after[axis], 1))
                continue
            found = [x for x, n in enumerate(after) if n == before[axis]]
            if found:
                to = min(found, key=lambda x: (x != axis, before[x : x + 1] == after[x : x + 1]))
                self._follow((out, to), [(source, axis)])

    def _product(self, position: int, o: Operation, out: int) -> None:
        """Follow the channels through a product of two activations; the number of heads stays."""
        (left, right), k = o.inputs[:2], o.attributes["contracted"]
        before, other, after = self.graph.shapes((left, right, out))
        summed = left, len(before) - 1
        ends = (right, len(other) - 1), (right, len(other) - 2)
        # The right operand is (..., n, k) or (..., k, n); if square, the axis as free as `summed`.
        fits = [
            (inner, outer)
            for inner, outer in (ends, ends[::-1])
            if self._size(inner) % k == 0 and after[-1] % max(self._size(outer), 1) == 0
        ]
        is_open = summed in self.layers
        inner, outer = min(fits or [ends], key=lambda x: (x[0] in self.layers) != is_open)
        if is_open:
            self.attributes.append((position, "contracted", summed))
            self._split(summed, before[-1] // k)
            self.heads.append((summed, before[-3] if len(before) > 3 else 1))
            self._tie([summed, inner])
        if outer in self.layers:
            self._follow((out, len(after) - 1), [outer])
        for axis in self._open(left):
            if axis < min(len(before), len(after)) - 1 and before[axis] == after[axis]:
                self._follow((out, axis), [(left, axis)])

    def _attention(self, position: int, o: Operation, out: int) -> None:
        """Follow the channels through attention: the size of a head changes, the number of heads stays."""
        query, key, value = ((t, len(self.graph.tensors[t].shape) - 1) for t in o.inputs[:3])
        for place, name in ((query, "head_size"), (key, "head_size"), (value, "value_size")):
            self._split(place, self._size(place) // o.attributes[name])
        for place, name in ((query, "head_size"), (value, "value_size")):
            if place in self.layers:
                self.attributes.append((position, name, place))
        self.heads.append((query, o.attributes["heads"]))
        self._tie([query, key])
        self._follow((out, len(self.graph.tensors[out].shape) - 1), [value])

    def _axis_by_axis(self, o: Operation, out: int) -> None:
        """Make each axis follow the input axes of its size at the same place, from the end or the front.

        The operands of a kind in JOINS are tied. An axis that is a part of another one changes in
        proportion.
        """
        shape, joins = self.graph.tensors[out].shape, o.kind in JOINS
        found: dict[int, list[Place]] = {}
        for t in [t for t in o.inputs if t not in self.constants]:
            rank = len(self.graph.tensors[t].shape)
            for axis in range(rank) if joins else self._open(t):
                size, at = self._size((t, axis)), axis + len(shape) - rank
                same = [x for x in (at, axis) if 0 <= x < len(shape) and shape[x] == size > 1]
                if not same and rank == len(shape) and shape[axis] > 1 < size:
                    same = [axis]
                    self._split((t, axis), 1 if joins else size // shape[axis])
                for x in same[:1]:
                    found.setdefault(x, []).append((t, axis))
        for x, places in found.items():
            if joins and all(self._size(p) == shape[x] for p in places):
                self._tie(places)
            self._follow((out, x), places)


def _same_elements(before: Shape, after: Shape) -> Iterator[tuple[range, range]]:
    """Yield the shortest pairs of axis ranges that hold the same elements before and after a reshape."""
    i = j = 0
    ends = product(range(1, len(before) + 1), range(1, len(after) + 1))
    for old_end, new_end in ends:
        if old_end > i and new_end > j and prod(before[i:old_end]) == prod(after[j:new_end]):
            yield range(i, old_end), range(j, new_end)
            i, j = old_end, new_end


widths = cached_on_graph(Widths)
"""The `Widths` of a graph, computed once."""


def widened(graph: Graph, factor: float) -> Graph:
    """The network with all free channel counts multiplied by `factor`; InputError if none is free."""
    found = widths(graph)
    if not found.scalable:
        raise InputError(
            f"the width of {graph.name!r} cannot be varied: none of its channel counts is free, they are "
            "those of its inputs and outputs; vary the resolution or the batch size"
        )
    return found.at(factor)
