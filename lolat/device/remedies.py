"""Remedies for a profile that lacks something: another profile that has it, or the command that adds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from shlex import quote
from typing import Any

from msgspec.structs import replace

from lolat.device.file import (
    MODEL_PARTS,
    OF_INFERENCE,
    OF_LANGUAGE_MODELS,
    OF_TRAINING,
    DeviceFile,
    readable_models,
)
from lolat.device.summary import FRAMEWORK_TITLES
from lolat.errors import ModelFileError
from lolat.hardware.card_names import card_of, device_name, find_gpu
from lolat.hardware.environment_section import ANY_GPU, Environment
from lolat.io.paths import SHIPPED, bundled_folder
from lolat.parameters import BACKENDS, TRAINING_BACKENDS
from lolat.units import plural

KIND = ("vendor", "family", "model")
"""The numbers that identify a kind of processor; names do not, as a cloud gives many kinds the same
name."""


def lacking_error(file: DeviceFile, source: str, section: str) -> ModelFileError:
    """The error for a file without a section: one of MODEL_PARTS, or the search space named `section`."""
    known = " and ".join(file.knows) or "nothing yet"
    lacking = section if section in MODEL_PARTS else f"networks of {section}"
    others = "`lolat models` lists those that do"
    if section in MODEL_PARTS and file.llm is not None and (card := card_of(file.product)):
        others = f"for networks ask `{card.casefold().replace(' ', '-')}`"
    elif section == OF_LANGUAGE_MODELS and (names := _for_language_models(file)):
        others = f"for language models ask {' or '.join(f'`{name}`' for name in names)}"
    else:
        others += f"; or add them with {how_to_add(file, source, section)}"
    shown = Path(source).stem if _is_shipped(source) else source
    return ModelFileError(f"{shown} knows {known}, but no {lacking}; {others}")


def _for_language_models(file: DeviceFile) -> list[str]:
    """Names of this card's profiles that know language models, or else the name of its data sheet."""
    card, sheet = card_of(file.product), find_gpu(file.product)
    others = [(name, other) for name, _, _, other in readable_models() if other.llm is not None]
    found = [name for name, other in others if card_of(other.product) == card]
    return found or ([device_name(sheet)] if sheet and sheet.bf16 else [])


def _is_shipped(source: str) -> bool:
    """True for the path of a bundled profile, which is never written to."""
    return Path(source).resolve().parent == bundled_folder().resolve()


def how_to_add(file: DeviceFile, source: str, section: str) -> str:
    """The commands that add a missing section to a file."""
    path, where = Path(source), file.environment
    output = quote(path.name if _is_shipped(source) else source)
    if section == OF_LANGUAGE_MODELS:
        return (
            f"`lolat fit KERNELS.csv --facts devices.csv --device NAME --output {output}`, from what "
            "examples/time_operations.py writes"
        )
    if section not in (OF_INFERENCE, OF_TRAINING):
        return f"`lolat nas fit {section} SAMPLES.csv --output {output}`"
    if file.gpu:
        where = replace(where, device=ANY_GPU)
    if section == OF_TRAINING and (where.framework or BACKENDS[0]) not in TRAINING_BACKENDS:
        learn = where.learn_command(" or ".join(TRAINING_BACKENDS))
        return f"`{learn} --mode training`: {where.framework} does not train"
    mode = " --mode training" if section == OF_TRAINING else ""
    table = "EPOCHS.csv" if section == OF_TRAINING else "TABLE.csv"
    learn = f"`{where.learn_command()}{mode} --output {output}` on the device"
    return f"{learn}, or `lolat fit {table} --output {output}`"


def other_runtimes(file: DeviceFile, source: str) -> list[tuple[Path, DeviceFile]]:
    """(path, file) of each profile of the same processor and number of threads, with another framework.

    Only profiles in the folder of `source` count: a user's own machine is not compared with a bundled one.
    """
    own = file.environment
    return [
        (path, other)
        for path, other in _of_processor(own.processor or {})
        if path.parent == Path(source).parent and other.environment.threads == own.threads
        if other.environment.framework != own.framework and other.has_latencies
    ]


def _of_processor(
    processor: Mapping[str, Any], of_origin: str | None = None
) -> Iterator[tuple[Path, DeviceFile]]:
    """Yield (path, file) of each profile of a kind of processor (KIND); none if the kind is unknown.

    `of_origin`: the origin of the files; None for any.
    """
    kind = [processor.get(name) for name in KIND]
    for _, path, origin, file in () if None in kind else readable_models():
        its = file.environment.processor or {}
        if of_origin in (None, origin) and [its.get(name) for name in KIND] == kind:
            yield path, file


def bundled_of(processor: Mapping[str, Any], framework: str | None = None) -> str:
    """A clause on the bundled profiles of a processor, preferably with a framework; "" if there are none.

    `processor`: its KIND, as stored in the environment of a profile.
    """
    found = [(path.stem, file.environment) for path, file in _of_processor(processor, SHIPPED)]
    return _bundled([one for one in found if one[1].framework == framework] or found)


def bundled_twin(file: DeviceFile, source: str) -> str:
    """A clause that names the bundled profile learned in the same way as a file; "" if there is none.

    The bundled profile has the same KIND of processor, threads and options. `source`: the path of `file`.
    """
    own = file.environment
    return _bundled(
        [
            (path.stem, other.environment)
            for path, other in _of_processor(own.processor or {}, SHIPPED)
            if _run_of(other.environment) == _run_of(own)
            and path.resolve() != Path(source).resolve()
        ]
    )


_run_of = attrgetter("framework", "threads", "jit", "compile", "channels_last", "half")


def _bundled(found: Sequence[tuple[str, Environment]]) -> str:
    if not found:
        return ""
    told = ", ".join(
        f"{name} ({FRAMEWORK_TITLES[where.framework or '']}, {plural(where.threads or 1, 'thread')})"
        for name, where in found
    )
    return f"bundled for this very processor: {told}; ask `lolat predict {found[0][0]} NETWORK`"
