"""PyTorch networks by name: timm's, torchvision's, and what a transformers configuration describes.

Weights are never downloaded. Unless a network is to run, they have a shape but no memory.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

from lolat.errors import MissingPackageError, NetworkError
from lolat.readers import did_you_mean
from lolat.readers.torch import import_torch
from lolat.units import one_line, shortened

DECODERS = "AutoModelForCausalLM"
ENCODERS = "AutoModelForSequenceClassification"
ENCODER_TYPES = frozenset(
    ["bert", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert", "rembert",
     "roberta", "roformer", "xlm-roberta"]
)  # fmt: skip
"""Of networks that transformers also has as decoders."""


def named(spec: str, size: tuple[int, ...], weights: bool) -> tuple[Any, str]:
    """(network, or a pair of it and its inputs; name) of `timm:`, `torchvision:` or `transformers:`.

    Raises MissingPackageError where the package is not there, NetworkError where it has no such network.
    """
    package, _, name = spec.partition(":")
    if package == "timm":
        return _timm(name, size, weights), name
    if package == "torchvision":
        return _torchvision(name, weights), name
    path, _, head = name.partition("?")
    return _transformers(path, head, size, weights), os.path.splitext(os.path.basename(path))[0]


def _built(spec: str, make: Callable[[], Any], weights: bool) -> Any:
    """What `make` returns, built quietly; NetworkError with the package's reason where it fails."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            return make() if weights else without_weights(make)
    except Exception as error:  # whatever a package raises for a network that it cannot build
        raise NetworkError(f"{shortened(spec)} cannot be built: {one_line(error)}") from error


REPARAMETERIZED = "reparameterized"


def _timm(name: str, size: tuple[int, ...], weights: bool) -> Any:
    """A network of timm; behind `?reparameterized` with the branches of RepVGG and its like made one, as
    timm's own benchmarks run them.
    """
    timm = _package("timm")
    name, _, form = name.partition("?")
    architecture = name.partition(".")[0]
    if not timm.is_model(architecture):  # names of before are known too
        raise _unknown("timm", name, timm.list_models())
    if form not in ("", REPARAMETERIZED):
        raise NetworkError(
            f"timm:{shortened(name)} has no form {form[:40]!r}; the one that there is: ?{REPARAMETERIZED}"
        )
    config = timm.get_pretrained_cfg(architecture)
    # A network with position embeddings is built for one size; others take any.
    fixed = bool(size) and config is not None and config.fixed_input_size
    given = {"img_size": (size[-1], size[-1]) if len(size) == 1 else size[-2:]} if fixed else {}

    def make() -> Any:
        model = timm.create_model(architecture, pretrained=False, **given)
        if form == REPARAMETERIZED:
            importlib.import_module("timm.utils").reparameterize_model(model, inplace=True)
        return model

    return _built(f"timm:{name}", make, weights)


def _torchvision(name: str, weights: bool) -> Any:
    models = _package("torchvision.models")
    names = models.list_models()
    if name.lower() not in names:
        raise _unknown("torchvision", name, names)
    spec = f"torchvision:{name}"
    builder = models.get_model_builder(name.lower())
    given = {w: None for w in signature(builder).parameters if w.startswith("weights")}
    model = _built(spec, lambda: builder(**given), weights)
    if not hasattr(model, "default_cfg"):
        side = 299 if name.lower() == "inception_v3" else 224
        model.default_cfg = {"input_size": (3, side, side)}  # where torchvision's docs have it
    return model


def _transformers(path: str, head: str, size: tuple[int, ...], weights: bool) -> Any:
    """(network, inputs) of a configuration file: an encoder with a classification head, a decoder with its
    language head, or `?HEAD` after the file's name, such as `?AutoModelForMaskedLM`.

    Attention is eager: the operations that it consists of.
    """
    shown = f"transformers:{path}"
    config = _config(path)
    transformers = _package("transformers")
    try:
        kind = config.pop("model_type", "")
        made = transformers.AutoConfig.for_model(kind, **config)
    except Exception as error:
        raise NetworkError(
            f"{shortened(shown)}: {one_line(error)}; expected the config.json of a network that the "
            'installed transformers knows, with "model_type"'
        ) from error
    made._attn_implementation = "eager"
    made.use_cache = False
    mapping = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    # An encoder, where a network can be both, looks at a text from both sides.
    encodes = not getattr(made, "is_decoder", False) and made.model_type in ENCODER_TYPES
    decodes = made.model_type in mapping and not encodes
    chosen = head or (DECODERS if decodes else ENCODERS)
    auto = getattr(transformers, chosen, None)
    if auto is None or not hasattr(auto, "from_config"):
        raise NetworkError(
            f"{shortened(shown)}: transformers has no {chosen!r}; expected a head such as {ENCODERS}, "
            f"{DECODERS} or AutoModelForPreTraining"
        )
    length = size[0] if size else min(int(getattr(made, "max_position_embeddings", 512)), 512)
    model = _built(shown, lambda: auto.from_config(made), weights)
    torch = import_torch()
    return model, {"input_ids": torch.zeros((1, length), dtype=torch.int64)}


