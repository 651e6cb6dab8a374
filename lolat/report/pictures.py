"""Pictures of answers, drawn by matplotlib: blocks, causes, curves over batch sizes, loads and devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lolat.device.prediction import Prediction
from lolat.errors import InputError, MissingPackageError, arg
from lolat.io.results import Result, answers_of
from lolat.llm.refusal import no_room
from lolat.report import prediction
from lolat.report.cost_table import SAMPLE, training_mode_words
from lolat.report.ranked import device_words
from lolat.report.rows import COLORS, INKS, TERMS, block_rows
from lolat.units import milliseconds, percent, plain, plural, value_words

CAUSES = {color: TERMS[group] for group, color in COLORS.items()}
"""Color of a cause -> the name of the cause."""
LINES = ("#2f6f9f", "#cf5c4a", "#5a8f5a", "#8a6bb0", "#e0a03c", "#7f8b96")
STYLES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"), ((0, (1, 3)), "v"), ((0, (8, 2)), "P"))
"""(line style, marker) of curves that share a color."""
SETTINGS = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.grid": True,
    "grid.color": "#e6e6e6", "font.size": 9, "axes.titlesize": 10, "axes.titlelocation": "left",
    "legend.frameon": False, "legend.framealpha": 0.8, "figure.constrained_layout.use": True,
}  # fmt: skip
LIGHT = 0.4
"""Opacity of predictions outside the measured range."""
MOST_BARS = 40
MOST_INTERVALS = 6
"""Intervals are drawn for at most so many curves; more could not be distinguished."""
LOG_RATIO = 20.0
"""The axis of bars is logarithmic if the longest is at least this many times the shortest."""
LEGEND_BESIDE: Mapping[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
"""Arguments of matplotlib that put a legend beside the axes."""
BAR, WHISKER = "#9dbdd6", {"ecolor": "#222222", "elinewidth": 1.2, "capsize": 2.5}
"""The light color of a bar, and the style of its interval."""


def plot(answer: Result, ax: Any = None) -> Any:
    """Draw the picture of an answer; return the matplotlib axes. See `Result.plot`."""
    draw = of_class(PICTURES, answer)
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
            f"{arg('ax')}: {value_words(ax)}; expected one Axes of matplotlib, as plt.subplots()[1]",
            code="no-axes",
        )
    cycle = {"axes.prop_cycle": pyplot.cycler(color=LINES)}
    pyplot.install_repl_displayhook()  # within the context a notebook's would be undone at its end
    with matplotlib.rc_context(SETTINGS | cycle):
        if ax is None:
            return draw(answer, lambda height: pyplot.subplots(figsize=(7, height))[1])
        title = ax.get_title("left")
        drawn = draw(answer, lambda height: ax)
        ax.set_title(title, loc="left")  # axes of the user keep their titles
        if legend := ax.get_legend():  # beside them there may be no room
            legend.set_bbox_to_anchor(None)
            legend.set_loc("best")
            legend.set_frame_on(True)
            legend.get_frame().set_alpha(0.6)  # curves show through
            for text in (legend.get_title(), *legend.get_texts()):
                text.set_fontsize("x-small")
        return drawn


Axes = Callable[[float], Any]
"""A function of a picture's height in inches that returns the axes to draw on."""


def _draw_blocks(found: Prediction, axes: Axes) -> Any:
    """Draw a bar for each block from top to bottom; for more than MOST_BARS blocks, for each module."""
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
    room = "; does not fit into memory" if found.fits is False else ""
    of_device = f"{device_words(found)}: {prediction.latency(found)}"
    outside = "; extrapolated" if found.in_domain is False else ""
    ax.set(xlabel=f"ms{room}", title=f"{found.title}\n{of_device}{outside}")
    _add_legend(ax)
    return ax


def _add_legend(ax: Any, notes: Sequence[str] = (), handles: Sequence[Any] | None = None) -> None:
    """Add a legend beside the axes, with notes above it (also those of an earlier picture on the axes).
    `handles`: the lines to name; None: all lines on the axes.
    """
    earlier = ax.get_legend()
    title = [*earlier.get_title().get_text().split("\n")] if earlier else []
    shown = dict.fromkeys(filter(None, [*title, *notes]))
    handles = ax.get_legend_handles_labels()[0] if handles is None else handles
    ax.legend(handles=handles, title="\n".join(shown), alignment="left", **LEGEND_BESIDE)


