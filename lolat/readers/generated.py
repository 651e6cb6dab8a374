"""`generate:FAMILY?key=value&...` and `generate:FAMILY?config=JSON`: a generated network as a string.

The families are those of the Benchmarked Insights study (nilax97/DL-Sys-Perf-Project), whose networks are
rebuilt exactly, as functional Keras models. Without building one, no framework is needed here.
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar
from urllib.parse import unquote

from lolat.errors import NetworkError
from lolat.units import shortened

LARGEST = 10_000_000  # of any number
MOST_LAYERS = 1000  # all numbers of layers together: more is a slip, and takes minutes to build

Blocks = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Vgg:
    """Stages of 3x3 convolutions, each with ReLU and normalization; 2x2 max pooling ends a stage.

    `layers`, `filters`: convolutions and their filters, by stage; `hidden`: widths of the dense layers
    that follow; `input`: (height, width, channels); `output`: number of classes.
    """

    family: ClassVar[str] = "vgg"
    layers: tuple[int, ...]
    filters: tuple[int, ...]
    hidden: tuple[int, ...]
    input: tuple[int, ...]
    output: int


@dataclass(frozen=True)
class ResNet:
    """Four stages of residual blocks: bottlenecks or, where `small`, two 3x3 convolutions.

    `layers`: blocks by stage. A small stage gets one block more than that: so the study builds it.
    """

    family: ClassVar[str] = "resnet"
    layers: tuple[int, ...]
    hidden: tuple[int, ...]
    input: tuple[int, ...]
    output: int
    small: bool


@dataclass(frozen=True)
class Inception:
    """Stages of inception blocks; 3x3 max pooling of stride 2 ends a stage.

    `layers`: blocks by stage. By stage and block, the filters of: `f1` the 1x1 branch; `f2_in`, `f2_out`
    the 1x1 and the 3x3 of the second; `f3_in`, `f3_out` the 1x1 and the 5x5 of the third; `f4_out` the
    1x1 after the pooling of the fourth.
    """

    family: ClassVar[str] = "inception"
    layers: tuple[int, ...]
    f1: Blocks
    f2_in: Blocks
    f2_out: Blocks
    f3_in: Blocks
    f3_out: Blocks
    f4_out: Blocks
    hidden: tuple[int, ...]
    input: tuple[int, ...]
    output: int


@dataclass(frozen=True)
class Fc:
    """Dense layers with ReLU, each followed by dropout and normalization.

    `layers`: their widths; `input`: (features,); `input_dropout`, `dropout`: shares, or None for none.
    """

    family: ClassVar[str] = "fc"
    layers: tuple[int, ...]
    input: tuple[int, ...]
    output: int
    input_dropout: float | None
    dropout: float | None


Config = Vgg | ResNet | Inception | Fc
FAMILIES: dict[str, type[Config]] = {c.family: c for c in (Vgg, ResNet, Inception, Fc)}
HEAD = {"hidden": [100], "input": [128], "output": 2}
# What a key is where it is not given: of the network that the study varied, one key at a time.
DEFAULTS: dict[str, dict[str, Any]] = {
    "vgg": HEAD,
    "resnet": {"layers": [3, 3, 3, 3], **HEAD, "small": False},
    "inception": {
        **{"layers": [1, 1, 1], "f1": [64], "f2_in": [128], "f2_out": [192]},
        **{"f3_in": [32], "f3_out": [32], "f4_out": [32], **HEAD},
    },
    "fc": {"layers": [1000], "input": [128], "output": 2, "input_dropout": 0.2, "dropout": 0.5},
}
SHARES = ("dropout", "input_dropout")
BLOCK_KEYS = ("f1", "f2_in", "f2_out", "f3_in", "f3_out", "f4_out")
EXPECTED = {
    "layers": "positive whole numbers, such as layers=2,2,3",
    "filters": "positive whole numbers, such as filters=64,128,256",
    "output": "a positive whole number, such as output=10",
    "small": "true or false",
    "input_dropout": "a number from 0 to below 1, or none, such as input_dropout=0.2",
    "dropout": "a number from 0 to below 1, or none, such as dropout=0.5",
    "input": "height, width and channels as positive whole numbers, such as input=128 or input=96,128,3",
    "hidden": "positive whole numbers, such as hidden=100,100, or none",
}
OF_FC = {
    "layers": "positive whole numbers, the widths, such as layers=1000,1000",
    "input": "the number of features, a positive whole number, such as input=128",
}


def keys(family: str) -> list[str]:
    """The keys of a family, in the order of its fields."""
    return [field.name for field in fields(FAMILIES[family])]


def wrong(family: str, key: str, value: Any) -> NetworkError:
    """The error for a value that cannot be: text as it was given, or a value from JSON."""
    shown = value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, list) and not any(isinstance(n, (list, dict)) for n in value):
        shown = shown[1:-1].replace(" ", "")
    expected = EXPECTED.get(key, f"positive whole numbers, such as {key}=64")
    if family == "fc":
        expected = OF_FC.get(key, expected)
    return NetworkError(
        f"generate:{family}: {key}={shortened(shown)} is no value; expected {expected}"
    )


def configured(family: str, options: Mapping[str, Any]) -> Config:
    """The configuration of a family from {key: value as JSON has it}; what lacks is the default.

    Raises NetworkError for a value of another kind, lists that do not fit each other, and an input that
    is too small.
    """
    values = {**DEFAULTS[family], **options}
    if family == "vgg":  # filters double from stage to stage, as in the study
        values.setdefault("layers", [2] * len(as_list(values.get("filters", [16]))))
        stages = len(as_list(values["layers"]))
        values.setdefault("filters", [16 << min(i, 19) for i in range(stages)])
    checked = {k: _checked(family, k, values[k]) for k in keys(family) if k not in BLOCK_KEYS}
    for key in set(BLOCK_KEYS) & set(keys(family)):
        checked[key] = _by_block(key, values[key], checked["layers"])
    config = FAMILIES[family](**checked)
    _check_lists(config)
    _check_input(config)
    return config


def as_list(value: Any) -> list[Any]:
    """A value as a list, a single one alone in it."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST


