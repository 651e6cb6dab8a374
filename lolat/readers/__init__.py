"""Reads a framework's network into a Graph: one module per framework, imported when it is asked for.

NETWORK is written as `keras:ResNet50` (any name of keras.applications, random weights),
`generate:vgg?layers=2,2&filters=16,32` (`lolat.readers.generated`), `timm:NAME`, `torchvision:NAME`,
`transformers:CONFIG.json` (`lolat.readers.torch.named`), a path to a `.keras` or `.onnx` file, a `.json`
file that `lolat read` wrote, or `package.module:callable`.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

from lolat.errors import InputError, LolatError, MissingPackageError, ModelFileError, NetworkError
from lolat.graph import SCHEMA, Graph
from lolat.io import FILES_APART
from lolat.io.documents import read_json
from lolat.units import one_line, shortened

FORMS = (
    "keras:NAME (such as keras:ResNet50), timm:NAME, torchvision:NAME, transformers:CONFIG.json, "
    "generate:FAMILY (such as generate:vgg?layers=2,2&filters=16,32), a .keras or .onnx file, "
    "what `lolat read` wrote (.json), or package.module:callable (a function that returns a Keras or "
    "PyTorch network)"
)
PREFIXES = ("keras", "generate", "timm", "torchvision", "transformers")


@dataclass(frozen=True)
class Network:
    """A framework's network, opened; `graph()` reads it into a Graph."""

    name: str
    model: Any
    graph: Callable[[], Graph]


def read(network: Any, input_size: Any = None) -> Graph:
    """A network as a Graph.

    `network`: a Keras model, a PyTorch module, a pair of a PyTorch module and inputs to call it with, an
    ONNX ModelProto, a Graph, or a string: `keras:ResNet50`, a path to a `.keras` or `.onnx` file,
    `package.module:callable`.
    `input_size`: height = width, or a shape without the batch, where the network leaves it open or
    another one is wanted; of a PyTorch module with several inputs a list of shapes, or a dict of them by
    argument. Raises NetworkError when it cannot be read.

    A string is read once: then its graph is kept on disk (`lolat.readers.cache`), or comes with LoLat.
    """
    size = as_sizes(input_size)
    if isinstance(network, Graph):
        return network
    if isinstance(network, (str, os.PathLike)):
        from lolat.readers.cache import Cache

        spec = os.fspath(network)
        return Cache().read(spec, size, lambda: read_now(spec, size))
    return _of_object(network, "", size).graph()


def read_now(spec: str, size: Any) -> Graph:
    """The network that a string names; in a process of its own what may do harm, where it is read so."""
    if FILES_APART.get():
        from lolat.readers.apart import is_apart, read_apart

        if is_apart(spec):
            return read_apart(spec, size)
    return open_network(spec, size).graph()


def as_size(size: int | Sequence[int] | None) -> tuple[int, ...]:
    """An input size as a tuple; () for none. InputError when it is not of positive integers."""
    if size is None:
        return ()
    sizes = tuple(size) if isinstance(size, Iterable) and not isinstance(size, str) else (size,)
    if any(isinstance(n, bool) or not isinstance(n, Integral) or n < 1 for n in sizes):
        raise InputError(
            f"input size {size!r}: expected a positive whole number (224) or several (3,224,224)"
        )
    return tuple(int(n) for n in sizes)


def as_sizes(size: Any) -> Any:
    """An input size as `as_size` gives it, or several: a tuple of them, or a dict by argument."""
    if isinstance(size, Mapping):
        return {str(name): as_size(one) for name, one in size.items()}
    several = isinstance(size, Sequence) and not isinstance(size, str)
    if several and any(isinstance(one, Sequence) for one in size):
        return tuple(as_size(one) for one in size)
    return as_size(size)


def is_of_size(graph: Graph, size: Any) -> bool:
    """Whether a network has the input size, as `as_sizes` gives it; of an image the side is enough."""
    shapes = [shape[1:] for shape in graph.shapes(graph.inputs)]
    if not size or [size] == shapes:
        return True
    if not isinstance(size, tuple):
        return False  # by argument, whose names a graph has not
    sides = size * 2 if len(size) == 1 else size
    return len(shapes) == 1 and len(shapes[0]) == 3 and sides in (shapes[0][:2], shapes[0][1:])


