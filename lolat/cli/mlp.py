"""The layer model of Justus et al. 2018: one command per job."""

from __future__ import annotations

import gzip
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lolat.cli import common
from lolat.errors import InputError, ModelFileError
from lolat.io.results import of
from lolat.mlp.layer_model import Evaluation
from lolat.mlp.table import LAYERS, OPTIMIZERS
from lolat.units import milliseconds, plain, plural

if TYPE_CHECKING:
    from lolat.mlp.layer_model import LayerModel
    from lolat.mlp.networks import NetworkTime, OtherLayer
    from lolat.model import Model

COMMANDS: dict[str, tuple[str, str]] = {
    "fit": ("lolat.cli.mlp_fit:fit", "Train a model on a table of measured layers."),
    "predict": ("lolat.cli.mlp:predict", "The time of every layer in a table."),
    "evaluate": ("lolat.cli.mlp:evaluate", "Predicted against measured times."),
    "network": ("lolat.cli.mlp:network", "A whole network from its layers."),
}
"""Each command: where it is, and what it does in a few words."""


@click.group(cls=common.LazyGroup, table=COMMANDS, no_args_is_help=False)
def mlp() -> None:
    """Predict the time of a layer by a deep network (Justus et al. 2018)."""


# ---- Arguments and options of these commands.

table_argument = click.argument("table", metavar="CSV", type=click.Path())
model_argument = click.argument("model", metavar="LAYER_MODEL", type=click.Path())
facts_of_gpus_option = common.facts_option(
    more="CSV (name,bandwidth,cores,clock in GB/s, number, MHz) or JSON."
)

# ---- `lolat mlp predict` and `evaluate`: the time of every layer in a table.

COLUMN = "predicted_ms"


@dataclass(frozen=True)
class LayerPredict:
    """A table of predicted layers was written."""

    output: str
    rows: int
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class LayerEvaluation:
    """Predicted against measured times of layers: errors of all rows, by GPU and by optimizer."""

    KEYS = ("model", "table", "layer", "recipe", *of("errors", *Evaluation.KEYS), "warnings")

    model: str
    table: str
    layer: str
    recipe: str
    errors: Evaluation
    warnings: tuple[str, ...]


@common.command("lolat mlp predict conv.json layers.csv --output predicted.csv")
@model_argument
@table_argument
@common.output_option(required=True, more="A CSV table, gzipped where it is named *.gz.")
@facts_of_gpus_option
@common.json_option
def predict(model: str, table: str, output: Path, facts: str | None, as_json: bool) -> None:
    """Predict the rows of CSV: the same rows in order, with a column predicted_ms (milliseconds)."""
    from lolat.io.writing import write_bytes
    from lolat.mlp.devices import read_devices
    from lolat.mlp.layer_model import read_layer_model
    from lolat.mlp.table import parse, read_text

    common.check_writable(output)
    given = read_devices(facts) if facts else None
    loaded, text = read_layer_model(model), read_text(table)
    rows = parse(text, loaded.layer, times=False)
    times = loaded.predict(rows, given)
    warnings = [w for w in (loaded.outside(rows),) if w]
    if COLUMN in text.names:
        warnings.append(
            f"{text.source} has a column {COLUMN} already; {output} has the new one instead"
        )
    common.warn(warnings)
    content = text.with_column(COLUMN, (f"{t:.6g}" for t in times.tolist())).encode()
    write_bytes(output, gzip.compress(content, mtime=0) if output.suffix == ".gz" else content)
    found = LayerPredict(str(output), len(rows), tuple(warnings))
    common.answer("layer-predict", found, as_json, [f"{output}: {plural(len(rows), 'row')}"])


@common.command("lolat mlp evaluate conv.json layers.csv")
@model_argument
@table_argument
@facts_of_gpus_option
@common.json_option
def evaluate(model: str, table: str, facts: str | None, as_json: bool) -> None:
    """Compare LAYER_MODEL with the times in CSV: by GPU, by optimizer, beside their spread."""
    from lolat.mlp.devices import read_devices
    from lolat.mlp.layer_model import evaluate as errors_of
    from lolat.mlp.layer_model import read_layer_model
    from lolat.mlp.table import parse, read_text

    given = read_devices(facts) if facts else None
    loaded, text = read_layer_model(model), read_text(table)
    rows = parse(text, loaded.layer)
    evaluation = errors_of(loaded, rows, given)
    warnings = [w for w in (loaded.outside(rows),) if w]
    trained_on = loaded.training.get("table")
    if isinstance(trained_on, dict) and trained_on.get("sha256") == sha256(text.content):
        warnings.append(
            "the model was trained on most of these rows, so it looks better here than it is; its "
            f"errors on rows left out: {_left_out(loaded.errors)}"
        )
    common.warn(warnings)
    told = LayerEvaluation(model, table, loaded.layer, loaded.recipe, evaluation, tuple(warnings))
    head = f"{model}: {loaded.layer} layers, recipe {loaded.recipe}"
    common.answer("layer-evaluation", told, as_json, chain([head], evaluation.lines()))


def sha256(content: str) -> str:
    """What a model's file knows the table by that it was trained on."""
    return hashlib.sha256(content.encode()).hexdigest()


def _left_out(errors: Mapping[str, Any]) -> str:
    """`RMSE 2.8 ms, mean error 5.9 %` of what a model file says, which may say nothing."""
    rmse, mean = errors.get("rmse_ms"), errors.get("mean_relative_error")
    if not isinstance(rmse, int | float) or not isinstance(mean, int | float):
        return "not known"
    return f"RMSE {rmse:.3g} ms, mean error {100 * mean:.1f} %"