def _checked(family: str, key: str, value: Any) -> Any:
    """The value of a key that is not by block, as the dataclass holds it."""
    if key in SHARES:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = value is None or (number and 0 <= value < 1)
        value = float(value) if number else value
    elif key == "small":
        fits = isinstance(value, bool)
    elif key == "output":
        fits = _whole(value)
    else:
        value = tuple(as_list(value))
        fits = all(map(_whole, value)) and (bool(value) or key == "hidden")
        if key == "input":
            fits = fits and len(value) <= (1 if family == "fc" else 3)
    if not fits:
        raise wrong(family, key, list(value) if isinstance(value, tuple) else value)
    if key == "input" and family != "fc" and len(value) < 3:
        return (*(value * 2)[:2], 3)
    return value


def _by_block(key: str, value: Any, layers: tuple[int, ...]) -> Blocks:
    """Filters by stage and block, from as many, or one for all, one a stage, or one a block."""
    stages = as_list(value)
    nested = bool(stages) and all(isinstance(stage, (list, tuple)) for stage in stages)
    flat = [n for stage in stages for n in stage] if nested else stages
    if not flat or not all(map(_whole, flat)):
        raise wrong("inception", key, value)
    if nested and tuple(map(len, stages)) == layers:
        return tuple(tuple(stage) for stage in stages)
    if not nested and len(flat) in (1, len(layers)):
        filters = flat * len(layers) if len(flat) == 1 else flat
        return tuple((f,) * n for f, n in zip(filters, layers, strict=True))
    if not nested and len(flat) == sum(layers):
        rest = iter(flat)
        return tuple(tuple(next(rest) for _ in range(n)) for n in layers)
    have = "+".join(str(len(stage)) for stage in stages) if nested else str(len(stages))
    raise NetworkError(
        f"generate:inception: {key} has {have} numbers for layers={','.join(map(str, layers))}; give one "
        f"for all blocks, one for each stage ({len(layers)}) or one for each block ({sum(layers)})"
    )


