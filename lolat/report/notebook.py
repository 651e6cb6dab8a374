"""Answers shown from Python: as text, as a page, in a notebook: tables as HTML or of pandas, pictures."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

from lolat.device.prediction import Prediction
from lolat.errors import InputError, MissingPackageError, arg, without_options
from lolat.graph.counts import GROUPS
from lolat.io.results import Result, plain_data
from lolat.io.writing import write_text
from lolat.report import (
    bottlenecks,
    cost,
    device,
    evaluation,
    explanation,
    llm,
    prediction,
    ranked,
    search,
)
from lolat.report.rows import COLORS, TERMS, block_rows
from lolat.report.rows import folded as folded
from lolat.report.tables import Part, ReportTable, element, lines_of, one_by_one
from lolat.report.tables import write_csv as write_csv
from lolat.units import plain, plural

# ---- A prediction


def report(answer: Prediction) -> str:
    """The lines and tables of `lolat report`."""
    return "\n".join(lines_of(prediction.report_lines(answer)))


def write_page(answer: Prediction, path: str | PathLike[str], depth: int | None = None) -> None:
    """Write the page of `lolat report --html`, folded `depth` names deep."""
    write_text(path, bottlenecks.page(answer, depth))


# ---- HTML


def _several(answer: Any) -> Iterator[Part]:
    if answer.answers:
        yield from prediction.table_of_predictions(answer.answers)
    yield from ranked.left_out_lines(answer.left_out | answer.failures)


REPORTS: Mapping[str, Callable[[Any], Iterable[Part]]] = {
    "Prediction": prediction.report_lines, "Predictions": _several,
    "Explanation": explanation.explanation_lines, "BudgetAnswer": explanation.budget_lines,
    "Several": lambda several: one_by_one(several, lambda one: _of(REPORTS, one)(one)),
    "Cost": lambda answer: (*cost.cost_lines(answer), answer.missed),
    "Costs": lambda answer: (*cost.costs_lines(answer), answer.missed),
    "ServingAnswer": lambda answer: (*llm.llm_lines(answer), *prediction.note_lines(answer.warnings)),
    "ComparedModels": lambda found: (*llm.compared_lines(found), *prediction.note_lines(found.warnings)),
    "Evaluation": evaluation.evaluation_lines, "TableEvaluation": evaluation.table_lines,
    "SearchResult": search.front_lines, "Ranking": search.best_lines,
    "Models": device.models_lines, "Device": device.describe,
}  # fmt: skip
"""Class of an answer -> its lines and tables, as the command prints them."""


def html(answer: Result) -> str:
    """The lines and tables that the command prints; one paragraph for an answer that has none."""
    parts = _of(REPORTS, answer)
    shown = [answer.words()] if parts is None else parts(answer)
    body = [
        _table(part) if isinstance(part, ReportTable) else element("p", without_options(part))
        for part in shown
        if part
    ]
    return f"<div>{''.join(body)}</div>"


def _of(table: Mapping[str, Any], answer: Result) -> Any:
    """The entry of an answer's class, or of one that it is derived from; None if there is none."""
    return next((table[c.__name__] for c in type(answer).__mro__ if c.__name__ in table), None)


def _table(table: ReportTable) -> str:
    """The columns of the terminal; notebooks align to the right where nothing says otherwise."""

    def row(tag: str, texts: Sequence[str], marked: bool = False) -> str:
        cells = (
            element(
                tag,
                without_options(texts[i]),
                style=f"text-align: {'left' if column.is_text else 'right; white-space: nowrap'}",
            )
            for i, column in table.shown
        )
        bold = ' style="font-weight: bold"' if marked else ""
        return f"<tr{bold}>{''.join(cells)}</tr>"

    heads = row("th", [column.head for column in table.columns])
    rows = (row("td", cells, n in table.marked) for n, cells in enumerate(table.cells))
    return f"<table><thead>{heads}</thead><tbody>{''.join(rows)}</tbody></table>"


# ---- Tables of pandas

