"""The limits of `lolat predict`: with them it is a check, of a pull request for example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

import lolat
from lolat.cli import common
from lolat.cli.parsing import Number
from lolat.errors import AnswerIsNo, InputError

if TYPE_CHECKING:
    from lolat.model.check import Limits
    from lolat.model.prediction import Prediction


@dataclass(frozen=True)
class Limited:
    """The options of a check."""

    max_ms: float | None
    sure: float | None
    max_ratio: float | None
    against: str | None
    github: bool
    junit: str | None

    def coverage(self, given: float | None) -> float | None:
        """Of the interval. InputError where --sure and --coverage say two things."""
        if self.sure is not None and given not in (None, self.sure):
            raise InputError(
                f"--sure and --coverage are two answers; give --sure {100 * self.sure:g} alone"
            )
        return given if self.sure is None else self.sure

    def limits(
        self, model: str, batch_size: int, predictor: str | None, input_size: tuple[int, ...]
    ) -> Limits:
        """The limits; the model is for `--against` a network. InputError for wrong ones."""
        from lolat.model.check import Limits, before_of, is_prediction, read_before

        if (self.github or self.junit is not None) and self.max_ms is self.max_ratio is None:
            raise InputError(
                "--github and --junit are of a check; expected --max-ms or --max-ratio too"
            )
        before = None
        if self.against is not None and self.max_ratio is not None:
            if is_prediction(self.against):
                before = read_before(self.against)
            else:
                asked = (self.against, batch_size, predictor)
                before = before_of(lolat.load(model).predict(*asked, input_size=input_size))
        elif self.against is not None or self.max_ratio is not None:
            raise InputError(
                "--max-ratio and --against belong together; expected both: --max-ratio 1.05 --against "
                "BASE.json, what `lolat predict --json` wrote of the base branch, or a network"
            )
        return Limits(self.max_ms, self.sure, self.max_ratio, before)

    def check(
        self, predictions: Sequence[Prediction], limits: Limits, devices: Sequence[str]
    ) -> None:
        """Say and write what was found; AnswerIsNo where a limit is not kept. `devices`: to be named."""
        from lolat.model.check import check

        found = check(predictions, limits, devices)
        if self.github or self.junit is not None:  # with them XML is imported
            from lolat.report.check import github_lines, write_junit

            for line in github_lines(found) if self.github else ():
                click.echo(line, err=True)
            if self.junit is not None:
                write_junit(self.junit, found)
        if wrong := [f.words for f in found if not f.holds]:
            many = f"{len(wrong)} of {len(found)} limits: " if len(found) > 1 else ""
            raise AnswerIsNo(many + "; ".join(wrong))


limit_options = common.as_one(
    "limited",
    lambda: Limited,
    common.max_ms_option(more="Exit code 3 where it takes longer."),
    common.sure_option,
    common.option("--max-ratio", type=Number("R", above=0.0, such="1.05"),
                  help="Exit code 3 where it takes more than R times as long as --against."),
    common.against_option(more="A network, or what `predict --json` wrote of the base branch."),
    common.option("--github", is_flag=True, help="Annotations of GitHub Actions too, on stderr."),
    common.option("--junit", type=click.Path(), metavar="FILE", help="Write JUnit's XML too."),
)  # fmt: skip
"""The options of a check, which the command gets as one `limited`."""
