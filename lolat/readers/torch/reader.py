"""Reads a PyTorch network into a Graph by one call at batch size 1 on tensors without values.

Nothing is computed, so neither weights nor activations need memory. Shapes are PyTorch's own, channels
first. A tensor that depends on parameters alone (gathered position biases, a mask) is a constant operand,
as in a Keras network, and costs nothing.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from lolat.errors import LolatError, MissingPackageError, NetworkError
from lolat.graph import Graph
from lolat.readers.batch import with_remarks
from lolat.readers.remarks import AS_COMPILED, quantized_error
from lolat.readers.size import AnySize, Size, as_size
from lolat.readers.torch.inputs import calls, first_layer, tensors_in
from lolat.readers.torch.reading_errors import PRODUCT, most_positions, reading_error
from lolat.readers.user_modules import READING
from lolat.units import plural, shapes_text

_QUANTIZED = re.compile(
    r"torch\.ao\.nn\.(intrinsic\.)?quantized\.(?!dynamic\.modules\.linear\.|.*(PackedParams|FloatFunctional)$)"
    r"|torchao\.|bitsandbytes\."
)
"""Pattern of quantized classes that cannot be read; a dynamically quantized Linear can."""


def import_torch() -> Any:
    """Import and return torch; MissingPackageError if it is not installed.

    Beside TensorFlow, PyTorch is kept from importing Triton, which comes with its CUDA build: their
    libraries clash, and the import would end the process.
    """
    if "tensorflow" in sys.modules:
        cast(dict[str, Any], sys.modules).setdefault("triton", None)
    try:
        import torch
    except ImportError as error:
        raise MissingPackageError(
            f"PyTorch is needed for this and cannot be imported ({error})", "torch"
        ) from error
    return torch


def is_network(model: Any) -> bool:
    """True for a PyTorch module."""
    names = {f"{c.__module__}.{c.__qualname__}" for c in type(model).__mro__}
    return "torch.nn.modules.module.Module" in names


def read_model(
    model: Any, name: str = "", input_size: AnySize = None, example: Any = None, is_own: bool = True
) -> Graph:
    """Read an `nn.Module` into a Graph.

    `input_size`: None for the module's own size; H for H x H (or H steps) with the module's own channels; a
    whole shape without the batch; several shapes. `example`: inputs to call it with: a tensor, a tuple or a
    dict of tensors, resized to `input_size` if that is given. Their first axis is the batch, or the second
    if the module's layers take steps first. The module is read in evaluation mode, with the parameters that
    it trains after `train()`, and stays unchanged. `is_own`: True for the user's module, to which the
    settings of the process apply. Raises NetworkError.
    """
    import_torch()
    size = as_size(input_size)
    _refuse(model, example)
    how = (*_mode_remarks(model, example), *(_tf32_remark() if is_own else ()))
    model = getattr(model, "_orig_mod", model)  # inside torch.compile
    from lolat.readers.torch.detectors import Detector, is_detector
    from lolat.readers.torch.isolation import trained_as_by_its_code

    name = name or type(model).__name__
    with READING, trained_as_by_its_code(model, _PUBLISHED) as untrained:
        if is_detector(model):
            parts = Detector(model)
            graph = parts.noted(_read(parts, name, size, parts.images(example)))
        else:
            graph = _read(model, name, size, example)
    training_only = (*graph.training_only, *untrained)
    return replace(graph, warnings=(*graph.warnings, *how), training_only=training_only)


def _refuse(model: Any, example: Any) -> None:
    """Raise NetworkError for a module or inputs whose operations or sizes cannot be read."""
    import torch

    if any(t.is_nested for t in tensors_in(example)):
        raise NetworkError(
            "its inputs are nested tensors (torch.nested), which are not read; expected tensors that are "
            "padded to one length"
        )
    for path, part in model.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            where = f" (its module {path!r})" if path else ""
            raise NetworkError(
                f"TorchScript is not read{where}; expected the module that it was made from"
            )
    for path, weights in itertools.chain(model.named_parameters(), model.named_buffers()):
        if torch.nn.parameter.is_lazy(weights):
            raise NetworkError(f"{path} has no size before the first call; call the network once")
        if "sparse" in f"{weights.layout} {type(weights).__name__}".lower():
            raise NetworkError(f"{path} is sparse, which is not predicted; expected dense weights")
    parts = itertools.chain(model.named_modules(), model.named_parameters())
    for path, kind in ((path, type(part)) for path, part in parts):
        if _QUANTIZED.match(f"{kind.__module__}.{kind.__name__}"):
            what = f"{path or 'it'}, a {kind.__name__} of {kind.__module__.partition('.')[0]},"
            raise quantized_error(what, "the network in float that it was made from")


def _mode_remarks(model: Any, example: Any) -> Iterator[str]:
    """Yield remarks on how a module runs that a graph does not store: compiled, in training, its layout."""
    from lolat.readers.torch.layout import formats_of, in_channels_last

    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        yield f"it is compiled (torch.compile): {AS_COMPILED}"
    acting = [type(m).__name__ for m in model.modules() if m.training and _acts_in_training(m)]
    if acting and not model.training:
        yield (
            f"{plural(len(acting), 'module')} in training mode inside one in evaluation mode, such as "
            f"{acting[0]}: read as in evaluation mode, without what it drops or measures"
        )
    yield from in_channels_last("its weights are", formats_of(model.parameters()))
    yield from in_channels_last("its inputs are", formats_of(tensors_in(example)))
    if getattr(model, "aux_classifier", None) is not None:  # of torchvision's segmentation
        yield "its auxiliary head (aux_classifier) is counted: each call runs it, in evaluation mode too"
    if any(map(_has_fused_path, model.modules())):
        yield (
            "PyTorch runs nn.TransformerEncoderLayer fused at inference without autocast; it is read as "
            "single operations, as training runs it, which have more launches and take more memory"
        )
    if lacking := sorted(_missing_kernels(model)):
        names = " and ".join(lacking)
        yield (
            f"read as transformers runs it without {names}; where that is installed, a GPU runs fused "
            "kernels, which take less time"
        )


def _has_fused_path(layer: Any) -> bool:
    """True for an encoder layer that PyTorch runs as one fused function at inference without gradients.

    Checks the conditions of `nn.TransformerEncoderLayer.forward` that do not depend on the call.
    """
    from torch import nn

    kind = nn.TransformerEncoderLayer
    if not isinstance(layer, kind) or type(layer).forward is not kind.forward:
        return False
    attention = layer.self_attn
    return bool(
        attention.batch_first
        and attention._qkv_same_embed_dim
        and attention.in_proj_bias is not None
        and attention.num_heads % 2 == 0
        and layer.activation_relu_or_gelu
        and layer.norm1.eps == layer.norm2.eps
    )


def _missing_kernels(model: Any) -> set[str]:
    """The missing packages of fused kernels (mamba_ssm, fla), for which transformers runs its own code.

    A function of transformers that replaces a kernel knows the kernel's package and whether it was found.
    """
    known = set[str]()
    modules = filter(None, {sys.modules.get(type(m).__module__) for m in model.modules()})
    for module in modules:
        for code in filter(inspect.isfunction, vars(module).values()):
            if "is_new_implementation" in code.__code__.co_freevars:
                stands_in = inspect.getclosurevars(code).nonlocals
                known |= set() if stands_in["is_new_implementation"] else {stands_in["package"]}
    return known


def _tf32_remark() -> Iterator[str]:
    """Yield a remark if the process lets PyTorch compute float32 products in TF32."""
    import torch

    by_backend = getattr(torch.backends.cuda.matmul, "fp32_precision", "")  # since PyTorch 2.9
    if by_backend == "tf32" or (not by_backend and torch.backends.cuda.matmul.allow_tf32):
        yield (
            "its code lets a GPU compute products of float32 in TF32 (set_float32_matmul_precision, "
            "allow_tf32): add --precision tf32, unless the answer is in another precision than fp32"
        )


def _acts_in_training(module: Any) -> bool:
    """True if a module may compute something else in training.

    A module of PyTorch does if its code reads `training`; a dropout with rate 0 never does.
    """
    names = getattr(getattr(type(module).forward, "__code__", None), "co_names", ())
    if type(module).__module__.startswith("torch.") and "training" not in names:
        return False
    rates = (getattr(module, name, True) for name in ("p", "dropout"))
    return not any(r is None or (isinstance(r, int | float) and not r) for r in rates)


def _read(model: Any, name: str, size: Size, example: Any) -> Graph:
    """The graph of a module, with the batch on the first or the second axis of its inputs."""
    misread, graph = _with_steps_first(model, example), None
    if not misread:
        graph, misread = _traced(model, name, size, example, 0)
        if not misread:
            return replace(graph, warnings=(*graph.warnings, *_batch_axis_remark(example)))
    with contextlib.suppress(LolatError):
        turned, again = _traced(model, name, size, example, 1)
        if not again:
            why = f"the batch is the second axis of its inputs: {misread} has its steps first (batch_first)"
            return replace(turned, warnings=(*turned.warnings, why))
    if graph is None:
        graph, _ = _traced(model, name, size, example, 0)
    why = (
        f"the batch is the first axis, which {misread} takes as its steps; expected (batch, steps, "
        "features) and batch_first=True"
    )
    return replace(graph, warnings=(*graph.warnings, why))


def _with_steps_first(model: Any, example: Any) -> str:
    """The first layer with batch_first=False, if `example` has its steps on the first axis; else "".

    The example has steps first if its second axis has length 1, or if it comes with a (steps, steps) mask.
    """
    shapes = [tuple(t.shape) for t in tensors_in(example)]
    steps = shapes[0][0] if shapes and len(shapes[0]) == 3 else 0
    rest = [s for s in shapes if s != (steps, steps)]
    is_masked = len(rest) < len(shapes) and shapes[0][1] != steps
    if not rest or any(
        len(s) not in (2, 3) or s[0] < 2 or (s[1] != 1 and not is_masked) for s in rest
    ):
        return ""
    layers = (m for m in model.modules() if type(m).__module__.startswith("torch.nn.modules."))
    first = next((m for m in layers if getattr(m, "batch_first", None) is False), None)
    return "" if first is None else type(first).__name__


def _batch_axis_remark(example: Any) -> Iterator[str]:
    """Yield a remark if the first axis of an example, the batch, has more than one element."""
    shapes = [tuple(t.shape) for t in tensors_in(example) if t.dim()]
    if any(s[0] > 1 for s in shapes):
        yield (
            f"the first axis of the example, of {shapes[0][0]:,}, is the batch, whose size is not used: "
            "--batch-size says how many samples the answer is for, 1 if not given; inputs without that "
            "batch stay as they are"
        )


def _as_image_remark(model: Any, size: Size, graph: Graph) -> Iterator[str]:
    """Yield a remark if one number was read as a side or as steps, and no layer tells which it is."""
    numbers, (kind, layer), (shape, *_) = size.numbers, first_layer(model), graph.input_sizes
    alone = "".join(f"{n:,} features are input_size=[({n},)] in Python" for n in numbers)
    if len(numbers) == 1 and not kind and len(shape) == 3:
        image = f"an image of {shapes_text([shape])}"
        yield f"read as {image}, as no layer of it tells the shape of its input; {alone}"
    elif numbers and shape == (*numbers, getattr(layer, "in_features", 0)):
        steps = f"{shape[0]:,} steps of {shape[1]:,} features"
        yield f"read as {steps}, those of its first dense layer; {alone}"


def _too_long_remark(model: Any, graph: Graph) -> Iterator[str]:
    """Yield a remark if the input has more tokens than the network has positions."""
    inputs, most = [graph.tensors[i] for i in graph.inputs], most_positions(model)
    lengths = (t.shape[1] for t in inputs if len(t.shape) == 2 and t.dtype.startswith("int"))
    if 0 < most < max(lengths, default=0):
        yield f"longer than the {most} positions that its configuration gives it"


def _folded_remark(model: Any, size: Size, graph: Graph) -> Iterator[str]:
    """Yield a remark if the module's code may read the sample, made from one number, as several samples."""
    (shape, *others), (rows, *_) = graph.input_sizes, (*graph.shapes(graph.outputs), ())
    if len(size.numbers) != 1 or others or first_layer(model)[0] == "Embedding":
        return
    if len(rows) == 2 and rows[0] > 1:
        yield (
            f"one sample, of {shapes_text([shape])}, gives {rows[0]:,} rows: if the code takes each for a "
            "sample, give the whole shape of one (--input-size)"
        )