CAUSES = {color: TERMS[group] for group, color in COLORS.items()}
"""Color of a cause -> its words."""
SERVED = (
    "model device dtype {} tensor_parallel expert_parallel attention_data_parallel replicas gpus "
    "ttft_ms ttft_low_ms ttft_high_ms tpot_ms tpot_low_ms tpot_high_ms {} dollars_per_million "
    "dollars_per_hour remark"
)
STEADY = SERVED.format("concurrency", "tokens_per_s")
AT_A_RATE = SERVED.format("request_rate", "e2e_ms largest_rate")
RARE = {"expert_parallel", "attention_data_parallel", "replicas"}
"""Columns that are shown if they are not 1 in all rows."""
SHOWN: Mapping[str, str] = {
    "Predictions": "network device precision launch batch_size latency_ms low_ms high_ms samples_per_s "
    "dollars_per_million in_domain host_bound memory_gib fits",
    "Cost": "devices link instances instance_type idle_devices iteration_ms forward_ms backward_ms "
    "update_ms exchange_ms samples_per_s epoch_s total_s total_low_s total_high_s dollars dollars_low "
    "dollars_high",
    "Costs": "device precision batch_size devices link instances instance_type idle_devices iteration_ms "
    "samples_per_s fits epoch_s total_s total_low_s total_high_s dollars dollars_low dollars_high",
    "ServingAnswer": STEADY, "ComparedModels": STEADY,
}  # fmt: skip
"""Class of an answer with wide rows -> the columns that are shown."""
MOST_COLUMNS = 16


def frame(answer: Result) -> Any:
    """A pandas DataFrame of an answer, see `Result.frame`."""
    try:
        import pandas
    except ImportError:
        raise MissingPackageError("a table for a notebook needs pandas", "notebook") from None
    wanted, rows = _shown(answer), _of(ROWS, answer)
    found = answer.rows() if rows is None else rows(answer)
    made = pandas.DataFrame([plain_data(row) for row in found])
    if wanted is not None:
        return made.reindex(
            columns=[n for n in wanted if n not in RARE or (made[n].dropna() != 1).any()]
        )
    scalar = [c for c in made if not made[c].map(lambda v: isinstance(v, (list, dict))).any()]
    return made[scalar[:MOST_COLUMNS]]


def _shown(answer: Result) -> list[str] | None:
    """The columns that are shown; times of a served model at the percentile that was asked for."""
    names: str | None = _of(SHOWN, answer)
    at = getattr(answer, "percentile", None)
    if names == STEADY and _is_rated(answer):
        names = AT_A_RATE
    if names is not None and at is not None:
        names = re.sub("tpot|ttft|e2e", rf"\g<0>_p{at}", names)
    return None if names is None else names.split()


def _is_rated(answer: Any) -> bool:
    """True if the requests of served language models arrive at a rate."""
    first = answer.chosen if hasattr(answer, "chosen") else next(iter(answer.of.values())).chosen
    return first.request_rate is not None


def _served(answer: Any) -> list[dict[str, Any]]:
    """A row for each configuration; its remark as in the terminal, with why it does not fit."""
    name = f"{answer.device} ({answer.framework})"
    bests = {id(answer.served[n]) for n in answer.bests}
    why = f": {answer.warnings[0]}" if answer.warnings else ""  # that on weights comes first
    return [
        row.rows()[0]
        | {"device": name,
           "remark": llm.row_words(row, "best" * (id(row) in bests)) + why * (row.tpot_ms is None)}
        for row in answer.served
    ]  # fmt: skip


def _compared(found: Any) -> list[dict[str, Any]]:
    """The best row of each device under each load; its remark: the cheapest or fastest of one load. Then
    the devices without an answer, and why.
    """
    named = {} if found.by_load else {"cheapest": found.cheapest, "fastest": found.fastest}
    told = {name: ", ".join(word for word in named if named[word] == name) for name in found.of}
    return [
        row.rows()[0] | {"device": name, "remark": told.get(name, "")}
        for name, rows in _best_rows(found).items() for row in rows
    ] + [{"device": name, "remark": why} for name, why in found.left_out.items()]  # fmt: skip


def _best_rows(found: Any) -> Mapping[str, Sequence[Any]]:
    """The best rows of each device that has any, one for each load."""
    rows = found.by_load or {name: [row] for name, row in found.answers.items()}
    return {name: some for name, some in rows.items() if some}


def _blocks(found: Prediction) -> list[dict[str, Any]]:
    rows = []
    for row, block in zip(block_rows(found), found.blocks, strict=True):
        about = {"block": row.label, "description": row.summary, "latency_ms": row.latency_ms}
        about |= {"share": row.share, "most_of_it_is": TERMS[row.bound_by]}
        causes = {f"{CAUSES[c].replace(' ', '_')}_ms": ms for c, ms in row.by_color.items()}
        rows.append(
            about | causes | {"macs": block.counts["flops"], "weights": block.counts["weights"]}
        )
    return rows


PREDICTED = "host_bound", "fits", "samples_per_s"


