"""`lolat mlp network`: a whole network from its layers, as the paper predicts it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from lolat.cli.errors import say
from lolat.cli.mlp.options import devices_option
from lolat.cli.options import json_option, network_argument, size_option
from lolat.mlp.table import LAYERS, OPTIMIZERS

if TYPE_CHECKING:
    from lolat.mlp.alone import Alone
    from lolat.mlp.devices import Device
    from lolat.mlp.layer_model import LayerModel
    from lolat.mlp.networks import NetworkTime
    from lolat.model import Model

MOST_NAMES = 3


@click.command()
@click.argument("conv_model", metavar="CONV_MODEL", type=click.Path())
@click.argument("dense_model", metavar="DENSE_MODEL", type=click.Path())
@network_argument
@click.option("--gpu", required=True, metavar="NAME", help="The GPU to predict for, such as V100.")
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Samples in one batch.",
)
@click.option(
    "--optimizer",
    type=click.Choice(OPTIMIZERS),
    default="none",
    show_default=True,
    help="Forward, backward and update of this one; none: forward only.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    metavar="N",
    help="In the data set, for the time of an epoch (a last, smaller batch counts as a whole one).",
)
@click.option(
    "--alone",
    "timed",
    type=click.Path(),
    metavar="TABLE",
    help="Convolutions timed alone on the GPU: what each pays for that is told from them and left out.",
)
@size_option
@devices_option
@json_option
def network(
    conv_model: str,
    dense_model: str,
    network: str,
    gpu: str,
    batch_size: int,
    optimizer: str,
    samples: int | None,
    timed: str | None,
    input_size: tuple[int, ...],
    devices: str | None,
    as_json: bool,
) -> None:
    """Predict NETWORK on a GPU: the sum of its convolutions and dense layers.

    CONV_MODEL and DENSE_MODEL are files of `lolat mlp fit`. What they do not know (pooling, normalisation
    ...) is listed and not in the sum. NETWORK: as for `lolat predict`.

    With --alone, a table as for `lolat mlp fit`, convolutions take what they take inside a network of
    TensorFlow 1 on a GPU: no call each, no tensors turned.
    """
    from lolat.mlp.devices import read_devices
    from lolat.mlp.networks import network_time
    from lolat.readers import open_network

    given = read_devices(devices) if devices else None
    models = load_models(conv_model, dense_model)
    formula = formula_model(gpu)
    graph = open_network(network, input_size).graph()
    alone = None if timed is None else alone_formula(timed, gpu, optimizer, given)
    found = network_time(graph, models, gpu, batch_size, optimizer, samples, given, formula, alone)
    name = None if formula is None else formula.name
    if as_json:
        click.echo(json.dumps({**found.to_dict(), "formula_model": name}))
    for warning in found.warnings:
        say(f"warning: {warning}")
    if not as_json:
        for line in lines(found, name):
            click.echo(line)


def load_models(conv_model: str, dense_model: str) -> dict[str, LayerModel]:
    """The two models by kind of layer; InputError where one is of the other kind."""
    from lolat.errors import InputError
    from lolat.mlp.layer_model import read_layer_model

    found = {}
    for word, kind, path in zip(
        ("CONV_MODEL", "DENSE_MODEL"), LAYERS, (conv_model, dense_model), strict=True
    ):
        model = read_layer_model(path)
        if model.layer != kind:
            raise InputError(
                f"{word} {path} is a model of {model.layer} layers; expected one of {kind} layers: first "
                "the convolution model, then the dense one"
            )
        found[kind] = model
    return found


def alone_formula(path: str, gpu: str, optimizer: str, given: Mapping[str, Device] | None) -> Alone:
    """What convolutions of a GPU pay alone, from the rows of a table; InputError."""
    from lolat.errors import InputError
    from lolat.mlp.alone import fit
    from lolat.mlp.devices import DEVICES, known, merged
    from lolat.mlp.table import read_table

    if optimizer != "none":
        raise InputError(
            f"--alone knows forward passes only and --optimizer is {optimizer}; expected none, or no "
            "--alone"
        )
    (device,) = known([gpu], merged(DEVICES, given or {})).values()
    return fit(read_table(path, "convolution"), device)


def formula_model(gpu: str) -> Model | None:
    """LoLat's shipped model of a GPU, where there is one."""
    from lolat.errors import ModelFileError
    from lolat.mlp.devices import key
    from lolat.model import load

    try:
        return load(f"justus2018-{key(gpu)}")
    except ModelFileError:
        return None


def lines(found: NetworkTime, formula: str | None) -> Iterator[str]:
    """What the terminal shows."""
    from lolat.mlp.network_rows import NEITHER
    from lolat.units import milliseconds, plain

    mode = "forward only" if found.optimizer == "none" else f"training with {found.optimizer}"
    yield f"{plain(found.network)} · batch {found.batch_size} · {plain(found.gpu)} · {mode}"
    kinds = Counter(layer.kind for layer in found.layers)
    how = "each as if alone"
    if found.call_ms is not None:
        how = f"convolutions as inside a network, and one call, {milliseconds(found.call_ms)}"
    yield (
        f"{milliseconds(found.batch_ms)} a batch: {_counted(kinds['convolution'], 'convolution')} and "
        f"{_counted(kinds['dense'], 'dense layer')}, {how}"
    )
    if found.samples is not None and found.epoch_s is not None:
        yield (
            f"{found.epoch_s:.4g} s an epoch of {found.samples:,} samples: {found.batches:,} batches, the "
            "last one counted as a whole one"
        )
    yield ""
    width = max((len(plain(layer.name)) for layer in found.layers), default=0)
    width = min(width, 32)
    for layer in found.layers:
        yield (
            f"  {plain(layer.name)[-32:]:{width}}  {milliseconds(layer.predicted_ms):>10}  "
            f"{100 * layer.share:5.1f} %  {layer.what}"
        )
    if not found.others:
        return
    yield ""
    yield f"Not in the sum: {_counted(len(found.others), 'operation')}{_estimate(found, formula)}"
    groups: dict[tuple[str, str], list[int]] = {}
    for i, other in enumerate(found.others):
        groups.setdefault((other.kind, other.reason), []).append(i)
    for (kind, reason), members in groups.items():
        names = ", ".join(plain(found.others[i].name) for i in members[:MOST_NAMES])
        more = f" and {len(members) - MOST_NAMES} more" if len(members) > MOST_NAMES else ""
        times = [t for i in members if (t := found.others[i].formula_ms) is not None]
        time = f"{milliseconds(sum(times)):>10}  " if times else ""
        why = "" if reason == NEITHER else f" ({reason})"
        yield f"  {time}{kind}{why}: {names}{more}"


def _estimate(found: NetworkTime, formula: str | None) -> str:
    """What is said of the formula's estimate of what is not in the sum."""
    from lolat.units import milliseconds

    if found.others_ms is not None:
        return (
            f"; by LoLat's formula ({formula}) some {milliseconds(found.others_ms)} more, not added"
        )
    if formula is None:
        return f" (no LoLat model of {found.gpu} to estimate them by)"
    return f" (LoLat's model {formula} knows forward passes only, so it cannot estimate them)"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
