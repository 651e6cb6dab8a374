"""Finds profiles of served language models: by name, by GPU, or all.

Here a GPU's name stands for its profiles of several serving frameworks; in `choosing`, which finds profiles
of networks, for its profiles in several execution modes. Both parse names with `profile_names`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from lolat.api.model import Model
from lolat.api.profile_names import ALL, card_named, instance_error, known_models, unknown_device
from lolat.api.sheets import model_of_sheet
from lolat.device.file import DeviceFile
from lolat.errors import ModelFileError
from lolat.hardware.card_names import (
    card_of,
    cards_meant,
    device_name,
    device_names,
    find_gpu,
    full_card,
    is_card,
    short_name,
)
from lolat.hardware.gpus import Gpu
from lolat.io.paths import list_models
from lolat.io.results import Remark
from lolat.llm.frameworks import DEFAULT_FRAMEWORK, FRAMEWORKS
from lolat.units import names_in, plain

SAME_SHEET = 0.05  # relative difference of two data sheets of one GPU
ONE_FORM = "which has one form of each card with a bundled profile; to add one"
NOT_ALL = f"not in `{ALL}`, {ONE_FORM}"


def serving_model(name: str, of_any: bool = False) -> Model:
    """The profile of language models for a name or a GPU ("l40s": l40s-vllm), labeled with `name`.

    A GPU without such a profile gets one from its data sheet. Any other profile is returned unchanged, even
    without language models. ModelFileError for an unknown name, and for a GPU with several serving
    frameworks, unless `of_any` is true (for training, which does not depend on the framework).
    """
    model = _profile_of(name, of_any)
    model.label = name
    return model


def _profile_of(name: str, of_any: bool) -> Model:
    """The profile that `serving_model` returns, before it is labeled."""
    model, unknown = None, None
    try:
        model = Model.load(name)
    except ModelFileError as error:
        unknown = error
    if model is not None and model.file.llm is not None:
        return model
    gpu = card_named(name)
    of_gpu = [n for n, file in known_models(name).items() if file.llm is not None]
    if gpu and not of_gpu and model is None:
        served = known_models().items()
        exact = [n for n, file in served if _serves(file, gpu)]
        meant = cards_meant(name)
        of_gpu = exact or [n for n, file in served if any(_serves(file, card) for card in meant)]
    of_gpu.sort(key=lambda n: not n.endswith(DEFAULT_FRAMEWORK))
    if len(of_gpu) > 1 and not of_any:
        several = f"by several frameworks: {', '.join(of_gpu)}; expected one of these"
        raise unknown_device(name, f"language models are served on it {several}", several=of_gpu)
    if of_gpu:
        return Model.load(of_gpu[0])
    if gpu and gpu.bf16:
        return model_of_sheet(name)
    if gpu:
        raise ModelFileError(
            f"{plain(name)}: language models are answered in bfloat16 or less, and {gpu.name} computes no "
            "bfloat16; expected a newer GPU",
            code="dtype", why="it computes no bfloat16, which language models are answered in",
        )  # fmt: skip
    if model is not None:
        return model
    card, _, framework = name.rpartition("-")
    if framework.casefold() in FRAMEWORKS and card_named(card):
        known = _profile_of(card, False)
        runs = known.file.served_on
        if runs is not None and runs.framework == framework.casefold():
            return known
        title = known.language_models.server.title
        hint = f"did you mean {plain(card)}? it is known with {title}"
        raise unknown_device(name, f"no such device; {hint}")
    from lolat.llm.names import is_decoder

    assert unknown is not None
    if is_decoder(name):
        raise unknown.reworded(f"{plain(name)}: a language model; the GPU comes first")
    raise instance_error(name, unknown)


def _serves(file: DeviceFile, gpu: Gpu) -> bool:
    """True if a profile serves language models on this GPU: same card, memory and bandwidth."""
    if (served := file.served_on) is None:
        return False
    sheet = served.sheet
    pairs = (sheet.memory_gib, gpu.memory_gib), (sheet.bandwidth_gb_s, gpu.bandwidth_gb_s)
    is_card_of = card_of(file.product) == card_of(gpu.name)
    return is_card_of and all(abs(its / (own or its) - 1.0) < SAME_SHEET for its, own in pairs)


class ServingModels(NamedTuple):
    """Profiles of language models by name, and the reasons why other GPUs have none."""

    models: dict[str, Model]
    left_out: dict[str, str]


def serving_models(text: str, of_any: bool = False) -> ServingModels:
    """The profiles of language models that a text names: a file, or names separated by commas.

    A GPU with several serving frameworks gives a profile of each. "all" gives every such profile, and for
    each other GPU with a profile of networks one from its data sheet; a Max-Q is replaced by its full card.
    With `of_any` (see `serving_model`) "all" gives one profile for each GPU. GPUs without bfloat16 are left
    out; if the text names only such a GPU, it is an error.
    """
    names, left_out = names_in(text), dict[str, str]()
    if ALL in names:
        given = [name for name in names if name != ALL]
        known = known_models()
        names = [name for name, file in known.items() if file.llm is not None]
        served = {card_of(known[name].product) for name in names}
        if of_any:
            names.sort(key=lambda n: n.endswith(DEFAULT_FRAMEWORK))  # the last one of a GPU stays
            names = sorted({known[n].product: n for n in names}.values())
        gpus = (full_card(gpu) for file in known.values() if (gpu := find_gpu(file.product)))
        new = (gpu for gpu in gpus if gpu.bf16 and card_of(gpu.name) not in served)
        names += [*sorted({device_name(gpu) for gpu in new}), *given]
        others = ((n, find_gpu(n)) for n in device_names() if n not in names)
        more = [
            n
            for n, gpu in others
            if gpu and gpu.bf16 and not any(_serves(d, gpu) for d in known.values())
        ]
        left_out |= dict.fromkeys(more, Remark(NOT_ALL, f"{ALL},{more[0]}"))
        damaged = [n for n, _, _ in list_models() if n not in known]
        left_out |= dict.fromkeys(damaged, "its file is damaged: `lolat models`")
    elif Path(text).exists() or not names:
        names = [text]
    found = dict[str, Model]()
    for name in names:
        try:
            found[name] = serving_model(name, of_any)
        except ModelFileError as error:
            if several := error.data.get("several"):
                found |= {one: serving_model(one) for one in several}
                continue
            if len(names) == 1 or error.code != "dtype":
                raise
            left_out[name] = error.data["why"]
    for name in [*found] if of_any and ALL in names_in(text) else ():
        if name not in names_in(text) and is_card(short_name(name)):
            found[name].label = short_name(name)
    return ServingModels(found, left_out)
