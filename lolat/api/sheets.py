"""Makes a profile of a GPU from its data sheet, for networks and for language models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from lolat.api.model import Model
from lolat.device.file import readable_models
from lolat.hardware.card_names import find_gpu
from lolat.io.progress import Warn, nobody

if TYPE_CHECKING:
    from lolat.llm.gpu import ServingSection, Sheet


def model_of_sheet(name: str) -> Model:
    """A profile of a GPU from its bundled data sheet only; InputError for an incomplete sheet."""
    from lolat.fitting.reading import device_document
    from lolat.hardware.specs import listed_specs

    document = device_document((), name, name, listed_specs(name), None, nobody)
    return Model(document | section_of_sheet(name), name)


def section(
    sheet: Sheet,
    framework: str | None,
    kernels: Sequence[str],
    stem: str,
    warn: Warn,
    device: str = "",
) -> ServingSection:
    """The section on language models from a data sheet and from tables of operations, `kernels`.

    `device`: the device whose rows count, in tables of several. Without `framework`, it is taken from the
    tables' names or from `stem`, the profile's name.
    """
    from lolat.llm.fit import section_from
    from lolat.llm.frameworks import framework_in
    from lolat.llm.gpu import section_of
    from lolat.llm.operation_tables import read_operations

    framework = framework or framework_in(" ".join([*kernels, stem]))
    timed = read_operations(*kernels, devices=[device] if device else (), warn=warn, sheet=sheet)
    others = {n: section_of(f.llm, str(p)) for n, p, _, f in readable_models() if f.llm is not None}
    return section_from(sheet, framework, timed, others)


def section_of_sheet(
    name: str, facts: str | None = None, framework: str | None = None, stem: str = "", warn: Warn = nobody
) -> dict[str, Any]:  # fmt: skip
    """The section on language models from a data sheet only: from the table `facts`, or the bundled sheet.

    {} if the sheet has too few columns.
    """
    from lolat.hardware.links import PEAKS
    from lolat.llm.gpu import sheet_of
    from lolat.llm.operation_tables import read_sheet

    gpu = find_gpu(name)
    sheet = None if gpu is None else sheet_of(gpu, PEAKS.get(gpu.link))
    if facts is not None:
        sheet = read_sheet(facts, name)
    if sheet is None:
        return {}
    return {"llm": msgspec.to_builtins(section(sheet, framework, (), stem, warn))}
