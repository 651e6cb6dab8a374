"""`lolat llm`: speed and cost of serving a language model."""

from __future__ import annotations

import click

from lolat.cli import common
from lolat.cli.main import KIND
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
@click.argument("config", metavar="MODEL")
@common.question(ServingQuestion, sure=common.SURE)
def llm(model: str, config: str, **question: object) -> None:
    """Predict how fast a GPU serves a language model, and what a million tokens cost: time to the first
    token, time per output token, memory, and what would help.

    GPU is a device such as h100-vllm (`lolat models`). MODEL is the config.json that was published with the
    language model (a file, or the folder that holds it), or a known name such as qwen3-32b or
    Qwen/Qwen3-32B-AWQ. With limits (--max-tpot-ms, --max-ttft-ms, --gpus) the best row keeps them and has
    the cheapest output tokens, or where no price is known the most a second from each GPU; exit code 3
    where none does, or the model fits on none. Under a --request-rate the GPUs are the fewest that keep the
    limits. With --sure the ends of the intervals keep them, not the predicted times alone. Several GPUs or
    MODELs with commas, or all as GPU: the best row of each.
    """
    from lolat.api.choosing import serving_models
    from lolat.llm.compare import compare
    from lolat.llm.names import configs_of
    from lolat.report.llm import llm_lines
    from lolat.report.llms import compared_lines

    left_out = dict[str, str]()
    configs = configs_of(config)
    models = serving_models(model, left_out=left_out)
    if len(models) > 1 or len(configs) > 1 or left_out:
        click.get_current_context().meta[KIND] = "llms"
        several = compare({n: m.llm for n, m in models.items()}, config, left_out, **question)
        told = several.warnings_of(several.leading)
        rest = len(several.warnings) - len(told)
        common.warn(
            [*told, *[f"{plural(rest, 'remark')} on the other devices: --json"] * (rest > 0)]
        )
        common.answer(several, compared_lines(several))
        return
    (one,) = models.values()
    answer = one.llm(configs[0], **question)  # type: ignore[arg-type]
    if answer.chosen.tpot_ms is None:
        raise answer.no_room()
    common.warn(answer.warnings)
    common.answer(answer, llm_lines(answer))
