"""Answers shown from Python: as text, as a page, in a notebook as HTML, as pandas DataFrames."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, repeat
from os import PathLike
from pathlib import Path
from typing import Any

from lolat.device.attribution import Explanation
from lolat.device.prediction import CALL, Prediction
from lolat.errors import MissingPackageError
from lolat.graph.counts import GROUPS
from lolat.io.results import Result, answers_of, plain_data
from lolat.io.writing import write_text
from lolat.parameters import in_python
from lolat.report import (
    comparison,
    cost,
    device,
    evaluation,
    explanation,
    llm,
    llms,
    prediction,
    ranked,
    search,
)
from lolat.report.bottlenecks.page import page
from lolat.report.cost_table import rented_words
from lolat.report.pictures import CAUSES, of_class
from lolat.report.pictures import plot as plot
from lolat.report.prediction import precision_lines as precision_lines
from lolat.report.rows import TERMS, block_rows
from lolat.report.rows import folded as folded
from lolat.report.tables import Paragraph, Part, ReportTable, element, lines_of, one_by_one
from lolat.report.tables import write_csv as write_csv
from lolat.training.choice import Choice
from lolat.units import GIB

# ---- Text and pages


def report(answer: Result) -> str:
    """The lines and tables that the command prints, with arguments in place of options."""
    return "\n".join(map(in_python, lines_of(_parts(answer))))


def write_page(answer: Prediction, path: str | PathLike[str], depth: int | None = None) -> None:
    """Write the page of `lolat report --html`; `depth`: fold the blocks to modules so many names deep."""
    write_text(path, page(answer, depth, Path(path).name))


def write_comparison(answer: Any, path: str | PathLike[str]) -> None:
    """Write the page of `lolat predict --html`."""
    write_text(path, comparison.page(answer))


# ---- HTML


def _several(answer: Any) -> Iterator[Part]:
    if answer.answers:
        yield from prediction.table_of_predictions(answer.answers)
    yield from ranked.left_out_lines(answer.left_out | answer.failures)


REPORTS: Mapping[str, Callable[[Any], Iterable[Part]]] = {
    "Prediction": prediction.report_lines, "Predictions": _several,
    "Explanation": explanation.explanation_lines, "BudgetAnswer": explanation.budget_lines,
    "Several": lambda several: one_by_one(several, lambda one: of_class(REPORTS, one)(one)),
    "Cost": cost.cost_lines, "Costs": cost.costs_lines,
    "ServingAnswer": lambda answer: (*llm.llm_lines(answer), *prediction.note_lines(answer.warnings)),
    "ComparedModels": lambda found: (*llms.compared_lines(found), *prediction.note_lines(found.warnings)),
    "Evaluation": evaluation.evaluation_lines, "TableEvaluation": evaluation.table_lines,
    "SearchResult": search.front_lines, "Ranking": search.best_lines,
    "Models": device.models_lines, "Device": device.describe,
}  # fmt: skip
"""Class of an answer -> its lines and tables, as the command prints them."""


def _parts(answer: Result) -> Iterable[Part]:
    """The parts of an answer as its command prints them; without such a command, its `words()`."""
    parts: Callable[[Any], Iterable[Part]] | None = of_class(REPORTS, answer)
    return [answer.words()] if parts is None else parts(answer)


def html(answer: Result) -> str:
    """The lines and tables that an answer's command prints, as HTML; else one paragraph."""
    table, *lines = parts = [*_parts(answer)]
    first = of_class(FIRST, answer) or 0
    if isinstance(table, ReportTable) and len(table.rows) > LONG_TABLE:
        parts = [*lines[:first], table, *lines[first:]]  # a long table comes after its first lines
    body: list[str] = []
    is_first = True
    for are_tables, each in groupby(parts, lambda part: isinstance(part, ReportTable) or not part):
        if are_tables:
            body += (_table(part) for part in each if isinstance(part, ReportTable))
            continue
        tags = chain(["b"] if is_first else (), repeat("span"))
        texts = (part.text if isinstance(part, Paragraph) else part for part in each)
        told = (in_python(text) for text in texts if isinstance(text, str))
        lines_of_text = "\n".join(map(element, tags, told))
        body.append(f'<p style="white-space: pre-wrap">{lines_of_text}</p>')
        is_first = False
    return f"<div>{''.join(body)}</div>"