def _check_lists(config: Config) -> None:
    """Whether lists fit each other, and are of a length that can be built."""
    if isinstance(config, Vgg) and len(config.layers) != len(config.filters):
        raise NetworkError(
            f"generate:vgg: layers has {len(config.layers)} and filters {len(config.filters)} numbers; "
            "give one of each for every stage, such as layers=2,2,3&filters=64,128,256"
        )
    if isinstance(config, ResNet) and len(config.layers) != 4:
        raise NetworkError(
            f"generate:resnet: layers has {len(config.layers)} numbers; it has four stages, give four, "
            "such as layers=3,4,6,3"
        )
    convolutional = () if isinstance(config, Fc) else config.layers
    dense = config.layers if isinstance(config, Fc) else config.hidden
    if (total := sum(convolutional) + len(dense)) > MOST_LAYERS:
        raise NetworkError(
            f"generate:{config.family}: {total} layers or blocks are too many to build; give at most "
            f"{MOST_LAYERS} in all"
        )


def _check_input(config: Config) -> None:
    """Whether the poolings leave something of the input."""
    if isinstance(config, Fc):
        return
    smallest, why = {
        "vgg": (2 ** len(config.layers), f"each of its stages ({len(config.layers)}) halves it"),
        "resnet": (5, "a convolution of stride 2 and a 3x3 pooling follow"),
        "inception": (7, "a 7x7 convolution without padding follows"),
    }[config.family]
    if min(config.input[:2]) < smallest:
        mend = f"at least input={smallest}" if smallest <= LARGEST else "fewer stages"
        raise NetworkError(
            f"generate:{config.family}: an input of {'x'.join(map(str, config.input))} is too small, "
            f"{why}; give {mend}"
        )


# ---- The string.

PREFIX = "generate:"
# What a configuration of the study holds besides the network: its run, and the lengths of its lists.
NOT_THE_NETWORK = {"batch_size", "input_size", "num_layers", "num_hidden_layers", "model"}


def parse(spec: str, size: Sequence[int] = ()) -> Config:
    """The configuration that `generate:FAMILY?...` says; `size` takes the place of its `input`.

    Raises NetworkError for an unknown family or key, a value that cannot be read, lists that do not fit
    each other, and an input that is too small.
    """
    name, _, options = spec.removeprefix(PREFIX).partition("?")
    family = name.strip().lower()
    if family not in FAMILIES:
        raise NetworkError(
            f"no family {shortened(name)!r} to generate; {_expected(family, FAMILIES)}, such as "
            "generate:vgg?layers=2,2&filters=16,32"
        )
    options = unquote(options)
    written = options.removeprefix("config=")
    values = _of_options(family, options) if written == options else _of_config(family, written)
    if size:
        values["input"] = list(size)
    return configured(family, values)


def text(config: Config) -> str:
    """The configuration as `generate:FAMILY?key=value&...`, without what is the default."""
    default = configured(config.family, {})
    said = []
    for key in keys(config.family):
        value, usual = getattr(config, key), getattr(default, key)
        if key in BLOCK_KEYS:  # as one list, of one number where they are all the same
            value = tuple(n for stage in value for n in stage)
            value = value[:1] if len(set(value)) == 1 else value
            usual = tuple(DEFAULTS[config.family][key])
        if value != usual or (config.family == "vgg" and key in ("layers", "filters")):
            said.append(f"{key}={_shown(key, value)}")
    return "?".join([f"{PREFIX}{config.family}", *(["&".join(said)] if said else [])])


