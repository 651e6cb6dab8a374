"""Reads a network of any framework into a Graph. `lolat.io.forms` lists the forms of NETWORK."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from lolat.errors import InputError, LolatError, MissingPackageError, NetworkError
from lolat.graph import Graph
from lolat.io import forms
from lolat.io.documents import read_json
from lolat.io.forms import is_file, is_function
from lolat.parameters import LENGTH, SIZE, InputSize
from lolat.readers import user_objects
from lolat.readers.bundled import bundled_as, bundled_graph, with_bundled_hint
from lolat.readers.cache import Cache
from lolat.readers.remarks import with_dtype_remarks
from lolat.readers.size import AnySize, Size, as_size, is_of_size
from lolat.readers.user_modules import quietly
from lolat.units import shapes_text, shortened

OF_TRANSFORMERS = "configuration"
"""Error code for a `.json` file that is a configuration of transformers."""


@dataclass(frozen=True)
class Network:
    """A framework's network, opened; `graph()` reads it into a Graph."""

    name: str
    model: Any
    graph: Callable[[], Graph]


def read(network: Any, input_size: InputSize = None, sequence_length: int | None = None) -> Graph:
    """Read a network into a Graph.

    `network`: see `Model`. `input_size`: one number for height and width, or a shape without the batch; for
    several inputs a list of shapes. `sequence_length`: number of tokens of a text, or steps of a sequence.

    Sizes are required if the network leaves them open. The graph of a network that a string names is cached
    on disk. Raises NetworkError if the network cannot be read.
    """
    if sequence_length is not None:
        input_size = {SIZE: input_size, LENGTH: sequence_length}
    size = as_size(input_size)
    if isinstance(network, Graph):
        return _at_its_size(network, size, network.name, is_file=False)
    if isinstance(network, (str, os.PathLike)):
        spec = os.fspath(network)
        if _is_document(spec):
            return _read_document(spec, size)
        return bundled_graph(spec, size) or Cache().read(spec, size, lambda: read_now(spec, size))
    return with_dtype_remarks(_open_object(network, "", size).graph())


_NO_GPU = re.compile("CUDA|NVIDIA driver|accelerator device")
"""Pattern of PyTorch's errors about a missing GPU."""


def read_now(spec: str, size: Size) -> Graph:
    """Read the network that a string names; NetworkError for any exception of a framework or user code."""
    try:
        return with_dtype_remarks(open_network(spec, size).graph())
    except MissingPackageError as error:
        raise with_bundled_hint(spec, error) from error
    except LolatError:
        raise
    except (Exception, SystemExit) as error:
        hint = ""
        if _NO_GPU.search(user_objects.brief(error)):
            hint = "; build it on the CPU, since it is never executed"
        raise user_objects.failed(f"{shortened(spec)} cannot be read", error, hint) from error


def open_network(spec: str, input_size: AnySize = None, weights: bool = False) -> Network:
    """Open NETWORK. `weights`: True for a network that can run, with random or stored weights."""
    size, (prefix, _, name) = as_size(input_size), spec.partition(":")
    stem = Path(spec).stem
    if prefix == "keras":
        from lolat.readers import keras

        return _open_object(keras.application(name, size, weights), name, size)
    if prefix in forms.TORCH_PACKAGES:
        from lolat.readers.torch.named import named, with_transformers_remarks

        model, name = named(spec, size, weights)
        network = _open_object(model, name, size, is_own=False)
        if prefix != forms.TRANSFORMERS:
            return network
        return Network(
            name, network.model, lambda: with_transformers_remarks(network.graph(), network.model)
        )
    if is_file(spec, forms.KERAS_FILE):
        from lolat.readers import keras

        return _open_object(keras.saved(spec, weights), stem, size)
    if is_file(spec, forms.ONNX_FILE) and os.path.exists(spec):
        from lolat.readers import onnx

        return Network(stem, spec, lambda: onnx.read_file(spec, stem, size))
    if is_file(spec, forms.GRAPH_FILE):
        if weights:
            check_has_code(spec)
        graph = _read_document(spec, size)
        return Network(graph.name, graph, lambda: graph)
    if is_function(spec):
        return _open_object(_call_function(spec, weights), spec.rpartition(":")[2], size)
    if meant := user_objects.meant_here(spec):
        words = f"no network {shortened(spec)!r}: {meant}"
        raise NetworkError(words, code="unknown-network", network=spec)
    raise forms.not_a_network(spec, bundled_as(spec))


def _is_document(spec: str) -> bool:
    """True if the name has the ending of a file by `lolat read`; False for transformers:config.json."""
    return is_file(spec, forms.GRAPH_FILE) and spec.partition(":")[0] not in forms.PACKAGES


def check_has_code(spec: str) -> None:
    """Raise NetworkError for a file that `lolat read` wrote: it has no code, and cannot run."""
    if _is_document(spec):
        raise NetworkError(
            f"{shortened(spec)} is a network without code, which cannot run; give the network that it "
            "was read from"
        )