def _table(table: ReportTable) -> str:
    """A table as HTML with the terminal's columns; by default notebooks align cells to the right."""

    def row(tag: str, texts: Sequence[str], marked: bool = False) -> str:
        cells = (
            element(
                tag,
                in_python(texts[i]),
                style=f"text-align: {'left' if column.is_text else 'right; white-space: nowrap'}",
            )
            for i, column in table.shown
        )
        bold = ' style="font-weight: bold"' if marked else ""
        return f"<tr{bold}>{''.join(cells)}</tr>"

    heads, *texts = table.on_screen
    rows = (row("td", cells, n in table.marked) for n, cells in enumerate(texts))
    told = in_python("; ".join(table.shared_texts))
    caption = element("caption", told, style="text-align: left") * bool(told)
    return (
        f"<table>{caption}<thead>{row('th', heads)}</thead><tbody>{''.join(rows)}</tbody></table>"
    )


# ---- Tables of pandas

SERVED = (
    "model device dtype {} tensor_parallel expert_parallel attention_data_parallel "
    "replicas gpus ttft_ms ttft_low_ms ttft_high_ms ttft_verdict tpot_ms tpot_low_ms tpot_high_ms "
    "tpot_verdict {} "
    "dollars_per_million dollars_per_hour dollars_per_month rented verdict chance remark"
)
STEADY = SERVED.format("concurrency", "tokens_per_s_user tokens_per_s_gpu tokens_per_s")
AT_A_RATE = SERVED.format("request_rate", "e2e_ms largest_rate headroom_rate")
RARE = {"expert_parallel", "attention_data_parallel", "replicas", "ttft_verdict", "tpot_verdict",
        "verdict", "chance", "dollars_per_million"}  # fmt: skip
"""Columns that are shown only if a row has a value other than 1 in them."""
SHOWN: Mapping[str, str] = {
    "Predictions": "network device profile precision launch batch_size latency_ms low_ms high_ms "
    "samples_per_s dollars_per_million in_domain host_bound memory_gib fits",
    "Cost": "device profile precision batch_size devices rented idle_devices iteration_ms "
    "samples_per_s memory_gib fits estimated in_domain total_s total_low_s total_high_s dollars "
    "dollars_low dollars_high verdict",
    "Costs": "device profile precision batch_size devices rented samples_per_s memory_gib fits host_bound "
    "estimated in_domain total_s total_low_s total_high_s dollars dollars_low dollars_high verdict",
    "ServingAnswer": STEADY, "ComparedModels": STEADY,
}  # fmt: skip
"""Class of an answer with wide rows -> the columns of its DataFrame."""
MOST_COLUMNS, LONG_TABLE = 16, 12
FIRST = {"Predictions": 2}
"""Class of an answer -> the number of lines to show before its table if that has over LONG_TABLE rows."""
CANDIDATES = dict.fromkeys(("SearchResult", "Ranking"), True)
"""Classes of answers whose rows end with the choices of a candidate; all columns are shown."""


def frame(answer: Result) -> Any:
    """A pandas DataFrame of an answer, see `Result.frame`."""
    pandas = _pandas()
    wanted, rows = _shown(answer), of_class(ROWS, answer)
    found = answer.rows() if rows is None else rows(answer)
    made = pandas.DataFrame([plain_data(row) for row in found])
    if wanted is not None:
        return made.reindex(
            columns=[
                n for n in wanted if n not in RARE or (n in made and (made[n].dropna() != 1).any())
            ]
        )
    scalar = [c for c in made if not made[c].map(lambda v: isinstance(v, (list, dict))).any()]
    return made[scalar if of_class(CANDIDATES, answer) else scalar[:MOST_COLUMNS]]


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise MissingPackageError("a table for a notebook needs pandas", "notebook") from None
    return pandas


def _shown(answer: Result) -> list[str] | None:
    """The columns of an answer's DataFrame, with times at the percentile of the question; None: all."""
    names: str | None = of_class(SHOWN, answer)
    asked = getattr(answer, "asked", None)
    at = getattr(asked, "percentile", None)
    if names == STEADY and asked and asked.request_rate:
        names = AT_A_RATE
    if names is not None and at is not None:
        names = re.sub(r"(tpot|ttft|e2e)(?=_(low_|high_)?ms)", rf"\g<0>_p{at}", names)
    return None if names is None else names.split()


def _served(answer: Any) -> list[dict[str, Any]]:
    """A row for each configuration, with the terminal's remark; it includes the reason if the row does not
    fit.
    """
    why = f": {answer.warnings[0]}" if answer.warnings else ""  # the remark on weights comes first
    return [
        row.rows()[0]
        | {"remark": llm.row_words(row, llm.best_word(answer, row)) + why * (row.tpot_ms is None)}
        for row in answer.served
    ]  # fmt: skip


