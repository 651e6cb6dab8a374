"""How far the predictions of models learned one after the other on one machine are apart.

    python benchmarks/repeatability.py [--runs 3] [--folder FOLDER] [--json]
    python benchmarks/repeatability.py MODEL MODEL ... [--json]

Without MODEL: learns `--runs` models, one after the other (each `learn_model.py cpu --restart`, a few
minutes), into FOLDER or a temporary one. Each predicts every network of keras.applications, batch 1 and 4.
For each pair of models: the median and the largest difference of their predictions, relative to the mean
of the two. Prints Markdown for docs/results/accuracy.md. Goal: GOAL at the median.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lolat.errors import LolatError  # noqa: E402
from lolat.graph import Graph  # noqa: E402
from lolat.model import Model, load  # noqa: E402
from lolat.readers import open_network  # noqa: E402
from lolat.units import percent  # noqa: E402

GOAL = 0.03
BATCH_SIZES = (1, 4)
Asked = tuple[str, int]  # a network and its batch size


def differences(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(predictions,) how far `a` and `b` are apart, relative to their mean; the same both ways round."""
    return np.abs(a - b) / ((a + b) / 2.0)


def pair(a: np.ndarray, b: np.ndarray, asked: Sequence[Asked]) -> dict[str, Any]:
    """Figures of two models' predictions (ms) for `asked`; `bias`: median of b / a - 1."""
    apart = differences(a, b)
    worst = int(apart.argmax())
    return {
        "median": float(np.median(apart)),
        "largest": float(apart[worst]),
        "largest_of": list(asked[worst]),
        "within_goal": float((apart <= GOAL).mean()),
        "bias": float(np.median(b / a - 1.0)),
    }


def pairs(predicted: Mapping[str, np.ndarray], asked: Sequence[Asked]) -> list[dict[str, Any]]:
    """`pair` of every two models, by label."""
    return [
        {"models": [one, other], **pair(predicted[one], predicted[other], asked)}
        for one, other in itertools.combinations(predicted, 2)
    ]


def coefficients(models: Mapping[str, Model]) -> dict[str, list[float]]:
    """Term of the default predictor -> its coefficient in each model; 0 where a model lacks it."""
    found = [dict(m.predictor().to_dict()["coefficients"]) for m in models.values()]
    terms = dict.fromkeys(term for c in found for term in c)
    return {term: [float(c.get(term, 0.0)) for c in found] for term in terms}


def labels(sources: Sequence[str]) -> list[str]:
    """Short names for model files, all different: their stems; or as they were given, or numbered."""
    for found in ([Path(s).stem for s in sources], list(sources)):
        if len(set(found)) == len(sources):
            return found
    return [f"{i}: {source}" for i, source in enumerate(sources, 1)]


def networks(only: Sequence[str] = ()) -> dict[str, Graph]:
    """NETWORK -> its Graph: those given, or all of keras.applications; what cannot be read is said."""
    from lolat.readers.keras import import_keras

    names = only or [f"keras:{n}" for n in dir(import_keras().applications) if n[0].isupper()]
    found = {}
    for name in names:
        try:
            found[name] = open_network(name).graph()
        except LolatError as error:
            click.echo(f"left out: {error}", err=True)
    return found


def predict(models: Mapping[str, Model], graphs: Mapping[str, Graph]) -> dict[str, Any]:
    """(asked, predictions in ms by model) of every network at BATCH_SIZES."""
    asked = [(name, n) for name in graphs for n in BATCH_SIZES]
    return {
        "asked": asked,
        "predicted": {
            label: np.array([m.predict(graphs[name], n).latency_ms for name, n in asked])
            for label, m in models.items()
        },
    }


def learn(runs: int, folder: Path) -> list[str]:
    """Learn models one after the other; their files."""
    files = [str(folder / f"run-{i}.json") for i in range(1, runs + 1)]
    for i, file in enumerate(files, 1):
        click.echo(f"learning {i} of {runs}: {file}", err=True)
        command = [
            sys.executable,
            str(ROOT / "learn_model.py"),
            "cpu",
            "--output",
            file,
            "--restart",
        ]
        done = subprocess.run(command, stdout=sys.stderr, check=False)
        if done.returncode:
            raise click.exceptions.Exit(done.returncode)
    return files


