"""What a reader of an answer should know of the model that gave it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

FRAMEWORKS = {
    "keras": ("a Keras network", "tensorflow"),
    "torch": ("a PyTorch network", "torch"),
    "onnx": ("an ONNX network", "onnxruntime"),
}
"""What a network is written in (`Graph.framework`): in words, and the backend that runs it."""


def other_framework(where: Mapping[str, Any], written_in: str) -> Iterator[str]:
    """A remark where a network was written for another framework than the model was learned with.

    `where`: the model's environment; `written_in`: the network's `Graph.framework`. Nothing where either
    does not say. The network's counts are the same in every framework, its latency is not.
    """
    words, own = FRAMEWORKS.get(written_in, ("", ""))
    learned = where.get("framework")
    if not own or not isinstance(learned, str) or learned == own:
        return
    named = f"{learned} {where.get('framework_version') or ''}".strip()
    device = "gpu" if where.get("device") == "gpu" else "cpu"
    yield (
        f"the model was learned with {named} and this is {words}: the answer is for the same network "
        f"run by {learned}; for {own}: lolat learn {device} --backend {own}"
    )


def of_its_source(document: Mapping[str, Any]) -> tuple[str, ...]:
    """What a model that somebody else's measurements made says of itself."""
    made_of = document["environment"].get("source")
    return tuple(document.get("warnings", ())) if isinstance(made_of, Mapping) else ()