def _shown(key: str, value: Any) -> str:
    """A value of the short form."""
    if key == "input" and len(value) == 3 and value[0] == value[1] and value[2] == 3:
        value = value[:1]
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _expected(name: str, known: Iterable[str]) -> str:
    """Which one was meant, and which there are."""
    names = list(known)
    near = difflib.get_close_matches(name.lower(), names, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"expected one of {', '.join(names)}"


def _study_name(family: str, key: str) -> str:
    """What the study calls a key in its configurations."""
    layers = "layers" if family == "fc" else f"{family}_layers"
    names = {"layers": layers, "hidden": "hidden_layers"}
    return {**names, "input": "input_shape", "output": "output_shape"}.get(key, key)


def _of_options(family: str, options: str) -> dict[str, Any]:
    """{key: value as JSON has it} of `key=value&...`; the study's names and `classes` are known too."""
    also = {_study_name(family, key): key for key in keys(family)} | {"classes": "output"}
    if family == "fc":
        also["hidden"] = "layers"  # as the other families call dense layers
    values: dict[str, Any] = {}
    for part in options.split("&") if options else []:
        name, _, written = part.partition("=")
        key = also.get(name, name)
        wrong_with_it = ""
        if name == "config":
            wrong_with_it = "config=JSON goes alone; give it right after the question mark"
        elif key not in keys(family):
            raise NetworkError(
                f"generate:{family} has no key {shortened(name)!r}; {_expected(name, keys(family))}"
            )
        elif not written:
            wrong_with_it = f"{name} has no value; write {name}=VALUE"
        elif key in values:
            wrong_with_it = f"{key} is given twice; give it once"
        if wrong_with_it:
            raise NetworkError(f"generate:{family}: {wrong_with_it}")
        values[key] = _value(family, key, written)
    return values


def _value(family: str, key: str, written: str) -> Any:
    """What the text of a value says, as JSON would have it."""
    word = written.lower()
    if word == "none" and key in ("hidden", *SHARES):
        return [] if key == "hidden" else None
    if key == "small" and word in ("true", "false"):
        return word == "true"
    try:
        if key in SHARES:
            return float(written)
        if key == "output":
            return int(written)
        if key != "small":
            numbers = written.replace("x", ",") if key == "input" else written
            return [int(n) for n in numbers.split(",")]
    except ValueError:
        pass
    raise wrong(family, key, written)


def _of_config(family: str, written: str) -> dict[str, Any]:
    """{key: value} of a configuration of the study, which is JSON."""
    try:
        document = json.loads(written)
    except (ValueError, RecursionError) as error:
        at = f", at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else ""
        raise NetworkError(
            f"generate:{family}?config= is not JSON ({getattr(error, 'msg', 'too large')}{at}); expected "
            """an object, in single quotes for the shell: 'generate:fc?config={"layers": [100]}'"""
        ) from None
    if not isinstance(document, Mapping):
        raise NetworkError(
            f"generate:{family}?config={shortened(written)} is no JSON object; expected such as "
            '{"output_shape": 2}'
        )
    model = str(document.get("model", family))
    if model.lower() != family:
        mend = (
            f"write generate:{model.lower()}" if model.lower() in FAMILIES else f"expected {family}"
        )
        raise NetworkError(
            f"generate:{family}?config= is of the model {shortened(model)!r}; {mend}"
        )
    named = {_study_name(family, key): key for key in keys(family)}
    unused = NOT_THE_NETWORK | ({"hidden_layers"} if family == "fc" else set())
    for name in document:
        if name not in named and name not in unused:
            raise NetworkError(
                f"generate:{family}?config= has the key {shortened(name)!r}; {_expected(name, named)}"
            )
    return {key: document[name] for name, key in named.items() if name in document}


# ---- The network, layer by layer as the study built its own.


def build(config: Config, weights: bool = False) -> Any:
    """The Keras model of a configuration; `weights` asks for random weights, so that it can run."""
    from lolat.readers.keras import import_keras
    from lolat.readers.keras.calls import without_weights

    keras = import_keras()
    with contextlib.nullcontext() if weights else without_weights():
        layers, image = keras.layers, keras.Input(config.input, name="input")
        make: Any = {"vgg": _vgg, "resnet": _resnet, "inception": _inception, "fc": _fc}
        x = make[config.family](layers, image, config)
        for i, width in enumerate(() if isinstance(config, Fc) else config.hidden, start=1):
            x = layers.Dense(width, activation="relu", name=f"hidden{i}")(x)
        x = layers.Dense(config.output, activation="softmax", name="output")(x)
        return keras.Model(image, x, name=config.family)


def _fc(layers: Any, x: Any, config: Fc) -> Any:
    """Dense, dropout and normalization, repeated; dropout of the input first."""
    if config.input_dropout is not None:
        x = layers.Dropout(config.input_dropout, name="input_dropout")(x)
    for i, width in enumerate(config.layers, start=1):
        x = layers.Dense(width, activation="relu", name=f"hidden{i}_dense")(x)
        if config.dropout is not None:
            x = layers.Dropout(config.dropout, name=f"hidden{i}_dropout")(x)
        x = layers.BatchNormalization(name=f"hidden{i}_norm")(x)
    return x


def _convolution(layers: Any, x: Any, filters: int, kernel: int, name: str, **options: Any) -> Any:
    """A convolution with ReLU, then normalization: in this order in all families."""
    options = {"padding": "same", "activation": "relu", **options}
    x = layers.Conv2D(filters, kernel, name=f"{name}_conv", **options)(x)
    return layers.BatchNormalization(name=f"{name}_norm")(x)


def _vgg(layers: Any, x: Any, config: Vgg) -> Any:
    """Stages of convolutions, flattened."""
    for i, (count, filters) in enumerate(zip(config.layers, config.filters, strict=True), start=1):
        for j in range(1, count + 1):
            x = _convolution(layers, x, filters, 3, f"stage{i}_layer{j}")
        x = layers.MaxPooling2D(2, name=f"stage{i}_pool")(x)
    return layers.Flatten(name="flatten")(x)


def _resnet(layers: Any, x: Any, config: ResNet) -> Any:
    """The stem and four stages, averaged; the first block of a stage has a convolution as its shortcut."""
    x = _convolution(layers, x, 64, 7, "stem", strides=2)
    x = layers.MaxPooling2D(3, strides=2, name="stem_pool")(x)
    for i, count in enumerate(config.layers, start=1):
        for j in range(1, count + 1 + config.small):
            shortcut = (1 if i == 1 else 2) if j == 1 else None
            x = _residual(layers, x, 32 << i, shortcut, config.small, f"stage{i}_block{j}")
    return layers.GlobalAveragePooling2D(name="average")(x)


def _residual(
    layers: Any, x: Any, filters: int, shortcut: int | None, small: bool, name: str
) -> Any:
    """A residual block; `shortcut`: the stride of its first convolution and its shortcut's, None for x."""
    stride, wide = shortcut or 1, filters if small else 4 * filters
    if small:
        inner = _convolution(layers, x, filters, 3, f"{name}_1", strides=stride)
        inner = _convolution(layers, inner, filters, 3, f"{name}_2")
    else:
        inner = _convolution(layers, x, filters, 1, f"{name}_1", strides=stride)
        inner = _convolution(layers, inner, filters, 3, f"{name}_2")
        inner = _convolution(layers, inner, wide, 1, f"{name}_3", activation=None)
    if shortcut is not None:
        x = _convolution(layers, x, wide, 1, f"{name}_shortcut", activation=None, strides=stride)
    x = layers.Add(name=f"{name}_add")([x, inner])
    return layers.ReLU(name=f"{name}_out")(x)


def _inception(layers: Any, x: Any, config: Inception) -> Any:
    """The stem and stages of blocks with four branches, flattened."""
    x = _convolution(layers, x, 64, 7, "stem_1", strides=2, padding="valid")
    x = layers.MaxPooling2D(3, strides=2, padding="same", name="stem_1_pool")(x)
    x = _convolution(layers, x, 128, 1, "stem_2")
    x = _convolution(layers, x, 192, 3, "stem_3")
    x = layers.MaxPooling2D(3, strides=2, padding="same", name="stem_3_pool")(x)
    for i, count in enumerate(config.layers):
        for j in range(count):
            name = f"stage{i + 1}_block{j + 1}"
            one = _convolution(layers, x, config.f1[i][j], 1, f"{name}_1x1")
            three = _convolution(layers, x, config.f2_in[i][j], 1, f"{name}_3x3_in")
            three = _convolution(layers, three, config.f2_out[i][j], 3, f"{name}_3x3_out")
            five = _convolution(layers, x, config.f3_in[i][j], 1, f"{name}_5x5_in")
            five = _convolution(layers, five, config.f3_out[i][j], 5, f"{name}_5x5_out")
            pooled = layers.MaxPooling2D(3, strides=1, padding="same", name=f"{name}_pool")(x)
            pooled = _convolution(layers, pooled, config.f4_out[i][j], 1, f"{name}_pool_1x1")
            x = layers.Concatenate(name=f"{name}_concat")([one, three, five, pooled])
        x = layers.MaxPooling2D(3, strides=2, padding="same", name=f"stage{i + 1}_pool")(x)
    return layers.Flatten(name="flatten")(x)
