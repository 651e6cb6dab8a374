"""LoLat models of the six GPUs that Justus et al. 2018 measured: models/justus2018-NAME.json.

    python benchmarks/justus_models.py DATA [--output models]

DATA: a folder with justus2018_convolution.csv.gz and justus2018_dense.csv.gz. Of each GPU a random sample
of forward-only layers (ROWS) is fitted and kept in the file; its errors are of other rows. Then VGG-16 on
the V100 is compared with what was measured, where DATA has justus2018_vgg16_v100.csv.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.justus.vgg16 import measured_ms  # noqa: E402
from lolat.fitting.points import Point  # noqa: E402
from lolat.graph.counts import FEATURES  # noqa: E402
from lolat.mlp.table import LAYERS, LayerTable, layer_counts, layer_name, read_table  # noqa: E402
from lolat.mlp.training import split  # noqa: E402
from lolat.model import Model  # noqa: E402
from lolat.model.file import write  # noqa: E402
from lolat.model.learning import answers, model_document  # noqa: E402
from lolat.units import percent  # noqa: E402

SEED = 0
ROWS = {"convolution": 200, "dense": 100}
DEVICES = {
    "V100": "NVIDIA Tesla V100",
    "P100": "NVIDIA Tesla P100",
    "1080ti": "NVIDIA GTX 1080 Ti",
    "M60": "NVIDIA Tesla M60, one of its two GPUs",
    "K80": "NVIDIA Tesla K80, one of its two GPUs",
    "K40": "NVIDIA Tesla K40",
}
SOURCE = {
    "paper": "Justus, Brennan, Bonner, McGough: Predicting the Computational Cost of Deep Learning Models, "
    "IEEE Big Data 2018",
    "data": "github.com/CDECatapult/ml-performance-prediction, raw_data",
    "licence": "Apache-2.0",
    "sample": f"{ROWS['convolution']} convolutions and {ROWS['dense']} dense layers at random, seed {SEED}",
}


def parts(table: LayerTable, gpu: str) -> tuple[LayerTable, LayerTable]:
    """(rows to draw from, rows to judge on) of a GPU, forward only."""
    table = table.select((table["gpu"] == gpu) & (table["optimizer"] == "none"))
    found = split(len(table), SEED)
    return table.select(found.train), table.select(found.test)


def points(table: LayerTable) -> list[Point]:
    """The rows as a model file's points: no raw times, the median of the authors' five as the latency."""
    counts, layer = layer_counts(table), "conv" if table.layer == "convolution" else table.layer
    found = []
    for row in range(len(table)):
        found.append(
            Point(
                layer_name(table, row),
                int(table["batch_size"][row]),
                {c: int(n) for c, n in zip(FEATURES, counts[row], strict=True)},
                float(table.times_ms[row]),
                # By their own names: a relu after a convolution tells nothing of a batch norm or a pool.
                kinds=tuple(sorted({layer, str(table["activation"][row])} - {"none"})),
            )
        )
    return found


def make(gpu: str, tables: dict[str, LayerTable]) -> dict[str, Any]:
    """The model file of a GPU."""
    drawn, judged = {}, {}
    for layer in LAYERS:
        pool, judged[layer] = parts(tables[layer], gpu)
        rows = np.random.default_rng(SEED).permutation(len(pool))[: ROWS[layer]]
        drawn[layer] = points(pool.select(rows))
    sample = [p for layer in LAYERS for p in drawn[layer]]
    where = {"device": gpu, "framework": "tensorflow", "framework_version": "1 (2018)"}
    name = f"justus2018-{gpu.lower()}"
    document = model_document(name, DEVICES[gpu], sample, {**where, "source": SOURCE}, {})
    for entry in document["predictors"].values():
        # Dense layers are predicted better: an interval from both kinds would be too narrow for
        # convolutions. And single layers cannot tell how errors average out over a network.
        entry["residuals"] = entry["residuals"][: ROWS["convolution"]]
        entry.pop("interval", None)
    errors = {layer: judge(document, judged[layer]) for layer in LAYERS}
    document["environment"]["errors_on_other_rows"] = errors
    document["warnings"] = remarks(tables, errors)
    # To six counts a softmax is the traffic of its input and output, as the sigmoid that was measured is.
    document["domain"]["kinds"] = sorted({*document["domain"]["kinds"], "softmax"})
    document["points"] = [small(p) for p in document["points"]]
    return document


def small(point: dict[str, Any]) -> dict[str, Any]:
    """A point of a model file without what is not known."""
    needed = {*FEATURES, "samples_ms"}
    return {k: v for k, v in point.items() if k in needed or v not in (None, [])}


def judge(document: dict[str, Any], table: LayerTable) -> dict[str, Any]:
    """Errors of the default predictor on rows that were not drawn."""
    model = Model(document)
    found = answers(model.predictor(), layer_counts(table))
    error = np.abs(found / table.times_ms - 1.0)
    half = np.quantile(np.abs(document["predictors"][model.default]["residuals"]), 0.9)
    inside = np.abs(np.log(found / table.times_ms)) <= half
    return {
        "rows": len(table),
        "median": round(float(np.median(error)), 4),
        "mean": round(float(error.mean()), 4),
        "inside_90_percent_interval": round(float(inside.mean()), 3),
    }


def remarks(tables: dict[str, LayerTable], errors: dict[str, dict[str, Any]]) -> list[str]:
    """What somebody who asks the model must know."""
    sizes = tables["convolution"]["batch_size"]
    found = " and ".join(
        f"{percent(errors[layer]['median'])} for {words}"
        for layer, words in (("convolution", "convolutions"), ("dense", "dense layers"))
    )
    return [
        f"fitted from a table, not measured by LoLat: {SOURCE['sample']}, of {SOURCE['data']} "
        f"(Justus et al. 2018, {SOURCE['licence']}); convolutions and dense layers with an activation or "
        f"none, forward only, batch {sizes.min()} to {sizes.max()}",
        f"single layers, each timed alone: median error on other layers {found}; a network's own fixed "
        "cost of a call is not in it, and other operations are counted as memory traffic",
    ]


def vgg(model: Model, data: Path) -> None:
    """VGG-16 forward on the V100, measured and predicted."""
    from lolat.readers import read

    network = read("keras:VGG16")
    click.echo("\n| batch | measured | LoLat | | 90 % interval |\n| --: | --: | --: | --: | --: |")
    for (optimizer, batch_size), measured in measured_ms(data).items():
        if optimizer == "none":
            found = model.predict(network, batch_size)
            low, high = found.interval_ms or (0.0, 0.0)
            click.echo(
                f"| {batch_size} | {measured:.1f} | {found.latency_ms:.1f} | "
                f"{100 * (found.latency_ms / measured - 1):+.0f} % | {low:.1f} .. {high:.1f} |"
            )


@click.command()
@click.argument("data", type=click.Path(path_type=Path, exists=True))
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "models")
def main(data: Path, output: Path) -> None:
    """Write the six models, print how good they are."""
    tables = {k: read_table(data / f"justus2018_{k}.csv.gz", k) for k in LAYERS}
    click.echo(
        "| model | convolutions: median, mean error | inside 90 % | dense layers: median, mean | "
        "inside 90 % |\n"
        "| --- | --: | --: | --: | --: |"
    )
    for gpu in DEVICES:
        document = make(gpu, tables)
        write(output / f"{document['name']}.json", document)
        errors: Sequence[dict[str, Any]] = list(
            document["environment"]["errors_on_other_rows"].values()
        )
        cells = [
            f"{percent(e['median'])}, {percent(e['mean'])} | {percent(e['inside_90_percent_interval'])}"
            for e in errors
        ]
        click.echo(f"| `{document['name']}` | {' | '.join(cells)} |")
        if gpu == "V100":
            v100 = Model(document, document["name"])
    if (data / "justus2018_vgg16_v100.csv").exists():
        vgg(v100, data)


if __name__ == "__main__":
    main()
