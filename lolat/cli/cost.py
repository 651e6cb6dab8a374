"""`lolat cost`: time, memory and dollars of training, on one device or several; `lolat prices`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from lolat.cli import common
from lolat.errors import AnswerIsNo
from lolat.training.prediction import check_limits
from lolat.training.question import TrainingQuestion

if TYPE_CHECKING:
    from lolat.api.model import Model
    from lolat.training.compare import Costs


@common.command(
    "lolat cost epyc-2t keras:MobileNetV2 --batch-size 64",
    "lolat cost v100-fp32 keras:ResNet50 --batch-size 64 --samples 50000 --epochs 20 --replicas 1,2,4",
    "lolat cost rtx-4090-amp timm:vit_base_patch16_224 --batch-size 64 --tune lora:16 --checkpointing full",
    "lolat cost timm:resnet50 --samples 1281167 --epochs 90",
    "lolat cost h100-vllm llama-3.1-8b --sequence-length 4096 --batch-size 1 --accumulate 16 --replicas 8 "
    "--sharding fsdp --tokens 200e6",
    "lolat cost a100 timm:resnet50 --global-batch-size 1024 --replicas 1,4,8",
    answers={"cost": "lolat.training.cost:Cost", "costs": "lolat.training.compare:Costs"},
)
@click.argument("arguments", metavar="[MODEL] NETWORK", nargs=-1, required=True)
@common.on_option(more="Without MODEL all with times and a price, if not given.")
@common.question(
    TrainingQuestion,
    precision={
        "more": "best: each device's fastest of fp32, tf32, amp, and of both layouts of images; cards in a "
        "given half precision take the faster layout.",
        "type": common.PRECISION,
    },
    batch_size={
        "more": "On each device; auto: the smallest sure one within 2 % of the best speed. If not given, "
        "auto; of several devices as large as updates of 256 samples need.",
        "type": common.BATCHES,
    },
    replicas={"default": (), "show_default": False},
    sure=common.SURE,
)
def cost(
    arguments: tuple[str, ...], on: tuple[str, ...], batch_size: tuple[int | str, ...],
    replicas: tuple[int, ...], **question: Any,
) -> None:  # fmt: skip
    """Predict how long training NETWORK takes on one device or several, its memory and dollars.

    NETWORK may be a decoder: its config.json or known name, as for `lolat llm`, with --sequence-length.
    MODEL is then a profile that has language models, such as h100-vllm.

    The answer uses the best of what MODEL has: timed epochs, measurements of `lolat learn --mode training`,
    or its latencies of inference, from which training is estimated. Without MODEL, and with --on, devices
    are compared. Each of these, and a GPU as MODEL (a100), runs in the given precision, else its fastest,
    and its faster layout of images; a profile whose name has a precision (a100-fp32), a file and a CPU run
    as measured.

    Exit code 3 if an iteration does not fit into the device's memory, 2 if a device of --on cannot answer.
    docs/reference/tables.md explains the columns and marks.
    """
    from lolat.api.asking import train_on
    from lolat.api.profile_names import ALL
    from lolat.llm.names import is_decoder
    from lolat.report.cost import cost_lines, misfit_words
    from lolat.training.alternatives import offered
    from lolat.training.cost import no_room

    question["replicas"] = replicas
    model, networks = common.model_and_networks(arguments, on, 1)
    if model is not None and (model == ALL or "," in model):
        on, model = (model, *on), None
    network = networks[0]
    sizes: Any = batch_size or None
    if model is None:
        with common.Show() as bar:
            on_progress = common.counting(bar, "devices") if bar.on_terminal else None
            several = train_on(network, sizes, on, on_progress=on_progress, **question)
        _answer_several(several)
        return common.check_named([] if question["memory_gib"] else on, several.left_out)
    from lolat.api.serving import serving_model

    shares = question["global_batch_size"] is not None
    if is_decoder(network):
        loaded = serving_model(model, of_any=True)
    else:
        loaded = common.open_profile(model)
    if len({*batch_size}) > 1 or len(question["checkpointing"]) > 1 or shares:
        costs = loaded.cost(network, sizes, **question)
        say_profile(model, loaded)
        return _answer_several(costs)
    answer = loaded.cost(network, sizes and sizes[0], **question)
    say_profile(model, loaded)
    common.warn(answer.warnings)
    if answer.fits is False:
        common.answer(answer, [misfit_words(answer), *[*cost_lines(answer)][1:]])
        raise AnswerIsNo(no_room(answer), code="no-room")
    common.answer(answer, cost_lines(answer))
    check_limits(answer, offered(answer))


def say_profile(asked: str, loaded: Model) -> None:
    """Say which profile answers for a GPU's name, if profiles of several frameworks exist."""
    if loaded.file.llm is not None and loaded.profile.startswith(f"{asked.casefold()}-"):
        title = loaded.language_models.server.title
        common.say(f"{asked}: predicted from kernels timed in {title} ({loaded.profile})")


def _answer_several(costs: Costs) -> None:
    """Print several answers. AnswerIsNo if no option fits into memory, or no option keeps the limits."""
    from lolat.report.cost import costs_lines
    from lolat.training.compare import check_room

    common.answer(costs, costs_lines(costs))
    check_room(costs)
    check_limits(costs)


@common.command(
    "lolat prices", "lolat prices h100", answers={"prices": "lolat.hardware.prices:Prices"}
)
@click.argument("gpu", required=False, metavar="[GPU]")
@common.parameter("prices")
def prices(gpu: str | None, prices: str | None) -> None:
    """List what instances cost an hour, from FILE or a small built-in table; of a GPU (several with
    commas) those with that card, in any form and of any memory, or without one for cpu.
    """
    from lolat.hardware.prices import price_list
    from lolat.report.device import price_lines

    found = price_list(prices)
    found = found.of_gpu(gpu) if gpu else found
    common.answer(found, price_lines(found))