def _config(path: str) -> dict[str, Any]:
    """The configuration in a file; NetworkError says what it holds instead and what is expected."""
    expected = "expected the config.json of a network of the package transformers"
    try:
        with open(path, encoding="utf-8") as file:
            config: Any = json.load(file)
    except OSError as error:
        raise NetworkError(
            f"cannot read {shortened(path)!r}: {error.strerror}; {expected}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise NetworkError(f"{shortened(path)!r} is not JSON; {expected}") from error
    if not isinstance(config, dict):
        raise NetworkError(f"{shortened(path)!r} holds no JSON object; {expected}")
    if "model_type" in config:
        return config
    # Without it, as the name of its first architecture begins.
    names = config.get("architectures")
    first = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    heads = "LMHeadModel|ForCausalLM|ForMaskedLM|ForSequenceClassification|Model"
    begins = re.fullmatch(rf"(.+?)(?:{heads})", first)
    if begins is None:
        raise NetworkError(
            f'{shortened(path)!r} does not say what it is of: expected "model_type", such as "bert"'
        )
    return {**config, "model_type": begins[1].lower()}


def _unknown(package: str, name: str, names: list[str]) -> NetworkError:
    module = "timm" if package == "timm" else "torchvision.models"
    others = f"{module}.list_models() lists its {len(names)} networks"
    hint = did_you_mean(name.lower(), {n: f"{package}:{n}" for n in names}, others)
    spec = f"{package}:{name}"
    said = f"no network {shortened(spec)!r}; {hint}"
    return NetworkError(said, code="unknown-network", network=spec)


def _package(name: str) -> Any:
    """A package, imported quietly; MissingPackageError with the line that installs it."""
    import_torch()
    top = name.partition(".")[0]
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            _load_torchvision()
            return importlib.import_module(name)
    except Exception as error:  # whatever a package raises while it is imported
        missing = isinstance(error, ModuleNotFoundError)
        lacking = str(getattr(error, "name", None) or top).partition(".")[0]
        raise MissingPackageError(
            f"the package {lacking} {'is not installed' if missing else 'does not load'} "
            f"({one_line(error)}), which {top}:NAME needs; install it with: pip install {lacking}"
        ) from error


def _load_torchvision() -> None:
    """torchvision, also of another build than PyTorch, whose compiled part does not load.

    timm and transformers import it. The operators that it asks for meanwhile are of no use to a network.
    """
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:  # the package that needs it will say so
        return
    except RuntimeError:
        for name in ("nms", "qnms"):
            with contextlib.suppress(RuntimeError):  # it is there already
                import_torch().library.define(f"torchvision::{name}", "(Tensor x) -> Tensor")


# ---- A network without its weights.

SMALL = 4096  # elements of a parameter that is filled all the same: code may look at a few numbers
_RANDOM = frozenset(["normal_", "uniform_"])


def without_weights(make: Callable[[], Any]) -> Any:
    """What a function that makes a network returns, its weights of a shape that nothing has filled.

    Drawing weights at random takes longer than all else, and memory that is not touched is none. Unlike
    fake tensors, these let code look at the values of small ones, and be copied; those are for a network
    that is larger than the addresses that there are.
    """
    try:
        with _unfilled(), _undrawn():
            return make()
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        return make()


def _unfilled() -> Any:
    """While it lasts, what changes a large parameter in place, or fills any tensor at random, does not."""
    torch = import_torch()

    mode: Any = torch.overrides.TorchFunctionMode

    class Unfilled(mode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            name = getattr(func, "__name__", "")
            if name.endswith("_") and not name.startswith("_") and name != "requires_grad_":
                changed = args[0] if args else kwargs.get("tensor")  # torch.nn.init's name for it
                kinds = torch.Tensor if name in _RANDOM else torch.nn.Parameter
                if isinstance(changed, kinds) and changed.numel() > SMALL:
                    return changed
            return func(*args, **kwargs)

    return Unfilled()


@contextlib.contextmanager
def _undrawn() -> Iterator[None]:
    """While it lasts, `torch.nn.init.trunc_normal_` leaves large tensors as they are.

    In PyTorch 2.13 it draws until all values lie between its bounds; where nothing fills them, that is
    what happened to lie in memory, for ever.
    """
    init: Any = import_torch().nn.init
    inner = "_no_grad_trunc_normal_"  # behind the name that others have imported
    drawn = getattr(init, inner, None)
    if drawn is None:
        yield
        return

    def undrawn(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return tensor if tensor.numel() > SMALL else drawn(tensor, *args, **kwargs)

    setattr(init, inner, undrawn)
    try:
        yield
    finally:
        setattr(init, inner, drawn)
