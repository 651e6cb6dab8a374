"""Words for exceptions that the code of a PyTorch module raises while it is read."""

from __future__ import annotations

import os
import re
import traceback
from typing import Any

_OF_CODE = re.compile(r"HigherOrderOperator (\w+)")
_CAUSES = {
    "scalar types": ("", "expected token ids as whole numbers: tensors with dtype=torch.long"),
    "does not require grad": (
        "its forward computes gradients (torch.autograd.grad, torch.func), which are not counted",
        "expected the network that they are of, for which cost counts both passes",
    ),
    " by .data (": ("", "expected parameters of their final shape and data type"),
    'missing the required "forward"': ("", "write the method forward(self, x) in its class"),
    "metadata mutating ops": (
        "its forward changes the shape of a parameter or buffer in place, which is not read",
        "expected an operation out of place (.t(), .unsqueeze())",
    ),
}  # fmt: skip
"""Words of an exception -> the cause ("" for the exception's own words), the remedy."""


def known_cause(error: BaseException) -> tuple[str, str] | None:
    """(the cause, "" for the exception's own words; the remedy) of an exception; None if not known."""
    if found := _OF_CODE.search(str(error)):
        instead = "scaled_dot_product_attention" if "attention" in found[1] else "plain operations"
        why = f"it calls {found[1]} of PyTorch, which runs a function that it is given"
        return why, f"expected {instead} in its place"
    return next((known for words, known in _CAUSES.items() if words in str(error)), None)


def package_line(error: BaseException) -> str:
    """ " at torchvision/ops/boxes.py:12": the last line of a package other than PyTorch; or ""."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        _, packages, path = frame.filename.rpartition(f"-packages{os.sep}")
        if packages and path.partition(os.sep)[0] not in ("torch", "lolat"):
            return f" at {path}:{frame.lineno}"
    return ""


def layer_of(model: Any, cause: Exception) -> str:
    """The path of the innermost module in which an exception was raised; "" for the network's own code."""
    paths, path, frame = {id(m): p for p, m in model.named_modules()}, "", cause.__traceback__
    while frame is not None:
        path = paths.get(id(frame.tb_frame.f_locals.get("self")), path)
        frame = frame.tb_next
    return path
