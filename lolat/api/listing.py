"""Lists the profiles that can be loaded by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lolat.api.loading import load
from lolat.device.file import read
from lolat.device.summary import mode_words
from lolat.errors import ModelFileError
from lolat.hardware.card_names import device_names
from lolat.io.paths import list_models
from lolat.io.results import Result
from lolat.units import plain


@dataclass(frozen=True)
class ListedModel:
    """A profile that can be loaded by name.

    `answers_for`: its kinds of answers ("networks", ...); `runs`: precision, framework and launch of its
    networks and the name of a CPU, or framework and data types of its language models; `batch_sizes`: the
    smallest and the largest batch size of its table; `error`: its median error on data held out of the fit.
    These are None if the file does not say. `problem`: the reason why the file cannot be read, or None.
    """

    name: str
    file: str
    origin: str
    device: str | None = None
    answers_for: tuple[str, ...] = ()
    runs: str | None = None
    batch_sizes: tuple[int, int] | None = None
    error: float | None = None
    problem: str | None = None


@dataclass(frozen=True, repr=False)
class Models(Result):
    """The profiles that can be loaded by name, local profiles first, and the known language models.

    `data_sheets`: names of GPUs with a bundled data sheet; each of them is a device too.
    """

    models: tuple[ListedModel, ...]
    language_models: tuple[str, ...] = ()
    data_sheets: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[ListedModel]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)

    def words(self) -> str:
        """The names of the profiles."""
        return f"{len(self)} models: {', '.join(plain(m.name) for m in self)}"


def models() -> Models:
    """List the profiles that `load` takes by name: learned here or bundled.

    Returns `Models`, which can be iterated. Raises InputError if the folder of profiles cannot be read.
    """
    from lolat.llm.names import published

    listed = tuple(_listed(*place) for place in list_models())
    return Models(listed, tuple(sorted(published())), device_names())


def _listed(name: str, path: Path, origin: str) -> ListedModel:
    try:
        file = read(path)
        runs = error = None
        if file.llm is not None:
            from lolat.llm.gpu import dtypes_of

            section = file.llm
            dtypes = ", ".join(dtypes_of(section["operations"]))
            runs = f"{section['framework']}: {dtypes}" if dtypes else section["framework"]
        if file.has_latencies:
            runs = mode_words(file) + (f", on {file.product}" if file.is_cpu else "")
            error = file.errors(file.default).get("median")
            if carried := load(str(path)).file.other_form:
                runs += f", as {carried.topic}"
        about = file.device, file.answers_for, runs, file.batch_sizes, error
        return ListedModel(name, str(path), origin, *about)
    except ModelFileError as error:
        return ListedModel(name, str(path), origin, problem=str(error))
