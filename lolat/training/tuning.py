"""Changes a network for its training: which part is trained, and which part is computed again.

`--tune` frozen trains only the head; `--tune` lora adds LoRA (Hu et al. 2021) to linear layers, as the
package peft. `--checkpointing` full computes each block again (Chen et al. 2016); selective computes all
but its products again, as PyTorch's create_selective_checkpoint_contexts if products are saved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from lolat.errors import InputError, NetworkError, arg
from lolat.graph import Graph, Operation, Tensor
from lolat.graph.blocks import cut
from lolat.graph.kinds import (
    CHECKPOINT,
    COMPUTE,
    COMPUTED,
    KERNELS,
    PACKED,
    REENTRANT,
    SELECTIVE,
    TRAINED,
)
from lolat.graph.weights import parameter_key
from lolat.training.memory import numbers_of
from lolat.units import plural, shortened

TIED = (
    "the head is the table of embeddings: it is trained as both, so that its gradient runs through the "
    "frozen layers too"
)
USED_AGAIN = (
    "the frozen part has parameters that the trained part uses too, as a shared layer, or a table of "
    "embeddings that is the head: they are trained, so that their gradient runs through the frozen "
    "layers too"
)
NO_QLORA = "; QLoRA is not predicted, nearest is lora:16:bf16 with full checkpointing"
HEAD = -1


@dataclass(frozen=True)
class Tuning:
    """The part of a network that is trained: all, LoRA's adapters of a `rank`, or all but the first
    `frozen` layers.

    `frozen`: HEAD if only the last layer is trained and the number of layers is unknown. `half`: adapters
    are in bfloat16 as their base, as with PEFT's autocast_adapter_dtype=False; else they are in float32.
    """

    rank: int = 0
    frozen: int = 0
    half: bool = False

    @classmethod
    def named(cls, text: str, layers: int = HEAD) -> Tuning:
        """Parse full, lora:RANK, lora:RANK:bf16, frozen:LAYERS, or frozen, which freezes all `layers`."""
        found = re.fullmatch(
            r"(full)|(frozen)|(?:(lora)|frozen):([1-9]\d{0,5})((?(3)(?::bf16)?|))",
            text.strip().lower(),
        )
        if found is None:
            raise InputError(
                f"{arg('tune')} {shortened(text)!r}: expected full, lora:RANK such as lora:16 (or "
                "lora:16:bf16: adapters in bfloat16), frozen:N "
                "(freezes the first N layers or blocks) or frozen (freezes all but the last layer)"
                f"{NO_QLORA * text.strip().lower().startswith('qlora')}",
                code="tune",
            )
        _, all_frozen, lora, number, half = found.groups()
        if lora:
            return cls(int(number), half=bool(half))
        return cls(frozen=layers if all_frozen else int(number or 0))

    @property
    def is_partial(self) -> bool:
        """True if some parameters are not trained."""
        return bool(self.rank or self.frozen)

    @property
    def part(self) -> str:
        """The trained part: "lora", "frozen" (all but the frozen layers) or "full"."""
        return "lora" if self.rank else "frozen" if self.frozen else "full"

    def words(self) -> str:
        """The text that `named` parses."""
        number = {"lora": f":{self.rank}{':bf16' * self.half}", "frozen": f":{self.frozen}"}
        return self.part + number.get(self.part, "")


ALL_TRAINED = Tuning()


def check_rank(rank: int, widest: int, network: str) -> None:
    """Raise InputError if the rank of adapters is above the `widest` layer that has an adapter."""
    if rank > widest:
        raise InputError(
            f"{arg('tune')} lora:{rank}: above the width of the layers of {shortened(network)}; expected "
            f"at most {widest}, such as 16",
            code="tune-rank",
        )


def tuned(graph: Graph, tune: str | None, checkpointing: str | None) -> Graph:
    """Change a network for a way of tuning and checkpointing; None or "" keeps the network's own choice.

    NetworkError if nothing is trained, or no layer can have adapters; InputError for unknown words.
    """
    if tune:
        graph = _tuned(graph, Tuning.named(tune))
    if checkpointing:
        graph = _recomputed(graph, checkpointing)
    if numbers_of(graph).frozen and not numbers_of(graph).trained:
        raise NetworkError(
            f"{shortened(graph.name)}: none of its {numbers_of(graph).frozen:,} parameters is trained; "
            f"expected some with requires_grad (Keras: trainable), or {arg('tune')} full",
            code="nothing-trained",
        )
    return graph


def _with(graph: Graph, operations: Iterable[Operation], untrained: Iterable[int]) -> Graph:
    return replace(graph, operations=tuple(operations), untrained=tuple(untrained))


def _constants(graph: Graph) -> set[int]:
    written = {t for o in graph.operations for t in o.outputs}
    return {*range(len(graph.tensors))}.difference(written, graph.inputs)


def _tuned(graph: Graph, tuning: Tuning) -> Graph:
    operations = [o.changed(**{TRAINED: None, COMPUTED: None}) for o in graph.operations]
    if not tuning.is_partial:
        return _with(graph, operations, graph.untrained)
    last = max((i for i, o in enumerate(operations) if o.kind in KERNELS), default=0)
    if tuning.half:
        raise InputError(
            f"{arg('tune')} {tuning.words()}: adapters in bfloat16 are of a decoder's configuration only; "
            f"expected lora:{tuning.rank}",
            code="decoder-only",
        )
    if tuning.rank:
        return _adapted(graph, operations, tuning.rank, last)
    begin, end, untrained = last, last + 1, _constants(graph)
    if tuning.frozen != HEAD:
        every = units(graph)
        if tuning.frozen >= len(every):
            raise InputError(
                f"{arg('tune')} frozen:{tuning.frozen}: {shortened(graph.name)} has "
                f"{plural(len(every), 'block')}; expected fewer, or frozen for all but its last layer",
                code="tune",
            )
        begin, end = every[tuning.frozen - 1][0][-1] + 1, len(operations)
        frozen = {t for o in operations[:begin] for t in o.inputs}
        shared = {
            t for _, made in graph.loose_parameters if not frozen.isdisjoint(made) for t in made
        }
        untrained &= frozen | shared | {*graph.untrained}
    trained = set(map(parameter_key, operations[begin:end]))
    made = [o if parameter_key(o) in trained else o.changed(**{TRAINED: 0}) for o in operations]
    if sum(TRAINED not in o.attributes for o in made) > end - begin:
        graph = replace(graph, warnings=(*graph.warnings, USED_AGAIN))
    return _with(graph, made, untrained)


def _adapted(graph: Graph, operations: list[Operation], rank: int, last: int) -> Graph:
    """Add adapters of a rank to all linear layers but the last one; everything else is frozen.

    The packed projection of PyTorch's MultiheadAttention is not a layer, so it has no adapter, as in peft.

    An adapter is two layers, one after the other, whose scaled result is added to the layer's result.
    InputError if the network already has adapters of peft.
    """
    if own := [o.full_name for o in operations if "lora_A" in o.full_name]:
        raise InputError(
            f"{arg('tune')} lora: {shortened(graph.name)} has adapters of its own ({own[0]}); expected it "
            f"without them, or no {arg('tune')}",
            code="own-adapters",
        )
    tensors, made, found, widest = list(graph.tensors), list[Operation](), 0, 0
    for i, o in enumerate(operations):
        made.append(o.changed(**{TRAINED: 0}))
        if o.kind != "dense" or i == last or not {"experts", PACKED}.isdisjoint(o.attributes):
            continue
        found += 1
        read, out = o.inputs[0], o.outputs[0]
        given, result = tensors[read], tensors[out]
        low, high, scaled, base = range(len(tensors), len(tensors) + 4)
        thin = Tensor((*given.shape[:-1], rank), given.batched, result.dtype)
        tensors += [thin, result, result, result]
        made[-1] = replace(made[-1], outputs=(base,))
        about = {k: v for k, v in o.attributes.items() if k in (CHECKPOINT, REENTRANT)}
        if o.attributes.get("tied") is True:  # it is called again, with the adapters that it has
            about["tied"] = True
        shared = o.attributes.get("parameter")
        widest = max(widest, min(o.attributes["in_features"], o.attributes["out_features"]))
        into = {"in_features": o.attributes["in_features"], "out_features": rank, "bias": False}
        out_of = {"in_features": rank, "out_features": o.attributes["out_features"], "bias": False}
        made += [
            Operation(name, kind, inputs, outputs, {**sizes, **about}, o.full_name).changed(
                parameter=None if shared is None else (shared, name)
            )
            for name, kind, inputs, outputs, sizes in (
                ("lora_A", "dense", (read,), (low,), into),
                ("lora_B", "dense", (low,), (high,), out_of),
                ("scale", "multiply", (high,), (scaled,), {}),
                ("add", "add", (base, scaled), (out,), {}),
            )
        ]
    if not found:
        raise NetworkError(
            f"{arg('tune')} lora: {shortened(graph.name)} has no linear layer before its last layer; "
            "expected full, or frozen",
            code="no-linear-layer",
        )
    check_rank(rank, widest, graph.name)
    untrained = tuple(_constants(graph))
    return replace(graph, tensors=tuple(tensors), operations=tuple(made), untrained=untrained)


# ---- The blocks of a network, as people freeze them and compute them again.

LEAST_LAYERS = 2
_NUMBER = re.compile(r"(?:^|(?<=[./]))\d+(?=[./]|$)")


def units(graph: Graph) -> list[tuple[list[int], str]]:
    """[(positions of a block's operations, name of the block)], in the network's order.

    Blocks are numbered modules that hold several layers (`blocks.3`, `layer1.0`), and the other modules in
    the same lists. If most layers of such a module are in smaller ones of this kind, the smaller ones are
    the blocks. In a network without such names the blocks are those of `lolat report` that hold several
    layers, or numbered modules outside of these. NetworkError if there is no block.
    """

    def layers(part: Iterable[int]) -> int:
        return sum(graph.operations[i].kind in COMPUTE for i in part)

    names = dict[str, list[int]]()
    for i, o in enumerate(graph.operations):
        for number in _NUMBER.finditer(o.full_name):
            names.setdefault(o.full_name[: number.end()], []).append(i)
    large = sorted((n for n, part in names.items() if layers(part) >= LEAST_LAYERS), key=len)
    chosen = list[str]()
    for name in large:  # the outer ones first
        smaller = {i for other in large if _is_inside(other, name) for i in names[other]}
        gives_way = 2 * layers(smaller) > layers(names[name])
        if not gives_way and not any(_is_inside(name, other) for other in chosen):
            chosen.append(name)
    lists = {_NUMBER.sub("N", name) for name in chosen}
    found = [n for n, part in names.items() if _NUMBER.sub("N", n) in lists and layers(part)]
    parts = [(names[n], n) for n in _innermost(found)]
    if not parts:
        every = [([*b.operations], b.label) for b in cut(graph)]
        parts = [(part, label) for part, label in every if layers(part) >= LEAST_LAYERS]
        others = {*range(len(graph.operations))}.difference(*(part for part, _ in parts))
        found = [n for n, part in names.items() if layers(part) and len(part) > 1]
        found = [n for n in found if others.issuperset(names[n])]
        parts = [(names[n], n) for n in _innermost(found)] or parts
    if not parts:
        raise _without_blocks(graph)
    return sorted(parts)


def _is_inside(name: str, outer: str) -> bool:
    return name.startswith((outer + ".", outer + "/"))


def _innermost(names: Sequence[str]) -> list[str]:
    """The names of modules that contain no other module in `names`."""
    return [n for n in names if not any(_is_inside(other, n) for other in names)]


def _without_blocks(graph: Graph) -> NetworkError:
    otherwise = ", or torch.utils.checkpoint in its code"
    if any(CHECKPOINT in o.attributes for o in graph.operations):
        otherwise = f"; without {arg('checkpointing')} the checkpoints in its code count"
    return NetworkError(
        f"{shortened(graph.name)} has no numbered blocks and no blocks of several layers, which "
        f"{arg('checkpointing')} and {arg('tune')} frozen:N count; expected a network with some{otherwise}",
        code="no-blocks",
    )


def frozen_up_to(graph: Graph, tuning: Tuning) -> str | None:
    """The name of the last frozen block of frozen:N; None for another tuning."""
    return units(graph)[tuning.frozen - 1][1] if tuning.frozen > 0 else None


def _recomputed(graph: Graph, checkpointing: str) -> Graph:
    nothing = dict.fromkeys((CHECKPOINT, REENTRANT, SELECTIVE))
    operations = [o.changed(**nothing) for o in graph.operations]
    if checkpointing != "none":
        selective = {SELECTIVE: True} if checkpointing == "selective" else {}
        for number, (part, _) in enumerate(units(graph), start=1):
            for i in part:
                operations[i] = operations[i].changed(**{CHECKPOINT: number}, **selective)
    return _with(graph, operations, graph.untrained)
