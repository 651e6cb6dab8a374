"""Memory of a device in training: bytes of each parameter by the recipe, as named parts.

recipe = recipe_of("bf16", optimizer_named("adamw"))
state_parts(recipe, trained=8e9)                        # {"weights": 16e9, "gradients": 16e9, ...}
state_parts(recipe, trained=2e7, frozen=8e9)            # LoRA
state_parts(recipe, 8e9, shards=Shards(8, 8, 8))        # ZeRO 3 of eight devices
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lolat.graph.modes import AMP, BFLOAT16, DTYPES, FLOAT32, FLOAT_BYTES, SIZES, TF32
from lolat.parameters import Optimizer
from lolat.units import shortened

HALF_BYTES = 2
WEIGHTS, COPIES, GRADIENTS = "weights", "copies in half precision", "gradients"
MASTERS, STATES = "master weights", "optimizer states"


@dataclass(frozen=True)
class Recipe:
    """Bytes of a parameter in training.

    `dtype`: a value of `lolat.graph.modes.DTYPES`; `optimizer`: its name. `weight`, `gradient`: of a
    trained parameter; `copy`: in half precision, which autocast keeps for the backward pass; `master`: a
    copy in float32 that the optimizer updates instead; `states`: all of the optimizer's together; `frozen`:
    of a parameter that is not trained, which has none of the others but `copy`.
    """

    dtype: str
    optimizer: str
    weight: float
    copy: float
    gradient: float
    master: float
    states: float
    frozen: float

    @property
    def trained(self) -> float:
        """Bytes of a trained parameter, all together."""
        return self.weight + self.copy + self.gradient + self.master + self.states

    def words(self) -> str:
        """Return the recipe in words: "float32 weights, gradients and states of adam, ..."."""
        plain = FLOAT32 if self.dtype in (AMP, TF32) else self.dtype
        words = [f"{plain} weights and gradients"]
        words += ["copies in half precision"] * bool(self.copy)
        words += [f"{FLOAT32} master weights"] * bool(self.master)
        words += [f"states of {shortened(self.optimizer)}"] * bool(self.states)
        return f"{', '.join(words)}: {self.trained:g} bytes a parameter"


def recipe_of(
    precision: str, optimizer: Optimizer, masters: bool = False, half_frozen: bool = False
) -> Recipe:
    """Return the recipe of a precision, by any name of `lolat.graph.modes.DTYPES` or of another data type.

    `amp`: parameters, gradients and states in float32, and the copies that autocast makes; `bf16`, `fp16`:
    everything in half precision. `masters`: in half precision a copy of the weights in float32, and states
    in float32, as in mixed precision of Apex, DeepSpeed and Megatron (Rajbhandari et al., "ZeRO", 2020).
    `half_frozen`: frozen parameters are in bfloat16 whatever the precision, as a base of LoRA.
    """
    dtype = DTYPES.get(precision.lower(), precision)
    mixed = dtype == AMP
    weight = float(SIZES.get(dtype, FLOAT_BYTES))
    masters &= weight == HALF_BYTES
    updated = float(FLOAT_BYTES) if masters else weight
    each = updated if optimizer.state_bytes is None else optimizer.state_bytes
    return Recipe(
        dtype, optimizer.name,
        weight=weight,
        copy=float(HALF_BYTES) if mixed else 0.0,
        gradient=weight,
        master=updated if masters else 0.0,
        states=optimizer.states * float(each),
        frozen=SIZES[BFLOAT16] if half_frozen else weight,
    )  # fmt: skip


class Shards(NamedTuple):
    """Devices among which the parameters, their gradients, and the optimizer's states are divided."""

    parameters: int = 1
    gradients: int = 1
    states: int = 1


def state_parts(
    recipe: Recipe, trained: float, frozen: float = 0, copied: float | None = None,
    shards: Shards = Shards(),  # noqa: B008 (it is frozen)
) -> dict[str, float]:  # fmt: skip
    """Return the bytes on a device of parameters and what goes with them, by name; none of 0 bytes.

    `trained`, `frozen`: numbers of parameters. `copied`: those that autocast keeps in half precision too;
    None: all, but for frozen ones that are in half precision anyway. Master weights are divided as the
    optimizer's states.
    """
    if copied is None:
        copied = trained + (frozen if recipe.frozen > HALF_BYTES else 0)
    parts = {
        WEIGHTS: (recipe.weight * trained + recipe.frozen * frozen) / shards.parameters,
        COPIES: recipe.copy * copied / shards.parameters,
        GRADIENTS: recipe.gradient * trained / shards.gradients,
        MASTERS: recipe.master * trained / shards.states,
        STATES: recipe.states * trained / shards.states,
    }
    return {name: size for name, size in parts.items() if size}