def _named_rows(axes: Axes, names: Sequence[str], height: float) -> Any:
    """Make axes with a name for each row from top to bottom; `height`: of a row, in inches."""
    ax = axes(0.8 + height * len(names))
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    return ax


Ends = tuple[float, float] | None
Points = Mapping[str, list[tuple[float, float, Ends]]]
"""Name of a curve -> its points: (x, y, interval)."""


def _curves(
    points: Points, ax: Any, x: str, y: str, places: Mapping[str, tuple[int, int]] | None = None
) -> Any:
    """Draw a curve for each name, with the intervals of its points, on logarithmic axes.

    The intervals of a single curve are a band; those of several are vertical bars, because overlapping
    bands cannot be distinguished. More than MOST_INTERVALS curves have no intervals, and the legend says
    so. `places`: name -> (index of its color, of its style); by default each curve has its own color.
    """
    earlier = [*ax.get_xticks()] if ax.lines and ax.get_xscale() == "log" else []
    last, lacking = len(points) - 1, False
    for index, (name, unordered) in enumerate(points.items()):
        xs, ys, intervals = zip(*sorted(unordered, key=lambda p: p[0]), strict=True)
        color, style = (places or {}).get(name, (None, 0))
        more = {} if color is None else {"color": LINES[color % len(LINES)]}
        style += 0 if color is None else color // len(LINES)
        line_style, marker = STYLES[style % len(STYLES)]
        about = {"linestyle": line_style, "marker": marker, "markersize": 3}
        (line,) = ax.plot(xs, ys, label=name, **about, **more)
        if all(intervals) and len(points) > MOST_INTERVALS:
            lacking = True
        elif all(intervals) and len(points) == 1 and not earlier:
            ax.fill_between(
                xs, *zip(*intervals, strict=True), color=line.get_color(), alpha=0.15, lw=0
            )
        elif all(intervals):
            aside = 1.025 ** ((2 * index - last) / max(last, 1))  # beside those of other curves
            at = [x * aside for x in xs]
            ax.vlines(at, *zip(*intervals, strict=True), color=line.get_color(), alpha=0.5, lw=1)
    every = sorted({p[0] for some in points.values() for p in some}.union(earlier))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(every, [f"{value:g}" for value in every])
    ax.minorticks_off()
    _label_ticks(ax.yaxis)
    ax.set(xlabel=x, ylabel=f"{y}, logarithmic")
    if len(points) > 1:
        _add_legend(ax, [f"no intervals: more than {MOST_INTERVALS} curves"] * lacking)
    return ax


def _bars(times: Mapping[str, tuple[float, tuple[float, float] | None]], axes: Axes, x: str) -> Any:
    """Draw a bar with its interval for each name; `times`: name -> (ms, interval).

    The axis is logarithmic if the longest time is at least LOG_RATIO times the shortest.
    """
    ax = _named_rows(axes, [*times], 0.3)
    flat = [(ms, ends or (ms, ms)) for ms, ends in times.values()]
    off = [(ms - low, high - ms) for ms, (low, high) in flat]
    ax.barh(range(len(flat)), [ms for ms, _ in flat], xerr=[*zip(*off, strict=True)], height=0.6,
            color=BAR, error_kw=WHISKER)  # fmt: skip
    ax.set(xlabel=x)
    shortest, longest = min(ms for ms, _ in flat), max(ms for ms, _ in flat)
    if longest >= LOG_RATIO * shortest > 0.0:
        ends = [low for _, (low, _) in flat if low > 0.0]
        ax.set(xscale="log", xlim=(min(shortest, *ends) / 1.5, None), xlabel=f"{x}, logarithmic")
        _label_ticks(ax.xaxis)
        ax.minorticks_off()
    return ax


