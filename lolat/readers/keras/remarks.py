"""Facts of a Keras model that its calls do not say: how it is trained, compiled, and run at inference."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from typing import Any

from lolat.readers.ops import drop_rates, several_of
from lolat.units import plural, shortened


def run_as(model: Any) -> Iterator[str]:
    """Remarks on a model that is compiled in another way, and on layers that act as in training."""
    compiled = getattr(getattr(model, "_compile_config", None), "config", {})
    if hows := [how for how in ("jit_compile", "run_eagerly") if compiled.get(how) is True]:
        how = f"it is compiled ({hows[0]}=True)"
        yield f"{how}: the launch is the device's, or the one asked for (--launch)"
    acting = [
        layer.name
        for layer in model._flatten_layers()
        if any(node.arguments.kwargs.get("training") is True for node in layer._inbound_nodes)
        and signature(layer.call).parameters["training"].default is not True  # as of augmentations
    ]
    if acting:
        yield (
            f"{plural(len(acting), 'layer')} called with training=True, such as {shortened(acting[0])!r}: "
            "read as at inference, without what it drops, adds or measures in training"
        )


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
    """Layers that drop something in training which is no dropout of the graph, and exchanges."""
    layers_of = list(model._flatten_layers())
    dropping = several_of(layer for layer in layers_of if drop_rates(layer))
    yield from (f"drops of {name}" for name in dropping)
    if names := several_of(m for m in layers_of if getattr(m, "synchronized", False) is True):
        yield f"exchanges between devices of {', '.join(names)}"
