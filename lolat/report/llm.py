"""A served language model as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from lolat.llm.answer import LanguageModel, ServedModel
from lolat.report.tables import table_lines
from lolat.units import between, digits, dollars, milliseconds, percent, plain, plural, quantity

CALLED = {
    "weights": "reading weights", "products": "matrix products beyond that", "attention": "attention",
    "experts": "experts", "all_reduce": "all-reduces", "small": "small operations",
    "launches": "starting kernels", "scheduling": "scheduling", "prompts": "prompts of other requests",
}  # fmt: skip
LEAST_SHARE = 0.02


def llm_lines(answer: LanguageModel) -> Iterator[str]:
    """The title, the table, and what the time of the best row goes to."""
    first = answer.chosen
    framework = f" · {answer.framework}" if answer.framework else ""
    active = f", {quantity(answer.active)} active" if answer.active < answer.parameters else ""
    yield (
        f"{plain(answer.model)} · {quantity(answer.parameters)} parameters{active} · {first.dtype}, cache "
        f"{first.kv_dtype} · {first.input_tokens:,} tokens in, {first.output_tokens:,} out"
    )
    yield f"{plain(answer.device)}{framework} · a steady load: so many requests are always there"
    yield ""
    sure = f"{percent(answer.coverage)} between"
    heads = ["users", "GPUs", "first token", "per token", sure, "tokens/s a user", "a GPU", "in all",
             "$/M tokens", "memory a GPU", "largest load", ""]  # fmt: skip
    rows = [_row(row, number == answer.best) for number, row in enumerate(answer.served)]
    yield from table_lines(heads, rows, left={11})
    yield ""
    yield from _advice(answer)


def _row(row: ServedModel, best: bool) -> list[str]:
    gpus = f"{row.replicas} x {row.tensor_parallel}" if row.replicas > 1 else str(row.gpus)
    memory = f"{row.memory_gib:.1f} GiB"
    if row.tpot_ms is None or row.ttft_ms is None or row.tpot_interval_ms is None:
        nothing = [""] * 7
        return [f"{row.concurrency:,}", gpus, *nothing, memory, "", "its weights do not fit"]
    price = "" if row.dollars_per_million is None else dollars(row.dollars_per_million)
    remark = "best" if best else "" if row.fits else "waits for memory"
    return [
        f"{row.concurrency:,}", gpus, milliseconds(row.ttft_ms), milliseconds(row.tpot_ms),
        between(*row.tpot_interval_ms), digits(row.tokens_per_s_user or 0.0),
        digits(row.tokens_per_s_gpu or 0.0), digits(row.tokens_per_s or 0.0), price, memory,
        f"{row.largest_concurrency:,}", remark,
    ]  # fmt: skip


def _advice(answer: LanguageModel) -> Iterator[str]:
    """What the chosen row's time goes to, what further users cost, and prices."""
    row = answer.chosen
    if row.goes_to is None or row.tpot_ms is None:
        return
    parts = sorted(row.goes_to.items(), key=lambda part: -part[1])
    words = [
        f"{CALLED[name]} {percent(ms / row.tpot_ms)}"
        for name, ms in parts
        if ms >= LEAST_SHARE * row.tpot_ms
    ]
    on = f"{plural(row.concurrency, 'user')} on {plural(row.gpus, 'GPU')}"
    yield f"An output token with {on}: {', '.join(words)}."
    if answer.free_users is not None and answer.weights_gib is not None:
        reads = "at most " if answer.active < answer.parameters else ""
        yield (
            f"A step reads {reads}{answer.weights_gib:.1f} GiB of weights on each GPU: up to "
            f"{answer.free_users:,} users at once, a further one costs next to nothing."
        )
    if answer.prices is None:
        yield f"No price of {plain(answer.device)} is known: give --price-per-hour."
    else:
        yield f"Dollars are for a million output tokens with their prompts, by {plain(answer.prices)}."