def open_network(spec: str, size: tuple[int, ...] = (), weights: bool = False) -> Network:
    """Open NETWORK; `weights` asks for real (random or stored) weights, so that it can run."""
    prefix, _, name = spec.partition(":")
    stem, ending = Path(spec).stem, os.path.splitext(spec)[1].lower()
    if prefix == "keras":
        from lolat.readers import keras as keras_models

        return _of_object(keras_models.application(name, size, weights), name, size)
    if prefix == "generate":
        from lolat.readers import generated

        return _of_object(generated.build(*generated.parse(name, size), weights), name, ())
    if prefix in ("timm", "torchvision", "transformers"):
        from lolat.readers.torch import named as torch_named

        model, name = torch_named.named(spec, size, weights)
        return _of_object(model, name, () if isinstance(model, tuple) else size)
    if ending == ".keras":
        from lolat.readers import keras as keras_models

        return _of_object(keras_models.saved(spec, weights), stem, size)
    if ending == ".onnx" and os.path.exists(spec):
        from lolat.readers import onnx as onnx_reader

        _require_one_size(size, shortened(spec))
        return Network(stem, spec, lambda: onnx_reader.read_file(spec, stem, size))
    if ending == ".json":
        graph = _of_document(spec, size)
        if weights:
            raise NetworkError(
                f"{shortened(spec)} says what a network is and has none of its code, so it cannot run; "
                "give the network that it was read from"
            )
        return Network(graph.name, graph, lambda: graph)
    return _of_code(spec, size, weights)


def _of_document(path: str, size: tuple[int, ...]) -> Graph:
    """The network that `lolat read` wrote to a file; NetworkError where it is something else."""
    expected = "expected what `lolat read NETWORK --output FILE` wrote"
    try:
        document = read_json(path, expected)
    except ModelFileError as error:
        raise NetworkError(error.message) from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        is_config = isinstance(document, dict) and {"model_type", "architectures"} & set(document)
        mend = f"; for a configuration of transformers: transformers:{path}" if is_config else ""
        raise NetworkError(f"{shortened(path)}: its schema is {schema!r}; {expected}{mend}")
    try:
        graph = Graph.from_dict(document)
        graph.check_sizes()
    except InputError as error:
        raise NetworkError(f"{shortened(path)}: {error.message}") from error
    if not is_of_size(graph, size):
        shapes = " and ".join("x".join(map(str, s[1:])) for s in graph.shapes(graph.inputs))
        raise NetworkError(
            f"{shortened(path)} is of a network at an input of {shapes}, not of "
            f"{'x'.join(map(str, size))}; write another with "
            f"`lolat read NETWORK --input-size {','.join(map(str, size))} --output FILE`"
        )
    return graph


def _of_code(spec: str, size: tuple[int, ...], weights: bool) -> Network:
    """The network of `package.module:callable`; NetworkError for what is no network at all."""
    if os.path.exists(spec):
        kind = "a folder" if os.path.isdir(spec) else "not a file that LoLat can read"
        module = spec.removesuffix(".py").removeprefix("./").replace("/", ".")
        if spec.endswith(".py") and all(part.isidentifier() for part in module.split(".")):
            kind += f"; for a function in it that returns a network: {module}:FUNCTION"
        raise NetworkError(f"network {shortened(spec)!r} is {kind}; expected {FORMS}")
    if is_function(spec):
        return _of_object(_called(spec, weights), spec.partition(":")[2], size)
    what = "file" if spec.endswith((".keras", ".onnx")) else "network"
    raise NetworkError(
        f"no {what} {shortened(spec)!r}: {_meant(spec)}expected {FORMS}",
        code="unknown-network",
        network=spec,
    )


def _meant(spec: str) -> str:
    """`did you mean keras:ResNet50?` for a name without its package, or near one; "" for others."""
    from lolat.readers.cache import shipped_networks

    whole = {known.lower(): known for known in shipped_networks()}
    bare = {known.partition(":")[2]: full for known, full in reversed(list(whole.items()))}
    hint = did_you_mean(spec.lower(), bare | whole, "")
    return f"{hint} " if hint else ""


def did_you_mean(name: str, known: Mapping[str, str], otherwise: str) -> str:
    """`did you mean ResNet50 or ResNet101?`, or `otherwise`; `known`: name -> as it is said."""
    near = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(known[n] for n in near)}?" if near else otherwise


def _frameworks(model: Any) -> set[str]:
    """The packages that the classes of an object come from."""
    return {c.__module__.partition(".")[0] for c in type(model).__mro__}