def _compared(found: Any) -> list[dict[str, Any]]:
    """The best row of each device under each load, with the terminal's remark and near misses.

    A row for each device without an answer, with the reason, follows.
    """
    rows = []
    for load, best in found.loads.items():
        for name, row in best.items():
            near = (one for one in found.near.get(name, ()) if one.request_rate == load)
            fewer = [f"nearly: {one.gpus_words}, {one.over_words(found.asked)}" for one in near]
            words = llms.leads(found, best, name)
            rows.append(row.rows()[0] | {"remark": "; ".join(filter(None, [words, *fewer]))})
    return rows + [{"device": name, "remark": why} for name, why in found.left_out.items()]


def _blocks(found: Prediction) -> list[dict[str, Any]]:
    rows = []
    for row, block in zip(
        block_rows(found), found.blocks, strict=False
    ):  # a call that costs nothing
        about = {"block": row.label, "description": row.summary, "latency_ms": row.latency_ms}
        about |= {"share": row.share, "most_of_it_is": TERMS[row.bound_by]}
        causes = {f"{CAUSES[c].replace(' ', '_')}_ms": ms for c, ms in row.by_color.items()}
        rows.append(
            about | causes | {"macs": block.counts["flops"], "weights": block.counts["weights"]}
        )
    return rows


def _predictions(answers: Any) -> list[dict[str, Any]]:
    return [
        p.rows()[0] | {"host_bound": p.host_bound, "memory_gib": p.memory_bytes / GIB}
        for p in answers
    ]


def _costs(costs: Any) -> list[dict[str, Any]]:
    """A row for each device and number of devices; modes and rented machines are in words."""
    every = [(cost, option) for cost in answers_of(costs) for option in cost.options]
    return [
        row
        | {
            "precision": Choice.of(cost, option).mode_words,
            "rented": rented_words(cost, option),
            "memory_gib": row["memory_bytes"] / GIB,
        }
        for row, (cost, option) in zip(costs.rows(), every, strict=True)
    ]


def _budgets(answer: Any) -> list[dict[str, Any]]:
    """A row for each batch size: the largest value within the time, the current value, the next larger
    value.
    """
    rows = []
    for one in answers_of(answer):
        best, after = one.best.prediction, one.next
        low, high = best.interval_ms or (None, None)
        rows.append(
            {"network": best.network, "device": best.device, "profile": best.profile,
             "batch_size": best.batch_size, "vary": one.vary, "budget_ms": one.budget_ms,
             "answer": one.answer, "latency_ms": one.latency_ms, "low_ms": low, "high_ms": high,
             "in_domain": best.in_domain, "now": one.now.value, "now_ms": one.now.prediction.latency_ms,
             "next": after and after.value, "next_ms": after and after.prediction.latency_ms}
        )  # fmt: skip
    return rows


def _terms(answer: Any) -> list[dict[str, Any]]:
    """A row for each cause of the network's time, or of the explained block's time."""
    is_whole = answer.block is None
    of = answer.total if is_whole else answer.blocks[0]
    whole_ms = answer.prediction.latency_ms if is_whole else of.latency_ms
    rows = [
        (TERMS[t.name], TERMS[GROUPS[t.name]], t.count, t.latency_ms)
        for t in sorted(of.terms, key=lambda t: -t.latency_ms)
    ]
    if is_whole:
        rows.append((explanation.CALL_WORDS, TERMS[CALL], 1, answer.prediction.call_ms))
    return [
        {"cause": cause, "family": family, "count": count, "latency_ms": ms,
         "share": ms / (whole_ms or 1.0)}
        for cause, family, count, ms in rows if ms > 0.0
    ]  # fmt: skip


def changes(answer: Explanation) -> Any:
    """A pandas DataFrame of an explanation's changes."""
    each = ((c, *(c.interval_ms or (None, None))) for c in answer.counterfactuals)
    return _pandas().DataFrame(
        [
            {"change": in_python(c.change), "latency_ms": c.latency_ms, "low_ms": low, "high_ms": high,
             "saves_ms": c.saves_ms, "saves_share": c.of_network, "in_domain": c.in_domain}
            for c, low, high in each
        ]
    )  # fmt: skip


ROWS: Mapping[str, Callable[[Any], list[dict[str, Any]]]] = {
    "Prediction": _blocks, "Predictions": _predictions, "Explanation": _terms,
    "Explanations": lambda several: [
        {"batch_size": one.prediction.batch_size} | row for one in several for row in _terms(one)
    ],
    "Models": lambda answer: [
        row | {"answers_for": ", ".join(row["answers_for"])} for row in answer.to_dict()["models"]
    ],
    "Cost": _costs, "Costs": _costs, "BudgetAnswer": _budgets, "BudgetAnswers": _budgets,
    "ServingAnswer": _served, "ComparedModels": _compared,
}  # fmt: skip
"""Class of an answer -> the rows of its DataFrame, if other than `Result.rows`."""
