"""Reads the networks that come with LoLat again, with the installed packages, and writes their file.

    python -m benchmarks.shipped_networks

Run it where a reader or a package writes a graph that is not the shipped one (tests/readers/test_shipped.py
says so); then raise READERS in lolat/readers/cache.py too. It takes some ten minutes, most of them timm's.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from lolat.graph import Graph
from lolat.readers import open_network
from lolat.readers.bundled import FILE
from lolat.readers.keras import import_keras
from lolat.readers.torch.named import import_package
from lolat.readers.versions import installed_version

ROOT = Path(__file__).resolve().parent.parent
TIMM = (
    "resnet18 resnet34 resnet50 resnet101 resnet152 resnext50_32x4d wide_resnet50_2 regnetx_032 "
    "regnety_016 vgg16 inception_v3 densenet121 mobilenetv2_100 mobilenetv3_small_100 "
    "mobilenetv3_large_100 mobilenetv4_conv_small mnasnet_100 ghostnet_100 efficientnet_b0 "
    "efficientnet_b3 tf_efficientnetv2_s repvgg_a0 convnext_tiny convnext_base convnextv2_tiny "
    "vit_tiny_patch16_224 vit_small_patch16_224 vit_base_patch16_224 vit_large_patch16_224 "
    "deit_small_patch16_224 swin_tiny_patch4_window7_224 swin_base_patch4_window7_224 maxvit_tiny_tf_224 "
    "mixer_b16_224"
)
"""Known ones of each family, none of them large as a graph."""


def same_tags(network: str, graph: Graph) -> Iterator[str]:
    """The tags of a network of timm that give this graph: those of its size and classes."""
    package, _, name = network.partition(":")
    if package == "timm":
        for tagged in import_package("timm").list_models(f"{name}.*", include_tags=True):
            if replace(open_network(f"timm:{tagged}").graph(), name=graph.name) == graph:
                yield f"timm:{tagged}"


def main() -> None:
    """Read and write; the file holds every network of keras.applications, and those of TIMM."""
    keras = import_keras()
    applications = [n for n in dir(keras.applications) if n[0].isupper()]
    networks = [f"keras:{n}" for n in applications] + [f"timm:{n}" for n in TIMM.split()]
    packages = {name: installed_version(name) for name in ("keras", "timm")}
    tags: dict[str, str] = {}
    documents: list[object] = [{"networks": networks, "packages": packages, "tags": tags}]
    for number, network in enumerate(networks, start=1):
        print(f"{number} of {len(networks)}: {network}", file=sys.stderr)
        keras.backend.clear_session()  # which counts the names that it gives to layers
        graph = open_network(network).graph()
        documents.append(graph.to_dict())
        tags |= dict.fromkeys(same_tags(network, graph), network)
    lines = [json.dumps(d, separators=(",", ":"), sort_keys=True) for d in documents]
    FILE.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{FILE.relative_to(ROOT)}: {len(networks)} networks, {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
