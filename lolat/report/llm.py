"""A served language model as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lolat.llm.answer import ServingAnswer, ServingConfig
from lolat.llm.compare import ComparedModels
from lolat.report.prediction import apart_words, left_out_lines, scaled, within_limit
from lolat.report.tables import table_lines
from lolat.units import between, digits, dollars, milliseconds, percent, plain, quantity

CALLED = {
    "weights": "reading weights", "products": "matrix products beyond that", "attention": "attention",
    "experts": "experts", "all_reduce": "all-reduces", "small": "small operations",
    "launches": "starting kernels", "scheduling": "scheduling", "prompts": "prompts of other requests",
}  # fmt: skip
DOLLARS = "Dollars are for a million output tokens with their prompts"
LEAST_SHARE = 0.02
LEAST_FREE = 4  # concurrent requests; the advice names no fewer


def llm_lines(answer: ServingAnswer) -> Iterator[str]:
    """The title, the table, what the time of the chosen row goes to, and what else there is to say."""
    before, (heads, rows), after = llm_parts(answer)
    yield from before
    yield ""
    yield from table_lines(heads, rows, left={len(heads) - 1})
    yield ""
    parts = [f"{words} {percent(share)}" for _, words, share in breakdown(answer.chosen)]
    if parts:
        yield f"An output token with {answer.chosen.load_words}: {', '.join(parts)}."
    yield from after


def llm_parts(
    answer: ServingAnswer,
) -> tuple[list[str], tuple[list[str], list[list[str]]], list[str]]:
    """Lines before the table; its heads and a row for each configuration; advice and prices."""
    framework = f" · {answer.framework}" if answer.framework else ""
    before = [
        f"{_model_words(answer)} · {_types(answer.chosen)} · {_tokens(answer)}",
        f"{plain(answer.device)}{framework} · {STEADY}",
    ]
    rows = [_row(answer, row, number == answer.best) for number, row in enumerate(answer.served)]
    return before, (_heads(answer), rows), [*_advice(answer)]


STEADY = "a steady load: so many requests are always there"


def _model_words(answer: ServingAnswer) -> str:
    active = f", {quantity(answer.active)} active" if answer.active < answer.parameters else ""
    return f"{plain(answer.model)} · {quantity(answer.parameters)} parameters{active}"


def _types(row: ServingConfig) -> str:
    return f"{row.dtype}, cache {row.kv_dtype}"


def _tokens(answer: ServingAnswer) -> str:
    return f"{answer.chosen.input_tokens:,} tokens in, {answer.chosen.output_tokens:,} out"


def compared_lines(found: ComparedModels) -> Iterator[str]:
    """The question, a row a model, the cheapest and the fastest, and who cannot answer."""
    first, *_ = found.of.values()
    yield f"{_model_words(first)} · {_tokens(first)} · {STEADY}"
    yield ""
    heads, rows = compared_table(found)
    yield from table_lines(heads, rows, left={0, 1, len(heads) - 1}, whole={0})
    yield ""
    prices = [
        f"{plain(name)} in {plain(row.rented)}" for name, row in found.answers.items() if row.rented
    ]
    if prices:
        tables = dict.fromkeys(plain(of.prices) for of in found.of.values() if of.prices)
        yield f"{DOLLARS}, by {', '.join(tables)}: {'; '.join(prices)}."
    yield from apart_lines(found)
    yield from left_out_lines(found.left_out)


def apart_lines(found: ComparedModels) -> Iterator[str]:
    """Models that cannot be told apart from the cheapest, and from the fastest."""
    times = {plain(n): (r.tpot_ms or 0.0, r.tpot_interval_ms) for n, r in found.answers.items()}
    prices = {
        plain(name): (usd, scaled(row.tpot_interval_ms, usd / (row.tpot_ms or 1.0)))
        for name, row in found.answers.items()
        if (usd := row.dollars_per_million) is not None
    }
    for word, best, values in (
        ("Cheapest", found.cheapest, prices),
        ("Fastest", found.fastest, times),
    ):
        if best is not None and (alike := apart_words(plain(best), values)):
            yield f"{word}: {plain(best)}{alike}."


def compared_table(found: ComparedModels) -> tuple[list[str], list[list[str]]]:
    """Heads, and the best row of each model; the last cell says which of these is the cheapest, and the
    fastest.
    """
    rows = []
    for name, row in found.answers.items():
        *cells, _ = _row(found.of[name], row, False)
        named = {"cheapest": found.cheapest, "fastest of these": found.fastest}
        words = [word for word, best in named.items() if best == name]
        rows.append([plain(name), _types(row), *cells, ", ".join(words)])
    first, *_ = found.of.values()
    return ["model", "data type", *_heads(first)], rows


def breakdown(row: ServingConfig) -> list[tuple[str, str, float]]:
    """(name, words, share) of what an output token's time goes to, the largest first, without trifles."""
    total = row.tpot_ms or 1.0
    shares = [(name, CALLED[name], ms / total) for name, ms in (row.breakdown or {}).items()]
    return sorted((s for s in shares if s[2] >= LEAST_SHARE), key=lambda share: -share[2])


