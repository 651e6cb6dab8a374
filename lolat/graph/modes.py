"""Execution modes of a device, and the data types of a graph.

A mode is a data type, a launch and a layout of images. It determines the bytes of an element, and the
operations that a compiler fuses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from lolat.graph import Graph, kinds
from lolat.graph.counts import wide_share
from lolat.graph.images import has_images
from lolat.parameters import OTHER_PRECISIONS, PARAMETERS
from lolat.units import percent

FLOAT32, TF32, AMP, FLOAT16, BFLOAT16 = "float32", "tf32", "amp", "float16", "bfloat16"
PRECISION_DTYPES = {"fp32": FLOAT32, "tf32": TF32, "amp": AMP, "fp16": FLOAT16, "bf16": BFLOAT16}
"""Precision -> data type of a mode."""
PRECISION_OF = {dtype: name for name, dtype in PRECISION_DTYPES.items()}
DTYPES = PRECISION_DTYPES | {n: PRECISION_DTYPES[word] for n, word in OTHER_PRECISIONS.items()}
"""Data type by any of its names -> its name in LoLat. `amp`: PyTorch's autocast, with weights in float32;
`tf32`: float32 with all products in TF32 (by default, PyTorch uses TF32 for convolutions only)."""
Launch = Literal["eager", "compiled", "graph"]
EAGER: Launch = "eager"
COMPILED: Launch = "compiled"
GRAPH: Launch = "graph"
"""Ways to launch operations. EAGER: one by one, as in eager PyTorch; COMPILED: fused by torch.compile, then
one by one; GRAPH: fused, then all at once from a CUDA graph (torch.compile's mode `reduce-overhead`)."""


def dtype_named(precision: str) -> str:
    """The data type of a precision; InputError if the precision is unknown."""
    return PRECISION_DTYPES[PARAMETERS["precision"].choice(precision)]


@dataclass(frozen=True)
class Mode:
    """An execution mode.

    `dtype`: a value of DTYPES; `launch`: one of LAUNCHES; `channels_last`: True if images are stored
    channels last; `training`: True for forward and backward pass, False for the forward pass alone.
    """

    dtype: str = FLOAT32
    launch: Launch = EAGER
    channels_last: bool = False
    training: bool = False

    @property
    def inference(self) -> Mode:
        """The mode with `training` off."""
        return replace(self, training=False)

    @property
    def fused(self) -> bool:
        """True if a compiler fuses operations."""
        return self.launch != EAGER

    @property
    def runs_channels_last(self) -> bool:
        """True if convolutions run channels last: the user asked for it, or a compiler chose it."""
        return self.channels_last or self.fused

    @property
    def half(self) -> bool:
        """True if products run in half precision, on matrix units."""
        return self.dtype not in (FLOAT32, TF32)

    def __str__(self) -> str:
        words = {"channels last": self.channels_last, "compiled": self.fused,
                 "from a CUDA graph": self.launch == GRAPH, "training": self.training}  # fmt: skip
        return ", ".join([self.dtype, *(word for word, applies in words.items() if applies)])


DEFAULT_MODE = Mode()

LEAST_WIDE = 0.01  # least share of multiply-accumulates in float32 that gets a remark


def own_dtype(graph: Graph) -> str | None:
    """The data type that all products write; AMP for a graph with `autocast`; None if there are several."""
    written = product_dtypes(graph)
    if graph.autocast and not written.isdisjoint((FLOAT16, BFLOAT16)):
        return AMP
    return written.pop() if len(written) == 1 else None


def other_dtype(graph: Graph, measured: str = FLOAT32) -> list[str]:
    """A remark if the network's own data type is neither float32 nor the data type that was measured."""
    own = run_dtype(graph)
    if own in (None, FLOAT32, measured) or {own, measured} == {FLOAT16, BFLOAT16}:
        return []
    return [f"measured in {measured}, asked for {own}"]


def float32_remarks(graph: Graph, mode: Mode) -> list[str]:
    """Remarks on a float32 network whose code asks for float32, in a mode of half precision."""
    remarks = list[str]()
    if mode.dtype == AMP and (share := wide_share(graph)) > LEAST_WIDE:
        first = next(o for o in graph.operations if kinds.KEPT_FLOAT32 in o.attributes)
        other = "; --precision fp32 is the time of the whole network in float32"
        remarks.append(
            f"{percent(share)} of its multiply-accumulates are in torch.autocast(enabled=False), first in "
            f"{first.full_name}: in float32, which takes several times as long, and timed in half "
            f"precision{'' if graph.autocast else other}"
        )
    if mode.half and graph.redundant_casts and not is_in_half(graph):
        remarks.append(
            "its code converts to float32, or to the type of another tensor; in half precision such a "
            "softmax or norm keeps float32, and is counted in half: time and memory may be more; a network "
            "that is converted before it is read (.bfloat16(), torch_dtype) is counted as it is"
        )
    return remarks


def run_dtype(graph: Graph) -> str | None:
    """The data type that a network runs in: `own_dtype`, or the frozen base's with float32 adapters."""
    halves = product_dtypes(graph) - {FLOAT32}
    return halves.pop() if len(halves) == 1 and has_wide_adapters(graph) else own_dtype(graph)


def has_wide_adapters(graph: Graph) -> bool:
    """True if trained adapters are in float32 but the frozen base is in half precision, as in PEFT."""
    found = {False: set[str](), True: set[str]()}
    for o in graph.operations:
        if o.kind in kinds.KERNELS:
            found[o.attributes.get(kinds.TRAINED) != 0].add(graph.tensors[o.outputs[0]].dtype)
    return found[True] == {FLOAT32} and bool(found[False]) and found[False] <= {FLOAT16, BFLOAT16}


def is_in_half(graph: Graph) -> bool:
    """True if the network itself has a product in half precision."""
    return not product_dtypes(graph).isdisjoint((FLOAT16, BFLOAT16))


def product_dtypes(graph: Graph) -> set[str]:
    """The data types that products write."""
    products = (o for o in graph.operations if o.kind in kinds.MULTIPLYING)
    return {graph.tensors[t].dtype for o in products for t in o.outputs[:1]}


# ---- The layout of images


def layout_of(mode: Mode, graph: Graph | None, last: bool = False) -> bool | None:
    """True for images stored channels last, False for channels first; None if the layout changes no time.

    `graph`: None for any network. `last`: True if the user asked for channels last; a compiler, which
    chooses the layout itself, keeps this answer. In float32 the layout is not known to matter.
    """
    is_last = mode.channels_last or (last and mode.fused)
    matters = graph is not None and mode.half and not mode.fused and has_images(graph)
    return is_last if matters or is_last else None