_PUBLISHED = {"torchvision", "timm", "transformers"}
"""Packages whose networks take any batch size, and whose `train()` freezes nothing."""


def _traced(model: Any, name: str, size: Size, example: Any, axis: int) -> tuple[Graph, str]:
    """(graph with the batch on `axis` of the inputs, first layer with the batch on another axis or "")."""
    from lolat.readers.torch.trace import read_with_several, traced

    errors, sized = list[Exception](), list[str]()
    for call in calls(model, name, size, example, axis, sized):
        try:
            graph, misread = traced(model, name, call, axis)
            if example is None:
                sized += [
                    *_as_image_remark(model, size, graph),
                    *_folded_remark(model, size, graph),
                ]
            sized += _too_long_remark(model, graph)
            graph = replace(graph, warnings=(*graph.warnings, *sized))
            if not misread and type(model).__module__.partition(".")[0] not in _PUBLISHED:
                laid = list[str]()
                several = partial(read_with_several, model, name, call, axis, laid)
                graph = with_remarks(graph, several, asks_two=True)
                graph = replace(graph, warnings=(*graph.warnings, *laid))
            return graph, misread
        except LolatError:
            raise
        except Exception as error:  # whatever the module's code raises
            errors.append(error)
    # The first call has floats and guessed channels; if these are wrong, its error is less helpful.
    is_wrong = any(words in str(errors[0]) for words in ("indices", "channels, but got"))
    cause, fits = errors[-1 if is_wrong else 0], ""
    by_side = PRODUCT.search(str(cause)) or any(words in str(cause) for words in SHAPES_DIFFER)
    if by_side and example is None and first_layer(model)[0] == "Conv2d":
        fits = _size_that_fits(model, name, size.numbers)
    raise reading_error(model, name, cause, size.numbers, fits, example)


SHAPES_DIFFER = ("must match", "Attempting to broadcast")
"""Words in PyTorch's errors about tensors of different shapes."""


def _size_that_fits(model: Any, name: str, numbers: Sequence[int]) -> str:
    """A common image size with which a module's code runs, as an option's value; "" for none."""
    from lolat.readers.torch.trace import traced

    multiples = {-(-side // 32) * 32: None for side in numbers[-2:]}  # sides that strides divide
    for side in (*multiples, 32, 224, 28, 64, 96, 128, 227, 256, 299, 384):
        shape = (numbers[0], side, side) if len(numbers) == 3 else (side,)
        with contextlib.suppress(Exception):  # whatever the module's code raises
            traced(model, name, next(calls(model, name, Size(shape), None, 0, [])), 0)
            return ",".join(map(str, shape))
    return ""
