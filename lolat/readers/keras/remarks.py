"""Remarks on what a Keras model's calls do not show: its training, compilation and inference mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import signature
from math import prod
from typing import Any

from lolat.readers.remarks import AS_COMPILED, drop_rates, several_of, training_branches
from lolat.units import plural, shortened


def inference_remarks(model: Any) -> Iterator[str]:
    """Yield remarks on a model's compilation, its backend, and layers that are called in training mode."""
    import keras

    layers_of = list(model._flatten_layers())
    compiled = getattr(getattr(model, "_compile_config", None), "config", {})
    if hows := [how for how in ("jit_compile", "run_eagerly") if compiled.get(how) is True]:
        yield f"it is compiled ({hows[0]}=True): {AS_COMPILED}"
    if (backend := keras.config.backend()) != "tensorflow":
        yield f"Keras runs on {backend} here: the answer is of the framework that the device is known by"
    acting = [
        layer.name
        for layer in layers_of
        if any(node.arguments.kwargs.get("training") is True for node in layer._inbound_nodes)
        # The default of augmentations is True.
        and signature(layer.call).parameters["training"].default is not True
    ]
    if acting:
        yield (
            f"{plural(len(acting), 'layer')} called with training=True, such as {shortened(acting[0])!r}: "
            "read as at inference, without what it drops, adds or measures in training"
        )


def is_mixed(layer: Any) -> bool:
    """True if a layer computes in half precision with variables in float32, as in mixed_float16."""
    return layer.variable_dtype == "float32" and layer.compute_dtype in ("float16", "bfloat16")


def trained_parameters(layer: Any) -> tuple[int, int]:
    """Return (number of trained parameters of a layer, number of all parameters that can be trained)."""
    trained = total = 0
    for part in layer._flatten_layers() if hasattr(layer, "_flatten_layers") else ():
        for v in part._trainable_variables:
            total += prod(v.shape)
            trained += prod(v.shape) * bool(part.trainable and v.trainable)
    return trained, total


def has_fixed_kernel(node: Any, owner: Any) -> bool:
    """True if the kernel of a product is constant or not trainable.

    `owner`: the layer around `node`. A kernel that the layer computes from a variable is recognized by its
    number of elements.
    """
    import keras

    if isinstance(node.operation, keras.layers.Layer):
        # An RNN's own variables include its states.
        layer = getattr(node.operation, "cell", node.operation)
        return any(_is_kernel(v) and not v.trainable for v in layer.variables)
    own = [*filter(_is_kernel, (*owner._trainable_variables, *owner._non_trainable_variables))]
    for given in keras.tree.flatten((node.arguments.args, node.arguments.kwargs)):
        if isinstance(given, keras.KerasTensor) or not _is_kernel(given):
            continue
        same = [v for v in own if prod(v.shape) == prod(given.shape)]
        kernels = [given] if isinstance(given, keras.Variable) else same
        if not any(v.trainable for v in kernels) and (kernels or not own):
            return True
    return False


def _is_kernel(value: Any) -> bool:
    """True for a floating-point tensor with two axes or more."""
    return len(getattr(value, "shape", ())) > 1 and "float" in str(value.dtype)


def training_obstacles(model: Any, partly: Sequence[str]) -> Iterator[str]:
    """Yield reasons why training cannot be predicted. `partly`: layers with some frozen parameters."""
    layers_of = list(model._flatten_layers())
    if partly:
        yield f"a part of {', '.join(map(shortened, partly))} is frozen"
    for method in ("train_step", "compute_loss"):
        owner = getattr(type(model), method, None)
        if owner is not None and not owner.__module__.startswith("keras."):
            yield f"it has a {method} of its own, which is not read"
    if any(getattr(layer, "_remat_mode", None) for layer in layers_of):
        yield "activations are recomputed (keras.RematScope)"


_OPTIMIZER = ("gradient_accumulation_steps", "use_ema", "clipnorm", "clipvalue", "global_clipnorm")
"""Settings of a compiled optimizer that change the time of an update."""


def _optimizer_of(model: Any) -> tuple[str, dict[str, Any]]:
    """The class and settings of the optimizer that a model or its file was compiled with; else ("", {})."""
    import keras

    if optimizer := getattr(model, "optimizer", None):
        saved = keras.saving.serialize_keras_object(optimizer)
    else:
        saved = getattr(getattr(model, "_compile_config", None), "config", {}).get("optimizer")
    if isinstance(saved, str):  # "adam", as compile takes it
        saved = {"class_name": keras.optimizers.get(saved).__class__.__name__}
    return (saved["class_name"], saved.get("config", {})) if saved else ("", {})


def in_training_only(model: Any) -> Iterator[str]:
    """Yield what layers do only in training, and optimizer settings, that the graph does not count."""
    layers_of = list(model._flatten_layers())
    yield from training_branches(layers_of, "call")
    kind, settings = _optimizer_of(model)
    if inner := settings.get("inner_optimizer"):
        yield "scaling of the loss by LossScaleOptimizer"
        kind, settings = inner["class_name"], inner["config"]
    if kind not in ("", "SGD"):
        yield f"the kind of the compiled optimizer ({kind}): that of the question counts"
    for name in _OPTIMIZER:
        if value := settings.get(name):
            yield f"{name}={value:g} of the compiled optimizer"
    for what in ("regularizer", "constraint"):
        have = [
            m for m in layers_of if any(v for k, v in vars(m).items() if k.endswith(f"_{what}"))
        ]
        yield from (f"{what}s of {name}" for name in several_of(have))
    spectral = [m for m in layers_of if type(m).__name__ == "SpectralNormalization"]
    yield from (f"power iterations of {name}" for name in several_of(spectral))
    synchronized = [m for m in layers_of if getattr(m, "synchronized", False) is True]
    yield from (f"drops of {name}" for name in several_of(filter(drop_rates, layers_of)))
    yield from (f"exchanges between devices of {name}" for name in several_of(synchronized))
