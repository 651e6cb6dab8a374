"""`lolat doctor`: measure a few blocks again and say whether the model still holds."""

from __future__ import annotations

import json

import click

from lolat.cli.options import json_option, model_argument
from lolat.errors import AnswerIsNo


@click.command()
@model_argument
@json_option
def doctor(model: str, as_json: bool) -> None:
    """Measure five blocks of MODEL again, within 20 seconds: does it still hold on this machine?

    Exit code 0: it does. 3: it does not (drifted, another machine), or that cannot be told now (the
    machine is busy or in another state). Nothing is written.
    """
    from lolat.cli.progress import progress
    from lolat.model import load
    from lolat.points import Point
    from lolat.report.diagnosis import OK, diagnose
    from lolat.report.diagnosis_text import lines
    from microbench import backends
    from microbench.doctor import examine

    loaded = load(model)
    where = loaded.document["environment"]
    backend = backends.of_model(where)
    backends.check(backend)
    calm_ms = loaded.document["noise"].get("calm_ms")
    with progress() as bar:
        found = examine(
            [Point.from_dict(p) for p in loaded.document["points"]],
            loaded.predictor().to_dict()["coefficients"],
            loaded.device,
            where,
            calm_ms if isinstance(calm_ms, (int, float)) and calm_ms > 0 else None,
            backend,
            where["device"] if where.get("device") in ("cpu", "gpu") else "cpu",
            bar,
        )
    result = diagnose(loaded, found)
    if as_json:
        click.echo(json.dumps(result))
    else:
        for line in lines(loaded, model, result):
            click.echo(line)
    if result["verdict"] != OK:
        raise click.exceptions.Exit(AnswerIsNo.exit_code)