def _draw_predictions(answers: Any, axes: Axes) -> Any:
    """Draw curves over the batch sizes; for a single batch size, bars of networks and devices.

    Predictions that do not fit are left out if others fit, and the legend counts them. Host-bound
    predictions are hollow, predictions outside the measured range light.
    """
    if not answers:
        raise InputError(
            "no predictions to draw: none was made, or a filter kept none; expected one or more",
            code="no-picture",
        )
    shown = [p for p in answers if p.fits is not False] or [*answers]
    points: dict[str, list[Any]] = defaultdict(list)
    marked: dict[str, list[Prediction]] = defaultdict(list)
    networks = [*dict.fromkeys(plain(p.query.network) for p in answers)]
    differ = len({p.precision for p in answers}) > 1
    of = {id(p): plain(p.device) + (f", {p.precision}" if differ else "") for p in answers}
    devices = [*dict.fromkeys(of.values())]
    places = dict[str, tuple[int, int]]()
    for p in shown:
        network, device = plain(p.query.network), of[id(p)]
        name = f"{network} on {device}" if len(networks) > 1 else device
        points[name].append((p.batch_size, p.latency_ms, p.interval_ms))
        place = devices.index(device), networks.index(network)
        places[name] = place if len(devices) > 1 else place[::-1]
        marked[name] += [p] if bool(p.host_bound) or p.in_domain is False else []
    handles = None
    if is_curve := any(len(some) > 1 for some in points.values()):
        ax = _curves(points, axes(3.6), "batch size", "ms a batch", places)
        for line in ax.lines:
            for p in marked.get(line.get_label(), ()):
                ax.scatter(p.batch_size, p.latency_ms, s=16, zorder=3, **_inks(p, line.get_color()))
        if len(points) == len(ax.lines) > len(devices) + len(networks):
            handles = [*_keys(devices, True), *_keys(networks, False)]
    else:
        ax = _bars({name: some[0][1:] for name, some in points.items()}, axes, "ms a batch")
        for name, bar in zip(points, ax.patches, strict=True):
            for p in marked[name]:
                bar.set(**_inks(p, BAR))
    ax.set_title(networks[0] if len(networks) == 1 else "")
    shape = "band" if is_curve and len(points) == 1 else "vertical bars" if is_curve else "whiskers"
    with_intervals = not (is_curve and len(points) > MOST_INTERVALS)
    notes = [*_notes(shown, len(answers), shape * with_intervals)]
    if notes or handles:
        _add_legend(ax, notes, handles)
    return ax


def _inks(answer: Prediction, color: str) -> dict[str, Any]:
    """The colors of a mark: hollow if host-bound, light outside the measured range."""
    from matplotlib.colors import to_rgb

    edge = [1.0 - (1.0 - c) * (LIGHT if answer.in_domain is False else 1.0) for c in to_rgb(color)]
    return {"facecolor": "white" if answer.host_bound else edge, "edgecolor": edge}


def _notes(shown: Sequence[Prediction], count: int, shape: str) -> Iterator[str]:
    """Notes of the legend on the marks of predictions; `shape`: the name of an interval's shape, "" if none
    is drawn.
    """
    if without := count - len(shown) if shown[0].fits is not False else count:
        yield f"without room in memory: {without} of {count}"
    coverages = {p.coverage for p in shown}
    if len(coverages) == 1 and shape:
        yield from (f"{shape}: {percent(c)} interval" for c in coverages if c)
    if any(p.host_bound for p in shown):
        yield "hollow: host-bound"
    if any(p.in_domain is False for p in shown):
        yield "light: outside the measured range"


