"""Steps of training a part of a network, or computing it again, in steps of training it whole.

PyTorch on this CPU, in turns: each round times a step of every way once, in CPU seconds of all threads,
and the least of a way counts, as other work only adds to it. OMP_WAIT_POLICY=PASSIVE, as a thread that
spins would count. The prediction is that of MODEL.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.runner import Tables, benchmark, percent
from lolat.api.model import Model
from lolat.graph.edits import as_trained
from lolat.optimizers import OPTIMIZERS
from lolat.readers import read
from lolat.readers.torch.named import load_torchvision
from lolat.training.plan import training_of
from lolat.training.tuning import tuned

ROUNDS = 8
WAYS = ("whole", "head", "second half", "LoRA 8", "checkpoints")
NETWORKS: dict[str, tuple[tuple[int, ...], int, str, tuple[str, ...]]] = {
    "vit_tiny_patch16_224": ((3, 224, 224), 2, "blocks", ("qkv", "proj", "fc1", "fc2")),
    "resnet18": ((3, 128, 128), 4, "layer", ()),
    "convnext_atto": ((3, 128, 128), 4, "stages", ("fc1", "fc2")),
    "mobilenetv2_100": ((3, 128, 128), 4, "blocks", ()),
    "mixer_s32_224": ((3, 224, 224), 4, "blocks", ("fc1", "fc2")),
}
"""Network of timm -> its input, batch size, the beginning of its blocks' names, its linear layers."""


def made(name: str, way: str) -> Any:
    """The network as it is trained; None if it cannot be trained so."""
    import timm

    _, _, blocks, linear = NETWORKS[name]
    network = timm.create_model(name, num_classes=10)
    if way == "checkpoints":
        network.set_grad_checkpointing(True)
    elif way == "LoRA 8":
        if not linear:
            return None
        from peft import LoraConfig, get_peft_model

        network = get_peft_model(network, LoraConfig(r=8, target_modules=[*linear]))
    elif way != "whole":
        names = [n for n, _ in network.named_parameters()]
        first = next(i for i, n in enumerate(names) if n.startswith(blocks))
        half = first + (len(names) - first) // 2
        for i, (n, parameter) in enumerate(network.named_parameters()):
            head = n.startswith(("head.fc", "fc", "classifier", "head.weight", "head.bias"))
            parameter.requires_grad_(head or (way == "second half" and i >= half))
    return network.train()


def step_of(network: Any, size: tuple[int, ...], batch_size: int) -> Callable[[], float]:
    """A function that runs a step and returns its seconds."""
    import torch

    x, y = torch.rand(batch_size, *size), torch.randint(0, 10, (batch_size,))
    update = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], 1e-4)

    def step() -> float:
        started = time.process_time()
        update.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()
        update.step()
        return time.process_time() - started

    return step


@benchmark("training-parts", "training", "training")
def training_parts(model: str = "epyc-2t-torch", rounds: str = str(ROUNDS)) -> Tables:
    """Frozen, adapted and checkpointed steps over whole ones, measured and predicted."""
    import torch

    load_torchvision()
    torch.set_num_threads(2)
    device = Model.load(model)
    rows, errors, sgd = [], dict[str, list[float]](), OPTIMIZERS["sgd"]
    for name, (size, batch_size, _, _) in NETWORKS.items():
        networks = {way: network for way in WAYS if (network := made(name, way)) is not None}
        steps = {way: step_of(network, size, batch_size) for way, network in networks.items()}
        least = dict.fromkeys(steps, np.inf)
        for _ in range(int(rounds)):
            for way, step in steps.items():
                least[way] = min(least[way], step())
        training = training_of(device)
        graphs = {way: tuned(as_trained(read(n, size)), None, None) for way, n in networks.items()}
        predicted = {
            w: training.batch(g, batch_size, sgd).iteration.total for w, g in graphs.items()
        }
        for way in [*networks][1:]:
            real, ours = least[way] / least["whole"], predicted[way] / predicted["whole"]
            off = ours / real - 1
            errors.setdefault(way, []).append(off)
            rows.append((name, way, f"{real:.2f}", f"{ours:.2f}", f"{100 * off:+.0f} %"))
    summary = [
        (way, percent(float(np.median(np.abs(off)))), percent(float(np.max(np.abs(off)))))
        for way, off in errors.items()
    ]
    return {
        "parts": (("network", "trained", "measured", "predicted", "off by"), rows),
        "parts-summary": (("trained", "median error", "largest"), summary),
    }