def _of_object(model: Any, name: str, size: Any) -> Network:
    """Wrap a framework's object, whose classes tell which framework it is of."""
    if "keras" in _frameworks(model) and hasattr(model, "call") and hasattr(model, "built"):
        from lolat.readers.keras import read_model

        _require_one_size(size, f"the Keras model {name or model.name!r}")
        return Network(name or model.name, model, lambda: read_model(model, name, size))
    example = None
    if isinstance(model, tuple) and len(model) == 2 and "torch" in _frameworks(model[0]):
        model, example = model
    if "torch" in _frameworks(model):
        from lolat.readers import torch as torch_reader

        if torch_reader.is_network(model):
            name = name or type(model).__name__
            return Network(name, model, lambda: torch_reader.read_model(model, name, size, example))
    if "onnx" in _frameworks(model) and hasattr(model, "opset_import"):
        from lolat.readers import onnx as onnx_reader

        _require_one_size(size, "an ONNX model")
        return Network(name, model, lambda: onnx_reader.read_model(model, name, size))
    raise NetworkError(
        f"{name or 'the object given'} is a {type(model).__module__}.{type(model).__name__}, not a "
        f"network that LoLat can read; expected a Keras model, a PyTorch module or an ONNX ModelProto"
    )


def _require_one_size(size: Any, what: str) -> None:
    """InputError for several input sizes, or some by argument."""
    if isinstance(size, dict) or any(not isinstance(n, int) for n in size):
        raise InputError(
            f"several input sizes are for PyTorch modules; {what} says what its inputs are, give one size "
            "or none"
        )


def is_function(spec: str) -> bool:
    """Whether NETWORK is written as `package.module:callable`."""
    module, colon, attribute = spec.partition(":")
    names = [*module.split("."), *attribute.split(".")]
    is_named = bool(colon) and module not in PREFIXES and all(n.isidentifier() for n in names)
    return is_named and not os.path.exists(spec)


def _called(spec: str, weights: bool) -> Any:
    """What `module:callable` returns.

    What the user's code prints goes to stderr, because stdout may be promised to JSON.
    """
    with stdout_to_stderr():
        made = attribute_of(spec)
        if {"keras", "torch"} & _frameworks(made) and not isinstance(made, type):
            return made  # a network itself, not a function that makes one
        if not callable(made):
            raise NetworkError(
                f"{spec!r} is of type {type(made).__name__}; expected a network, or a function "
                "without arguments that returns one"
            )
        try:
            return made() if weights else _without_weights(made)
        except (LolatError, MemoryError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise NetworkError(
                f"calling {spec!r} failed: {brief(error)}; expected a function that returns a "
                "network when it is called without arguments"
            ) from error


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """What is written to stdout goes to stderr, what code in C or os.write puts there too."""
    with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a program without them
            kept = os.dup(1)
            stack.callback(os.close, kept)
            os.dup2(2, 1)
            stack.callback(os.dup2, kept, 1)
        yield


def _without_weights(make: Callable[[], Any]) -> Any:
    """What a function returns; a PyTorch network with weights that have a shape but no memory."""
    keras: Any = sys.modules.get("keras")
    backend = keras.backend.backend() if hasattr(keras, "backend") else ""
    if "torch" not in sys.modules or backend == "torch":
        return make()
    from lolat.readers.torch.named import without_weights

    return without_weights(make)


def attribute_of(spec: str, what: str = "network", expected: str = FORMS) -> Any:
    """The object that `module:attribute` names; the working directory can be imported from.

    `what` it is, in a message, and what is `expected`. NetworkError when there is none.
    """
    module, _, attribute = spec.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    _import_keras_before(module, what == "network")
    try:
        value: Any = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            raise NetworkError(
                f"no module {module!r} for {what} {spec!r} (looked in {os.getcwd()} and among "
                f"the installed packages); expected {expected}"
            ) from error
        mend = "install what it needs" if missing else "it must import without error"
        raise NetworkError(
            f"importing {module!r} for {what} {spec!r} failed: {brief(error)}; {mend}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            names = {n: n for n in dir(value) if not n.startswith("_")}
            hint = did_you_mean(part, names, f"expected {expected}")
            raise NetworkError(f"module {module!r} has no {attribute!r} ({what} {spec!r}); {hint}")
        value = getattr(value, part)
    return value


def _import_keras_before(module: str, of_network: bool) -> None:
    """Before a module that does so itself, which would let TensorFlow greet on stderr.

    Where its text, which is not imported, names Keras, or is that of a network and does not name PyTorch:
    the import takes seconds.
    """
    text = ""
    with contextlib.suppress(Exception):
        place = importlib.util.find_spec(module)
        text = Path(str(place and place.origin)).read_text(encoding="utf-8", errors="replace")
    if "keras" in text or "tensorflow" in text or (of_network and "torch" not in text):
        with contextlib.suppress(MissingPackageError):
            from lolat.readers.keras import import_keras

            import_keras()


def brief(error: BaseException) -> str:
    """An exception in one line, with its type."""
    said, kind = one_line(error), type(error).__name__
    return kind if said == kind else f"{kind}: {said}"