def _read_document(path: str, size: Size) -> Graph:
    """The network in a file that `lolat read` wrote; NetworkError for any other file."""
    expected = "expected what `lolat read NETWORK --output FILE` wrote"
    try:
        document = read_json(path, expected)
    except InputError as error:
        raise NetworkError(error.message) from error
    if isinstance(document, dict) and "model_type" in document:
        raise NetworkError(
            f"{shortened(path)}: it is a configuration of transformers; expected "
            f"transformers:{shortened(path)}",
            code=OF_TRANSFORMERS,
        )
    if isinstance(document, dict) and "peft_type" in document:
        base = document.get("base_model_name_or_path") or "its base"
        raise NetworkError(
            f"{shortened(path)}: it is the configuration of an adapter (PEFT); expected the config.json of "
            f"{shortened(str(base))}, and for training --tune lora:RANK"
        )
    try:
        graph = Graph.from_dict(document)
    except InputError as error:
        is_network = isinstance(document, dict) and "operations" in document
        why = error.message if is_network else "no network"
        raise NetworkError(f"{shortened(path)}: {why}; {expected}") from error
    return _at_its_size(graph, size, path) if size else graph


def _at_its_size(graph: Graph, size: Size, name: str, is_file: bool = True) -> Graph:
    """A graph that was read before, into a file or in Python; NetworkError if it has another `size`."""
    if not is_of_size(graph, size):
        again = f"(`lolat read NETWORK{size.options or ' --input-size SIZE'} --output FILE`)"
        if not is_file:
            numbers = size.numbers
            asked = numbers[0] if len(numbers) == 1 else numbers or SIZE
            again = f"at that size: lolat.read(network, {asked})"
        raise NetworkError(
            f"{shortened(name)} was read with inputs of {shapes_text(graph.input_sizes)}; read it again "
            f"{again}",
            code="input-size",
        )
    return graph


def _call_function(spec: str, weights: bool) -> Any:
    """The network that the user's attribute is, or returns if it is callable.

    A PyTorch network has no weights unless `weights` is True.
    """
    with quietly():
        value = user_objects.attribute_of(spec, "network", forms.FUNCTION)
        if {"keras", "torch"} & _packages(value) and not isinstance(value, type):
            return value  # a network itself, not a function that makes one
        if needed := user_objects.missing_arguments(value):
            given = ", ".join(f"{name}=..." for name in needed)
            remedy = user_objects.without_arguments(f"{spec.rpartition(':')[2]}({given})")
            raise NetworkError(f"{shortened(spec)} needs {', '.join(needed)}; {remedy}")
        return value() if weights else call_without_weights(value)


def call_without_weights(make: Callable[[], Any]) -> Any:
    """Call a user's function that returns a network. A PyTorch network gets no weights and needs no GPU."""
    if "torch" not in sys.modules:
        return make()
    from lolat.readers.torch.named import without_weights

    return without_weights(make)


def _packages(model: Any) -> set[str]:
    """The names of the packages that define a class (or an object's class) and its base classes."""
    kind = model if isinstance(model, type) else type(model)
    return {c.__module__.partition(".")[0] for c in kind.__mro__}


def _open_object(model: Any, name: str, size: Size, is_own: bool = True) -> Network:
    """Open a framework's network object. The base classes of its class show the framework.

    `is_own`: False for an object that LoLat made, to which the user's process settings do not apply.
    """
    example, packages = None, _packages(model)
    if isinstance(model, tuple):
        if len(model) == 2 and isinstance(model[0], MethodType):
            raise NetworkError(
                f"{model[0].__qualname__} is a method, no module; expected a module whose forward calls "
                "it, and its inputs"
            )
        of_torch = len(model) == 2 and "torch" in _packages(model[0])
        if not of_torch or hasattr(model[1], "parameters"):
            raise NetworkError(
                "a tuple is a network of PyTorch and its inputs; expected (network, inputs), or a list of "
                "several networks"
            )
        (model, example), packages = model, _packages(model[0])
    is_class = isinstance(model, type) and bool({"keras", "torch"} & packages)
    if is_class or isinstance(model, FunctionType):
        what = f"{name or 'the object given'} is a {'class' if is_class else 'function'}"
        raise NetworkError(f"{what}, no network; call it: {model.__name__}()")
    if "keras" in packages and hasattr(model, "call") and hasattr(model, "built"):
        from lolat.readers import keras

        name = name or model.name
        return Network(name, model, lambda: keras.read_model(model, name, size))
    if "torch" in packages:
        from lolat.readers import torch

        if torch.is_network(model):
            name = name or type(model).__name__
            return Network(
                name, model, lambda: torch.read_model(model, name, size, example, is_own)
            )
    if "onnx" in packages and hasattr(model, "opset_import"):
        from lolat.readers import onnx

        return Network(name, model, lambda: onnx.read_model(model, name, size))
    if "torch" in packages and hasattr(model, "requires_grad"):
        raise NetworkError(
            f"{name or 'the object given'} is a torch.Tensor; a state_dict holds weights, not layers: give "
            "the module, which needs no weights"
        )
    if model is None:
        what = f"{name or 'the object given'} is None, not a network"
        raise NetworkError(f"{what}; does its function lack a `return`?")
    raise NetworkError(
        f"{name or 'the object given'} is a {type(model).__module__}.{type(model).__name__}, not a "
        f"network that LoLat can read; expected a Keras model, a PyTorch module or an ONNX ModelProto"
    )