def _heads(answer: ServingAnswer) -> list[str]:
    limits = [
        "" if ms is None else f"{what} <= {ms:g} ms"
        for what, ms in (("first", answer.max_ttft_ms), ("token", answer.max_tpot_ms))
    ]
    return ["requests", "GPUs", "first token", "per token", f"{percent(answer.coverage)} between",
            "tokens/s a request", "a GPU", "in all", "$/M tokens", "$ an hour", "memory a GPU",
            "largest load", *limits, ""]  # fmt: skip


def _row(answer: ServingAnswer, row: ServingConfig, best: bool) -> list[str]:
    """The cells of `_heads`; of each limit whether the interval keeps it, see `within_limit`."""
    gpus = row.gpus_words.partition(" GPU")[0]
    memory = f"{row.memory_gib:.1f} GiB"
    if row.tpot_ms is None or row.ttft_ms is None or row.tpot_interval_ms is None:
        no_times, none = [""] * 8, [""] * 3
        return [f"{row.concurrency:,}", gpus, *no_times, memory, *none, "its weights do not fit"]
    limits = [
        "" if limit is None else within_limit(ms, interval, limit)
        for ms, interval, limit in (
            (row.ttft_ms, row.ttft_interval_ms, answer.max_ttft_ms),
            (row.tpot_ms, row.tpot_interval_ms, answer.max_tpot_ms),
        )
    ]
    prices = [
        "" if usd is None else dollars(usd)
        for usd in (row.dollars_per_million, row.dollars_per_hour)
    ]
    beyond = "beyond the limits" if row.within is False else ""
    remark = "best" if best else beyond if row.fits else "waits for memory"
    return [
        f"{row.concurrency:,}", gpus, milliseconds(row.ttft_ms), milliseconds(row.tpot_ms),
        between(*row.tpot_interval_ms), digits(row.tokens_per_s_user or 0.0),
        digits(row.tokens_per_s_gpu or 0.0), digits(row.tokens_per_s or 0.0), *prices, memory,
        f"{row.largest_concurrency:,}", *limits, remark,
    ]  # fmt: skip


def _advice(answer: ServingAnswer) -> Iterator[str]:
    """The cost of further requests, and prices."""
    if answer.chosen.tpot_ms is None:
        return
    if (answer.free_concurrency or 0) >= LEAST_FREE:
        reads = "at most " if answer.active < answer.parameters else ""
        yield (
            f"A step reads {reads}{answer.read_gib:.1f} GiB of weights on each GPU, for one request or for "
            f"many: with up to {answer.free_concurrency} a token takes at most a quarter longer than "
            "with one."
        )
    if answer.best is not None:
        how = (
            "cheapest output tokens"
            if answer.chosen.rented
            else "most tokens a second from each GPU"
        )
        yield f"The best row has the {how} within the limits."
    yield _price_words(answer.device, answer.prices, answer.served)


def _price_words(device: str, prices: str | None, rows: Sequence[ServingConfig]) -> str:
    """What the dollars of rows of one device are for, and what is rented for them."""
    machines = {row.gpus_words: plain(row.rented) for row in rows if row.rented}
    if prices is None:
        return f"No price of {plain(device)} is known: give --price-per-hour or --prices."
    if not machines:
        return (
            f"No machine in {plain(prices)} holds so many GPUs: give --price-per-hour or --prices."
        )
    if {*machines.values()} == {prices}:
        return f"{DOLLARS}, by {plain(prices)}."
    rented = "; ".join(f"{gpus} in {name}" for gpus, name in machines.items())
    return f"{DOLLARS}, by {plain(prices)}: {rented}."
