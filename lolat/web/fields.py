"""What can be typed into the page: each field's name in a link, its words, and what is there at first."""

from __future__ import annotations

from dataclasses import dataclass

from lolat.readers.generated_configs import BLOCK_KEYS, DEFAULTS, FAMILIES, configured, keys
from lolat.training.cost.billing import BILLINGS
from lolat.training.optimizers import OPTIMIZERS


@dataclass(frozen=True)
class Field:
    """One field: `name` in the query string, `default` where it is not given, `choices` of a list."""

    name: str
    label: str
    default: str = ""
    hint: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    numeric: bool = False


SOURCES = (("keras", "By name"), ("generate", "Generated"), ("upload", "From a file"))
STRATEGY_WORDS = {
    "ring": "ring all-reduce",
    "tree": "tree all-reduce",
    "one-to-all": "one device gathers and sends",
    "mirrored": "MirroredStrategy",
}
BILLING_WORDS = {"second": "by the second", "hour": "by the hour, a begun one whole"}
FAMILY_WORDS = {"vgg": "VGG", "resnet": "ResNet", "inception": "Inception", "fc": "Fully connected"}

_ALL = (
    Field("source", "Where the network is from", "keras", choices=SOURCES),
    Field("name", "Name in keras.applications", "ResNet50", "such as ResNet50, VGG16, MobileNetV2"),
    Field("size", "Input size", "", "such as 160 or 160,160,3; empty: the network's own"),
    Field(
        "family",
        "Family",
        "vgg",
        choices=tuple((f, FAMILY_WORDS.get(f, f)) for f in FAMILIES),
    ),
    Field("upload", "File"),
    Field("file_size", "Input size, where the file leaves it open", "", "such as 224 or 3,224,224"),
    Field("samples", "Samples in the data set", "50000", numeric=True),
    Field("epochs", "Epochs", "20", numeric=True),
    Field("batch_size", "Batch on each device", "64", numeric=True),
    Field("optimizer", "Optimizer", "sgd", choices=tuple((o, o) for o in OPTIMIZERS)),
    Field("devices", "Devices", "1", numeric=True),
    Field("compare", "Compare with", "1,2,4,8", "numbers of devices, with commas"),
    Field(
        "strategy",
        "How gradients are exchanged",
        "ring",
        choices=tuple(STRATEGY_WORDS.items()),
    ),
    Field(
        "link_gbps",
        "Link of a device, Gbit/s",
        "",
        "empty: as such devices are linked in one machine, and 10 between machines",
        numeric=True,
    ),
    Field("billing", "Billing", "second", choices=tuple((b, BILLING_WORDS[b]) for b in BILLINGS)),
    Field("coverage", "How sure the interval is to be", "0.9", "above 0 and below 1", numeric=True),
)
FIELDS = {f.name: f for f in _ALL}
"""By name; a model's price and memory, and the keys of generated networks, are named by functions below."""

_NAMES = """
ConvNeXtBase ConvNeXtLarge ConvNeXtSmall ConvNeXtTiny ConvNeXtXLarge DenseNet121 DenseNet169
DenseNet201 EfficientNetB0 EfficientNetB1 EfficientNetB2 EfficientNetB3 EfficientNetB4
EfficientNetB5 EfficientNetB6 EfficientNetB7 EfficientNetV2B0 EfficientNetV2B1 EfficientNetV2B2
EfficientNetV2B3 EfficientNetV2L EfficientNetV2M EfficientNetV2S InceptionResNetV2 InceptionV3
MobileNet MobileNetV2 MobileNetV3Large MobileNetV3Small NASNetLarge NASNetMobile ResNet101
ResNet101V2 ResNet152 ResNet152V2 ResNet50 ResNet50V2 VGG16 VGG19 Xception
"""
APPLICATIONS = tuple(_NAMES.split())
"""What the page offers to choose from, before Keras is there to be asked; any other of its names works."""

_KEY_LABELS = {
    "layers": "Layers by stage",
    "filters": "Filters by stage",
    "hidden": "Dense layers after it",
    "input": "Input size",
    "output": "Classes",
    "small": "Small blocks",
    "input_dropout": "Dropout of the input",
    "dropout": "Dropout",
    "f1": "1x1",
    "f2_in": "1x1 before 3x3",
    "f2_out": "3x3",
    "f3_in": "1x1 before 5x5",
    "f3_out": "5x5",
    "f4_out": "1x1 after the pool",
}
_EXAMPLES = {"vgg": {"layers": [2, 2, 3], "filters": [64, 128, 256]}}


def price_name(model: str) -> str:
    """The field of what one device of a model costs an hour."""
    return f"price.{model}"


def memory_name(model: str) -> str:
    """The field of a device's memory, GiB."""
    return f"memory.{model}"


def family_fields(family: str) -> tuple[Field, ...]:
    """The fields of a generated network, filled with an example: the family's defaults, for most."""
    plain = configured(family, _EXAMPLES.get(family, {}))
    labels = {
        **_KEY_LABELS,
        **({"layers": "Widths", "input": "Features"} if family == "fc" else {}),
    }
    return tuple(
        Field(f"{family}.{key}", labels.get(key, key), _shown(key, getattr(plain, key)))
        for key in keys(family)
    )


def _shown(key: str, value: object) -> str:
    """A default as it would be typed."""
    if key in BLOCK_KEYS:
        return str(DEFAULTS["inception"][key][0])
    if key == "input" and isinstance(value, tuple):
        return str(value[0])
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return str(value).lower()
