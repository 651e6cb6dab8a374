"""The savings that `lolat explain` offers, predicted and measured: PyTorch, in turns, on this machine.

Each case is a network and the same one with a change, both built by timm or PyTorch's own tools. Predicted
and measured are times of the changed network over those of the network, so the machine's speed does not
count. MODEL's profile is of the CPU, or with `device=cuda` of the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.runner import Tables, benchmark, in_turns, percent
from lolat.api.loading import load
from lolat.readers.torch.named import load_torchvision

ROUNDS = 15
WARM = 3


def _replaced(network: Any, new: Callable[[Any], Any]) -> Any:
    """The network with another module in the place of each convolution of which `new` makes one."""
    import torch

    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.Conv2d) and (made := new(child)) is not None:
                setattr(parent, name, made)
    return network


def _separable(conv: Any) -> Any:
    from torch.nn import Conv2d, Sequential

    if conv.kernel_size == (1, 1) or conv.in_channels < 8:
        return None
    inside = {"groups": conv.in_channels, "stride": conv.stride, "padding": conv.padding}
    depthwise = Conv2d(conv.in_channels, conv.in_channels, conv.kernel_size, **inside)
    return Sequential(
        depthwise, Conv2d(conv.in_channels, conv.out_channels, 1, bias=conv.bias is not None)
    )


def _small_kernel(conv: Any) -> Any:
    from torch.nn import Conv2d

    if conv.kernel_size <= (3, 3) or conv.stride == conv.kernel_size:
        return None
    about = {"groups": conv.groups, "stride": conv.stride, "padding": 1}
    return Conv2d(conv.in_channels, conv.out_channels, 3, **about)


def _as_run(network: Any, kind: str) -> Any:
    """The network with another way to run it."""
    import torch
    from torch.fx.experimental.optimization import fuse

    match kind:
        case "fold":
            return fuse(network.eval())
        case "compile":
            return torch.compile(network)
        case "channels_last":
            return network.to(memory_format=torch.channels_last)
        case _:
            return torch.autocast("cuda", torch.float16)(network)


CASES: tuple[tuple[str, str, dict[str, Any], Callable[[Any], Any] | None], ...] = (
    ("width", "convnext_tiny", {"dims": (48, 96, 192, 384)}, None),
    ("resolution", "resnet50", {}, None),
    ("drop", "vit_small_patch16_224", {"depth": 11}, None),
    ("separable", "resnet50", {}, lambda network: _replaced(network, _separable)),
    ("kernel", "convnext_tiny", {}, lambda network: _replaced(network, _small_kernel)),
    ("fold", "resnet50", {}, partial(_as_run, kind="fold")),
    ("fold", "resnext50_32x4d", {}, partial(_as_run, kind="fold")),
    ("heads", "vit_small_patch8_224", {"num_heads": 3}, None),
    ("compile", "resnet50", {}, partial(_as_run, kind="compile")),
    ("channels_last", "resnet50", {}, partial(_as_run, kind="channels_last")),
    ("precision", "resnet50", {}, partial(_as_run, kind="precision")),
)
"""Kind of saving, network of timm, arguments of the changed network, what changes it."""


@benchmark("savings", "savings", "kernels")
def savings(
    model: str = "epyc-2t-torch",
    device: str = "cpu",
    batch_size: str = "1",
    rounds: str = str(ROUNDS),
) -> Tables:
    """Each kind of saving of `lolat explain`: predicted, measured, inside its interval."""
    load_torchvision()  # before timm imports it
    import timm
    import torch

    if device == "cpu":
        torch.set_num_threads(2)
    profile, size, rows, held = load(model), int(batch_size), [], list[bool]()

    def timed(network: Any, side: int) -> Callable[[], object]:
        image = torch.rand(size, 3, side, side, device=device)

        def call() -> None:
            with torch.no_grad():
                network(image)
            if device == "cuda":
                torch.cuda.synchronize()

        return call

    for kind, name, arguments, change in CASES:
        explanation = profile.explain(f"timm:{name}", size)
        found = next((c for c in explanation.counterfactuals if c.kind == kind), None)
        if found is None:
            rows.append((kind, name, "not offered", "", "", ""))
            continue
        networks = [timm.create_model(name, **a).eval().to(device) for a in ({}, arguments)]
        if change is not None:
            networks[1] = change(networks[1])
        calls = [
            timed(n, 112 if kind == "resolution" and i else 224) for i, n in enumerate(networks)
        ]
        for call in calls * WARM:
            call()
        before, after = in_turns(*calls, rounds=int(rounds))
        now, real = explanation.prediction.latency_ms, after / before
        low, high = (ms / now for ms in found.interval_ms or (0.0, float("inf")))
        held.append(low <= real <= high)
        told = percent(found.of_network), percent(1.0 - real)
        span = f"{percent(1 - high)} to {percent(1 - low)}"
        rows.append((kind, name, *told, span, "yes" if held[-1] else "no"))
    columns = ("saving", "network", "predicted", "measured", "90 % interval", "inside")
    inside = percent(sum(held) / max(len(held), 1))
    return {"savings": (columns, [*rows, ("all", str(len(held)), "", "", "", inside)])}
