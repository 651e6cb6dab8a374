"""Remarks on the cost of training a PyTorch network beyond the operations of its trace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from typing import Any

from lolat.graph import Operation
from lolat.readers.remarks import asks_for_training, drop_rates, several_of, training_branches
from lolat.readers.torch.parameters import Parameters
from lolat.readers.torch.running import Running
from lolat.units import plural

_SWITCH = re.compile(
    r"(grad|use|activation)\w*checkpoint|checkpointing|^with_cp$|^memory_efficient$|^(checkpoint|ckpt)s?$"
)
"""Pattern of attributes that turn on checkpointing in transformers, timm, torchvision and others."""


ASIDE, LEAST_ASIDE = 0.25, 1 << 20
"""Computed elements get a remark from this share of the parameters and this number of elements on."""


def training_obstacles(model: Any, running: Running, alone: Sequence[str]) -> Iterator[str]:
    """Yield reasons why training cannot be predicted. `alone`: layers that only run in training."""
    if alone:
        yield f"{', '.join(alone)} run in training alone (self.training)"
    if sparse := [m for m in model.modules() if getattr(m, "sparse", False) is True]:
        yield f"sparse gradients (sparse=True) of {plural(len(sparse), 'table')} of embeddings"
    # With a dropout, DoRA's layers in peft compute the frozen layer for the dropped input too.
    of_dora = (m for m in model.modules() if len(getattr(m, "lora_magnitude_vector", ())))
    if twice := sum(any(getattr(d, "p", 0) for d in m.lora_dropout.values()) for m in of_dora):
        frozen = plural(twice, "frozen layer")
        yield f"with lora_dropout, DoRA multiplies with the weights of {frozen} twice in training"
    of_all = (pair for module in model.modules() for pair in vars(module).items())
    switches = [n for n, on in of_all if isinstance(on, int) and on > 0 and _SWITCH.search(n)]
    if switches and not running.parts:
        how = ", ".join(dict.fromkeys(switches))
        yield f"activations are recomputed where a trace does not show it ({how})"


def anew_in_each_call(parameters: Parameters, model: Any) -> Iterator[str]:
    """Yield what PyTorch computes only from parameters in each call, and the graph does not count."""
    if parameters.anew:
        every = (*model.parameters(), *model.buffers())
        is_quantized = any(str(w.dtype).endswith("int8") and w.dim() > 1 for w in every)
        merged = "; once it is trained, they can be merged (remove_parametrizations, prune.remove)"
        yield (
            f"PyTorch computes the weights of {plural(parameters.anew, 'operation')} anew in each call "
            "(weight_norm, a mask of pruning, another data type and the like), which is not counted"
            + merged
            * (not is_quantized)
        )
    elif parameters.aside > max(ASIDE * sum(p.numel() for p in model.parameters()), LEAST_ASIDE):
        yield (
            f"PyTorch computes {parameters.aside:,} elements from parameters and buffers alone in each "
            "call (an average of weights, their norm and the like), which is not counted"
        )


def in_training_alone(model: Any, parameters: Parameters) -> list[str]:
    """Layers that were not called, in modules whose code branches on `self.training`."""
    read, found = {owner for owner, *_ in parameters.learned}, []
    for path, module in model.named_modules():
        rest = [
            f"{path}.{name}".lstrip(".")
            for name, child in module.named_children()
            if child not in parameters.running.called
            and any(type(m).__module__.startswith("torch.nn.") for m in child.modules())
            and (own := [*child.parameters()])
            and read.isdisjoint(map(id, own))
        ]
        kinds = (k for k in type(module).__mro__[:-1] if not k.__module__.startswith("torch."))
        if rest and any(asks_for_training(k, ".training") for k in kinds):  # else it may be prose
            found += rest
    return found


def _is_of(file: str, module: Any) -> bool:
    return type(module).__module__ == f"torch.nn.modules.{file}"


def mark_dropouts(
    model: Any, operations: list[Operation], called: Set[Any]
) -> tuple[list[str], list[str]]:
    """Return (drops in training that are not counted, drops that only a CPU runs as operations), as texts.

    `called`: the modules that the code calls. A dropout whose code sets the rate to 0 at inference, as for
    attention weights, gets its rate in the graph. A dropout in a fused attention costs nothing on a GPU.
    """
    dropping, fused = [], []
    for path, module in model.named_modules():
        if module not in called or _is_of("dropout", module):
            continue
        inside = (m.children() if _is_of("container", m) else (m,) for m in module.children())
        passed_over = (m for one in inside for m in one if m not in called)
        rates = drop_rates(module) + [m.p for m in passed_over if _is_of("dropout", m) and m.p]
        if not rates:
            continue
        below = [
            i for i, o in enumerate(operations) if not path or f"{o.path}.".startswith(f"{path}.")
        ]
        attentions = [operations[i].path for i in below if operations[i].kind == "attention"]
        if path in attentions:
            fused.append(module)
        if attentions:
            continue
        drops = [i for i in below if operations[i].kind == "dropout"]
        known = [i for i in drops if "rate" in operations[i].attributes]
        for i in (plain := [i for i in drops if i not in known and operations[i].path == path]):
            operations[i] = operations[i].changed(rate=float(rates[0]))
        if not (known or plain):
            dropping.append(module)
    return [f"drops of {name}" for name in several_of(dropping)], [
        f"drops of {name} on a CPU (PyTorch runs single operations then, with the matrix of weights)"
        for name in several_of(fused)
    ]


def in_training_only(model: Any, running: Running) -> Iterator[str]:
    """Yield further effects of training a module that the graph does not count."""
    yield from training_branches(model.modules(), "forward", bool(running.parts))
    if synchronized := [m for m in model.modules() if type(m).__name__ == "SyncBatchNorm"]:
        yield f"exchanges between devices of {', '.join(several_of(synchronized))}"
    for module in model.modules():
        config = getattr(module, "config", None)  # a transformers configuration, or anything else
        for name, rate in getattr(config, "__dict__", vars(module)).items():
            if name.endswith("layerdrop") and isinstance(rate, float) and rate:
                yield f"{name}={rate:g}"
