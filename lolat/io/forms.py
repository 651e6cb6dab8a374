"""The forms of the argument NETWORK: package and name, a file, or a function.

`lolat.readers` opens each form. Other packages only test whether a text has one of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lolat.errors import NetworkError
from lolat.units import did_you_mean, shortened, similar

BY_NAME = ("keras", "timm", "torchvision")
"""Packages with networks by name: `keras:ResNet50`."""
TRANSFORMERS = "transformers"
TORCH_PACKAGES = ("timm", "torchvision", TRANSFORMERS)
PACKAGES = ("keras", *TORCH_PACKAGES)
"""Packages that may stand in front of a colon; `transformers:` takes a configuration file or its folder."""
TAKEN_APART, REPARAMETERIZED, HALF_NORM = "eager", "reparameterized", "half_group_norm"
"""Forms after the `?` of a name: attention as single operations, merged branches (RepVGG), group norms in
half precision under autocast."""
KERAS_FILE, ONNX_FILE, GRAPH_FILE = ".keras", ".onnx", ".json"
FRAMEWORK_FILES = (KERAS_FILE, ONNX_FILE)
FILES = (*FRAMEWORK_FILES, GRAPH_FILE)
"""File name endings of networks; `lolat read` writes files with the last one."""
CODE_FILE = ".py"
FUNCTION = "package.module:callable or file.py:callable, which returns a Keras or PyTorch network"
EXPECTED_FILES = "a .keras or .onnx file, or what `lolat read` wrote (.json)"
EXPECTED = (
    "keras:NAME (such as keras:ResNet50), timm:NAME, torchvision:NAME, transformers:CONFIG.json, "
    f"{FUNCTION}, {EXPECTED_FILES}"
)
"""All forms of NETWORK, for messages."""


BARE = re.compile(r"[A-Za-z][\w-]*", re.ASCII)
"""Pattern of a network's name without its package."""
PUBLISHED = re.compile(r"([A-Za-z][\w-]*/)?[A-Za-z]([\w-]|\.(?=\d))*", re.ASCII)
"""Pattern of a name on Hugging Face, with or without its publisher."""
OTHER_FORMS = re.compile(
    r"(?:hf[-_]hub:)?(timm)/([\w.-]+)"
    r"|(torchvision)\.models\.(?:\w+\.)*(\w+)"
    r"|(?:tf\.|tensorflow\.)?(keras)\.applications\.(?:\w+\.)*(\w+)",
    re.ASCII,
)
"""Pattern of a network's package and name as Hugging Face and Python write them."""
CONFIGS = "https://huggingface.co/NAME/raw/main/config.json"
"""The address of the configuration of a network on Hugging Face."""


def is_function(spec: str) -> bool:
    """True for `package.module:attribute` and `file.py:attribute`, unless a file has that name."""
    module, colon, attribute = spec.rpartition(":")
    names = ("" if module.endswith(CODE_FILE) else f"{module}.") + attribute
    is_named = bool(colon) and module not in PACKAGES
    return is_named and all(map(str.isidentifier, names.split("."))) and not os.path.exists(spec)


def title_of(spec: Any, name: str) -> str:
    """The name of a network for a heading: "own.py:net" for a function in a file, else `name`."""
    if not isinstance(spec, (str, os.PathLike)):
        return name
    file, colon, function = os.fspath(spec).rpartition(":")
    is_own = colon and function == name and file not in PACKAGES
    return f"{os.path.basename(file)}:{name}" if is_own else name


def is_file(spec: str, endings: str | tuple[str, ...] = FILES) -> bool:
    """True if NETWORK has the ending of a network's file, ignoring case."""
    return spec.lower().endswith(endings)


def looks_like_network(name: str) -> bool:
    """True if a text can only be a network: `keras:ResNet50`, `net.onnx`, `net.py:function`.

    False for cuda:0, PyTorch's name of a device.
    """
    _, colon, last = name.removeprefix(os.path.splitdrive(name)[0]).rpartition(":")
    return (bool(colon) and not last.isdecimal()) or name.endswith((*FRAMEWORK_FILES, CODE_FILE))


def config_name(path: str | os.PathLike[str]) -> str:
    """The name of a configuration's network: the folder's name for a config.json, else the file's name."""
    file = Path(path, "config.json") if os.path.isdir(path) else Path(path)
    return file.absolute().parent.name if file.name == "config.json" else file.stem


OTHER_FILES = {
    (".h5", ".hdf5"): "is of a format that is not read; load it with Keras and save it as .keras",
    (".pt", ".pth", ".pt2", ".bin", ".ckpt", ".safetensors"):
        "holds weights or a pickle, not layers that can be read without its code; give a function that "
        "returns the PyTorch module, file.py:callable, or export it to ONNX",
    (".tflite", ".pb"): "is of a format that is not read; export it to ONNX",
}  # fmt: skip
"""Endings of network files that no reader takes -> the reason, and how to convert them."""


def _by_commas(spec: str) -> NetworkError | None:
    """The error for several networks separated by commas; None for any other text."""
    parts = [part.strip() for part in spec.split(",")]
    if len(parts) < 2 or not all(map(looks_like_network, parts)):
        return None
    words = f"{len(parts)} networks with commas between them; expected spaces: {' '.join(parts)}"
    return NetworkError(f"{shortened(spec)}: {words}", code="unknown-network", network=spec)


def not_a_network(spec: str, named: Iterable[str] = ()) -> NetworkError:
    """The error for a text that is not a NETWORK, or a missing file; `named`: networks of this name."""
    if several := _by_commas(spec):
        return several
    shown = shortened(spec)
    if is_file(spec):
        words = f"no file {shown!r}; give the path of {EXPECTED_FILES}"
    elif ways := [way for endings, way in OTHER_FILES.items() if is_file(spec, endings)]:
        words = f"{shown!r} {ways[0]}"
    else:
        meant = f"expected {EXPECTED}"
        if known := " or ".join(named):
            meant = f"did you mean {known}?"
        elif other := OTHER_FORMS.fullmatch(spec):
            meant = f"did you mean {':'.join(filter(None, other.groups()))}?"
        elif PUBLISHED.fullmatch(spec):
            # Names of timm and torchvision have no hyphens.
            package = (
                "if timm or torchvision has it, write its package in front "
                f"(timm:{shown}, torchvision:{shown}); "
            )
            package *= not {*"-/."} & {*spec}
            meant = (
                f"{package}of a network of Hugging Face give the file of its configuration, "
                f"transformers:config.json ({CONFIGS.replace('NAME', shown)}); {meant}"
            )
        words = f"no network {shown!r}: {meant}"
    return NetworkError(words, code="unknown-network", network=spec)


def unknown_network(spec: str, names: Iterable[str], listing: str) -> NetworkError:
    """The error for a name that its package lacks; `listing`: the code or page that lists all `names`."""
    if several := _by_commas(spec):
        return several
    package, _, name = spec.partition(":")
    near = {known.lower(): f"{package}:{known}" for known in names}
    bare = name.lower().rpartition("/")[2]
    hint = did_you_mean(bare, near, f"{listing} lists its {len(near)} networks")
    # vit_b16 is short for vit_base_patch16_224.
    short = re.compile(".*".join(re.findall("[a-z]+|[0-9]+", bare)))
    able = (n for n in near if short.match(n))
    longer = sorted(able, key=lambda n: (not n.startswith(bare), len(n)))
    if longer and not similar(bare, near, 1):
        hint = f"did you mean {' or '.join(near[n] for n in longer[:3])}?"
    return NetworkError(
        f"no network {shortened(spec)!r}; {hint}", code="unknown-network", network=spec
    )