def examine(models: Mapping[str, Model], graphs: Mapping[str, Graph]) -> dict[str, Any]:
    """Everything that is printed, as `--json` has it."""
    found = predict(models, graphs)
    between = pairs(found["predicted"], found["asked"])
    return {
        "goal": GOAL,
        "models": [
            {
                "label": label,
                "source": m.source,
                "device": m.device,
                "points": len(m.document["points"]),
                "seconds": m.document["environment"].get("seconds"),
                "floor": m.document["noise"].get("floor"),
            }
            for label, m in models.items()
        ],
        "pairs": between,
        "median_of_pairs": float(np.median([p["median"] for p in between])),
        "coefficients": coefficients(models),
        "networks": [
            {
                "network": name,
                "batch_size": n,
                "predicted_ms": {label: float(t[i]) for label, t in found["predicted"].items()},
            }
            for i, (name, n) in enumerate(found["asked"])
        ],
    }


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Three Markdown tables: the runs, the pairs, the coefficients side by side."""
    count, names = len(result["networks"]), [m["label"] for m in result["models"]]
    yield "| model | points | learned in | noise floor |"
    yield "| --- | --: | --: | --: |"
    for m in result["models"]:
        cells = (
            _known(m["seconds"], "{:.0f} s"),
            "-" if m["floor"] is None else percent(m["floor"]),
        )
        yield f"| {m['label']} | {m['points']} | " + " | ".join(cells) + " |"
    yield ""
    yield (
        f"| of {count} predictions | median difference | largest | of | within "
        f"{percent(result['goal'])} | second to first |"
    )
    yield "| --- | --: | --: | --- | --: | --: |"
    for p in result["pairs"]:
        network, batch_size = p["largest_of"]
        yield (
            f"| {' and '.join(p['models'])} | {percent(p['median'])} | {percent(p['largest'])} | "
            f"{network.removeprefix('keras:')} x{batch_size} | {100 * p['within_goal']:.0f} % | "
            f"{100 * p['bias']:+.1f} % |"
        )
    yield ""
    yield "| coefficient | " + " | ".join(names) + " |"
    yield "| --- |" + " --: |" * len(names)
    for term, values in result["coefficients"].items():
        yield f"| {term} | " + " | ".join(f"{v:.3g}" for v in values) + " |"
    yield ""
    inside = sum(p["median"] <= result["goal"] for p in result["pairs"])
    yield (
        f"Within {percent(result['goal'])} of each other at the median: {inside} of "
        f"{len(result['pairs'])} pairs; the median of the pairs' medians is "
        f"{percent(result['median_of_pairs'])}."
    )


def _known(value: Any, form: str) -> str:
    return form.format(value) if isinstance(value, (int, float)) else "-"


@click.command()
@click.argument("models", nargs=-1)
@click.option("--runs", type=click.IntRange(min=2), default=3, show_default=True)
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="Keep models here."
)
@click.option("--network", "only", multiple=True, help="Instead of all of keras.applications.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(
    models: tuple[str, ...], runs: int, folder: Path | None, only: tuple[str, ...], as_json: bool
) -> None:
    """Compare the predictions of MODELs, or of models learned now."""
    if len(models) == 1:
        raise click.UsageError(
            "one MODEL has nothing to be compared with; give two or more, or none"
        )
    if models and folder is not None:
        raise click.UsageError("--folder is for models learned now; leave it out with given MODELs")
    with tempfile.TemporaryDirectory() as temporary:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        sources = list(models) or learn(runs, folder or Path(temporary))
        try:
            loaded = dict(zip(labels(sources), map(load, sources), strict=True))
        except LolatError as error:
            raise click.ClickException(str(error)) from error
    devices = {m.device for m in loaded.values()}
    if len(devices) > 1:
        click.echo(f"note: models of several devices: {', '.join(sorted(devices))}", err=True)
    graphs = networks(only)
    if not graphs:
        raise click.ClickException("no network could be read; give others with --network")
    result = examine(loaded, graphs)
    if as_json:
        click.echo(json.dumps(result))
    else:
        for line in lines(result):
            click.echo(line)


if __name__ == "__main__":
    main()
