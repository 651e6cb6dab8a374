"""The limits of `lolat predict`: with them it is a check, of a pull request for example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import lolat
from lolat.cli import common
from lolat.cli.parsing import Number
from lolat.errors import AnswerIsNo, InputError

if TYPE_CHECKING:
    from lolat.model.budget import Limits
    from lolat.model.prediction import Prediction


def coverage_of(sure: float | None, given: float | None) -> float | None:
    """Of the interval. InputError where --sure and --coverage say two things."""
    if sure is not None and given not in (None, sure):
        raise InputError(
            f"--sure and --coverage are two answers; give --sure {100 * given:g} alone"
        )
    return given if sure is None else sure


@dataclass(frozen=True)
class Limited:
    """The options of a check."""

    max_ms: float | None
    sure: float | None
    max_ratio: float | None
    against: str | None

    def limits(
        self,
        model: str,
        batch_size: int,
        predictor: str | None,
        input_size: tuple[int, ...],
        launch: str | None,
    ) -> Limits:
        """The limits; the model is for `--against` a network. InputError for wrong ones."""
        from lolat.model.budget import TOGETHER, Limits, before_of, is_prediction, read_before

        if (self.against is None) != (self.max_ratio is None):
            raise InputError(TOGETHER)
        before = None
        if self.against is not None and is_prediction(self.against):
            before = read_before(self.against)
        elif self.against is not None:
            asked = (self.against, batch_size, predictor)
            before = before_of(
                lolat.load(model).launched(launch).predict(*asked, input_size=input_size)
            )
        return Limits(self.max_ms, self.sure, self.max_ratio, before)

    def check(
        self, predictions: Sequence[Prediction], limits: Limits, devices: Sequence[str]
    ) -> None:
        """AnswerIsNo where a limit is not kept. `devices`: to be named."""
        from lolat.model.budget import exceeded

        if lines := exceeded(predictions, limits, devices):
            raise AnswerIsNo("; ".join(lines))


limit_options = common.as_one(
    "limited",
    lambda: Limited,
    common.max_ms_option(more="Exit code 3 where it takes longer."),
    common.sure_option,
    common.option("--max-ratio", type=Number("R", above=0.0, such="1.05"),
                  help="Exit code 3 where it takes more than R times as long as --against."),
    common.option("--against", metavar="BASE", help="What to compare with: a network, or what "
                  "`predict --json` wrote of the base branch."),
)  # fmt: skip
"""The options of a check, which the command gets as one `limited`."""
