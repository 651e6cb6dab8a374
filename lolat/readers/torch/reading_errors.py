"""The error message for a PyTorch module whose code fails while it is read: the cause and the remedy."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Sequence
from typing import Any

from lolat.errors import NetworkError, arg
from lolat.parameters import LENGTH
from lolat.readers.torch.inputs import channels_from, first_layer, tensors_in
from lolat.units import INSTALLED, one_line, plural, shortened, user_line

PRODUCT = re.compile(r"\[\d+, (\d+)\] X \[(\d+), \d+\]")
"""The shapes in PyTorch's error for a product of tensors that do not fit: "[1, 400] X [120, 10]"."""
_CHANNELS = re.compile(r"to have (\d+) channels, but got (\d+) channels")
_OF_VALUES = ("DataDependentOutputException", "DynamicOutputShapeException")
"""PyTorch's exceptions for code that needs the values of a tensor."""
_OF_CODE = re.compile(r"HigherOrderOperator (\w+)")
_ON_META = (
    "make its inputs on the device meta too, as its weights are: torch.zeros(..., device='meta')"
)
_NESTED = (
    "it makes nested tensors (torch.nested), which are not read",
    "expected tensors that are padded to one length",
)
_NO_GPU = "take the device from an input (device=x.device): the network is read without a GPU"
_CAUSES = {
    "cpu and meta": ("", _ON_META), "meta and cpu": ("", _ON_META),
    "nested_tensor": _NESTED, "shape_env must not be none": _NESTED,
    "scalar types": ("", "expected token ids as whole numbers: tensors with dtype=torch.long"),
    "does not require grad": (
        "its forward computes gradients (torch.autograd.grad, torch.func), which are not counted",
        "expected the network that they are of, for which cost counts both passes",
    ),
    'missing the required "forward"': ("", "write the method forward(self, x) in its class"),
    "metadata mutating ops": (
        "its forward changes the shape of a parameter or buffer in place, which is not read",
        "expected an operation out of place (.t(), .unsqueeze())",
    ),
    "no nvidia driver": ("its code asks for a GPU (torch.cuda)", _NO_GPU), "cuda": ("", _NO_GPU),
    "_pin_memory": (
        "its forward pins memory of the CPU (pin_memory), which is not read", "leave it to the data loader"
    ),
    ".numpy() ": (
        "tensors have no values here, so .numpy() fails",
        "expected PyTorch's operations in place of NumPy's",
    ),
}  # fmt: skip
"""Words of an exception, in lower case -> (cause or "" for the exception's own words, remedy)."""


def _known_cause(error: BaseException) -> tuple[str, str] | None:
    """(cause or "" for the exception's own words, remedy) of an exception; None if it is not known."""
    if found := _OF_CODE.search(str(error)):
        instead = "scaled_dot_product_attention" if "attention" in found[1] else "plain operations"
        why = f"it calls {found[1]} of PyTorch, which runs a function that it is given"
        return why, f"expected {instead} in its place"
    return next((known for words, known in _CAUSES.items() if words in str(error).lower()), None)


def _package_line(error: BaseException) -> str:
    """The last line outside of PyTorch in a traceback, as " at torchvision/ops/boxes.py:12"; or ""."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        _, packages, path = frame.filename.rpartition(INSTALLED)
        if packages and path.partition(os.sep)[0] not in ("torch", "lolat"):
            return f" at {path}:{frame.lineno}"
    return ""


def _layer_of(model: Any, cause: Exception) -> str:
    """The path of the innermost module in which an exception was raised; "" for the network's own code."""
    paths, path, frame = {id(m): p for p, m in model.named_modules()}, "", cause.__traceback__
    while frame is not None:
        path = paths.get(id(frame.tb_frame.f_locals.get("self")), path)
        frame = frame.tb_next
    return path


def most_positions(model: Any) -> int:
    """The number of positions in a transformers network's configuration; 0 if it has none."""
    most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    return most if isinstance(most, int) else 0


def reading_error(
    model: Any, name: str, cause: Exception, numbers: Sequence[int], fits: str, example: Any = None
) -> NetworkError:
    """The error for a module whose code raised `cause` on an input of shape `numbers`.

    `fits`: an input size with which the module runs, "" if none is known; `example`: the inputs that the
    user's function returned with the module, or None.
    """
    line = user_line(cause)
    code, why = "network", _reason(model, cause)
    remedy = _remedy(model, cause, numbers, fits, example)
    if type(cause).__name__ in _OF_VALUES or "data-dependent" in str(cause):
        code, why = "data-dependent", "what it does depends on the values of a tensor"
        remedy = "expected a forward whose operations depend on shapes alone"
        if parts := ", ".join(n for n, _ in model.named_children()):
            remedy = (
                f"read its parts ({parts}) as networks of their own, from a function "
                "(package.module:callable) that returns a part and its inputs"
            )
    words = f"network {name!r} cannot be read: {why}{line or _package_line(cause)}"
    error = NetworkError(f"{words}; {remedy}" if remedy else words, code=code)
    error.__cause__ = cause
    return error


