"""Bytes of each parameter in training, by the precision and the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from lolat.graph import Graph
from lolat.graph.dtypes import FLOAT_BYTES, HALF_BYTES, SIZES
from lolat.graph.kinds import KERNELS, TRAINED
from lolat.graph.modes import (
    AMP,
    BFLOAT16,
    DEFAULT_MODE,
    DTYPES,
    FLOAT32,
    Mode,
    has_wide_adapters,
    own_dtype,
)
from lolat.io.results import Figure, Remark
from lolat.optimizers import OPTIMIZERS, Optimizer
from lolat.units import byte_size

WEIGHTS, COPIES = "weights", "copies in half precision"
GRADIENTS, STATES = "gradients", "optimizer states"


@dataclass(frozen=True)
class PrecisionRecipe:
    """Bytes of a parameter in training.

    `dtype`: a value of `lolat.graph.modes.DTYPES`; `optimizer`: its name. Bytes of a trained parameter:
    `weight`; `gradient`; `copy`, the copy in half precision that autocast keeps for the backward pass;
    `states`, all optimizer states together; `temporary`, only during the update. `frozen`: bytes of the
    weight of a frozen parameter; autocast adds `copy`.
    """

    dtype: str
    optimizer: str
    weight: float
    copy: float
    gradient: float
    states: float
    frozen: float
    temporary: float = 0.0

    @property
    def trained(self) -> float:
        """Bytes of a trained parameter in all, without `temporary`."""
        return self.weight + self.copy + self.gradient + self.states

    def words(self, frozen: bool = False) -> str:
        """The recipe in words; `frozen`: adds the bytes of a frozen parameter."""
        plain = FLOAT32 if self.weight == FLOAT_BYTES else self.dtype
        words = [f"{plain} weights and gradients"]
        words += ([COPIES] if self.copy else []) + ([STATES] if self.states else [])
        rest = f", {self.frozen:g} if it is frozen" if frozen else ""
        return f"{', '.join(words)}: {self.trained:g} bytes a parameter{rest}"


def recipe_of(precision: str, optimizer: Optimizer, half_frozen: bool = False) -> PrecisionRecipe:
    """The recipe of a precision; its name is any in `lolat.graph.modes.DTYPES`, or another data type.

    `amp`: parameters, gradients and states in float32, with the copies that autocast makes; `bf16`, `fp16`:
    everything in half precision. `half_frozen`: frozen parameters are in bfloat16 and trained ones, LoRA's
    adapters, in float32, as in PEFT; it has no effect if everything is in float32.
    """
    dtype = DTYPES.get(precision.lower(), precision)
    own = float(SIZES.get(dtype, FLOAT_BYTES))
    half_frozen &= dtype == AMP or own == HALF_BYTES
    weight = float(FLOAT_BYTES) if half_frozen else own
    each = weight if optimizer.state_bytes is None else optimizer.state_bytes
    copy = float(HALF_BYTES) if dtype == AMP else 0.0
    frozen = SIZES[BFLOAT16] if half_frozen else weight
    states = optimizer.states * float(each)
    return PrecisionRecipe(dtype, optimizer.name, weight, copy, weight, states, frozen)


class Shards(NamedTuple):
    """Numbers of devices that divide the parameters, the gradients, and the optimizer states among them."""

    parameters: int = 1
    gradients: int = 1
    states: int = 1


def state_parts(
    recipe: PrecisionRecipe, trained: float, frozen: float, shards: Shards
) -> dict[str, float]:
    """The bytes on a device, by part, of the weights and states of `trained` and `frozen` parameters."""
    weights = recipe.weight * trained + recipe.frozen * frozen
    return {WEIGHTS: weights / shards.parameters, STATES: recipe.states * trained / shards.states}


def recipe_for(
    graph: Graph, optimizer: Optimizer, mode: Mode, half_frozen: bool = False, foreach: bool = False
) -> PrecisionRecipe:
    """The recipe of a network in a mode; if the mode is not in half precision, in the network's own data
    type.

    `foreach`: the update is torch.optim's for several tensors at once, as on a GPU, which has temporaries.
    """
    asked = mode.half and (mode.dtype == AMP or not has_wide_adapters(graph))
    dtype = mode.dtype if asked else own_dtype(graph)
    own = dtype if dtype in SIZES or asked else FLOAT32
    recipe = recipe_of(own or FLOAT32, optimizer, half_frozen=half_frozen)
    # As of a base in half precision, whose adapters are in float32.
    of_base = {
        SIZES.get(graph.tensors[o.outputs[0]].dtype, FLOAT_BYTES)
        for o in graph.operations if o.kind in KERNELS and o.attributes.get(TRAINED) == 0
    }  # fmt: skip
    frozen = min(recipe.frozen, *of_base) if len(of_base) == 1 else recipe.frozen
    temporary = foreach * optimizer.temporary * recipe.weight
    return replace(recipe, frozen=frozen, temporary=temporary)


def gradient_bytes(graph: Graph, mode: Mode = DEFAULT_MODE) -> float:
    """The bytes of a gradient's element; at the update, weights and states have as many."""
    return recipe_for(graph, OPTIMIZERS["sgd"], mode).gradient


def mixed_remarks(trained: float, needed: float, recipe: PrecisionRecipe) -> Iterator[str]:
    """Remark on training in pure half precision, with the memory that it would need with master weights.

    `trained`: number of parameters whose states a device has; `needed`: bytes of an iteration without
    master weights. With them, weights and states are also kept in float32, as in mixed precision of Apex,
    DeepSpeed and Megatron (Rajbhandari et al., "ZeRO", 2020). Other recipes have no remark.
    """
    if recipe.weight == HALF_BYTES:
        states = recipe_of(FLOAT32, OPTIMIZERS[recipe.optimizer]).states
        mixed = recipe.trained - recipe.states + states + FLOAT_BYTES
        yield Remark(
            f"pure {recipe.dtype}: weights, gradients and optimizer states take "
            f"{recipe.trained:g} bytes a parameter; autocast, as with bf16=True of transformers' Trainer, "
            f"is amp; with weights and states in float32 besides, as is usual, {mixed:g} bytes",
            "{size}",
            size=Figure(byte_size, needed + trained * (mixed - recipe.trained)),
        )
