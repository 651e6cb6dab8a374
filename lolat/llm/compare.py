"""One language model on several GPUs: the best row of each, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lolat.errors import AnswerIsNo, InputError, ModelFileError
from lolat.io.results import Result
from lolat.llm.answer import LanguageModel, ServedModel
from lolat.llm.names import find_decoder
from lolat.units import by_text, plural

OF_THE_GPU = ("dtype", "not-timed")
"""Errors for which a GPU is left out among several."""


@dataclass(frozen=True, repr=False)
class ComparedModels(Result):
    """A language model by several model files, with the same number of users. `answers`: of each name the
    best row, within the limits where there are any; `cheapest`, `fastest`: of these, by dollars a million
    tokens and by time per output token; `left_out`: why others cannot answer.
    """

    of: Mapping[str, LanguageModel]
    """The whole answers."""
    left_out: Mapping[str, str]
    KEYS = ("answers", "cheapest", "fastest", "left_out", "warnings")

    @property
    def answers(self) -> dict[str, ServedModel]:
        """The row of each."""
        return {name: answer.compared for name, answer in self.of.items() if answer.compared}

    @property
    def cheapest(self) -> str | None:
        """None where none has a price."""
        prices = {n: r.dollars_per_million for n, r in self.answers.items()}
        known = {name: price for name, price in prices.items() if price is not None}
        return min(known, key=known.__getitem__, default=None)

    @property
    def fastest(self) -> str | None:
        """None where there is no answer."""
        times = {name: row.tpot_ms or 0.0 for name, row in self.answers.items()}
        return min(times, key=times.__getitem__, default=None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Each once, with the names that it is of in front."""
        told = ((name, remark) for name, answer in self.of.items() for remark in answer.warnings)
        return tuple(f"{', '.join(of)}: {remark}" for remark, of in by_text(told).items())

    def words(self) -> str:
        """How many, and the fastest."""
        return f"{plural(len(self.answers), 'answer')}; the fastest: {self.fastest}"


def _loads(answer: LanguageModel) -> set[int]:
    """Numbers of users that fit and keep the limits."""
    return {row.concurrency for row in answer.served if row.fits and row.within is not False}


def _load(found: Mapping[str, LanguageModel]) -> tuple[int, list[str]]:
    """(users of whom the most models can serve so many, the most users of these; the other models)."""
    each = {name: _loads(answer) for name, answer in found.items()}
    every = set[int]().union(*each.values())
    users = max(every, key=lambda n: (sum(n in loads for loads in each.values()), n))
    return users, [name for name, loads in each.items() if users not in loads]


def compare(
    devices: Mapping[str, Callable[..., LanguageModel]], config: Any, **question: Any
) -> ComparedModels:
    """Ask each of `devices`, by name: its `Model.llm`, which `question` is for.

    AnswerIsNo where none keeps the limits, or holds the model; InputError where none knows it.
    """
    decoder = find_decoder(config)
    found: dict[str, LanguageModel] = {}
    errors: dict[str, AnswerIsNo | InputError] = {}
    for name, ask in devices.items():
        try:
            answer = ask(decoder, **question)
        except (AnswerIsNo, ModelFileError) as error:
            errors[name] = error
            continue
        except InputError as error:
            if error.code not in OF_THE_GPU:
                raise
            errors[name] = error
            continue
        if answer.compared is None:
            errors[name] = AnswerIsNo(f"{answer.words()}; {answer.warnings[0]}")
            continue
        found[name] = answer
    if found:
        users, without = _load(found)
        question |= {"concurrency": users}  # beside each other are as many users
        for name in without:
            held = max(_loads(found.pop(name)))
            errors[name] = AnswerIsNo(
                f"{plural(held, 'user')} at most, not {users:,} as the others"
            )
    for name in found:
        answer = devices[name](decoder, **question)
        if row := answer.compared:
            # The remarks are to be of this row alone.
            alone = {"concurrency": row.concurrency, "tensor_parallel": row.tensor_parallel}
            found[name] = devices[name](decoder, **question | alone)
    made = ComparedModels(found, {name: str(error) for name, error in errors.items()})
    if not found:
        why = "; ".join(f"{name}: {error.message}" for name, error in errors.items())
        no = any(isinstance(error, AnswerIsNo) for error in errors.values())
        raise AnswerIsNo(why, made.to_dict()) if no else InputError(why, code="no-device")
    return made
