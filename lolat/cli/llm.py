"""`lolat llm`: speed and cost of serving a language model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from lolat.cli import common
from lolat.cli.main import JSON, KIND
from lolat.errors import AnswerIsNo, LolatError, ModelFileError
from lolat.llm.question import ServingQuestion
from lolat.units import plural


@common.command(
    "lolat llm h100-vllm qwen3-32b --dtype fp8 --input-tokens 2000 --output-tokens 500 --concurrency 50",
    "lolat llm h100-vllm llama-3.1-70b --dtype fp8 --request-rate 3 --input-tokens 1800 --output-tokens "
    "350 --max-ttft-ms 1000 --min-tokens-per-s 30 --percentile 90 --sure",
    "lolat llm a100-vllm,h100-vllm,b200-vllm qwen3-32b --concurrency 64 --max-tpot-ms 30",
    answers={"llm": "lolat.llm.answer:ServingAnswer", "llms": "lolat.llm.compare:ComparedModels"},
)
@click.argument("model", metavar="GPU")
@click.argument("config", metavar="CONFIG")
@common.question(ServingQuestion, sure=common.SURE)
def llm(model: str, config: str, **question: object) -> None:
    """Predict how fast a GPU serves a language model, and what a million tokens cost: time to the first
    token, time per output token, memory, and what would help.

    GPU is a device such as h100-vllm (`lolat models`). CONFIG is a language model: a known name such as
    qwen3-32b or Qwen/Qwen3-32B-AWQ, or its published config.json (the file or its folder). For several,
    use commas, or all as GPU: the answer has the best row of each.

    Limits are --max-tpot-ms, --max-ttft-ms, --max-latency-ms and --gpus. Of the rows that keep them,
    the best has the cheapest output tokens, or without a price the most tokens per second and GPU; a
    row that surely keeps them is preferred if it costs at most 5 % more. Under a --request-rate each
    row has the fewest GPUs that keep the limits. With --sure the ends of the intervals must keep them,
    not just the predicted times. Exit code 3 if no row keeps the limits, or the model fits on no GPU.

    docs/reference/tables.md explains the columns.
    """
    from lolat.api.serving import serving_models
    from lolat.llm.compare import compare
    from lolat.llm.names import configs_of, is_decoder
    from lolat.llm.refusal import no_room
    from lolat.report.llm import llm_lines
    from lolat.report.llms import compared_lines

    configs = configs_of(config)
    try:
        models, left_out = serving_models(model)
    except ModelFileError as error:
        meant = ""
        with suppress(LolatError):
            if is_decoder(model) and serving_models(config):
                meant = f"; did you mean {config} {model}?"
        raise error.reworded(f"{error.message}{meant}") from None
    with _refusals_shown():
        if len(models) > 1 or len(configs) > 1 or left_out or "," in str(question["dtype"]):
            click.get_current_context().meta[KIND] = "llms"
            with common.Show() as bar:
                on_progress = common.counting(bar, "devices") if bar.on_terminal else None
                each = {name: model.llm for name, model in models.items()}
                several = compare(each, config, left_out, on_progress=on_progress, **question)
            told = several.warnings_of(several.leading)
            rest = len(several.warnings) - len(told)
            others = (
                "on devices that are neither cheapest nor fastest: --json, or ask about one alone"
            )
            common.warn([*told, *([f"{plural(rest, 'remark')} {others}"] if rest > 0 else [])])
            return common.answer(several, compared_lines(several))
        (one,) = models.values()
        answer = one.llm(configs[0], **question)  # type: ignore[arg-type]
        if answer.chosen.tpot_ms is None:
            raise no_room(answer)
        common.warn(answer.warnings)
        common.answer(answer, llm_lines(answer))
    return None


@contextmanager
def _refusals_shown() -> Iterator[None]:
    """Prints the rows that help if no row keeps the limits; the error then names the limits alone."""
    from lolat.llm.refusal import refusals_of
    from lolat.report.llm_refusal import error_words, refusal_lines, refused_words

    try:
        yield
    except AnswerIsNo as no:
        if not (refusals := refusals_of(no)):
            raise
        is_json = click.get_current_context().meta.get(JSON)
        if not is_json:
            common.show(refusal_lines(refusals))
        words = (error_words if is_json else refused_words)(refusals)
        raise no.reworded(words) from None
