"""`lolat doctor`: measure a few blocks again and say whether the model still holds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from lolat.cli.options import json_option, model_argument
from lolat.errors import AnswerIsNo

if TYPE_CHECKING:
    from lolat.model import Model
    from microbench.doctor import Examination


@click.command()
@model_argument
@json_option
def doctor(model: str, as_json: bool) -> None:
    """Measure five networks of MODEL again, within 20 seconds: does it still hold on this machine?

    Exit code 0: it does. 3: it does not (drifted, another machine), or that cannot be told now (the
    machine is busy or in another state). Nothing is written.
    """
    from lolat.model import load
    from lolat.report.diagnosis import OK, diagnose
    from lolat.report.diagnosis_text import lines

    loaded = load(model)
    result = diagnose(loaded, examined(loaded))
    if as_json:
        click.echo(json.dumps(result))
    else:
        for line in lines(loaded, model, result):
            click.echo(line)
    if result["verdict"] != OK:
        raise click.exceptions.Exit(AnswerIsNo.exit_code)


def examined(loaded: Model) -> Examination:
    """What measuring networks of a model again finds; LolatError where that cannot be done."""
    from lolat.cli.progress import progress
    from lolat.points import Point
    from microbench import backends
    from microbench.doctor import examine

    where = loaded.document["environment"]
    backend = backends.of_model(where)
    backends.check(backend)
    with progress() as bar:
        return examine(
            [Point.from_dict(p) for p in loaded.document["points"]],
            loaded.device,
            where,
            backend,
            where["device"] if where.get("device") in ("cpu", "gpu") else "cpu",
            bar,
        )
