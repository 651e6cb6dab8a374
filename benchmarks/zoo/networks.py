"""The zoo's networks, in two halves of families: what formulas are chosen on, and what is reported.

A row is `SPEC PIXELSxBATCH ...`; torch networks are run by every backend, Keras' ones natively by
TensorFlow and from their Graph by the others.
"""

from __future__ import annotations

CHOSEN, REPORTED = "chosen", "reported"
FAMILIES: dict[str, dict[str, str]] = {
    CHOSEN: {
        "ResNet": "keras:ResNet50 224x1 160x4 96x16, keras:ResNet101 128x1",
        "MobileNet": "keras:MobileNet 224x1 160x8",
        "MobileNetV3": "keras:MobileNetV3Small 224x4, keras:MobileNetV3Large 224x1 96x16",
        "EfficientNet": "keras:EfficientNetB0 224x1 128x8, keras:EfficientNetB2 160x2",
        "DenseNet": "keras:DenseNet121 224x1 96x8, keras:DenseNet169 128x2",
        "Xception": "keras:Xception 160x1 128x4",
        "UNet": "examples.networks:unet 0x1",
        "ConvNeXt": "keras:ConvNeXtTiny 96x1",
    },
    REPORTED: {
        "ResNetV2": "keras:ResNet50V2 224x1 128x8, keras:ResNet101V2 160x2",
        "MobileNetV2": "keras:MobileNetV2 224x1 160x4 96x16",
        "EfficientNetV2": "keras:EfficientNetV2B0 224x1 128x8, keras:EfficientNetV2B3 160x1",
        "VGG": "keras:VGG16 128x1 96x4, keras:VGG19 160x1",
        "Inception": "keras:InceptionV3 224x1 160x4, keras:InceptionResNetV2 160x1",
        "NASNet": "keras:NASNetMobile 224x1 128x4",
        "ViT": "examples.networks:vit 0x1 0x4",
        "Transformer": "examples.networks:transformer 0x1 0x8",
    },
}
"""Networks for TensorFlow; 0 pixels: the network's own size."""
TORCH: dict[str, dict[str, str]] = {
    CHOSEN: {
        "ResNet": "resnet50 224x1 128x8",
        "ResNeXt": "resnext50 160x2",
        "EfficientNet": "efficientnet_b0 224x1 128x8",
        "DenseNet": "densenet121 224x1",
        "UNet": "unet 128x1",
        "ConvNeXt": "convnext_tiny 224x1 128x4",
    },
    REPORTED: {
        "MobileNetV2": "mobilenet_v2 224x1 128x16",
        "ShuffleNet": "shufflenet_v2 224x1 160x8",
        "VGG": "vgg16 224x1",
        "ViT": "vit_tiny 224x1 224x4",
    },
}
"""PyTorch's own, of examples.torch_networks."""
FROM_GRAPHS: dict[str, dict[str, str]] = {
    CHOSEN: {
        "ResNet": "keras:ResNet101 128x1",
        "MobileNet": "keras:MobileNet 224x1 160x8",
        "MobileNetV3": "keras:MobileNetV3Large 224x1 96x16",
        "Xception": "keras:Xception 160x1 128x4",
    },
    REPORTED: {
        "ResNetV2": "keras:ResNet50V2 224x1 128x8",
        "EfficientNetV2": "keras:EfficientNetV2B0 224x1 128x8",
        "Inception": "keras:InceptionV3 224x1 160x4, keras:InceptionResNetV2 160x1",
        "NASNet": "keras:NASNetMobile 224x1",
    },
}
"""Networks for PyTorch and ONNX Runtime, built from their Graphs."""


def rows(backend: str) -> list[tuple[str, str, str, int, int]]:
    """(half, family, spec, pixels, batch size) of the networks that `backend` runs."""
    tables = [FAMILIES] if backend == "tensorflow" else [TORCH, FROM_GRAPHS]
    found = []
    for table in tables:
        prefix = "examples.torch_networks:" if table is TORCH else ""
        for half, families in table.items():
            for family, text in families.items():
                for row in text.split(","):
                    name, *sizes = row.split()
                    pairs = [tuple(map(int, s.split("x"))) for s in sizes]
                    found += [(half, family, prefix + name, p, n) for p, n in pairs]
    return found