def _reason(model: Any, cause: Exception) -> str:
    """The reason in the message of `reading_error`, mostly the exception's own words."""
    if (known := _known_cause(cause)) and known[0]:
        return known[0]
    if product := PRODUCT.search(str(cause)):
        path = _layer_of(model, cause)
        what = f"the layer {path!r}" if path else "a product"
        return f"{what} expects {product[2]} features, gets {product[1]}"
    return shortened(one_line(cause)).rstrip(".")


def _remedy(model: Any, cause: Exception, numbers: Sequence[int], fits: str, example: Any) -> str:
    """The remedy in the message of `reading_error`, with the same arguments; "" for none."""
    most, lacking = most_positions(model), getattr(cause, "rows", 0)
    if most and lacking:
        if lacking < max(numbers, default=0):
            return f"expected {arg(LENGTH)} at most {max(numbers) - lacking}"
        return f"expected {plural(lacking, 'token')} fewer"
    if 0 < most < max(numbers, default=most + 1) and str(most) in str(cause):
        return f"expected {arg(LENGTH)} at most {most} (max_position_embeddings)"
    if hasattr(cause, "remedy"):  # of the reader's own errors
        return str(cause.remedy)
    if known := _known_cause(cause):
        return known[1]
    if isinstance(cause, AttributeError) and "'NoneType'" not in _reason(model, cause):
        return ""  # no other input mends it
    if mended := _layer_remedy(model, cause, numbers):
        return mended
    remedy = _size_remedy(model, str(cause), numbers, fits)
    if example is not None and not numbers:
        remedy = _returned_inputs_remedy(model, str(cause), tensors_in(example))
    if not user_line(cause):
        return remedy
    if fits:
        return f"{remedy}, or mend its code there"
    return remedy if remedy.startswith("PyTorch") else f"mend its code there, or {remedy}"


def _layer_remedy(model: Any, cause: Exception, numbers: Sequence[int]) -> str:
    """The remedy for a layer that expects another number of channels; "" if the input may be the cause."""
    channels, path = _CHANNELS.search(str(cause)), _layer_of(model, cause)
    if not channels or channels_from(model):
        return ""
    if len(numbers) == 3 and numbers[0] == int(channels[2]):
        return ""
    if not path or model.get_submodule(path) is first_layer(model)[1]:
        return ""
    return f"mend {path!r}: it gets {channels[2]} channels and takes {channels[1]}"


def _returned_inputs_remedy(model: Any, why: str, tensors: Sequence[Any]) -> str:
    """The remedy of `reading_error` for inputs that the user's function returned with the module."""
    kind, _ = first_layer(model)
    axes = {"Linear": 0, "Conv1d": 1, "Conv2d": 2, "Conv3d": 3}.get(kind)
    first = tensors[0]
    shape = ", ".join(map(str, first.shape))
    if axes is not None and not first.is_floating_point() and "type" in why:
        return f"make its input floating point, as in torch.zeros({shape})"
    if axes is not None and first.dim() == axes + 1:
        return f"the first axis of an input is the batch: torch.zeros(1, {shape})"
    if (
        first.dim()
        and (batch := first.shape[0]) > 1
        and any(batch in b.shape for b in model.buffers())
    ):
        return (
            f"it is read with a batch of 1, and its buffers and inputs are made for one of {batch}: make "
            "them for 1"
        )
    return "its inputs are those returned beside it: mend them there"


def _size_remedy(model: Any, why: str, numbers: Sequence[int], fits: str) -> str:
    """The remedy of `reading_error` for an input of the wrong size."""
    size, is_text = arg("input_size"), len(numbers) == 1 and first_layer(model)[0] == "Embedding"
    remedy = f"try {size} {fits}" if fits else f"try another {arg(LENGTH) if is_text else size}"
    if len(numbers) != 3 and not (fits or is_text or PRODUCT.search(why)):
        remedy += ", of several inputs a list, or a pair of the module and its inputs"
    if len(numbers) == 1 and first_layer(model)[0] in ("Linear", ""):  # of patches, it may be
        remedy += f" (an image of 3 channels is {size} 3,{numbers[0]},{numbers[0]})"
    product = PRODUCT.search(why)
    if product and [int(product[1])] == [*numbers] and first_layer(model)[0] == "Embedding":
        remedy = f"if its input is of numbers, not of tokens, give {size} {product[1]},{product[2]}"
    if channels := _CHANNELS.search(why):
        if len(numbers) == 1 and (guess := channels_from(model)):
            remedy = f"its channels were taken from {guess}; give them too: {size} C,H,W"
        elif len(numbers) == 3 and numbers[0] == int(channels[2]):
            remedy = f"try {size} {channels[1]},{numbers[1]},{numbers[2]}"
    if len(numbers) == 4 and (numbers[0] == 1 or numbers[1] == 3):
        without = ",".join(map(str, numbers[1:]))
        remedy = f"leave out the batch: {size} {without}, if that is an image"
    if len(numbers) == 3 and numbers[-1] in (1, 3, 4) and min(numbers[:2]) > 4:
        *sides, last = map(str, numbers)
        remedy = f"PyTorch has the channels first: {size} {','.join([last, *sides])}"
    return remedy
