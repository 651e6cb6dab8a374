"""Vision networks on A100, V100, T4 as somebody else timed them.

DATA holds transformers_vision.csv: times from the documentation of the package transformers (PyTorch 2.0.1,
float32, eager and by torch.compile). The networks are built from their published configurations, without
weights, by the installed transformers, which is newer than the one that was timed. Every second network by
name is of the half that constants were chosen on, the others of the half that judges.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import lolat
from benchmarks.runner import Errors, Tables, benchmark, percent
from lolat.graph import Graph
from lolat.graph.modes import COMPILED, EAGER
from lolat.readers import read
from lolat.readers.torch import import_torch
from lolat.readers.torch.named import import_package, without_weights

DETECTED, MASKED, PANOPTIC = (800, 1066), (640, 864), (384, 384)
"""Sizes that the networks' processors make of an image of 480 x 640; MaskFormer's pads to multiples of 32,
that of Mask2Former's COCO networks makes 384 x 384 (transformers, test_modeling_mask2former.py)."""
DEVICES = {"A100": "a100-fp32", "V100": "v100-fp32", "T4": "t4-fp32"}
HEADER = (
    "split", "launch", "times", "median", "bias", "worst", "inside the 90 % interval", "its width",
    "host-bound",
)  # fmt: skip


@dataclass(frozen=True)
class Network:
    """`kind`: what the classes of transformers begin with; `task`: how that of the network ends; `size`: of
    the image; `about`: its configuration; `more`: other inputs, shapes of ones.
    """

    kind: str
    task: str
    size: tuple[int, int]
    about: Callable[[Any], dict[str, Any]]
    more: dict[str, tuple[int, ...]]

    def graph(self) -> Graph:
        """Read from the package, attention as the operations that it consists of."""
        transformers, torch = import_package("transformers"), import_torch()
        config = getattr(transformers, f"{self.kind}Config")(**self.about(transformers))
        config._attn_implementation = "eager"
        make = getattr(transformers, f"{self.kind}For{self.task}")
        network = without_weights(lambda: make(config)).eval()
        inputs = {"pixel_values": torch.zeros((1, 3, *self.size))}
        inputs |= {name: torch.ones(shape, dtype=torch.int64) for name, shape in self.more.items()}
        return read((staged(network) if self.kind == "Segformer" else network, inputs))


def staged(network: Any) -> Any:
    """Segformer with its stages one after the other: what the package does by hooks is not read."""
    torch = import_torch()
    module: Any = torch.nn.Module

    class Staged(module):
        def __init__(self) -> None:
            super().__init__()
            self.stages, self.head = network.segformer.stages, network.decode_head

        def forward(self, pixel_values: Any) -> Any:
            found = []
            for stage in self.stages:
                pixel_values = stage(pixel_values)
                found.append(pixel_values)
            return self.head(found)

    return Staged()


def _is(**about: Any) -> Callable[[Any], dict[str, Any]]:
    return lambda _: about


def _detr(backbone: str) -> Callable[[Any], dict[str, Any]]:
    return _is(
        use_timm_backbone=True, use_pretrained_backbone=False, backbone=backbone, num_labels=91
    )


def _swin(kind: str, labels: int, **about: Any) -> Callable[[Any], dict[str, Any]]:
    stages = [f"stage{n}" for n in range(1, 5)]
    return lambda transformers: {
        "backbone_config": getattr(transformers, f"{kind}Config")(**about, out_features=stages),
        "num_labels": labels,
    }