def _keys(names: Sequence[str], are_colors: bool) -> Iterator[Any]:
    """Make a legend's line for each name, by color (`are_colors`) or by style, as `_curves` draws them."""
    from matplotlib.lines import Line2D

    for n, name in enumerate(names):
        style, marker = STYLES[(n // len(LINES) if are_colors else n) % len(STYLES)]
        about: Any = {"marker": "" if are_colors else marker, "markersize": 3, "label": name}
        color = LINES[n % len(LINES)] if are_colors else "#222222"
        yield Line2D([], [], color=color, linestyle="-" if are_colors else style, **about)


def _draw_compared(found: Any, axes: Axes) -> Any:
    """Draw the time per output token: a bar for each device; for several loads, a curve for each device."""
    of_device: dict[str, list[Any]] = defaultdict(list)
    for best in found.loads.values():
        for name, row in best.items():
            of_device[plain(name)].append(row)
    points = {
        name: [_point(row, found.asked.percentile) for row in rows]
        for name, rows in of_device.items()
    }
    row = found.answers[0].chosen
    models = ", ".join(dict.fromkeys(plain(of.model) for of in found.full.values()))
    if found.by_load:
        ax = _over_loads(points, found, axes)
        ax.set_title(f"{models}, the best row of each")
    else:
        bars = {name: some[0][1:] for name, some in points.items()}
        ax = _bars(bars, axes, f"ms per output token{_at(found.asked.percentile)}")
        ax.set_title(f"{models}, {row.requests_words}")
    return ax


def _point(row: Any, percentile: int | None) -> tuple[float, float, Ends]:
    """(load of a row, time per output token in ms, its interval)."""
    return row.load, *row.token_times(percentile).token


def _over_loads(points: Points, answer: Any, axes: Axes) -> Any:
    """Draw curves of the time per output token over the loads."""
    x = "requests a second" if answer.asked.request_rate else "concurrent requests"
    return _curves(points, axes(3.6), x, f"ms per output token{_at(answer.asked.percentile)}")


def _at(percentile: int | None) -> str:
    return "" if percentile is None else f" at P{percentile}"


def _draw_serving(answer: Any, axes: Axes) -> Any:
    """Draw the time per output token over the loads: a curve for each split of a replica, and the limit.

    The time is at the percentile of the question. Rows that do not fit are left out if others fit.
    """
    points: dict[str, list[Any]] = defaultdict(list)
    at, most = answer.asked.percentile, answer.asked.max_tpot_ms
    timed = [row for row in answer.served if row.tpot_ms is not None]
    if not timed:
        raise InputError(f"no picture without a time: {no_room(answer)}", code="no-picture")
    each = " a replica" if any(row.replicas > 1 for row in timed) else ""
    none_fits = not any(row.fits for row in timed)
    lacking = set[str]()  # splits without room for some of the loads
    for row in timed:
        name = f"{plural(row.gpus // row.replicas, 'GPU')}{each}{row.split_words}"
        if row.fits or none_fits:
            points[name].append(_point(row, at))
        else:
            lacking.add(name)
    named = {
        f"{name}, with room for {max(load for load, *_ in some):g}"
        if name in lacking
        else name: some
        for name, some in points.items()
    }
    ax = _over_loads(named, answer, axes)
    limit = f"limit, {milliseconds(most or 0.0)}{_at(at)}"
    if most is not None and limit not in [line.get_label() for line in ax.lines]:
        ax.axhline(most, color="#555555", linestyle="--", linewidth=1, label=limit)
        _add_legend(ax)
    device = f"{plain(answer.gpu)} ({answer.framework})"
    ax.set_title(f"{plain(answer.model)} on {device}, {answer.chosen.dtype}")
    return ax


def _draw_costs(found: Any, axes: Axes) -> Any:
    """Draw US$ over hours, with intervals: a curve for each device and batch size."""
    dots: dict[str, list[Any]] = defaultdict(list)
    for of in answers_of(found):
        name = f"{plain(of.device)}, {training_mode_words(of)}, batch {of.batch_size:,}"
        dots[name] += [o for o in of.timed if o.dollars is not None]
    if not any(dots.values()):
        raise InputError(
            f"no picture without hours and dollars; give {arg('samples')}, and {arg('prices')} or "
            f"{arg('price_per_hour')}",
            code="no-picture",
        )
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
    run = f"{plural(found.epochs, 'epoch')} of {plural(found.samples or 0, SAMPLE[found.data])}"
    title = f"{plain(found.network)}, {run} (numbers: devices)"
    ax.set(
        xlabel="hours, logarithmic",
        ylabel="US$, logarithmic",
        title=title,
        xscale="log",
        yscale="log",
    )
    for axis in (ax.xaxis, ax.yaxis):
        _label_ticks(axis)
    ax.minorticks_off()
    _add_legend(ax)
    return ax


def _label_ticks(axis: Any) -> None:
    """Label 1, 2 and 5 of each power of ten of a logarithmic axis."""
    from matplotlib.ticker import LogLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")


PICTURES: Mapping[str, Callable[[Any, Axes], Any]] = {
    "Prediction": _draw_blocks, "Predictions": _draw_predictions, "ServingAnswer": _draw_serving,
    "ComparedModels": _draw_compared, "Cost": _draw_costs, "Costs": _draw_costs,
}  # fmt: skip
"""Class of an answer -> the function that draws it."""


def of_class(table: Mapping[str, Any], answer: Result) -> Any:
    """The entry of an answer's class or of its nearest parent class; None if there is none."""
    return next((table[c.__name__] for c in type(answer).__mro__ if c.__name__ in table), None)