# ---- `lolat mlp network`: a whole network from its layers, as the paper predicts it.

MOST_NAMES = 3


@common.command("lolat mlp network conv.json dense.json keras:VGG16 --gpu V100 --batch-size 32")
@click.argument("conv_model", metavar="CONV_LAYER_MODEL", type=click.Path())
@click.argument("dense_model", metavar="DENSE_LAYER_MODEL", type=click.Path())
@common.network_argument
@common.option("--gpu", required=True, metavar="NAME", help="The GPU to predict for, such as V100.")
@common.batch_option(default=1, show_default=True)
@common.optimizer_option(
    type=click.Choice(OPTIMIZERS, case_sensitive=False), default="none", more="none: forward only."
)
@common.samples_option(
    more="For the time of an epoch (a last, smaller batch counts as a whole one)."
)
@common.size_option
@facts_of_gpus_option
@common.json_option
def network(
    conv_model: str,
    dense_model: str,
    network: str,
    gpu: str,
    batch_size: int,
    optimizer: str,
    samples: int | None,
    input_size: tuple[int, ...],
    facts: str | None,
    as_json: bool,
) -> None:
    """Predict NETWORK on a GPU: the sum of its convolutions and dense layers.

    CONV_LAYER_MODEL and DENSE_LAYER_MODEL are files of `lolat mlp fit`. What they do not know (pooling,
    normalization ...) is listed and not in the sum. NETWORK: as for `lolat predict`.
    """
    from lolat.mlp.devices import read_devices
    from lolat.mlp.networks import network_time
    from lolat.readers import read

    given = read_devices(facts) if facts else None
    models = load_models(conv_model, dense_model)
    formula = formula_model(gpu)
    graph = read(network, input_size)
    answer = network_time(graph, models, gpu, batch_size, optimizer, samples, given, formula)
    common.warn(answer.warnings)
    common.answer("layer-network", answer, as_json, lines(answer))


def load_models(conv_model: str, dense_model: str) -> dict[str, LayerModel]:
    """The two models by kind of layer; InputError where one is of the other kind."""
    from lolat.mlp.layer_model import read_layer_model

    models = {}
    for word, kind, path in zip(
        ("CONV_LAYER_MODEL", "DENSE_LAYER_MODEL"), LAYERS, (conv_model, dense_model), strict=True
    ):
        model = read_layer_model(path)
        if model.layer != kind:
            raise InputError(
                f"{word} {path} is a model of {model.layer} layers; expected one of {kind} layers: first "
                "the convolution model, then the dense one"
            )
        models[kind] = model
    return models


def formula_model(gpu: str) -> Model | None:
    """LoLat's shipped model of a GPU, where there is one."""
    from lolat.mlp.devices import key
    from lolat.model import load

    try:
        return load(f"justus2018-{key(gpu)}")
    except ModelFileError:
        return None


def lines(answer: NetworkTime) -> Iterator[str]:
    """What the terminal shows."""
    mode = "forward only" if answer.optimizer == "none" else f"training with {answer.optimizer}"
    yield f"{plain(answer.network)} · batch {answer.batch_size} · {plain(answer.gpu)} · {mode}"
    kinds = Counter(layer.kind for layer in answer.layers)
    yield (
        f"{milliseconds(answer.batch_ms)} a batch: {plural(kinds['convolution'], 'convolution')} and "
        f"{plural(kinds['dense'], 'dense layer')}, each as if alone"
    )
    if answer.samples is not None and answer.epoch_s is not None:
        yield (
            f"{answer.epoch_s:.4g} s an epoch of {answer.samples:,} samples: {answer.batches:,} batches, "
            "the last one counted as a whole one"
        )
    yield ""
    width = min(max((len(plain(layer.name)) for layer in answer.layers), default=0), 32)
    for layer in answer.layers:
        yield (
            f"  {plain(layer.name)[-32:]:{width}}  {milliseconds(layer.predicted_ms):>10}  "
            f"{100 * layer.share:5.1f} %  {layer.what}"
        )
    if answer.others:
        yield from _other_lines(answer)


def _other_lines(answer: NetworkTime) -> Iterator[str]:
    """What is not in the sum, by kind, and LoLat's estimate of it."""
    from lolat.mlp.table import NEITHER

    formula = answer.formula_model
    if answer.others_ms is not None:
        more = milliseconds(answer.others_ms)
        estimate = f"; by LoLat's formula ({formula}) some {more} more, not added"
    elif formula is None:
        estimate = f" (no LoLat model of {answer.gpu} to estimate them by)"
    else:
        estimate = (
            f" (LoLat's model {formula} knows forward passes only, so it cannot estimate them)"
        )
    yield ""
    yield f"Not in the sum: {plural(len(answer.others), 'operation')}{estimate}"
    groups: dict[tuple[str, str], list[OtherLayer]] = {}
    for other in answer.others:
        groups.setdefault((other.kind, other.reason), []).append(other)
    for (kind, reason), members in groups.items():
        names = ", ".join(plain(other.name) for other in members[:MOST_NAMES])
        rest = f" and {len(members) - MOST_NAMES} more" if len(members) > MOST_NAMES else ""
        times = [other.formula_ms for other in members if other.formula_ms is not None]
        time = f"{milliseconds(sum(times)):>10}  " if times else ""
        why = "" if reason == NEITHER else f" ({reason})"
        yield f"  {time}{kind}{why}: {names}{rest}"