def _mask(sides: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    return {"pixel_mask": (1, *sides)}


IMAGE, OBJECTS = "ImageClassification", "ObjectDetection"
NETWORKS = {
    "facebook/convnext-large-224": Network(
        "ConvNext", IMAGE, (224, 224),
        _is(depths=[3, 3, 27, 3], hidden_sizes=[192, 384, 768, 1536], num_labels=1000), {},
    ),
    "facebook/detr-resnet-101": Network("Detr", OBJECTS, DETECTED, _detr("resnet101"), _mask(DETECTED)),
    "facebook/detr-resnet-50": Network("Detr", OBJECTS, DETECTED, _detr("resnet50"), _mask(DETECTED)),
    "facebook/mask2former-swin-tiny-coco-panoptic": Network(
        "Mask2Former", "UniversalSegmentation", PANOPTIC,
        _swin("Swin", 133, depths=[2, 2, 6, 2], embed_dim=96, num_heads=[3, 6, 12, 24], window_size=7),
        _mask(PANOPTIC),
    ),
    "facebook/maskformer-swin-base-ade": Network(
        "MaskFormer", "InstanceSegmentation", MASKED,
        _swin(
            "MaskFormerSwin", 150, depths=[2, 2, 18, 2], embed_dim=128, num_heads=[4, 8, 16, 32],
            window_size=12, image_size=384,
        ),
        _mask(MASKED),
    ),
    "google/deeplabv3_mobilenet_v2_1.0_513": Network(
        "MobileNetV2", "SemanticSegmentation", (513, 513),
        _is(output_stride=8, num_labels=21, image_size=513), {},
    ),
    "google/owlvit-base-patch32": Network(
        "OwlViT", OBJECTS, (768, 768), _is(), {"input_ids": (2, 16), "attention_mask": (2, 16)}
    ),
    "google/vit-base-patch16-224": Network("ViT", IMAGE, (224, 224), _is(num_labels=1000), {}),
    "microsoft/beit-base-patch16-224-pt22k-ft22k": Network(
        "Beit", IMAGE, (224, 224),
        _is(use_relative_position_bias=True, use_mean_pooling=True, num_labels=21841), {},
    ),
    "microsoft/conditional-detr-resnet-50": Network(
        "ConditionalDetr", OBJECTS, DETECTED, _detr("resnet50"), _mask(DETECTED)
    ),
    "microsoft/resnet-50": Network("ResNet", IMAGE, (224, 224), _is(num_labels=1000), {}),
    "nvidia/segformer-b0-finetuned-ade-512-512": Network(
        "Segformer", "SemanticSegmentation", (512, 512), _is(num_labels=150), {}
    ),
}  # fmt: skip
"""The configurations of the hub of models, by name."""
CHOSEN_ON = frozenset(sorted(NETWORKS)[::2])


@dataclass(frozen=True)
class Judged:
    """A time and what is predicted, ms."""

    measured_ms: float
    found: lolat.Prediction

    @property
    def off(self) -> float:
        """The relative error."""
        return self.found.latency_ms / self.measured_ms - 1.0

    @property
    def inside(self) -> bool:
        """True if the interval contains the measured time."""
        low, high = self.found.interval_ms or (0.0, np.inf)
        return bool(low <= self.measured_ms <= high)


def summary(half: str, launch: str, rows: list[Judged]) -> list[str]:
    """A row of the table."""
    errors = Errors(np.array([r.off for r in rows]), [r.inside for r in rows])
    ends = np.array([r.found.interval_ms for r in rows])
    worst = errors.off[np.argmax(abs(errors.off))]
    width = percent(float(np.median(ends[:, 1] / ends[:, 0]) - 1), 0)
    bound = sum(r.found.host_bound or False for r in rows)
    figures = [errors.median, errors.bias, f"{100 * worst:+.0f} %", errors.held, width, str(bound)]
    return [half, launch, str(len(rows)), *figures]


@benchmark("published", "gpus", "kernels", data="transformers_vision.csv")
def published(data: Path, models: str = "") -> Tables:
    """Published times of twelve vision networks on three GPUs (models=FOLDER of other files)."""
    known = {
        device: lolat.load(Path(models) / f"{name}.json" if models else name)
        for device, name in DEVICES.items()
    }
    with open(data / "transformers_vision.csv", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    graphs = {name: NETWORKS[name].graph() for name in sorted({r["model"] for r in table})}
    judged: dict[tuple[str, str], list[Judged]] = {}
    for row in table:
        half = "development" if row["model"] in CHOSEN_ON else "test"
        for launch in (EAGER, COMPILED):
            if row[f"{launch}_ms"]:
                model = known[row["device"]].run_as(launch=launch)
                found = model.predict(graphs[row["model"]], int(row["batch_size"]))
                one = Judged(float(row[f"{launch}_ms"]), found)
                judged.setdefault((half, launch), []).append(one)
                judged.setdefault((half, "both"), []).append(one)
    lines = [summary(half, launch, rows) for (half, launch), rows in sorted(judged.items())]
    return {"published": (HEADER, lines)}