def _predictions(answers: Any) -> list[dict[str, Any]]:
    return [
        p.rows()[0]
        | {name: getattr(p, name) for name in PREDICTED}
        | {"memory_gib": p.memory_bytes / 2**30}
        for p in answers
    ]


def _terms(answer: Any) -> list[dict[str, Any]]:
    """A row for each cause of the network, or of the block that was asked for."""
    of = answer.total if answer.block is None else answer.blocks[0]
    rows = [
        {"cause": TERMS[t.name], "family": TERMS[GROUPS[t.name]], "count": t.count,
         "latency_ms": t.latency_ms}
        for t in sorted(of.terms, key=lambda t: -t.latency_ms) if t.latency_ms > 0.0
    ]  # fmt: skip
    return [row | {"share": row["latency_ms"] / (of.latency_ms or 1.0)} for row in rows]


ROWS: Mapping[str, Callable[[Any], list[dict[str, Any]]]] = {
    "Prediction": _blocks, "Predictions": _predictions, "Explanation": _terms,
    "Explanations": lambda several: [
        {"batch_size": one.prediction.batch_size} | row for one in several for row in _terms(one)
    ],
    "Models": lambda answer: answer.to_dict()["models"],
    "ServingAnswer": _served, "ComparedModels": _compared,
}  # fmt: skip
"""Class of an answer -> its rows, if they are not those of `Result.rows`."""


# ---- Pictures

