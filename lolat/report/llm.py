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
LEAST_FREE = 4  # users, below which they are not spoken of


def llm_lines(answer: LanguageModel) -> Iterator[str]:
    """The title, the table, what the time of the chosen row goes to, and what else there is to say."""
    before, (heads, rows), after = llm_parts(answer)
    yield from before
    yield ""
    yield from table_lines(heads, rows, left={11})
    yield ""
    parts = [f"{words} {percent(share)}" for _, words, share in goes_to(answer.chosen)]
    if parts:
        yield f"An output token with {load_words(answer.chosen)}: {', '.join(parts)}."
    yield from after


def llm_parts(
    answer: LanguageModel,
) -> tuple[list[str], tuple[list[str], list[list[str]]], list[str]]:
    """Lines before the table; its heads and a row for each configuration; lines on users and prices."""
    first = answer.chosen
    framework = f" · {answer.framework}" if answer.framework else ""
    active = f", {quantity(answer.active)} active" if answer.active < answer.parameters else ""
    before = [
        f"{plain(answer.model)} · {quantity(answer.parameters)} parameters{active} · {first.dtype}, cache "
        f"{first.kv_dtype} · {first.input_tokens:,} tokens in, {first.output_tokens:,} out",
        f"{plain(answer.device)}{framework} · a steady load: so many requests are always there",
    ]
    sure = f"{percent(answer.coverage)} between"
    heads = ["users", "GPUs", "first token", "per token", sure, "tokens/s a user", "a GPU", "in all",
             "$/M tokens", "memory a GPU", "largest load", ""]  # fmt: skip
    rows = [_row(row, number == answer.best) for number, row in enumerate(answer.served)]
    return before, (heads, rows), [*_advice(answer)]


def load_words(row: ServedModel) -> str:
    """Users and GPUs."""
    return f"{plural(row.concurrency, 'user')} on {plural(row.gpus, 'GPU')}"


def goes_to(row: ServedModel) -> list[tuple[str, str, float]]:
    """(name, words, share) of what an output token's time goes to, the largest first, without trifles."""
    total = row.tpot_ms or 1.0
    shares = [(name, CALLED[name], ms / total) for name, ms in (row.goes_to or {}).items()]
    return sorted((s for s in shares if s[2] >= LEAST_SHARE), key=lambda share: -share[2])


def _row(row: ServedModel, best: bool) -> list[str]:
    gpus = f"{row.replicas} x {row.tensor_parallel}" if row.replicas > 1 else str(row.gpus)
    memory = f"{row.memory_gib:.1f} GiB"
    if row.tpot_ms is None or row.ttft_ms is None or row.tpot_interval_ms is None:
        nothing = [""] * 7
        return [f"{row.concurrency:,}", gpus, *nothing, memory, "", "its weights do not fit"]
    price = "" if row.dollars_per_million is None else dollars(row.dollars_per_million)
    beyond = "beyond the limits" if row.within is False else ""
    remark = "best" if best else beyond if row.fits else "waits for memory"
    return [
        f"{row.concurrency:,}", gpus, milliseconds(row.ttft_ms), milliseconds(row.tpot_ms),
        between(*row.tpot_interval_ms), digits(row.tokens_per_s_user or 0.0),
        digits(row.tokens_per_s_gpu or 0.0), digits(row.tokens_per_s or 0.0), price, memory,
        f"{row.largest_concurrency:,}", remark,
    ]  # fmt: skip


def _advice(answer: LanguageModel) -> Iterator[str]:
    """What further users cost, and prices."""
    if answer.chosen.tpot_ms is None:
        return
    if (answer.free_users or 0) >= LEAST_FREE and answer.weights_gib is not None:
        reads = "at most " if answer.active < answer.parameters else ""
        yield (
            f"A step reads {reads}{answer.weights_gib:.1f} GiB of weights on each GPU: up to "
            f"{plural(answer.free_users or 0, 'user')} at once, a further one costs next to nothing."
        )
    row = answer.chosen
    if row.dollars_per_million is None or row.tokens_per_s is None:
        yield f"No price of {plain(answer.device)} is known: give --price-per-hour."
    else:
        hourly = row.dollars_per_million * row.tokens_per_s * 3600.0 / 1e6 / row.gpus
        yield (
            "Dollars are for a million output tokens with their prompts, at "
            f"{dollars(hourly)} an hour for a GPU, by {plain(answer.prices or '')}."
        )
