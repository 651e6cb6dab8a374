"""Reads torchvision's detectors with the largest number of boxes that they process.

A detector chooses boxes by their scores, which depend on the values of an image. It is read as its
backbone, its heads and, if it has two stages, a second stage on a fixed number of boxes.
"""

from __future__ import annotations

from typing import Any

import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from lolat.graph import Graph

_CLASSES = ("GeneralizedRCNN", "RetinaNet", "FCOS", "SSD")


@torch.library.custom_op("lolat::roi_align", mutates_args=())
def roi_align(images: list[torch.Tensor], boxes: int, height: int, width: int) -> torch.Tensor:
    """Cut boxes out of images as torchvision's MultiScaleRoIAlign does; runs only on fake tensors."""
    raise NotImplementedError


@roi_align.register_fake
def _(images: list[torch.Tensor], boxes: int, height: int, width: int) -> torch.Tensor:
    samples, channels = images[0].shape[:2]
    return images[0].new_empty((samples * boxes, channels, height, width))


def is_detector(model: Any) -> bool:
    """True for a detector of torchvision, or of a class that inherits from one."""
    own = (
        c for c in type(model).__mro__ if c.__module__.startswith("torchvision.models.detection.")
    )
    return any(c.__name__ in _CLASSES for c in own)


class Detector(nn.Module):
    """The parts of a detector that do not depend on the values of an image, under their own names."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        for name, part in detector.named_children():
            self.add_module(name, part)
        fixed = self.transform.fixed_size
        self.default_cfg = {"input_size": (3, *((fixed[1], fixed[0]) if fixed else (800, 800)))}
        self.boxes: dict[str, int] = {}  # the branch of the second stage -> boxes of an image
        if hasattr(self, "rpn"):
            heads = self.roi_heads
            most = {"box": self.rpn._post_nms_top_n["testing"], "mask": heads.detections_per_img,
                    "keypoint": heads.detections_per_img}  # fmt: skip
            self.boxes = {k: n for k, n in most.items() if getattr(heads, f"{k}_roi_pool", None)}

    def images(self, example: Any) -> Any:
        """The first image of an example; the example may be a list of images, as torchvision takes it."""
        first = next(iter(pytree.tree_leaves(example)), None)
        return first if first is None or first.dim() > 3 else first[None]

    def forward(self, images: Any) -> Any:
        """The raw results of all heads."""
        features = self.backbone(self.prepared(images))
        features = {"0": features} if isinstance(features, torch.Tensor) else features
        if not hasattr(self, "rpn"):
            return self.head([*features.values()])
        results = [*self.rpn.head([*features.values()])]
        for name, boxes in self.boxes.items():
            parts = ("roi_pool", "head", "predictor")
            pool, head, predictor = (getattr(self.roi_heads, f"{name}_{part}") for part in parts)
            read = [features[key] for key in pool.featmap_names if key in features]
            results.append(predictor(head(roi_align(read, boxes, *pool.output_size))))
        return results

    def prepared(self, images: Any) -> Any:
        """Images as `GeneralizedRCNNTransform` makes them: normalized, resized, padded."""
        transform, (height, width) = self.transform, images.shape[-2:]
        scale = transform.min_size[-1] / min(height, width)
        scale = min(scale, transform.max_size / max(height, width))
        size = [int(height * scale), int(width * scale)]
        if transform.fixed_size:
            size = [*transform.fixed_size[::-1]]
        images = functional.interpolate(transform.normalize(images), size, mode="bilinear")
        lacking = [-n % transform.size_divisible for n in size]
        return functional.pad(images, (0, lacking[1], 0, lacking[0]))

    def noted(self, graph: Graph) -> Graph:
        """The graph with a remark on its boxes, and the reason why its training is not counted."""
        heads = " and ".join(f"{n:,} in its {name} head" for name, n in self.boxes.items())
        heads = heads.replace(" in", " boxes of each image in", 1)
        fixed = f"read with {heads}, the most that it takes; " if heads else ""
        remark = f"{fixed}choosing boxes by their scores (NMS) is not counted"
        reason = "a detector trains on boxes that it chooses by their overlap with an image's own"
        more = {
            "warnings": (*graph.warnings, remark),
            "training_obstacles": (*graph.training_obstacles, reason),
        }
        return replace(graph, **more)
