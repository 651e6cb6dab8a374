"""The question of `fit`: files, each with its content, and what a table of data sheets can answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lolat.api.loading import load
from lolat.errors import InputError, arg
from lolat.fitting.reading import Contents
from lolat.hardware.specs import PLAUSIBLE
from lolat.io.paths import AnyPath
from lolat.io.progress import OnProgress, Warn
from lolat.io.tables import read_table
from lolat.parameters import PARAMETERS, check_given
from lolat.tables.blocks import read_points
from lolat.tables.contents import BLOCKS, MODEL, NETWORKS, Content
from lolat.units import plain

NOT_TOGETHER = "not-together"
"""Error code for files that cannot be fitted together."""
LANGUAGE = "language models"
TOGETHER = (
    f"expected tables of operations and networks, where known with {arg('facts')} and {arg('name')}; or "
    "these two alone; or a profile, alone or with tables of networks, of served models or of training "
    "runs; or one table of blocks; or one table of epochs"
)


@dataclass(frozen=True)
class FitQuestion:
    """The arguments of `fit`: files, each with its content, and the other arguments."""

    contents: Contents
    output: AnyPath | None
    name: str | None
    facts: str | None
    framework: str | None
    tensor_parallel: tuple[int, ...]
    served_model: str | None
    on_progress: OnProgress | None
    warn: Warn

    def __post_init__(self) -> None:
        for gpus in self.tensor_parallel:
            check_given(tensor_parallel=gpus)
        if self.framework is not None:
            object.__setattr__(self, "framework", PARAMETERS["framework"].choice(self.framework))

    @property
    def kinds(self) -> list[Content]:
        """The contents of the files."""
        return [content for _, content in self.contents]

    def paths(self, kind: Content) -> list[str]:
        """The paths of the files with a given content."""
        return [path for path, content in self.contents if content == kind]

    @property
    def stem(self) -> str:
        """The name of the profile."""
        return Path(self.output or "model").stem

    @cached_property
    def answers(self) -> tuple[str, ...]:
        """The kinds of questions that `facts` alone can answer; () beside tables and without `facts`."""
        return () if self.contents or self.facts is None else answered_by(self)

    def refused(self) -> InputError:
        """The error for files that cannot be fitted together; ModelFileError if a file is not a profile."""
        for path in self.paths(MODEL):
            load(path)
        for path in self.paths(BLOCKS):  # so is a table of other columns: they are named
            read_points(path)
        files = ", ".join(f"{path} ({content.name})" for path, content in self.contents)
        return InputError(
            f"{files or 'no file'} cannot be fitted like this; {TOGETHER}", code=NOT_TOGETHER
        )

    def unfitted(self) -> InputError:
        """The error for files that no kind of fit takes: `refused`, or that `facts` lacks a name."""
        if self.facts is None or self.name is not None:
            return self.refused()
        wanted = "expected the device's name in its column device too"
        return InputError(f"{arg('facts')} without {arg('name')}; {wanted}", code=NOT_TOGETHER)


def answered_by(asked: FitQuestion) -> tuple[str, ...]:
    """The kinds of questions that a table of data sheets can answer: networks, language models or both.

    Warns of missing columns of the other kind. A device with empty cells in the columns of language models
    serves none. InputError if columns of both kinds are missing.
    """
    from lolat.llm.operation_tables import SHEET

    facts, tell = asked.facts or "", asked.warn
    table, needed = read_table(facts), {NETWORKS.name: PLAUSIBLE, LANGUAGE: SHEET}
    columns, rows = table.names, [row for row in table if row.get("device") == asked.name]
    lacks = {what: [c for c in of if c not in columns] for what, of in needed.items()}
    answers = tuple(what for what, names in lacks.items() if not names)
    if len(answers) > 1 and (empty := [c for c in SHEET for row in rows if not row.get(c)]):
        lacks[LANGUAGE], answers = empty, (NETWORKS.name,)
    if not answers:
        each = "; ".join(f"for {what} {', '.join(names)}" for what, names in lacks.items())
        raise InputError(f"{plain(facts)} lacks columns: {each}", code="facts")
    if len(answers) == 1:
        (other,) = {*needed} - {*answers}
        tell(
            f"{plain(facts)}: no {', '.join(lacks[other])}: the file answers for {answers[0]}, and not for "
            f"{other}"
        )
    return answers
