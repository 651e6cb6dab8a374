"""Facts of a Keras model that its calls do not say: how it is trained, compiled, and run at inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

from lolat.readers.ops import drop_rates, several_of
from lolat.units import plural, shortened

AS_RUN = {
    "implementation": "multiplies gate by gate (implementation=1, which recurrent_dropout sets): counted "
    "as one product; a CPU may take twice as long",
    "TimeDistributed": "runs its layer on one time step after another: counted as one call on a larger "
    "batch; it may take several times as long",
}
"""Class or attribute of a layer that runs otherwise than it is counted -> how."""
OPTIMIZER = ("gradient_accumulation_steps", "use_ema", "clipnorm", "clipvalue", "global_clipnorm")
"""Settings of a compiled optimizer that change the time of an update."""
IN_TRAINING: dict[str, Callable[[Any], Any]] = {
    "drops": drop_rates,
    "regularizers": lambda m: m.activity_regularizer or _variables_have(m, "regularizer"),
    "constraints": lambda m: _variables_have(m, "constraint"),
    "power iterations": lambda m: hasattr(m, "power_iterations"),
    "exchanges between devices": lambda m: getattr(m, "synchronized", False) is True,
}
"""Work of a layer in training alone, which is not counted -> whether a layer does it."""


def _variables_have(layer: Any, name: str) -> bool:
    return any(getattr(v, name, None) for v in layer._trainable_variables)


def run_as(model: Any) -> Iterator[str]:
    """Remarks on a model that is compiled in another way, and on layers that run otherwise than counted."""
    layers_of = list(model._flatten_layers())
    compiled = getattr(getattr(model, "_compile_config", None), "config", {})
    if hows := [how for how in ("jit_compile", "run_eagerly") if compiled.get(how) is True]:
        how = f"it is compiled ({hows[0]}=True)"
        yield f"{how}: the launch is the device's, or the one asked for (--launch)"
    acting = [
        layer.name
        for layer in layers_of
        if any(node.arguments.kwargs.get("training") is True for node in layer._inbound_nodes)
        and signature(layer.call).parameters["training"].default is not True  # as of augmentations
    ]
    if acting:
        yield (
            f"{plural(len(acting), 'layer')} called with training=True, such as {shortened(acting[0])!r}: "
            "read as at inference, without what it drops, adds or measures in training"
        )
    for sign, how in AS_RUN.items():
        found = [m for m in layers_of if sign == type(m).__name__ or getattr(m, sign, 2) == 1]
        yield from (f"{name} {how}" for name in several_of(found))


def is_mixed(layer: Any) -> bool:
    """True if a layer's policy, such as mixed_float16, computes in half with variables in float32."""
    return layer.variable_dtype == "float32" and layer.compute_dtype in ("float16", "bfloat16")


def otherwise(model: Any, fixed: set[int], stopped: int) -> Iterator[str]:
    """Reasons why training a network costs less than training all of it.

    They are frozen variables, variables that are not trainable (ids in `fixed`), operations without a
    gradient, and activations that are computed again.
    """
    layers_of = list(model._flatten_layers())
    variables = [(layer, v) for layer in layers_of for v in layer._trainable_variables]
    made_so = len(fixed.difference(id(v) for _, v in variables))
    if frozen := made_so + sum(not (layer.trainable and v.trainable) for layer, v in variables):
        lora = any(getattr(layer, "lora_enabled", False) for layer in layers_of)
        how = "enable_lora" if lora else "trainable=False"
        yield f"{frozen} of its {made_so + len(variables)} variables are frozen ({how})"
    if stopped:
        yield f"no gradient goes to {plural(stopped, 'operation')} (stop_gradient)"
    for method in ("train_step", "compute_loss"):
        owner = getattr(type(model), method, None)
        if owner is not None and not owner.__module__.startswith("keras."):
            yield f"it has a {method} of its own, which is not read"
    if any(getattr(layer, "_remat_mode", None) for layer in layers_of):
        yield "activations are computed again (keras.RematScope)"


def in_training_only(model: Any) -> Iterator[str]:
    """Yield what layers do in training alone, and settings of the optimizer: none of it is counted."""
    layers_of = list(model._flatten_layers())
    for what, does in IN_TRAINING.items():
        yield from (f"{what} of {name}" for name in several_of(filter(does, layers_of)))
    optimizer = getattr(model, "optimizer", None)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a loss that is scaled
    for name in OPTIMIZER:
        if value := getattr(optimizer, name, None):
            yield f"{name}={value:g} of the compiled optimizer"