INKS = {
    "compute": "#2f6f9f", "memory": "#e0a03c", "weights": "#8a6bb0", "shapes": "#cf5c4a",
    "starting": "#7f8b96", "call": "#c3cad0",
}  # fmt: skip
"""Color of a cause -> as the report's page has it."""
LINES = ("#2f6f9f", "#cf5c4a", "#5a8f5a", "#8a6bb0", "#e0a03c", "#7f8b96")
SETTINGS = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.grid": True,
    "grid.color": "#e6e6e6", "font.size": 9, "axes.titlesize": 10, "axes.titlelocation": "left",
    "legend.frameon": False, "figure.constrained_layout.use": True,
}  # fmt: skip
MOST_BARS = 40
BESIDE: Mapping[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
"""The place of a legend beside the axes."""


def plot(answer: Result, ax: Any = None) -> Any:
    """The matplotlib axes with the picture of an answer, see `Result.plot`."""
    draw = _of(PICTURES, answer)
    if draw is None:
        raise InputError(
            f"{type(answer).__name__} has no picture; expected one of {', '.join(PICTURES)}; frame() has "
            "the figures",
            code="no-picture",
        )
    try:
        import matplotlib
        from matplotlib import pyplot
    except ImportError:
        raise MissingPackageError("a plot needs matplotlib", "notebook") from None
    if ax is not None and not hasattr(ax, "barh"):
        raise InputError(
            f"{arg('ax')}: a {type(ax).__name__}; expected one Axes of matplotlib, as plt.subplots()[1]",
            code="no-axes",
        )
    cycle = {"axes.prop_cycle": pyplot.cycler(color=LINES)}
    before = ((), "") if ax is None else ((*ax.lines,), ax.get_title("left"))
    with matplotlib.rc_context(SETTINGS | cycle):
        drawn = draw(
            answer, lambda height: pyplot.subplots(figsize=(7, height))[1] if ax is None else ax
        )
        _tell_apart(drawn, *before)
        return drawn


def _tell_apart(ax: Any, earlier: Sequence[Any], title: str) -> None:
    """Curves of several answers in one picture have the titles of these in their names.

    `earlier`: the lines that were there before, under `title`; limits keep their names.
    """
    if not earlier:
        return
    for line in (line for line in ax.lines if line.get_marker() == "o"):
        if of := title if line in earlier else ax.get_title("left"):
            line.set_label(f"{of}: {line.get_label()}")
    ax.set_title("")
    ax.legend()


Axes = Callable[[float], Any]
"""Height of a picture, inches -> the axes to draw on."""


def _draw_blocks(found: Prediction, axes: Axes) -> Any:
    """A bar for each block from top to bottom; where they are many, for each module."""
    shown = block_rows(found)
    for depth in (3, 2, 1):
        shown = block_rows(found, depth) if len(shown) > MOST_BARS else shown
    ax = _named_rows(axes, [plain(row.label) for row in shown], 0.22)
    left = [0.0] * len(shown)
    for cause, words in CAUSES.items():
        ms = [row.by_color[cause] for row in shown]
        if any(ms):
            ax.barh(range(len(shown)), ms, left=left, color=INKS[cause], label=words)
            left = [a + b for a, b in zip(left, ms, strict=True)]
    ax.set(xlabel="ms", title=f"{found.title}\n{prediction.latency(found)}")
    ax.legend(**BESIDE)
    return ax


def _named_rows(axes: Axes, names: Sequence[str], height: float) -> Any:
    """Axes with a name for each row from top to bottom; `height`: of a row, inches."""
    ax = axes(0.8 + height * len(names))
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    return ax


Points = Mapping[str, list[tuple[float, float, tuple[float, float] | None]]]
"""Name of a curve -> its points: (x, y, interval)."""


def _curves(points: Points, ax: Any, x: str, y: str) -> Any:
    """A curve with its band of intervals for each name, on logarithmic axes."""
    from matplotlib.ticker import LogLocator

    earlier = [*ax.get_xticks()] if ax.lines and ax.get_xscale() == "log" else []
    for name, unordered in points.items():
        xs, ys, intervals = zip(*sorted(unordered, key=lambda p: p[0]), strict=True)
        (line,) = ax.plot(xs, ys, marker="o", markersize=3, label=name)
        if all(intervals):
            ends = zip(*intervals, strict=True)
            ax.fill_between(xs, *ends, color=line.get_color(), alpha=0.15, lw=0)
    every = sorted({p[0] for some in points.values() for p in some}.union(earlier))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(every, [f"{value:g}" for value in every])
    ax.minorticks_off()
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set(xlabel=x, ylabel=y)
    if len(points) > 1:
        ax.legend()
    return ax


def _bars(times: Mapping[str, tuple[float, tuple[float, float] | None]], axes: Axes, x: str) -> Any:
    """A bar with its interval for each name; `times`: (ms, interval)."""
    ax = _named_rows(axes, [*times], 0.3)
    flat = [(ms, ends or (ms, ms)) for ms, ends in times.values()]
    off = [(ms - low, high - ms) for ms, (low, high) in flat]
    ax.barh(range(len(flat)), [ms for ms, _ in flat], xerr=[*zip(*off, strict=True)], height=0.6,
            color=LINES[0], ecolor="#555555")  # fmt: skip
    ax.set(xlabel=x)
    return ax


def _draw_predictions(answers: Any, axes: Axes) -> Any:
    """Curves over the batch sizes; bars of networks and devices where there is one size."""
    points: dict[str, list[Any]] = defaultdict(list)
    networks = {p.query.network for p in answers}
    differ = len({p.precision for p in answers}) > 1
    for p in answers:
        of = f"{plain(p.query.network)} on " if len(networks) > 1 else ""
        name = f"{of}{plain(p.query.model.label)}{f', {p.precision}' * differ}"
        points[name].append((p.batch_size, p.latency_ms, p.interval_ms))
    if any(len(some) > 1 for some in points.values()):
        ax = _curves(points, axes(3.6), "batch size", "ms a batch")
    else:
        ax = _bars({name: some[0][1:] for name, some in points.items()}, axes, "ms a batch")
    ax.set_title("" if len(networks) > 1 else plain(next(iter(networks), "")))
    return ax


def _draw_compared(found: Any, axes: Axes) -> Any:
    """A bar for each device: the time per output token, at the percentile asked for; a curve if the
    question has several loads.
    """
    points = {
        plain(name): [_point(row, found.percentile) for row in rows]
        for name, rows in _best_rows(found).items()
    }
    row = next(iter(found.answers.values()))
    models = ", ".join(dict.fromkeys(plain(of.model) for of in found.of.values()))
    if found.by_load:
        ax = _over_loads(points, found, axes)
        ax.set_title(f"{models}, the best row of each")
    else:
        bars = {name: some[0][1:] for name, some in points.items()}
        ax = _bars(bars, axes, f"ms per output token{_at(found.percentile)}")
        ax.set_title(f"{models}, {row.requests_words}")
    return ax


def _point(row: Any, percentile: int | None) -> tuple[float, float, tuple[float, float] | None]:
    """The load of a served model and its time per output token, with the interval."""
    load = row.concurrency if row.request_rate is None else row.request_rate
    return load, row.judged(percentile)[0], row.judged_ends(percentile)[0]


def _over_loads(points: Points, answer: Any, axes: Axes) -> Any:
    """Curves of the times per output token."""
    x = "requests a second" if _is_rated(answer) else "concurrent requests"
    return _curves(points, axes(3.6), x, f"ms per output token{_at(answer.percentile)}")


def _at(percentile: int | None) -> str:
    return "" if percentile is None else f" at P{percentile}"


def _draw_savings(found: Any, axes: Axes) -> Any:
    """A bar for each change, as long as the time that it saves."""
    changes = found.counterfactuals
    if not changes:
        raise InputError(f"no picture: {explanation.NO_CHANGE} saves time", code="no-picture")
    ax = _named_rows(axes, [plain(without_options(c.change)) for c in changes], 0.3)
    ax.barh(range(len(changes)), [change.saves_ms for change in changes], color=LINES[0])
    of = f", block {plain(found.block)}" if found.block else ""
    network, _, mode = f"{found.prediction.title}{of}".rpartition(" · ")
    ax.set(xlabel="ms saved", title=f"{network}\n{mode}")
    return ax


def _draw_serving(answer: Any, axes: Axes) -> Any:
    """The time per output token over the loads, a curve for each split of a replica, and its limit.

    The time is that at the percentile asked for. Rows without room are left out where others have it.
    """
    points: dict[str, list[Any]] = defaultdict(list)
    at = answer.percentile
    timed = [row for row in answer.served if row.tpot_ms is not None]
    if not timed:
        raise InputError(f"no picture without a time: {answer.no_room()}", code="no-picture")
    each = " a replica" if any(row.replicas > 1 for row in timed) else ""
    for row in [row for row in timed if row.fits] or timed:
        name = f"{plural(row.gpus // row.replicas, 'GPU')}{each}{row.experts_words}"
        points[name].append(_point(row, at))
    ax = _over_loads(points, answer, axes)
    limit = f"limit, {answer.max_tpot_ms or 0.0:g} ms{_at(at)}"
    if answer.max_tpot_ms is not None and limit not in [line.get_label() for line in ax.lines]:
        ax.axhline(answer.max_tpot_ms, color="#555555", linestyle="--", linewidth=1, label=limit)
        ax.legend()
    device = f"{plain(answer.device)} ({answer.framework})"
    ax.set_title(f"{plain(answer.model)} on {device}, {answer.chosen.dtype}")
    return ax


def _draw_costs(found: Any, axes: Axes) -> Any:
    """US$ over hours with their intervals: a curve over the numbers of devices of each device, batch."""
    dots: dict[str, list[Any]] = defaultdict(list)
    for of in getattr(found, "answers", (found,)):
        name = f"{plain(of.device)}, {of.precision}, batch {of.batch_size:,}"
        fitting = [o for o in of.options if False not in (of.fits, o.fits)]
        dots[name] += [o for o in fitting if None not in (o.total_s, o.dollars)]
    if not any(dots.values()):
        raise InputError(
            f"no picture without hours and dollars; give {arg('samples')}, and {arg('prices')} or "
            f"{arg('price_per_hour')}",
            code="no-picture",
        )
    from matplotlib.ticker import LogLocator

    ax = axes(3.6)
    for name, some in dots.items():
        xs, ys = [o.total_s / 3600 for o in some], [o.dollars for o in some]
        (line,) = ax.plot(xs, ys, marker="o", markersize=3, label=name)
        about = {"color": line.get_color(), "alpha": 0.4}
        for o, x, y in zip(some, xs, ys, strict=True):
            ax.annotate(o.devices, (x, y), (3, 3), textcoords="offset points")
            if o.interval_s and o.dollars_interval:
                ax.hlines(y, *(s / 3600 for s in o.interval_s), **about)
                ax.vlines(x, *o.dollars_interval, **about)
    ax.set(xlabel="hours", ylabel="US$", title=plain(found.network), xscale="log", yscale="log")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:g}")
    ax.minorticks_off()
    ax.legend(**BESIDE)
    return ax


def _draw_front(result: Any, axes: Axes) -> Any:
    """The scores of the front over the latencies with their intervals; a step up is the next candidate."""
    ax, front = axes(3.6), result.front
    times, scores = [c.latency_ms for c in front], [c.score for c in front]
    ax.step(times, scores, where="post", marker="o", markersize=3)
    for c in front:
        ax.hlines(c.score, *(c.interval_ms or (c.latency_ms,) * 2), color=LINES[0], alpha=0.4)
    ax.set(xlabel="ms a batch", ylabel="score", title=plain(result.words()))
    return ax


PICTURES: Mapping[str, Callable[[Any, Axes], Any]] = {
    "Prediction": _draw_blocks, "Predictions": _draw_predictions, "Explanation": _draw_savings,
    "ServingAnswer": _draw_serving, "ComparedModels": _draw_compared,
    "Cost": _draw_costs, "Costs": _draw_costs, "SearchResult": _draw_front,
}  # fmt: skip
"""Class of an answer -> the function that draws it."""
